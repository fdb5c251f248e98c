"""The compare protocol, recomputed here with plain numpy, pandas and scikit-learn; its JSON; its edges."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from innerloop.streaming import bank, lanes
from innerloop.streaming.comparison import AUTOMATIC, MEMORIES, Comparison, compare, default_settings
from innerloop.streaming.pieces import open_source
from innerloop.streaming.survey import build_stream
from innerloop.streaming.table import Events, Stream

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
    return build_stream(open_source(data), "y", lags=[1, 3], burn_in=BURN_IN)


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


@pytest.mark.filterwarnings("ignore:lr .k.* reaches")  # explicit steps that diverge have a line too
def test_the_options_reproduce_every_line(stream: Stream, comparison: Comparison) -> None:
    from innerloop.streaming.regressors import StreamingRegressor

    X, y = stream.read()
    for line in lines(comparison):
        if line["rmse"] is None:
            continue
        predictions = StreamingRegressor(line["name"], **line["options"]).predict_then_update(X, y)
        np.testing.assert_allclose([line["mae"], line["rmse"]], score(np.ravel(predictions), y), rtol=1e-6)


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
    rate = 1 / (stream.read()[0][:BURN_IN] ** 2).sum(1).mean()
    assert tuple(settings) == MEMORIES
    assert set(AUTOMATIC) == set(MEMORIES) <= set(bank.MEMORIES)
    assert [s["forgetting"] for s in settings["rls"]] == [1.0, 0.999, 0.99, 0.97, 0.95, 0.9]
    assert {s["penalty"] for s in settings["rls"]} == {1.0}
    assert [s["process_noise"] for s in settings["kalman"]] == [1e-5, 1e-4, 1e-3, 1e-2]
    np.testing.assert_allclose([s["lr"] for s in settings["deltanet"]], [0.1, 0.01, rate])
    assert [s["lr"] for s in settings["longhorn"]] == [1.0, 0.1]
    assert [s | {"momentum": 0.9} for s in settings["deltanet"]] == settings["titans_linear"]
    np.testing.assert_allclose([s["bandwidth"] for s in settings["nadaraya_watson"]], [1.0, 2.0, 4.0])  # sqrt(4) = 2
    assert {s["window"] for s in settings["nadaraya_watson"]} == {500}


# ------------------------------------------------------------------------------------------ several targets, later ones


def shifted(frame: pd.DataFrame, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Raw features of row t and the target of row t + horizon - 1, for rows without a hole."""
    columns = {"a": frame["a"], "b": frame["b"], "lag1": frame["y"].shift(1), "y": frame["y"].shift(1 - horizon)}
    table = pd.DataFrame(columns).dropna()
    return table.drop(columns="y").to_numpy(), table["y"].to_numpy()


@pytest.mark.parametrize("horizon", [2, 4])
def test_late_labels(horizon: int) -> None:
    """Against regressions that are fitted anew, for each row, on the labels that are known by then."""
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"a": rng.normal(size=120), "b": rng.normal(1, 2, size=120)})
    frame["y"] = np.convolve(frame["a"], [1.0, 0.8, 0.5])[:120] + 0.2 * rng.normal(size=120)
    result = compare(build_stream(frame, "y", lags=[1], burn_in=BURN_IN, horizon=horizon), ["rls", "longhorn"])
    X, y = shifted(frame, horizon)
    X = (X - X[:BURN_IN].mean(0)) / X[:BURN_IN].std(0)
    ridge, last, mean = np.zeros(len(y)), np.zeros(len(y)), np.zeros(len(y))
    w, steps = np.zeros(4), np.zeros(len(y))
    Z = np.column_stack([X, np.ones(len(y))])
    for t in range(len(y)):
        known = t - horizon + 1  # at row t the target is known up to row t - 1: pairs up to t - horizon
        if known > 0:
            ridge[t] = Ridge(alpha=1.0).fit(X[:known], y[:known]).predict(X[t : t + 1])[0]
            last[t], mean[t] = y[known - 1], y[:known].mean()
            x = Z[known - 1]
            w += (y[known - 1] - x @ w) * x / (1 + x @ x)
        steps[t] = Z[t] @ w
    found = result.to_dict(all_settings=True)
    assert found["data"]["rows"] == len(y)
    assert found["data"]["horizon"] == horizon
    assert f"best {horizon} rows ahead" in result.sentence() or f"{horizon} rows ahead:" in result.sentence()
    for baseline, predictions in zip(found["baselines"], (last, mean), strict=True):
        np.testing.assert_allclose([baseline["mae"], baseline["rmse"]], score(predictions, y), rtol=1e-9)
    for name, option, value, predictions in (("rls", "forgetting", 1.0, ridge), ("longhorn", "lr", 1.0, steps)):
        (line,) = [x for x in found["memories"] if x["name"] == name and x["options"][option] == value]
        np.testing.assert_allclose([line["mae"], line["rmse"]], score(predictions, y), rtol=1e-6)


def test_late_labels_are_those_of_prequential() -> None:
    from innerloop.streaming import StreamingRegressor, prequential

    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"a": rng.normal(size=90), "y": rng.normal(size=90)})
    stream = build_stream(frame, "y", lags=[1], burn_in=BURN_IN, horizon=3)
    X, y = stream.read()
    for line in compare(stream, ["rls", "kalman", "nadaraya_watson"]).memories():
        expected = prequential(StreamingRegressor(line.name, **line.options), X, y, delay=2, burn_in=BURN_IN)
        assert (line.mae, line.rmse) == pytest.approx((expected.mae, expected.rmse), rel=1e-7)
        assert line.skill == pytest.approx(expected.skill, rel=1e-7)


def test_several_targets_are_scored_one_by_one(data: Path) -> None:
    frame = pd.read_csv(data)
    frame["z"] = 100 * frame["a"] + 7 + np.random.default_rng(0).normal(size=len(frame))
    both = compare(build_stream(frame, ["y", "z"], features=["a", "b"], burn_in=BURN_IN), ["rls", "deltanet"])
    complete = frame.dropna()
    alone = {
        name: compare(build_stream(complete, name, features=["a", "b"], burn_in=BURN_IN), ["rls", "deltanet"])
        for name in ("y", "z")
    }
    found = both.to_dict(all_settings=True)
    assert found["data"]["target"] == ["y", "z"]
    for v, name in enumerate(("y", "z")):
        other = alone[name].to_dict(all_settings=True)
        for line in (*found["baselines"], *found["memories"]):
            (same,) = [
                x
                for x in (*other["baselines"], *other["memories"])
                if x["name"] == line["name"] and x.get("options") == line.get("options")
            ]
            part = line["targets"][v]
            assert part["name"] == name
            for key in {"mae", "rmse", "skill"} & set(same):
                assert part[key] == pytest.approx(same[key], rel=1e-6)
    for line in found["memories"]:
        for key in ("mae", "rmse", "skill"):
            assert line[key] == pytest.approx(np.mean([part[key] for part in line["targets"]]))
    skills = [line["skill"] for line in found["memories"]]
    assert skills == sorted(skills, reverse=True)
    assert "forecasts y, z best: mean skill" in both.sentence()


def test_forgetting_goes_by_the_time_that_passed() -> None:
    rng = np.random.default_rng(2)
    gaps = rng.choice([1.0, 1.0, 1.0, 2.5, 0.0], size=100)
    frame = pd.DataFrame({"t": 50 + np.cumsum(gaps), "a": rng.normal(size=100)})
    frame["y"] = np.linspace(3, -3, 100) * frame["a"] + 0.1 * rng.normal(size=100)
    result = compare(build_stream(frame, "y", burn_in=BURN_IN, time="t"), ["rls"])
    X = ((frame["a"] - frame["a"][:BURN_IN].mean()) / frame["a"][:BURN_IN].std(ddof=0)).to_numpy()
    Z, y = np.column_stack([X, np.ones(100)]), frame["y"].to_numpy()
    elapsed = np.diff(frame["t"], prepend=frame["t"][0] - 1)
    # regularised forgetting: the penalty stays, the mean is kept
    A, w, predictions = np.diag([1.0, 0.0]), np.zeros(2), np.zeros(100)
    for t in range(100):
        predictions[t] = Z[t] @ w
        f = 0.9 ** elapsed[t]
        A = f * A + (1 - f) * np.diag([1.0, 0.0]) + np.outer(Z[t], Z[t])
        w = w + np.linalg.lstsq(A, Z[t] * (y[t] - Z[t] @ w), rcond=None)[0]
    (line,) = [x for x in lines(result) if x["options"]["forgetting"] == 0.9]
    np.testing.assert_allclose([line["mae"], line["rmse"]], score(predictions, y), rtol=1e-6)


def test_automatic_lines_are_those_of_the_estimator(stream: Stream) -> None:
    from innerloop.streaming.regressors import StreamingRegressor

    result = compare(stream, ["rls", "nadaraya_watson"], automatic=True)
    automatic = [line for line in result.lines if line.options.get("forgetting") == "auto"]
    assert {line.label for line in automatic} == {
        "rls(forgetting=auto)",
        "nadaraya_watson(forgetting=auto, window=500)",
    }
    X, y = stream.read()
    for line in automatic:
        predictions = StreamingRegressor(line.name, **line.options).predict_then_update(X, y)
        np.testing.assert_allclose([line.mae, line.rmse], score(predictions, y), rtol=1e-9)
    # they stand in the short list beside the best fixed setting
    assert sorted((x.name, "auto" in x.options.values()) for x in result.memories()) == [
        ("nadaraya_watson", False),
        ("nadaraya_watson", True),
        ("rls", False),
        ("rls", True),
    ]


# ------------------------------------------------------------------------------------------ edges


@dataclass(frozen=True)
class FakeLane:
    """Settings that forecast whatever a function of (name, setting number, y) says."""

    name: str
    options: tuple[dict[str, Any], ...]
    predict: Any
    asked: list[str]
    seconds: float = 0.0
    state_floats: int = 7

    def advance(self, events: Events) -> tuple[np.ndarray, FakeLane]:
        self.asked.append(self.name)
        y = events.y[:, 0]
        predictions = np.stack([self.predict(self.name, s, y) for s in range(len(self.options))])
        seconds = self.seconds + 1e-6 * len(y) * len(self.options) * 5
        return predictions[..., None], replace(self, seconds=seconds)


def fake_bank(monkeypatch: pytest.MonkeyPatch, predict: Any) -> list[str]:
    """Replace the settings; returns the names that were asked."""
    asked: list[str] = []

    def of(name: str, options: list[dict[str, Any]], features: int, targets: int) -> FakeLane:
        return FakeLane(name, tuple(options), predict, asked)

    monkeypatch.setattr(lanes, "Settings", SimpleNamespace(of=of))
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


def test_progress_names_each_memory(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_bank(monkeypatch, lambda name, setting, y: y)
    seen: list[tuple[str, int]] = []
    compare(stream, ["rls", "kalman"], progress=lambda *step: seen.append(step))
    assert seen == [("rls", 0), ("kalman", 0), ("", stream.source.size)]


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
