"""Running scores, thinned curves, and the page that shows them."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from innerloop.streaming.checkpoint import write_atomic
from innerloop.streaming.comparison import Comparison, compare
from innerloop.streaming.report import write_report
from innerloop.streaming.scores import Curve, Scores
from innerloop.streaming.survey import build_stream
from innerloop.streaming.traces import POINTS, trace, traced_lines


def drifting(num: int = 140) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    frame = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=num), "a": rng.normal(size=num)})
    frame["b"] = rng.normal(3.0, 2.0, size=num)
    frame["y"] = np.linspace(1.0, -1.0, num) * frame["a"] + 0.3 * frame["b"] + 2.0 + 0.1 * rng.normal(size=num)
    frame["z"] = 40 * frame["b"] + rng.normal(size=num)
    return frame


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    stream = build_stream(drifting(), "y", features=["a", "b"], burn_in=20, time="day")
    return compare(stream, automatic=True)


# ------------------------------------------------------------------------------------------ scores


@pytest.mark.parametrize("total", [1, 50, 4000, 4001, 9999])
@pytest.mark.parametrize("size", [1, 33, 20_000])
def test_a_thin_curve_has_the_extremes_of_each_bin(total: int, size: int) -> None:
    if total // size > 500:
        size = total // 500
    values = np.random.default_rng(0).normal(size=(2, total))
    curve = Curve((2,), total)
    for first in range(0, total, size):
        curve.add(first, values[:, first : first + size])
    bins = total if total <= 4000 else 2000
    at = np.arange(total) * bins // total
    for row in range(2):
        frame = pd.Series(values[row]).groupby(at)
        expected = np.stack([frame.min(), frame.max()], -1).ravel() if bins < total else values[row]
        np.testing.assert_array_equal(curve.points(row), expected)


@pytest.mark.parametrize("size", [1, 40, 700])
def test_running_scores(size: int) -> None:
    rng = np.random.default_rng(3)
    Y, P = rng.normal(size=(700, 2)), rng.normal(size=(3, 700, 2))
    P[2, 650, 0] = np.inf
    scores = Scores(3, 2, 700, 30)
    for first in range(0, 700, size):
        here = slice(first, first + size)
        scores.add(np.arange(700.0)[here], Y[here], P[:, here])
    errors = (P - Y)[:2, 30:]
    np.testing.assert_allclose(scores.mae()[:2], np.abs(errors).mean(1))
    np.testing.assert_allclose(scores.rmse()[:2], np.sqrt((errors**2).mean(1)))
    assert np.isnan(scores.rmse()[2]).all()
    assert scores.window == 67
    squares = errors[1, :, 0] ** 2
    expected = [np.sqrt(squares[max(0, t - 66) : t + 1].mean()) if t >= 16 else np.nan for t in range(670)]
    np.testing.assert_allclose(scores.rolling.points(1, 0), expected)
    np.testing.assert_allclose(scores.cumulative.points(0, 1), np.cumsum(np.abs(errors[0, :, 1])))
    np.testing.assert_array_equal(scores.zoom_truth, Y[-150:].T)
    np.testing.assert_array_equal(scores.x.points(), np.arange(30.0, 700.0))


# ------------------------------------------------------------------------------------------ traces


def test_traces_are_the_coefficients_on_the_way() -> None:
    from sklearn.linear_model import Ridge

    stream = build_stream(drifting(), "y", features=["a", "b"], burn_in=20)
    result = compare(stream, ["rls"])
    line = next(line for line in result.lines if line.options["forgetting"] == 1.0)
    found = trace(result, line)
    X, y = stream.read()
    assert found.x[0] == 20
    assert found.x[-1] == 140
    assert len(found.x) == POINTS
    for row in (0, 40, POINTS - 1):
        seen = int(found.x[row])
        ridge = Ridge(alpha=1.0).fit(X[:seen], y[:seen])
        np.testing.assert_allclose(found.coefficients[row, 0], ridge.coef_, rtol=1e-7)
    assert found.weights is None


def test_the_traced_lines(comparison: Comparison) -> None:
    linear, *mixed = traced_lines(comparison)
    assert linear is next(line for line in comparison.memories() if line.name != "nadaraya_watson")
    assert all(line.options["forgetting"] == "auto" for line in mixed)
    line = next(line for line in comparison.lines if line.options == {"forgetting": "auto"})
    found = trace(comparison, line)
    assert found.weights is not None
    np.testing.assert_allclose(found.weights.sum(1), 1.0)
    assert found.weights.shape[1] == len(found.settings) == 16


# ------------------------------------------------------------------------------------------ the page


def test_report_is_complete_and_fetches_nothing(tmp_path: Path, comparison: Comparison) -> None:
    traces = [trace(comparison, line) for line in traced_lines(comparison)]
    mixed = next(line for line in comparison.lines if line.options == {"forgetting": "auto"})
    traces.append(trace(comparison, mixed))
    page = write_report(tmp_path / "deep" / "report", comparison, traces)
    names = sorted(path.name for path in page.parent.iterdir())
    assert names == [
        "comparison.json",
        "cumulative.png",
        "drift.png",
        "error.png",
        "index.html",
        "predictions.png",
        "weights.png",
    ]
    text = page.read_text(encoding="utf-8")
    sources = re.findall(r'(?:src|srcset|href)="([^"]{0,30})', text)
    assert Counter(source.startswith("data:image/png;base64,") for source in sources) == {True: 10}
    assert not re.search(r"https?:|//|@import|url\(", re.sub(r"base64,[^\"]*", "", text))
    assert html.escape(comparison.sentence()) in text
    assert all(line.name in text for line in (*comparison.baselines, *comparison.memories()))
    assert "prefers-color-scheme: dark" in text
    assert json.loads((page.parent / "comparison.json").read_text()) == comparison.to_dict()
    for picture in page.parent.glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_report_escapes_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    name = "<b>$x_1$ & [red]"
    frame = pd.DataFrame({name: rng.normal(size=30), "t": [*range(15), *range(14, 29)]})
    stream = build_stream(frame, name, lags=[1], burn_in=28, time="t")  # one scored row
    text = write_report(tmp_path, compare(stream, ["rls", "kalman"]), all_settings=True).read_text(encoding="utf-8")
    assert "<b>" not in text
    assert "&lt;b&gt;$x_1$ &amp; [red]" in text


@pytest.mark.parametrize("wild", [np.nan, np.inf, 1e120])
def test_report_survives_forecasters_gone_wild(tmp_path: Path, comparison: Comparison, wild: float) -> None:
    stream = comparison.stream
    result = compare(stream, ["rls", "longhorn"])
    scores = Scores(len(result.lines) + 2, 1, stream.rows, stream.burn_in)
    _, y = stream.read()
    predictions = np.stack([y + 0.1 * i for i in range(len(result.lines) + 2)])[..., None]
    predictions[2:6, -7:] = wild
    scores.add(np.arange(float(len(y))), y[:, None], predictions)
    write_report(tmp_path, Comparison(stream, scores, result.baselines, result.lines))


def test_several_targets_have_a_panel_each(tmp_path: Path) -> None:
    stream = build_stream(drifting(), ["y", "z"], features=["a", "b"], burn_in=20, horizon=2)
    result = compare(stream, ["rls"])
    page = write_report(tmp_path, result, [trace(result, result.lines[0])]).read_text(encoding="utf-8")
    assert "RMSE y" in page
    assert "RMSE z" in page
    assert "prequential(model, X, y, delay=1)" in page
    assert not (tmp_path / "weights.png").exists()


def test_a_report_leaves_no_picture_of_an_earlier_one(tmp_path: Path, comparison: Comparison) -> None:
    (tmp_path / "weights.png").write_bytes(b"old")
    (tmp_path / "mine.png").write_bytes(b"mine")
    write_report(tmp_path, comparison)
    assert sorted(p.name for p in tmp_path.glob("*.png")) == [
        "cumulative.png",
        "error.png",
        "mine.png",
        "predictions.png",
    ]


def test_long_streams_make_small_pages(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stream = build_stream(pd.DataFrame({"y": rng.normal(size=20_000)}), "y", lags=[1])
    page = write_report(tmp_path, compare(stream, ["longhorn"]))
    assert page.stat().st_size < 4_000_000


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    write_atomic(path, "old")

    def refuse(source: Any, target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]
