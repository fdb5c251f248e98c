"""Comparisons in pieces: the same numbers however a table is cut, interrupted and continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from innerloop.streaming import lanes, pieces
from innerloop.streaming.checkpoint import pack, unpack
from innerloop.streaming.comparison import Comparison, compare
from innerloop.streaming.pieces import open_source
from innerloop.streaming.survey import build_stream
from innerloop.streaming.table import Events, Stream

BURN_IN = 20


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two features, a drifting weight, holes in the target and in a feature."""
    rng = np.random.default_rng(7)
    num = 160
    a, b = rng.normal(size=num), rng.normal(3.0, 2.0, size=num)
    y = np.linspace(1.0, -1.0, num) * a + 0.3 * b + 2.0 + 0.1 * rng.normal(size=num)
    frame = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=num), "a": a, "y": y, "b": b})
    frame.loc[[30, 31, 90], "y"] = np.nan
    frame.loc[60, "b"] = np.nan
    path = tmp_path_factory.mktemp("data") / "drift.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 32)


def without_times(result: Comparison) -> dict[str, Any]:
    found = result.to_dict(all_settings=True)
    for line in found["memories"]:
        del line["us_per_row"]
    return found


def assert_same(one: Any, other: Any, rtol: float) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key], rtol)
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b, rtol)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=rtol)
    else:
        assert one == other


def varied(data: Path, horizon: int = 1) -> Stream:
    return build_stream(open_source(data), ["y", "b"], lags=[1, 3], burn_in=BURN_IN, time="day", horizon=horizon)


@pytest.mark.parametrize("horizon", [1, 3])
def test_pieces_change_no_number(data: Path, monkeypatch: pytest.MonkeyPatch, horizon: int) -> None:
    whole = compare(varied(data, horizon), automatic=True)
    monkeypatch.setattr(pieces, "PIECE", 32)
    assert_same(without_times(compare(varied(data, horizon), automatic=True)), without_times(whole), 1e-7)


def interrupt_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The `count`-th call of a memory from now on is interrupted; later ones work."""
    real, calls = lanes.Settings.advance, 0

    def advance(self: lanes.Settings, events: Events) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            raise KeyboardInterrupt
        return real(self, events)

    monkeypatch.setattr(lanes.Settings, "advance", advance)


@pytest.mark.parametrize("horizon", [1, 3])
@pytest.mark.parametrize("call", [1, 2, 6, 9, 13])
def test_a_run_goes_on_where_it_was_interrupted(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_pieces: None, call: int, horizon: int
) -> None:
    names = ["rls", "nadaraya_watson", "kalman"]
    whole = compare(varied(data, horizon), names, automatic=True)
    mark = tmp_path / "mark"
    interrupt_after(monkeypatch, call)
    try:
        first = compare(varied(data, horizon), names, automatic=True, checkpoint=mark)
    except KeyboardInterrupt:
        assert call < 4  # nothing was scored yet
    else:
        assert not first.complete
        assert first.scores.seen < first.stream.rows
        assert f"Interrupted after row {first.scores.seen:,} of {first.stream.rows:,}." in first.notes()
    assert mark.exists() == (call > 3)
    again = compare(varied(data, horizon), names, automatic=True, checkpoint=mark)
    assert not mark.exists()
    assert without_times(again) == without_times(whole)
    for name, array in whole.scores.arrays().items():
        np.testing.assert_array_equal(again.scores.arrays()[name], array, err_msg=name)


def test_an_interruption_scores_what_was_finished(
    data: Path, monkeypatch: pytest.MonkeyPatch, small_pieces: None
) -> None:
    stream = build_stream(open_source(data), "y", features=["a", "b"], burn_in=BURN_IN)
    interrupt_after(monkeypatch, 6)  # in the third piece, whose first memory was done
    result = compare(stream, ["rls", "kalman"])
    frame = pd.read_csv(data)[:64].dropna()
    assert result.scores.seen == len(frame)
    assert result.to_dict()["data"]["scored"] == len(frame) - BURN_IN
    y = frame["y"].to_numpy()
    errors = np.diff(y)[BURN_IN - 1 :]
    expected = [np.abs(errors).mean(), np.sqrt((errors**2).mean())]
    np.testing.assert_allclose([result.last_value.mae, result.last_value.rmse], expected)


def test_a_checkpoint_of_another_run_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_pieces: None
) -> None:
    mark = tmp_path / "mark"
    interrupt_after(monkeypatch, 4)
    compare(varied(data), ["rls"], checkpoint=mark)
    before = mark.read_bytes()
    with pytest.raises(ValueError, match="belongs to a run with another memories; name another file, or remove it"):
        compare(varied(data), ["rls", "kalman"], checkpoint=mark)
    with pytest.raises(ValueError, match="belongs to a run with another options"):
        compare(varied(data, 2), ["rls"], checkpoint=mark)
    changed = pd.read_csv(data)
    changed.loc[100, "a"] += 1e-9
    changed.to_csv(tmp_path / "changed.csv", index=False)
    with pytest.raises(ValueError, match="belongs to a run with another data"):
        compare(varied(tmp_path / "changed.csv"), ["rls"], checkpoint=mark)
    assert mark.read_bytes() == before
    mark.write_bytes(before[:-10])
    with pytest.raises(ValueError, match="is no innerloop checkpoint"):
        compare(varied(data), ["rls"], checkpoint=mark)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    import tracemalloc

    monkeypatch.setattr(pieces, "PIECE", 2000)

    class Endless:
        name, unit = "made as it is read", "rows"

        def __init__(self, size: int) -> None:
            self.size = size

        def pieces(self, tell: Any = None) -> Any:
            for first in range(0, self.size, 2000):
                a = np.random.default_rng(first).normal(size=(2000, 3))
                index = pd.RangeIndex(first, first + 2000)
                yield pd.DataFrame({"a": a[:, 0], "b": a[:, 1], "y": a.sum(1)}, index=index)

    peaks = []
    for size in (6_000, 6_000, 60_000):  # the first run loads code
        tracemalloc.start()
        result = compare(build_stream(Endless(size), "y", lags=[1]), ["rls", "longhorn"])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert result.scores.seen == size - 1
    assert peaks[2] < 1.3 * peaks[1]


def test_a_bundle_comes_back_as_it_was(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3).T, "none": np.empty((0, 2)), "yes": np.array([True])}
    parts = {"x": [bytes([i]) * i for i in range(12)], "y/z": [b""]}
    path = tmp_path / "file"
    path.write_bytes(pack("thing 1", arrays, parts, {"n": [1, "ü"]}))
    bundle = unpack("thing 1", path)
    assert (bundle.parts, bundle.meta) == (parts, {"n": [1, "ü"]})
    for name, array in arrays.items():
        np.testing.assert_array_equal(bundle.arrays[name], array)
    with pytest.raises(ValueError, match="is no other thing: it is a thing 1"):
        unpack("other thing 1", path)
    path.write_bytes(b"{}")
    with pytest.raises(ValueError, match="is no thing"):
        unpack("thing 1", path)
