"""The data side of the compare protocol: reading, refusing, lags, dropped rows, scale."""

from __future__ import annotations

import codecs
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from innerloop.streaming.table import build_stream, default_stream, read_table


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "data.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def rows(num: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"a": rng.normal(size=num), "b": rng.normal(2.0, 3.0, size=num), "y": rng.normal(size=num)})


# ------------------------------------------------------------------------------------------ reading


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("bom", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_separators_and_byte_order_mark(tmp_path: Path, separator: str, bom: bytes, newline: str) -> None:
    text = newline.join([separator.join("ayb"), separator.join("123"), separator.join(["4", "", "6.5"])])
    frame = read_table(write(tmp_path, bom + text.encode()))
    assert list(frame.columns) == ["a", "y", "b"]
    np.testing.assert_array_equal(frame.to_numpy(), [[1, 2, 3], [4, np.nan, 6.5]])


def test_utf16_names_with_separators_and_blanks(tmp_path: Path) -> None:
    frame = read_table(write(tmp_path, 'größe, "a,b" ,y\n1, 2,3\n\n4,5,6\n'.encode("utf-16")))
    assert list(frame.columns) == ["größe", "a,b", "y"]
    np.testing.assert_array_equal(frame.to_numpy(), [[1, 2, 3], [4, 5, 6]])


def test_decimal_commas_do_not_look_like_separators(tmp_path: Path) -> None:
    frame = read_table(write(tmp_path, "a;y\n1,5;2,5\n3,5;4,5\n"))
    assert list(frame.columns) == ["a", "y"]
    with pytest.raises(ValueError, match="the target 'y' is not a number in row 1: '2,5'; write decimals with a point"):
        build_stream(frame, "y", lags=[1], burn_in=1)


def test_a_trailing_separator_is_no_column(tmp_path: Path) -> None:
    assert list(read_table(write(tmp_path, "a,y,\n1,2,\n3,4,\n")).columns) == ["a", "y"]


def test_a_nameless_index_column_is_a_column_like_any_other(tmp_path: Path) -> None:
    assert list(read_table(write(tmp_path, ",y\n0,2\n1,4\n")).columns) == ["Unnamed: 0", "y"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "data.csv is empty"),
        ("\n  \n", "data.csv is empty"),
        ("a,b,y\n", "data.csv has a header but no rows"),
        ("a,y,a\n1,2,3\n", "has column 'a' more than once; its columns are a, y, a"),
        ("a,y\n1,2\n1,2,3\n", "is not a table with 2 columns separated by a comma: .*line 3, saw 3"),
        ("a,y\n1,2,3\n1,2,3\n", "is not a table with 2 columns"),
        ("a,y\n1;2\n3;4\n", "header is separated by a comma but the first row by a semicolon"),
        (b"a,y\n\xff\xfe\xff,2\n", "is not UTF-8 text"),
        (b"PK\0\0\0\n", "is a binary file"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_table(write(tmp_path, text))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_table(tmp_path / "none.csv")


# ------------------------------------------------------------------------------------------ refusing


def changed(column: str, row: int, value: object) -> pd.DataFrame:
    frame = rows().astype({column: object})
    frame.loc[row, column] = value
    return frame


@pytest.mark.parametrize(
    ("frame", "request_", "message"),
    [
        (rows(), {"target": None}, "no target: name the column .* the columns are a, b, y"),
        (rows(), {"target": "z"}, "no column 'z'; the columns are a, b, y"),
        (rows(), {"features": ["a", "q", "r"]}, "no columns 'q', 'r'; the columns are a, b, y"),
        (rows(), {"time": "when"}, "no column 'when'; the columns are a, b, y"),
        (rows(), {"features": ["a", "y"]}, "the target 'y' cannot be a feature"),
        (rows(), {"features": ["a", "a"]}, "feature 'a' is named twice"),
        (rows(), {"features": ["a"], "time": "a"}, "the time column 'a' is the axis only"),
        (rows(), {"time": "y"}, "the time column 'y' is the axis only"),
        (rows(), {"lags": [1, 0]}, "lag 0 would be the target itself"),
        (rows(), {"lags": [-2]}, "lag -2 would look into the future"),
        (rows(), {"lags": [1, 1]}, "lag 1 is named twice"),
        (rows(), {"burn_in": 0}, "a burn-in of 0 rows"),
        (rows(), {"features": [], "lags": []}, "nothing to forecast from"),
        (changed("y", 6, "high"), {}, "the target 'y' is not a number in row 7: 'high'"),
        (changed("a", 2, "x"), {"features": ["a"]}, "the feature 'a' is not a number in row 3: 'x'"),
        (changed("y", 4, np.inf), {}, "the target 'y' is infinite in row 5: inf"),
        (rows().assign(a=-np.inf), {}, "the feature 'a' is infinite in row 1: -inf"),
        (rows().assign(y=True), {}, "the target 'y' is not a number in row 1: 'True'"),
        (rows().assign(y=pd.Timestamp("2020-01-01")), {}, "the target 'y' is not a number in row 1: '2020-01-01"),
        (rows().assign(y=3.5), {}, r"the target 'y' is constant \(3.5 in every row\)"),
        (rows().assign(y=np.nan), {}, "column 'y' has no values"),
        (rows(50), {}, "too few rows: 50 complete, and a burn-in of 50 needs at least 51"),
        (rows(55), {"lags": [5]}, r"too few rows: 50 complete \(5 of 55 miss the target, a feature or a lag\)"),
        (rows(), {"lags": [1000]}, "too few rows: 0 complete"),
        (rows().assign(a=np.tile([-1e308, 1e308], 30)), {}, "values of 'a' are too large to be standardised"),
        (rows().assign(t="soon"), {"time": "t"}, "the time 't' is not a date in row 1: 'soon'"),
        (rows()[["y"]].rename(columns={"y": "a|y"}), {}, "one column, 'a|y'; separate columns with commas"),
        (pd.DataFrame({"1.5": [1.0], "2": [2.0]}), {}, "the columns are 1.5, 2; the first line must name the columns"),
    ],
)
def test_bad_requests(frame: pd.DataFrame, request_: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build_stream(frame, **{"target": "y", **request_})
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------ building


def test_lags_count_rows_of_the_file_and_incomplete_rows_are_dropped() -> None:
    frame = rows(80)
    frame.loc[[10, 30], "y"] = np.nan
    frame.loc[40, "b"] = np.nan
    stream = build_stream(frame, "y", features=["b", "a"], lags=[3, 1], burn_in=20)
    lost = {0, 1, 2} | {10, 11, 13} | {30, 31, 33} | {40}
    kept = [row for row in range(80) if row not in lost]
    assert (stream.rows, stream.dropped) == (len(kept), len(lost))
    np.testing.assert_array_equal(stream.y, frame["y"].to_numpy()[kept])
    assert stream.names == ("b", "a", "y[t-3]", "y[t-1]")

    y = frame["y"].to_numpy()
    raw = np.stack(
        [[frame["b"][row], frame["a"][row], y[row - 3], y[row - 1]] for row in kept],
    )
    expected = (raw - raw[:20].mean(0)) / raw[:20].std(0)
    np.testing.assert_allclose(stream.X, expected, rtol=1e-12, atol=1e-12)


def test_default_features_are_the_other_numeric_columns() -> None:
    frame = rows().assign(word="w", flag=True, day=range(60), date="2020-01-01")
    stream = build_stream(frame, "y", time="day")
    assert stream.names == ("a", "b")
    assert stream.skipped == ("word", "flag", "date")


def test_a_zero_deviation_counts_as_one() -> None:
    values = np.full(60, 0.1)  # its rounded standard deviation is not exactly zero
    values[55:] = 0.6
    stream = build_stream(rows().assign(a=values), "y", features=["a"])
    np.testing.assert_allclose(stream.X[:50], 0.0, atol=1e-15)
    np.testing.assert_allclose(stream.X[55:], 0.5)


def test_time_is_the_axis_of_the_kept_rows_only() -> None:
    frame = rows().assign(t=[f"2020-01-{1 + day % 28:02d}" for day in range(60)])
    frame.loc[3, "t"] = np.nan  # a missing time does not drop the row
    stream = build_stream(frame, "y", lags=[2], time="t")
    assert (stream.rows, stream.dropped) == (58, 2)
    assert stream.time is not None
    assert np.isnat(stream.time[1])
    assert stream.time[0] == np.datetime64("2020-01-03")
    numbers = build_stream(rows().assign(t=range(60)), "y", time="t").time
    np.testing.assert_array_equal(numbers, np.arange(60.0))


def test_mixed_date_formats_and_time_zones() -> None:
    frame = rows().assign(t="2020-01-01T00:00:00+02:00")
    frame.loc[1, "t"] = "2020-01-02"
    time = build_stream(frame, "y", time="t").time
    assert time is not None
    assert time[0] == np.datetime64("2019-12-31T22:00")
    assert time[1] == np.datetime64("2020-01-02")


def test_a_lag_does_not_hide_a_column_of_its_name() -> None:
    frame = rows().rename(columns={"a": "y[t-1]"})
    assert build_stream(frame, "y", lags=[1]).names == ("y[t-1]", "b", "y[t-1]'")


def test_the_embedded_stream() -> None:
    from statsmodels.datasets import co2

    series = co2.load_pandas().data["co2"]
    complete = pd.concat([series, *(series.shift(lag) for lag in (1, 2, 52))], axis=1).dropna()
    stream = default_stream()
    assert stream.rows == len(complete)
    assert stream.dropped == len(series) - len(complete)
    np.testing.assert_array_equal(stream.y, complete.iloc[:, 0])
    np.testing.assert_array_equal(stream.time, complete.index.to_numpy())
