"""The compare protocol, recomputed here with plain numpy, pandas and scikit-learn; its JSON; its report."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from innerloop.streaming import bank
from innerloop.streaming.comparison import MEMORIES, Comparison, compare, default_settings
from innerloop.streaming.report import write_atomic, write_report
from innerloop.streaming.table import Stream, build_stream, read_table

BURN_IN = 20


def make_csv(path: Path, num: int = 160) -> Path:
    """Two features, a drifting weight, holes in the target and in a feature."""
    rng = np.random.default_rng(7)
    a, b = rng.normal(size=num), rng.normal(3.0, 2.0, size=num)
    y = np.linspace(1.0, -1.0, num) * a + 0.3 * b + 2.0 + 0.1 * rng.normal(size=num)
    frame = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=num), "a": a, "y": y, "b": b})
    frame.loc[[30, 31, 90], "y"] = np.nan
    frame.loc[60, "b"] = np.nan
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_csv(tmp_path_factory.mktemp("data") / "drift.csv")


@pytest.fixture(scope="module")
def stream(data: Path) -> Stream:
    return build_stream(read_table(data), "y", lags=[1, 3], burn_in=BURN_IN, time="day")


@pytest.fixture(scope="module")
def comparison(stream: Stream) -> Comparison:
    return compare(stream)


def other_program(path: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """The protocol's X and y by somebody who only read the protocol."""
    frame = pd.read_csv(path)
    table = pd.DataFrame(
        {"a": frame["a"], "b": frame["b"], "lag1": frame["y"].shift(1), "lag3": frame["y"].shift(3), "y": frame["y"]}
    )
    complete = table.dropna()
    X = complete.drop(columns="y").to_numpy()
    X = (X - X[:BURN_IN].mean(0)) / X[:BURN_IN].std(0)
    return X, complete["y"].to_numpy(), len(frame) - len(complete)


def score(predictions: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    errors = (predictions - y)[BURN_IN:]
    return float(np.abs(errors).mean()), float(np.sqrt((errors**2).mean()))


def normalised_lms(X: np.ndarray, y: np.ndarray, lr: float, *, proximal: bool) -> np.ndarray:
    """One gradient step a row (deltanet), or the same step normalised (longhorn)."""
    w, out = np.zeros(X.shape[1] + 1), np.zeros(len(y))
    for t, x in enumerate(np.column_stack([X, np.ones(len(y))])):
        out[t] = x @ w
        step = lr / (1 + lr * x @ x) if proximal else lr
        w += step * (y[t] - out[t]) * x
    return out


def ridge_so_far(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A ridge regression fitted anew on all rows before each row."""
    out = np.zeros(len(y))
    for t in range(1, len(y)):
        out[t] = Ridge(alpha=1.0).fit(X[:t], y[:t]).predict(X[t : t + 1])[0]
    return out


def lines(comparison: Comparison) -> list[dict[str, Any]]:
    return comparison.to_dict(all_settings=True)["memories"]


def test_the_numbers_are_those_of_another_program(data: Path, comparison: Comparison) -> None:
    X, y, dropped = other_program(data)
    result = comparison.to_dict(all_settings=True)
    assert result["data"] == {
        "rows": len(y),
        "target": "y",
        "features": ["a", "b", "y[t-1]", "y[t-3]"],
        "dropped": dropped,
    }

    last = np.concatenate([[0.0], y[:-1]])
    mean = np.array([y[:t].mean() if t else 0.0 for t in range(len(y))])
    for baseline, predictions in zip(result["baselines"], (last, mean), strict=True):
        np.testing.assert_allclose([baseline["mae"], baseline["rmse"]], score(predictions, y), rtol=1e-9)

    expected = {("rls", "forgetting", 1.0): ridge_so_far(X, y)}
    rate = 1 / (X[:BURN_IN] ** 2).sum(1).mean()
    for lr in (0.1, 0.01, rate):
        expected["deltanet", "lr", lr] = normalised_lms(X, y, lr, proximal=False)
    for lr in (1.0, 0.1):
        expected["longhorn", "lr", lr] = normalised_lms(X, y, lr, proximal=True)
    for (name, option, value), predictions in expected.items():
        (line,) = [
            line
            for line in lines(comparison)
            if line["name"] == name and np.isclose(line["options"][option], value, rtol=1e-12)
        ]
        mae, rmse = score(predictions, y)
        np.testing.assert_allclose([line["mae"], line["rmse"]], [mae, rmse], rtol=1e-6)
        np.testing.assert_allclose(line["skill"], 1 - rmse / score(last, y)[1], rtol=1e-5, atol=1e-7)


def test_the_options_reproduce_every_line(stream: Stream, comparison: Comparison) -> None:
    from innerloop.streaming.regressors import StreamingRegressor

    for line in lines(comparison):
        predictions = StreamingRegressor(line["name"], **line["options"]).predict_then_update(stream.X, stream.y)
        if line["rmse"] is None:
            continue
        np.testing.assert_allclose([line["mae"], line["rmse"]], score(np.ravel(predictions), stream.y), rtol=1e-6)


def test_the_best_is_the_lowest_rmse_and_the_order_follows_it(comparison: Comparison) -> None:
    every = comparison.to_dict(all_settings=True)
    shown = comparison.to_dict()
    known = [line["rmse"] for line in every["memories"] if line["rmse"] is not None]
    assert known == sorted(known)
    assert [line["rmse"] for line in every["memories"]][: len(known)] == known
    assert min([*known, *(b["rmse"] for b in every["baselines"])]) == comparison.best.rmse
    assert every["best"] == shown["best"] == {"name": comparison.best.name, "options": comparison.best.options}
    assert sorted(line["name"] for line in shown["memories"]) == sorted(MEMORIES)
    for line in shown["memories"]:
        assert line == next(other for other in every["memories"] if other["name"] == line["name"])


def test_schema(comparison: Comparison) -> None:
    result = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert set(result) == {"data", "baselines", "memories", "best"}
    assert [b["name"] for b in result["baselines"]] == ["last_value", "running_mean"]
    assert all(set(b) == {"name", "mae", "rmse"} for b in result["baselines"])
    for line in result["memories"]:
        assert list(line) == ["name", "options", "mae", "rmse", "skill", "us_per_row", "state_floats"]
        assert line["us_per_row"] > 0
        assert isinstance(line["state_floats"], int)
    assert set(result["best"]) == {"name", "options"}


def test_default_settings_are_the_documented_ones(stream: Stream) -> None:
    settings = default_settings(stream)
    rate = 1 / (stream.X[:BURN_IN] ** 2).sum(1).mean()
    assert tuple(settings) == MEMORIES == bank.MEMORIES
    assert [s["forgetting"] for s in settings["rls"]] == [1.0, 0.999, 0.99, 0.97, 0.95, 0.9]
    assert {s["penalty"] for s in settings["rls"]} == {1.0}
    assert [s["process_noise"] for s in settings["kalman"]] == [1e-5, 1e-4, 1e-3, 1e-2]
    np.testing.assert_allclose([s["lr"] for s in settings["deltanet"]], [0.1, 0.01, rate])
    assert [s["lr"] for s in settings["longhorn"]] == [1.0, 0.1]
    assert [s | {"momentum": 0.9} for s in settings["deltanet"]] == settings["titans_linear"]
    np.testing.assert_allclose([s["bandwidth"] for s in settings["nadaraya_watson"]], [1.0, 2.0, 4.0])  # sqrt(4) = 2
    assert {s["window"] for s in settings["nadaraya_watson"]} == {500}


# ------------------------------------------------------------------------------------------ edges


def fake_bank(monkeypatch: pytest.MonkeyPatch, predict: Any) -> list[str]:
    """Replace the bank by a function of (name, setting number, y); returns the names that it was asked for."""
    asked: list[str] = []

    def run_settings(name: str, settings: list[dict], X: np.ndarray, y: np.ndarray) -> SimpleNamespace:
        asked.append(name)
        predictions = np.stack([predict(name, s, y) for s in range(len(settings))])
        return SimpleNamespace(predictions=predictions, seconds=1e-6 * len(y) * len(settings) * 5, state_floats=7)

    monkeypatch.setattr(bank, "run_settings", run_settings)
    return asked


def test_diverged_settings_have_null_numbers_and_come_last(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    def predict(name: str, setting: int, y: np.ndarray) -> np.ndarray:
        out = y + 0.5 + setting
        if name == "deltanet" or (name == "rls" and setting == 0):
            out[-1] = np.nan
        if name == "longhorn":
            out[-1] = 1e200  # finite, but its square is not
        return out

    fake_bank(monkeypatch, predict)
    result = compare(stream, ["deltanet", "longhorn", "rls"])
    assert [line.name for line in result.memories()] == ["rls", "deltanet", "longhorn"]
    assert result.memories()[0].options["forgetting"] == 0.999
    every = result.to_dict(all_settings=True)["memories"]
    assert [line["rmse"] is None for line in every] == [False] * 5 + [True] * 6
    assert all(line["mae"] is None and line["skill"] is None for line in every[5:])
    assert every[0]["us_per_row"] == pytest.approx(5.0)
    assert "Diverged at every setting, so without a score: deltanet, longhorn." in result.notes()


def test_a_baseline_may_win(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_bank(monkeypatch, lambda name, setting, y: y + 1e3)
    result = compare(stream, ["rls"])
    assert result.to_dict()["best"]["options"] == {}
    assert result.best.is_baseline
    assert result.sentence().startswith("No memory beats the ")


def test_an_undefined_skill_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    # The target moves within the burn-in only, so the last value is always right afterwards.
    frame = pd.DataFrame({"a": np.arange(40.0), "y": [1.0] * 5 + [2.0] * 35})
    stream = build_stream(frame, "y", burn_in=10)
    fake_bank(monkeypatch, lambda name, setting, y: y + 0.5)
    result = compare(stream, ["kalman"])
    assert result.last_value.rmse == 0.0
    assert all(line.skill is None for line in result.lines)
    assert result.best is result.last_value
    assert "No memory beats the last value" in result.sentence()


def test_an_interruption_keeps_what_was_finished(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    def predict(name: str, setting: int, y: np.ndarray) -> np.ndarray:
        if name == "kalman":
            raise KeyboardInterrupt
        return y + 0.1

    asked = fake_bank(monkeypatch, predict)
    result = compare(stream, ["rls", "kalman", "deltanet"])
    assert asked == ["rls", "kalman"]
    assert {line.name for line in result.lines} == {"rls"}
    assert result.unfinished == ("kalman", "deltanet")
    with pytest.raises(KeyboardInterrupt):
        compare(stream, ["kalman"])


def test_progress_names_each_memory(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_bank(monkeypatch, lambda name, setting, y: y)
    seen: list[tuple[str, int, int]] = []
    compare(stream, ["rls", "kalman"], progress=lambda *step: seen.append(step))
    assert seen == [("rls", 0, 2), ("kalman", 1, 2), ("", 2, 2)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["rls", "lstm"], "no memory 'lstm' to compare; there are rls, kalman"),
        (["rls", "rls"], "named twice"),
        ([], "no memory to compare"),
    ],
)
def test_unknown_memories(stream: Stream, names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(stream, names)


# ------------------------------------------------------------------------------------------ report


def test_report_is_complete_and_fetches_nothing(tmp_path: Path, comparison: Comparison) -> None:
    page = write_report(tmp_path / "deep" / "report", comparison)
    names = sorted(path.name for path in page.parent.iterdir())
    assert names == ["comparison.json", "cumulative.png", "error.png", "index.html", "predictions.png"]
    text = page.read_text(encoding="utf-8")
    sources = re.findall(r'(?:src|srcset|href)="([^"]{0,30})', text)
    assert Counter(source.startswith("data:image/png;base64,") for source in sources) == {True: 6}
    assert not re.search(r"https?:|//|@import|url\(", re.sub(r"base64,[^\"]*", "", text))
    assert html.escape(comparison.sentence()) in text
    assert all(line.name in text for line in (*comparison.baselines, *comparison.memories()))
    assert "prefers-color-scheme: dark" in text
    assert json.loads((page.parent / "comparison.json").read_text()) == comparison.to_dict()
    for picture in page.parent.glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_report_escapes_names_and_survives_hard_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    name = "<b>$x_1$ & [red]"
    frame = pd.DataFrame({name: rng.normal(size=30), "t": [*range(15), *range(15)]})

    def predict(memory: str, setting: int, y: np.ndarray) -> np.ndarray:
        return np.full_like(y, np.inf) if memory == "rls" else y.copy()  # one diverges, one is never wrong

    fake_bank(monkeypatch, predict)
    stream = build_stream(frame, name, lags=[1], burn_in=28, time="t")  # time runs backwards once; one scored row
    text = write_report(tmp_path, compare(stream, ["rls", "kalman"]), all_settings=True).read_text(encoding="utf-8")
    assert "<b>" not in text
    assert "&lt;b&gt;$x_1$ &amp; [red]" in text
    # Everything diverged: the baselines alone are drawn.
    fake_bank(monkeypatch, lambda memory, setting, y: np.full_like(y, np.nan))
    write_report(tmp_path, compare(stream, ["rls"]))


def test_long_streams_are_thinned_to_the_extremes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    fake_bank(monkeypatch, lambda memory, setting, y: y + 1)
    stream = build_stream(pd.DataFrame({"y": rng.normal(size=20_000)}), "y", lags=[1])
    page = write_report(tmp_path, compare(stream, ["rls"]))
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
