"""Tables in pieces: CSV and Parquet files, what is refused, bytes that were read, dates."""

from __future__ import annotations

import builtins
import codecs
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from innerloop.streaming import pieces
from innerloop.streaming.pieces import Clock, open_source
from innerloop.streaming.survey import build_stream


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "data.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(path: Path) -> pd.DataFrame:
    return pd.concat(open_source(path).pieces())


# ------------------------------------------------------------------------------------------ reading


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("bom", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_separators_and_byte_order_mark(tmp_path: Path, separator: str, bom: bytes, newline: str) -> None:
    text = newline.join([separator.join("ayb"), separator.join("123"), separator.join(["4", "", "6.5"])])
    frame = read(write(tmp_path, bom + text.encode()))
    assert list(frame.columns) == ["a", "y", "b"]
    np.testing.assert_array_equal(frame.to_numpy(), [[1, 2, 3], [4, np.nan, 6.5]])


def test_utf16_names_with_separators_and_blanks(tmp_path: Path) -> None:
    frame = read(write(tmp_path, 'größe, "a,b" ,y\n1, 2,3\n\n4,5,6\n'.encode("utf-16")))
    assert list(frame.columns) == ["größe", "a,b", "y"]
    np.testing.assert_array_equal(frame.to_numpy(), [[1, 2, 3], [4, 5, 6]])


def test_decimal_commas_do_not_look_like_separators(tmp_path: Path) -> None:
    frame = read(write(tmp_path, "a;y\n1,5;2,5\n3,5;4,5\n"))
    assert list(frame.columns) == ["a", "y"]
    with pytest.raises(ValueError, match="the target 'y' is not a number in row 1: '2,5'; write decimals with a point"):
        build_stream(frame, "y", lags=[1], burn_in=1)


def test_a_nameless_index_column_is_a_column_like_any_other(tmp_path: Path) -> None:
    assert list(read(write(tmp_path, ",y\n0,2\n1,4\n")).columns) == ["Unnamed: 0", "y"]


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
        read(write(tmp_path, text))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.csv")


def test_a_trailing_separator_makes_no_feature(tmp_path: Path) -> None:
    text = "a,y,\n" + "".join(f"{i % 7},{i % 5},\n" for i in range(60))
    assert build_stream(open_source(write(tmp_path, text)), "y").names == ("a",)


# ------------------------------------------------------------------------------------------ pieces


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_pieces_make_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    lines = [f"{i},{'ü' * (i % 9)}{i / 7},{i * i}" for i in range(1000)]
    path = write(tmp_path, ("a,größe,y\n" + "\n".join(lines)).encode(encoding))
    monkeypatch.setattr(pieces, "PIECE", 128)
    seen: list[int] = []
    source = open_source(path)
    parts = list(source.pieces(seen.append))
    assert [len(part) for part in parts] == [128] * 7 + [104]
    frame = pd.concat(parts)
    assert list(frame.index) == list(range(1000))
    assert list(frame["größe"]) == ["ü" * (i % 9) + str(i / 7) for i in range(1000)]
    np.testing.assert_array_equal(frame["y"], np.arange(1000) ** 2)
    assert seen == sorted(seen)
    assert (seen[-1], source.size, source.unit) == (path.stat().st_size, path.stat().st_size, "bytes")


def test_a_fault_far_down_is_named_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 1000)
    lines = ["a,y", *(f"{i},{i % 7}" for i in range(100_000))]
    data = bytearray("\n".join(lines).encode())
    data[700_000] = 0xFF
    with pytest.raises(ValueError, match=r"is not UTF-8 text \(byte 700001\)"):
        list(open_source(write(tmp_path, bytes(data))).pieces())
    lines[5001] = "1,2,3"
    with pytest.raises(ValueError, match="line 5002, saw 3"):
        list(open_source(write(tmp_path, "\n".join(lines))).pieces())
    lines[5001] = "1,high"
    with pytest.raises(ValueError, match="the target 'y' is not a number in row 5001: 'high'"):
        build_stream(open_source(write(tmp_path, "\n".join(lines))), "y")


def test_an_interruption_of_the_parser_is_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "a,y\n" + "1,2\n" * 400_000)
    source = open_source(path)
    calls = iter(range(100))
    real = pieces._Text._read

    def interrupted(self: Any, size: int | None) -> str:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return real(self, size)

    monkeypatch.setattr(pieces._Text, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(source.pieces())


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is not a regular file"):
        open_source(tmp_path / "pipe")


# ------------------------------------------------------------------------------------------ Parquet


def table(num: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=num), "x": rng.normal(size=num)})
    frame["n"] = np.arange(num) % 11
    frame["word"] = [f"w{i}" for i in range(num)]
    frame["y"] = frame["x"] * 2 + rng.normal(size=num)
    frame.loc[[40, 41, 200], "y"] = np.nan
    return frame


def test_parquet_is_read_as_csv_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    frame = table()
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=70)
    frame.to_csv(tmp_path / "t.csv", index=False, float_format="%.17g")
    monkeypatch.setattr(pieces, "PIECE", 64)
    seen: list[int] = []
    source = open_source(tmp_path / "t.parquet")
    parts = list(source.pieces(seen.append))
    assert max(map(len, parts)) <= 64
    assert seen[-1] == source.size == (tmp_path / "t.parquet").stat().st_size
    assert list(pd.concat(parts).index) == list(range(300))
    streams = [
        build_stream(open_source(tmp_path / name), "y", lags=[1], time="day", burn_in=20)
        for name in ("t.parquet", "t.csv")
    ]
    assert streams[0].names == streams[1].names == ("x", "n", "y[t-1]")
    assert streams[0].skipped == streams[1].skipped == ("word",)
    assert (streams[0].rows, streams[0].dropped) == (streams[1].rows, streams[1].dropped)
    for one, other in zip(streams[0].read(), streams[1].read(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14)


def test_bad_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    table().to_parquet(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="is no readable Parquet file"):
        open_source(path)
    path.write_bytes(data[:100] + bytes(200) + data[300:])
    with pytest.raises(ValueError, match="is no readable Parquet file"):
        list(open_source(path).pieces())
    table().iloc[:0].to_parquet(path)
    with pytest.raises(ValueError, match="has no rows"):
        open_source(path)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *args)

    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1" + bytes(100))
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ValueError, match=r"pip install 'innerloop\[parquet\]'"):
        open_source(path)


# ------------------------------------------------------------------------------------------ times


def test_mixed_date_formats_and_time_zones() -> None:
    times = Clock().read(pd.Series(["2020-01-01T00:00:00+02:00", None, "2020-01-02"]))
    assert times[0] == pd.Timestamp("2019-12-31T22:00").timestamp()
    assert np.isnan(times[1])
    assert times[2] == pd.Timestamp("2020-01-02").timestamp()


def test_the_first_piece_decides_the_format() -> None:
    clock = Clock()
    clock.read(pd.Series(["01/02/2024", "13/02/2024"]))
    times = clock.read(pd.Series(["01/03/2024"]))  # the first of March, not the third of January
    assert times[0] == pd.Timestamp("2024-03-01").timestamp()


def test_times_may_stand_still_but_not_go_back() -> None:
    clock = Clock()
    np.testing.assert_array_equal(clock.read(pd.Series([1.0, 1.0, np.nan, 2.0], name="t")), [1, 1, np.nan, 2])
    with pytest.raises(ValueError, match=r"the time 't' goes backwards in row 6: 1\.5"):
        clock.read(pd.Series([2.0, 1.5], index=[4, 5], name="t"))
    with pytest.raises(ValueError, match="the time 't' is not a number in row 8: 'soon'"):
        clock.read(pd.Series([3.0, "soon"], index=[6, 7], name="t"))
