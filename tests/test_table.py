"""The data side of the compare protocol: refusing, lags, horizons, times, dropped rows, scale."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from innerloop.streaming import pieces
from innerloop.streaming.pieces import FrameSource
from innerloop.streaming.survey import build_stream, default_source
from innerloop.streaming.table import Pairs, Reader, Scheme


def rows(num: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"a": rng.normal(size=num), "b": rng.normal(2.0, 3.0, size=num), "y": rng.normal(size=num)})


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
        (rows(), {"features": ["a"], "time": "a"}, "the time column 'a' cannot be the target or a feature"),
        (rows(), {"time": "y"}, "the time column 'y' cannot be the target or a feature"),
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
        (rows().assign(t=[*range(30), 28, *range(31, 60)]), {"time": "t"}, "'t' goes backwards in row 31: 28"),
        (rows().assign(t=7), {"time": "t"}, "the time 't' does not advance in the burn-in"),
        (rows(), {"horizon": 0}, "a horizon of 0 rows"),
        (rows(), {"target": ["y", "y"]}, "target 'y' is named twice"),
        (rows(), {"target": ["y", "z"]}, "no column 'z'; the columns are a, b, y"),
        (rows(), {"target": ["y", "b"], "features": ["b"]}, "the target 'b' cannot be a feature"),
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
    X, targets = stream.read()
    np.testing.assert_array_equal(targets, frame["y"].to_numpy()[kept])
    assert stream.names == ("b", "a", "y[t-3]", "y[t-1]")

    y = frame["y"].to_numpy()
    raw = np.stack(
        [[frame["b"][row], frame["a"][row], y[row - 3], y[row - 1]] for row in kept],
    )
    expected = (raw - raw[:20].mean(0)) / raw[:20].std(0)
    np.testing.assert_allclose(X, expected, rtol=1e-12, atol=1e-12)


def test_several_targets_have_lags_each_and_a_row_needs_all_of_them() -> None:
    frame = rows(70)
    frame.loc[33, "b"] = np.nan
    stream = build_stream(frame, ["y", "b"], features=["a"], lags=[2], burn_in=10)
    assert stream.names == ("a", "y[t-2]", "b[t-2]")
    kept = [row for row in range(2, 70) if row not in (33, 35)]
    X, Y = stream.read()
    np.testing.assert_array_equal(Y, frame[["y", "b"]].to_numpy()[kept])
    raw = np.array([[frame["a"][t], frame["y"][t - 2], frame["b"][t - 2]] for t in kept])
    np.testing.assert_allclose(X, (raw - raw[:10].mean(0)) / raw[:10].std(0), rtol=1e-12)


def test_default_features_are_the_other_numeric_columns() -> None:
    frame = rows().assign(word="w", flag=True, day=range(60), date="2020-01-01")
    stream = build_stream(frame, "y", time="day")
    assert stream.names == ("a", "b")
    assert stream.skipped == ("word", "flag", "date")


def test_a_column_that_turns_to_words_far_below_is_no_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 16)
    frame = rows().assign(late=[*map(str, range(50)), *["w"] * 10])

    class ByPiece(FrameSource):  # numbers where a piece holds nothing else, as in a file
        def pieces(self, tell=None):
            for piece in super().pieces(tell):
                numbers = pd.to_numeric(piece["late"], errors="coerce")
                yield piece.assign(late=numbers) if numbers.notna().all() else piece

    stream = build_stream(ByPiece(frame), "y")
    assert (stream.names, stream.skipped) == (("a", "b"), ("late",))
    with pytest.raises(ValueError, match="the feature 'late' is not a number in row 51: 'w'"):
        build_stream(ByPiece(frame), "y", features=["late"])


def test_a_zero_deviation_counts_as_one() -> None:
    values = np.full(60, 0.1)  # its rounded standard deviation is not exactly zero
    values[55:] = 0.6
    X, _ = build_stream(rows().assign(a=values), "y", features=["a"]).read()
    np.testing.assert_allclose(X[:50], 0.0, atol=1e-15)
    np.testing.assert_allclose(X[55:], 0.5)


@pytest.mark.parametrize("size", [1, 7, 25, 1000])
@pytest.mark.parametrize("horizon", [1, 3])
def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch, size: int, horizon: int) -> None:
    frame = rows(90).assign(t=np.cumsum(np.random.default_rng(1).integers(0, 5, size=90)))
    frame.loc[[20, 21, 50], "y"] = np.nan
    frame.loc[60, "t"] = np.nan
    whole = build_stream(frame, "y", lags=[1, 4], burn_in=12, time="t", horizon=horizon)
    ((_, one),) = whole.pieces()
    monkeypatch.setattr(pieces, "PIECE", size)
    cut = build_stream(frame, "y", lags=[1, 4], burn_in=12, time="t", horizon=horizon)
    assert (cut.scheme, cut.rows, cut.dropped, cut.power) == (whole.scheme, whole.rows, whole.dropped, whole.power)
    many = [events for _, events in cut.pieces()]
    for name in ("X", "keys", "y", "weight", "elapsed", "learned"):
        np.testing.assert_array_equal(np.concatenate([getattr(e, name) for e in many]), getattr(one, name))


# ------------------------------------------------------------------------------------------ horizons


@pytest.mark.parametrize("horizon", [1, 2, 5])
def test_a_forecast_knows_the_labels_of_its_time_only(horizon: int) -> None:
    """Against a simulation that goes through time and keeps a list of what is known."""
    frame = rows(40)
    frame.loc[[12, 13, 25], "y"] = np.nan
    frame.loc[[5, 30], "a"] = np.nan
    stream = build_stream(frame, "y", features=["a"], lags=[1, 3], horizon=horizon, burn_in=5)
    ((_, events),) = stream.pieces()

    a, y = frame["a"].to_numpy(), frame["y"].to_numpy()
    scale, shift = np.array(stream.scheme.deviation), np.array(stream.scheme.mean)

    def features(t: int) -> np.ndarray:
        past = [y[t - lag] if t >= lag else np.nan for lag in (1, 3)]
        return (np.array([a[t], *past]) - shift) / scale

    lessons_before, forecasts, learned = {}, {}, 0
    for t in range(40):
        if np.isfinite(features(t)).all():  # at t the targets before t are known, and pairs made of them are learned
            lessons_before[t], forecasts[t] = learned, features(t)
        made_at = t - horizon + 1  # now the target of t becomes known: it belongs to the features of made_at
        learned += bool(made_at >= 0 and np.isfinite(features(made_at)).all() and np.isfinite(y[t]))
    assert stream.rows == learned

    count = 0
    for X, key, target, weight, asked in zip(
        events.X, events.keys, events.y[:, 0], events.weight, events.asked, strict=True
    ):
        if asked >= 0:
            np.testing.assert_allclose(X, forecasts.pop(int(asked)))
            assert lessons_before[int(asked)] == count
        if weight:
            t = int(np.flatnonzero(y == target)[0])
            np.testing.assert_allclose(key, features(t - horizon + 1))
            assert events.learned[t]
            count += 1
    assert count == learned
    # what was not asked has no target that is known: at horizon 1 that is seen at once
    assert all(horizon == 1 and np.isnan(y[t]) for t in forecasts)


# ------------------------------------------------------------------------------------------ times


def test_elapsed_time_is_relative_to_the_median_of_the_burn_in() -> None:
    times = np.cumsum([0, 2, 2, 2, 6, 2, 0, 5, 1, 30, *[2] * 30])
    frame = rows(40).assign(t=times)
    frame.loc[[4, 8], "y"] = np.nan  # their time counts for the row after them
    frame.loc[9, "t"] = np.nan  # a row without a time is no pair
    stream = build_stream(frame, "y", features=["a"], burn_in=6, time="t")
    kept = [0, 1, 2, 3, 5, 6, 7, *range(10, 40)]
    gaps = np.diff(times[kept].astype(float))
    median = np.median(gaps[:6])
    assert median == 2.0
    assert (stream.rows, stream.dropped, stream.scheme.gap) == (len(kept), 3, median)
    ((_, events),) = stream.pieces()
    np.testing.assert_allclose(events.elapsed, [1.0, *gaps / median])


def test_dates_are_seconds() -> None:
    days = pd.Timestamp("2023-01-01") + pd.to_timedelta([0, 1, 2, 5, *range(6, 62)], unit="D")
    stream = build_stream(rows().assign(t=days.strftime("%d/%m/%Y")), "y", time="t")  # the 13th tells day from month
    ((table, events),) = stream.pieces()
    assert stream.dates
    assert stream.scheme.gap == 86400.0
    np.testing.assert_array_equal(events.elapsed[:5], [1, 1, 1, 3, 1])
    assert table.time[0] == pd.Timestamp("2023-01-01").timestamp()


def test_most_rows_may_share_their_time() -> None:
    stream = build_stream(rows().assign(t=np.arange(60) // 4), "y", time="t")
    ((_, events),) = stream.pieces()
    assert stream.scheme.gap == pytest.approx(12 / 50)  # the median is 0: the mean of the first 50 gaps
    np.testing.assert_allclose(events.elapsed[1:6], [0, 0, 0, 1 / 0.24, 0])


# ------------------------------------------------------------------------------------------ parts


def test_a_reader_and_pairs_go_on_where_they_stopped() -> None:
    scheme = replace(Scheme(("y",), ("a",), (2,), 3, None), mean=(0.0, 0.0), deviation=(1.0, 1.0))
    frame = rows(20)
    reader, pairs = Reader(scheme), Pairs.of(scheme)
    F, Y, time = reader.read(frame)
    whole = pairs.events(F, Y, time, every=True)
    reader, pairs = Reader(scheme), Pairs.of(scheme)
    first = pairs.events(*reader.read(frame[:7]), every=True)
    reader = Reader(scheme, past=reader.past)
    pairs = Pairs(3, 1.0, pairs.waiting, pairs.last)
    second = pairs.events(*reader.read(frame[7:]), every=True)
    for name in ("X", "keys", "y", "weight"):
        both = np.concatenate([getattr(first, name), getattr(second, name)])
        np.testing.assert_array_equal(both, getattr(whole, name))


def test_a_lag_does_not_hide_a_column_of_its_name() -> None:
    frame = rows().rename(columns={"a": "y[t-1]"})
    assert build_stream(frame, "y", lags=[1]).names == ("y[t-1]", "b", "y[t-1]'")


def test_the_embedded_stream() -> None:
    from statsmodels.datasets import co2

    series = co2.load_pandas().data["co2"]
    complete = pd.concat([series, *(series.shift(lag) for lag in (1, 2, 52))], axis=1).dropna()
    stream = build_stream(default_source(), "co2", lags=(1, 2, 52), time="date")
    assert stream.rows == len(complete)
    assert stream.dropped == len(series) - len(complete)
    _, y = stream.read()
    np.testing.assert_array_equal(y, complete.iloc[:, 0])
    times = np.concatenate([table.time[events.learned] for table, events in stream.pieces()])
    np.testing.assert_array_equal(times, complete.index.to_numpy().astype("datetime64[s]").astype(float))
