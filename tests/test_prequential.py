"""prequential: plain loops of predict and partial_fit, hand-computed errors and baselines, and calls that fail."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, SGDRegressor
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import innerloop as il
from innerloop.streaming.evaluation import prequential

MODELS: dict[str, Any] = {
    "rls": il.StreamingRegressor("rls", forgetting=0.95),
    "kalman": il.StreamingRegressor("kalman", process_noise=0.01),
    "longhorn": il.StreamingRegressor("longhorn"),
    "sgd": SGDRegressor(learning_rate="constant", eta0=0.05, random_state=0),
}


def stream(rows: int = 60, d: int = 3, outputs: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, d))
    y = X @ rng.normal(size=(d, outputs or 1)) + 4 + 0.1 * rng.normal(size=(rows, outputs or 1))
    return X, y if outputs else y[:, 0]


def loop(model: Any, X: np.ndarray, y: np.ndarray, delay: int = 0) -> tuple[np.ndarray, Any]:
    """Row t by a model that has learned rows 0 .. t-1-delay; then the labels that are left."""
    model = copy.deepcopy(model)
    predictions = np.zeros_like(y)
    waiting: list[int] = []
    for t in range(len(X)):
        if t > delay:
            predictions[t] = model.predict(X[t : t + 1])[0]
        waiting.append(t)
        if len(waiting) > delay:
            due = waiting.pop(0)
            model.partial_fit(X[due : due + 1], y[due : due + 1])
    for due in waiting:
        model.partial_fit(X[due : due + 1], y[due : due + 1])
    return predictions, model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("delay", [0, 1, 7, 59, 200])
def test_predictions_are_the_plain_loop(name: str, delay: int) -> None:
    X, y = stream()
    result = prequential(MODELS[name], X, y, delay=delay)
    expected, fitted = loop(MODELS[name], X, y, delay)
    np.testing.assert_allclose(result.predictions, expected, rtol=0, atol=1e-9)
    assert (result.predictions[: delay + 1] == 0).all()
    np.testing.assert_allclose(result.model.predict(X), fitted.predict(X), rtol=0, atol=1e-9)
    with pytest.raises(NotFittedError):
        MODELS[name].predict(X)  # it was a clone that learned


@pytest.mark.parametrize("delay", [0, 3])
@pytest.mark.parametrize(
    "model",
    [il.StreamingRegressor("rls"), MultiOutputRegressor(SGDRegressor(random_state=0))],
    ids=["rls", "sgd"],
)
@pytest.mark.parametrize("outputs", [1, 2])
def test_several_outputs(model: Any, delay: int, outputs: int) -> None:
    X, y = stream(outputs=outputs)
    result: Any = prequential(model, X, y, delay=delay, burn_in=10)
    np.testing.assert_allclose(result.predictions, loop(model, X, y, delay)[0], rtol=0, atol=1e-9)
    for column in range(outputs):
        error = result.predictions[10:, column] - y[10:, column]
        np.testing.assert_allclose(result.mae[column], np.mean(np.abs(error)), rtol=1e-12)
        np.testing.assert_allclose(result.rmse[column], math.sqrt(np.mean(error**2)), rtol=1e-12)
        repeated = np.array([y[t - 1 - delay, column] for t in range(10, 60)]) - y[10:, column]
        expected = 1 - result.rmse[column] / math.sqrt(np.mean(repeated**2))
        np.testing.assert_allclose(result.skill[column], expected, rtol=1e-12)
    assert result.skill.shape == result.running_mean.mae.shape == (outputs,)
    assert str(result).count("MAE") == outputs


def test_scores_by_hand() -> None:
    class Halves(RegressorMixin, BaseEstimator):
        """Predicts half of the last label."""

        def partial_fit(self, X: Any, y: np.ndarray) -> Halves:
            self.last_ = y[-1]
            return self

        def predict(self, X: Any) -> np.ndarray:
            return np.full(len(X), self.last_ / 2)

    y = np.array([2.0, 4.0, 2.0, 8.0])
    result = prequential(Halves(), np.zeros((4, 1)), y, burn_in=1)
    assert result.predictions.tolist() == [0, 1, 2, 1]
    assert result.mae == pytest.approx((3 + 0 + 7) / 3)
    assert result.rmse == pytest.approx(math.sqrt((9 + 0 + 49) / 3))
    assert result.last_value.predictions.tolist() == [0, 2, 4, 2]
    assert result.last_value.mae == pytest.approx((2 + 2 + 6) / 3)
    assert result.running_mean.predictions.tolist() == pytest.approx([0, 2, 3, 8 / 3])
    assert result.running_mean.rmse == pytest.approx(math.sqrt((4 + 1 + (16 / 3) ** 2) / 3))
    assert result.skill == pytest.approx(1 - math.sqrt(58 / 44))
    assert all(isinstance(score, float) for score in (result.mae, result.rmse, result.skill, result.last_value.mae))
    late = prequential(Halves(), np.zeros((4, 1)), y, delay=2)
    assert late.predictions.tolist() == [0, 0, 0, 1]
    assert late.last_value.predictions.tolist() == late.running_mean.predictions.tolist() == [0, 0, 0, 2]
    assert late.model.last_ == 8


@pytest.mark.parametrize("delay", [0, 4])
@pytest.mark.parametrize("outputs", [None, 2])
def test_baselines_know_only_labels_that_have_arrived(delay: int, outputs: int | None) -> None:
    X, y = stream(outputs=outputs)
    result = prequential(il.StreamingRegressor("longhorn"), X, y, delay=delay)
    for t in range(len(y)):
        known = y[: max(0, t - delay)]
        last, mean = (known[-1], known.mean(0)) if len(known) else (0 * y[0], 0 * y[0])
        np.testing.assert_array_equal(result.last_value.predictions[t], last)
        np.testing.assert_allclose(result.running_mean.predictions[t], mean, rtol=1e-12, atol=1e-12)


def test_running_mean_keeps_its_digits_at_a_far_level() -> None:
    y = 1e12 + np.tile([0.0, 1.0], 5000)
    result = prequential(il.StreamingRegressor("longhorn"), np.ones((10000, 1)), y)
    expected = [1e12 + (t // 2) / t for t in range(1, 10000)]
    np.testing.assert_allclose(result.running_mean.predictions[1:], expected, rtol=0, atol=2e-4)  # one ulp of 1e12


@pytest.mark.parametrize("window", [1, 2, 7, 20, 59, 60, 61, 1000])
@pytest.mark.parametrize("outputs", [None, 2])
def test_rolling_is_the_naive_loop(window: int, outputs: int | None) -> None:
    X, y = stream(outputs=outputs)
    result = prequential(il.StreamingRegressor("rls"), X, y, burn_in=30)
    mae, rmse = result.rolling(window)
    error = result.predictions - y
    assert mae.shape == rmse.shape == y.shape
    for t in range(len(y)):
        inside = error[max(0, t - window + 1) : t + 1]
        np.testing.assert_allclose(mae[t], np.abs(inside).mean(0), rtol=1e-13)
        np.testing.assert_allclose(rmse[t], np.sqrt((inside**2).mean(0)), rtol=1e-13)
    np.testing.assert_allclose(result.last_value.rolling(window=1).mae, np.abs(result.last_value.predictions - y))


def test_rolling_forgets_a_huge_error_and_keeps_a_nan_inside_its_window() -> None:
    X, y = stream()
    y[5] = 1e12  # its square would leave nothing of the others' digits in a running sum
    result = prequential(SGDRegressor(learning_rate="constant", eta0=1e-30), X, y)
    result.predictions[30] = np.nan
    mae, rmse = result.rolling(4)
    error = result.predictions - y
    for t in (9, 12, 20, 29, 34, 59):
        inside = error[t - 3 : t + 1]
        np.testing.assert_allclose(mae[t], np.abs(inside).mean(), rtol=1e-13)
        np.testing.assert_allclose(rmse[t], np.sqrt((inside**2).mean()), rtol=1e-13)
    assert np.flatnonzero(np.isnan(rmse)).tolist() == [30, 31, 32, 33]


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = stream()
    whole = prequential(MODELS["rls"], X, y)
    monkeypatch.setattr("innerloop.streaming.evaluation.BLOCK", 7)
    pieces = prequential(MODELS["rls"], X, y)
    np.testing.assert_allclose(pieces.predictions, whole.predictions, rtol=0, atol=1e-10)


def test_a_fitted_model_starts_afresh_and_stays_as_it_is() -> None:
    X, y = stream()
    model = il.StreamingRegressor("rls").fit(X, y)
    before = model.predict(X)
    result = prequential(model, X, y)
    np.testing.assert_array_equal(result.predictions, prequential(il.StreamingRegressor("rls"), X, y).predictions)
    np.testing.assert_array_equal(model.predict(X), before)
    assert model.n_samples_seen_ == len(X)


@pytest.mark.parametrize("name", ["rls", "sgd"])
@pytest.mark.parametrize("delay", [0, 2])
def test_data_frames(name: str, delay: int) -> None:
    X, y = stream()
    frame = pd.DataFrame(X, columns=["a", "b", "c"], index=np.arange(60)[::-1])
    result = prequential(MODELS[name], frame, pd.Series(y, index=frame.index), delay=delay)
    plain = prequential(MODELS[name], X, y, delay=delay)
    np.testing.assert_array_equal(result.predictions, plain.predictions)
    assert list(result.model.feature_names_in_) == ["a", "b", "c"]
    lists = prequential(MODELS[name], X.tolist(), y.tolist(), delay=delay)
    np.testing.assert_array_equal(lists.predictions, plain.predictions)
    wide = prequential(il.StreamingRegressor("rls"), frame, pd.DataFrame({"y": y}))
    assert wide.predictions.shape == (60, 1)


@pytest.mark.parametrize("delay", [0, 5])
def test_a_pipeline_learns_step_by_step(delay: int) -> None:
    X, y = stream()
    X = 50 + 3 * X
    expected, scaler, model = np.zeros(60), StandardScaler(), il.StreamingRegressor("rls")
    for t in range(60):
        if t > delay:
            expected[t] = model.predict(scaler.transform(X[t : t + 1]))[0]
        if t >= delay:
            row = X[t - delay : t - delay + 1]
            model.partial_fit(scaler.partial_fit(row).transform(row), y[t - delay : t - delay + 1])
    pipeline = make_pipeline("passthrough", StandardScaler(), il.StreamingRegressor("rls"))
    result = prequential(pipeline, X, y, delay=delay)
    np.testing.assert_allclose(result.predictions, expected, rtol=0, atol=1e-9)
    assert "StandardScaler | StreamingRegressor" in str(result)


def test_a_frozen_step_stays_as_it_is() -> None:
    X, y = stream()
    scaler: Any = StandardScaler().fit(X[:20])
    result = prequential(make_pipeline(FrozenEstimator(scaler), MODELS["rls"]), X, y)
    expected, _ = loop(MODELS["rls"], scaler.transform(X), y)
    np.testing.assert_allclose(result.predictions, expected, rtol=0, atol=1e-9)
    assert scaler.n_samples_seen_ == 20


@pytest.mark.parametrize("delay", [0, 3])
def test_weights_go_with_their_rows(delay: int) -> None:
    X, y = stream()
    weights = np.random.default_rng(1).uniform(0, 2, 60)
    result = prequential(MODELS["sgd"], X, y, sample_weight=weights, delay=delay)
    model, expected = copy.deepcopy(MODELS["sgd"]), np.zeros(60)
    for t in range(delay + 1, 60):
        row = slice(t - 1 - delay, t - delay)
        model.partial_fit(X[row], y[row], sample_weight=weights[row])
        expected[t] = model.predict(X[t : t + 1])[0]
    np.testing.assert_allclose(result.predictions, expected, rtol=0, atol=1e-12)


class Clock(RegressorMixin, BaseEstimator):
    """Predicts the time that has passed with the rows learned; refuses to predict before any did."""

    def partial_fit(self, X: Any, y: Any, elapsed: Any = None) -> Clock:
        self.time_ = getattr(self, "time_", 0.0) + float(np.sum(elapsed))
        return self

    def predict(self, X: Any) -> np.ndarray:
        if getattr(self, "time_", 0.0) == 0:
            raise NotFittedError
        return np.full(len(X), self.time_)


class FastClock(Clock):
    def predict_then_update(self, X: Any, y: Any, elapsed: Any = None) -> np.ndarray:
        self.partial_fit(X, y, elapsed)
        return self.time_ - np.cumsum(elapsed[::-1])[::-1]


@pytest.mark.parametrize("model", [Clock(), FastClock()], ids=["rows", "blocks"])
def test_elapsed_goes_with_its_row(model: Any) -> None:
    elapsed = [0.0, 1.0, 2.5, 4.0]
    result = prequential(model, np.zeros((4, 1)), np.zeros(4), elapsed=elapsed)
    assert result.predictions.tolist() == [0, 0, 1, 3.5]  # 0 while the model is not fitted
    assert prequential(model, np.zeros((4, 1)), np.zeros(4), elapsed=elapsed, delay=1).predictions[-1] == 1
    assert result.model.time_ == 7.5


def test_the_bar_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    X, y = stream(20)
    for name in ("rls", "sgd"):
        quiet = prequential(MODELS[name], X, y)
        assert capfd.readouterr() == ("", "")
        shown = prequential(MODELS[name], X, y, progress=True)
        out, err = capfd.readouterr()
        assert out == ""
        assert "20/20" in err
        np.testing.assert_array_equal(shown.predictions, quiet.predictions)


def test_the_table_can_be_read() -> None:
    class Zero(RegressorMixin, BaseEstimator):
        def partial_fit(self, X: Any, y: Any) -> Zero:
            return self

        def predict(self, X: Any) -> np.ndarray:
            return np.zeros(len(X))

    result = prequential(Zero(), np.zeros((4, 1)), [3.0, -3.0, 3.0, -3.0], burn_in=2, delay=1)
    lines = str(result).splitlines()
    assert lines[0] == "4 rows, each predicted before it is learned; scored from row 2 on, labels 1 row late"
    assert lines[1].split() == ["MAE", "RMSE", "skill"]
    assert lines[2].split() == ["Zero", "3.000", "3.000", "nan"]  # with labels one row late the last value is right
    assert lines[3].split() == ["last", "value", "0.000", "0.000", "nan"]
    assert lines[4].split() == ["running", "mean", "1.500", "2.121", "nan"]  # 3 and 0 forecast 3 and -3
    assert len({len(line) for line in lines[1:]}) == 1
    assert repr(result) == str(result)


def bad(change: dict[str, Any]) -> None:
    X, y = stream()
    given: dict[str, Any] = {"X": X, "y": y} | change
    prequential(il.StreamingRegressor("rls"), given.pop("X"), given.pop("y"), **given)


def at(values: np.ndarray, index: Any, value: float) -> np.ndarray:
    values = values.copy()
    values[index] = value
    return values


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"burn_in": -1}, "burn_in=-1"),
        ({"burn_in": 1.0}, "burn_in=1.0"),
        ({"burn_in": True}, "burn_in=True"),
        ({"burn_in": 60}, "burn_in=60: it leaves no row to score of 60"),
        ({"delay": -2}, "delay=-2"),
        ({"delay": "3"}, "delay='3'"),
        ({"y": stream()[1][:-1]}, "60 and 59 rows"),
        ({"y": 3.0}, r"y: shape \[\]"),
        ({"y": np.zeros((60, 1, 1))}, r"y: shape \[60, 1, 1\]"),
        ({"X": np.zeros(60)}, "2D array"),
        ({"X": np.zeros((0, 3)), "y": []}, "0 sample"),
        ({"X": at(stream()[0], (7, 2), np.nan)}, "X: nan in row 7, column 2"),
        ({"X": at(stream()[0], (7, 2), np.inf)}, "X: inf in row 7, column 2"),
        ({"X": pd.DataFrame(at(stream()[0], (7, 2), np.nan), columns=list("abc"))}, "X: nan in row 7, column 'c'"),
        ({"y": at(stream()[1], 11, -np.inf)}, "y: -inf in row 11"),
        ({"y": pd.Series(at(stream()[1], 11, np.nan))}, "y: nan in row 11"),
        ({"y": pd.DataFrame(at(np.zeros((60, 2)), (3, 1), np.nan), columns=["u", "v"])}, "y: nan in row 3, column 'v'"),
        ({"sample_weight": np.ones(59)}, r"sample_weight: shape \[59\]: wanted \[60\]"),
        ({"elapsed": at(np.ones(60), 4, np.nan)}, "elapsed: nan in row 4"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-",
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bad(change)


@pytest.mark.parametrize("window", [0, -1, 2.0, None])
def test_a_bad_window_is_named(window: Any) -> None:
    result = prequential(il.StreamingRegressor("longhorn"), *stream(5))
    with pytest.raises(ValueError, match=f"window={window}"):
        result.rolling(window)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (LinearRegression(), {}, "LinearRegression has no partial_fit"),
        (make_pipeline(StandardScaler(), LinearRegression()), {}, "LinearRegression has no partial_fit"),
        (make_pipeline(PolynomialFeatures(), SGDRegressor()), {}, "step PolynomialFeatures has no partial_fit.*Frozen"),
        (SGDRegressor(), {"elapsed": np.ones(60)}, "elapsed: SGDRegressor.partial_fit does not take it"),
        (Clock(), {"sample_weight": np.ones(60)}, "sample_weight: Clock.partial_fit does not take it"),
    ],
    ids=["no partial_fit", "last step", "first step", "elapsed", "sample_weight"],
)
def test_a_model_that_cannot_learn_row_by_row_is_named(model: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        prequential(model, *stream(), **options)


def test_inputs_are_left_alone_and_later_edits_do_not_reach_the_result() -> None:
    X, y = stream()
    copies = X.copy(), y.copy()
    result = prequential(il.StreamingRegressor("rls"), X, y)
    np.testing.assert_array_equal(X, copies[0])
    np.testing.assert_array_equal(y, copies[1])
    rmse = result.rmse
    y[:] = 0
    assert result.rmse == rmse


def test_docstring_example() -> None:
    import doctest

    from innerloop.streaming import evaluation as module

    assert doctest.testmod(module).failed == 0
