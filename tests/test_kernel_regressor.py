"""NadarayaWatsonRegressor: the book's numbers, explicit loops, the row loop, weights as repeats, and odd tables."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import gaussian_kde
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import innerloop as il
from innerloop.streaming import averaging
from innerloop.streaming import leave_one_out as bandwidths_of
from innerloop.streaming.kernel import NadarayaWatsonRegressor


def average(x: np.ndarray, X: np.ndarray, y: np.ndarray, h: Any, w: np.ndarray | None = None) -> np.ndarray:
    """The weighted kernel average around one x, row by row; nearest distances are taken off, which cancels."""
    distances = [
        sum(((a - b) / c) ** 2 for a, b, c in zip(x, row, np.broadcast_to(h, x.shape), strict=True)) for row in X
    ]
    top, bottom = 0.0 * y[0], 0.0
    for j, distance in enumerate(distances):
        k = (1.0 if w is None else w[j]) * np.exp(-(distance - min(distances)) / 2)
        top, bottom = top + k * y[j], bottom + k
    return top / bottom


def leave_one_out(X: np.ndarray, y: np.ndarray, h: Any, w: np.ndarray | None = None) -> float:
    w = np.ones(len(X)) if w is None else w
    total = 0.0
    for i in range(len(X)):
        others = np.arange(len(X)) != i
        total += w[i] * np.mean((average(X[i], X[others], y[others], h, w[others]) - y[i]) ** 2)
    return total / w.sum()


def leave_one_out_curve(x: np.ndarray, y: np.ndarray, bandwidths: np.ndarray) -> np.ndarray:
    """The same for one column, over many bandwidths."""
    squares = (x[:, None] - x) ** 2
    np.fill_diagonal(squares, np.inf)
    squares -= squares.min(1, keepdims=True)
    curve = []
    for h in bandwidths:
        p = np.exp(-squares / (2 * h**2))
        curve.append(np.mean((p @ y / p.sum(1) - y) ** 2))
    return np.array(curve)


def table(n: int = 40, d: int = 3, outputs: int | None = None, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = np.sin(2 * X[:, :1]) + X[:, -1:] @ rng.normal(size=(1, outputs or 1)) + 0.2 * rng.normal(size=(n, outputs or 1))
    return X, y if outputs else y[:, 0]


def book() -> tuple[np.ndarray, np.ndarray]:
    """The table of Dive into Deep Learning, attention pooling: 40 noisy points of 2 sin x + x on [0, 5]."""
    torch.manual_seed(0)
    x = torch.sort(torch.rand(40) * 5).values
    y = 2 * torch.sin(x) + x + torch.randn(40)
    return x.double().numpy()[:, None], y.double().numpy()


@pytest.mark.parametrize(("bandwidth", "error"), [(0.1, 0.350), (0.5, 0.136), (2.0, 0.741)])
def test_the_books_smoothing_errors(bandwidth: float, error: float) -> None:
    X, y = book()
    queries = np.arange(0, 5, 0.1)
    predictions = NadarayaWatsonRegressor(bandwidth, learn=None).fit(X, y).predict(queries[:, None])
    assert np.mean((predictions - 2 * np.sin(queries) - queries) ** 2) == pytest.approx(error, abs=5.1e-4)


@pytest.mark.parametrize(("w", "loss"), [(1, 1.259), (1.268, 1.146), (1.428, 1.102), (1.545, 1.078), (1.637, 1.062)])
def test_the_books_leave_one_out_errors(w: float, loss: float) -> None:
    """Its descent on w = 1 / h: the loss before each step; w is printed to three digits, which is .0002 of loss."""
    X, y = book()
    assert NadarayaWatsonRegressor(1 / w, learn=None).fit(X, y).loo_error_ == pytest.approx(loss, abs=7e-4)


def one_column(kind: str) -> tuple[np.ndarray, np.ndarray]:
    if kind == "book":
        X, y = book()
        return X[:, 0], y
    rng = np.random.default_rng(7)
    n = {"many": 600, "three": 3}.get(kind, 50)
    x = {
        "heavy tails": rng.lognormal(0, 3, n),
        "ties": rng.integers(0, 6, n).astype(float),
        "an outlier first": np.concatenate([[1e9], rng.normal(size=n - 1)]),
        "a timestamp": 1.7e9 + 60.0 * np.arange(n),
    }.get(kind, rng.normal(size=n))
    if kind == "noise":
        return x, rng.normal(size=n)
    return x, np.sin(x if kind != "a timestamp" else x / 400) + 0.3 * rng.normal(size=n)


@pytest.mark.parametrize(
    "kind", ["book", "normal", "noise", "heavy tails", "ties", "an outlier first", "a timestamp", "three", "many"]
)
@pytest.mark.parametrize("start", [None, 1e-4, 1e4])
def test_one_column_is_no_worse_than_a_fine_grid(kind: str, start: float | None) -> None:
    x, y = one_column(kind)
    model = NadarayaWatsonRegressor(start).fit(x[:, None], y)
    assert model.bandwidth_.shape == (1,)
    assert model.bandwidth_[0] > 0
    gap, span = np.diff(np.unique(x)).min(), np.ptp(x)
    grid = np.geomspace(max(gap, 1e-9 * span) / 3, 100 * span, 200 if kind == "many" else 3000)
    learned = leave_one_out_curve(x, y, model.bandwidth_)[0]
    assert model.loo_error_ == pytest.approx(learned, abs=1e-12)
    assert learned <= leave_one_out_curve(x, y, grid).min() + 1e-6


@pytest.mark.parametrize("outputs", [None, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_many_columns_stand_at_a_minimum(outputs: int | None, weighted: bool) -> None:
    X, y = table(30, 3, outputs)
    w = np.random.default_rng(1).uniform(0.1, 3, 30) if weighted else None
    model = NadarayaWatsonRegressor().fit(X, y, w)
    error = leave_one_out(X, y, model.bandwidth_, w)
    assert model.loo_error_ == pytest.approx(error, abs=1e-12)
    assert error <= NadarayaWatsonRegressor(learn=None).fit(X, y, w).loo_error_
    for k in range(3):
        for factor in (0.97, 1.03):
            moved = model.bandwidth_.copy()
            moved[k] *= factor
            assert leave_one_out(X, y, moved, w) >= error - 1e-9


def test_a_useless_column_goes_out_of_sight() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(150, 2)) * [1.0, 1e6]  # an equal start for both sees only the second
    y = np.sin(4 * X[:, 0]) + 0.05 * rng.normal(size=150)
    model = NadarayaWatsonRegressor(1.0).fit(X, y)
    assert model.bandwidth_[0] < 0.3
    assert model.bandwidth_[1] > 2e6
    assert model.loo_error_ < 0.01


def test_scotts_rule() -> None:
    X, y = table(25, 3)
    w = np.random.default_rng(2).uniform(0, 2, 25)
    got = NadarayaWatsonRegressor(learn=None).fit(X, y, w).bandwidth_
    std = np.sqrt(np.diag(np.cov(X.T, aweights=w, bias=True)))
    np.testing.assert_allclose(got, std * gaussian_kde(X.T, weights=w).scotts_factor(), rtol=1e-12)


@pytest.mark.parametrize("bandwidth", [0.4, [0.3, 2.0, 1.0]], ids=["one", "per-column"])
@pytest.mark.parametrize("outputs", [None, 1, 2])
def test_predictions_are_kernel_averages(bandwidth: Any, outputs: int | None) -> None:
    X, y = table(30, 3, outputs)
    w = np.random.default_rng(3).uniform(0, 2, 30)
    queries = table(12, 3, seed=5)[0]
    for weights in (None, w):
        model = NadarayaWatsonRegressor(bandwidth, learn=None).fit(X, y, weights)
        expected = np.array([average(x, X, y, bandwidth, weights) for x in queries])
        np.testing.assert_allclose(model.predict(queries), expected, rtol=0, atol=1e-12)
        assert model.predict(queries).shape == expected.shape == ((12,) if outputs is None else (12, outputs))
    assert (model.n_outputs_, model.n_features_in_, model.n_samples_seen_) == (outputs or 1, 3, 30)


def test_it_is_the_memory() -> None:
    X, y = table(30, 3)
    k, v = torch.from_numpy(X)[None, :, None], torch.from_numpy(y)[None, :, None, None]
    memory = replace(il.get("nadaraya_watson", bandwidth=0.7, capacity=9), order="read-write")
    before, state, _ = il.scan(memory, k, k, v)
    model = NadarayaWatsonRegressor(0.7, learn=None, window=9)
    np.testing.assert_allclose(model.predict_then_update(X, y), before[0, :, 0, 0].numpy(), atol=1e-12)
    np.testing.assert_allclose(model.predict(X), il.read(memory, k, state)[0, :, 0, 0].numpy(), atol=1e-12)


@pytest.mark.parametrize("window", [None, 1, 6])
@pytest.mark.parametrize("outputs", [None, 2])
@pytest.mark.parametrize("fitted", [False, True])
def test_predict_then_update_is_the_row_loop(window: int | None, outputs: int | None, fitted: bool) -> None:
    past, X, w = table(10, 3, outputs, seed=9), table(45, 3, outputs)[0], np.random.default_rng(4).integers(0, 3, 45)
    y = table(45, 3, outputs)[1]
    X[0] = 1e8  # a first row far from the others costs them no digits
    at_once, rows, cut = (NadarayaWatsonRegressor(window=window) for _ in range(3))
    kept: list[tuple[Any, Any, float]] = []
    if fitted:
        kept = [(x, target, 1.0) for x, target in zip(*past, strict=True)]
        for model in (at_once, rows, cut):
            model.fit(*past)
    h = at_once.bandwidth_ if fitted else np.sqrt(3)
    predictions = at_once.predict_then_update(X, y, w)
    for t in range(45):
        seen = kept if window is None else kept[-window:]
        expected = 0 * y[0]
        if seen:
            before, targets, weights = (np.array(part) for part in zip(*seen, strict=True))
            expected = average(X[t], before, targets, h, weights)
        np.testing.assert_allclose(predictions[t], expected, rtol=0, atol=1e-9)
        if t or fitted:
            np.testing.assert_allclose(predictions[t], rows.predict(X[t : t + 1])[0], rtol=0, atol=1e-9)
        rows.partial_fit(X[t : t + 1], y[t : t + 1], w[t : t + 1])
        kept += [(X[t], y[t], float(w[t]))] if w[t] else []
    pieces = [cut.predict_then_update(X[a:b], y[a:b], w[a:b]) for a, b in ((0, 1), (1, 30), (30, 31), (31, 45))]
    np.testing.assert_allclose(np.concatenate(pieces), predictions, rtol=0, atol=1e-12)
    assert at_once.n_samples_seen_ == rows.n_samples_seen_ == cut.n_samples_seen_ == len(kept)
    for model in (at_once, rows, cut):
        assert len(model.X_) == len(kept if window is None else kept[-window:])
        np.testing.assert_array_equal(model.bandwidth_, np.broadcast_to(h, 3))
    np.testing.assert_allclose(rows.predict(X), at_once.predict(X), rtol=0, atol=1e-12)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = table(70, 2)
    whole = NadarayaWatsonRegressor(window=20).fit(X, y)
    streamed = NadarayaWatsonRegressor(window=20)
    expected = streamed.predict_then_update(X, y), whole.predict(X), whole.loo_error_
    monkeypatch.setattr(averaging, "BLOCK", 150)
    monkeypatch.setattr(bandwidths_of, "BLOCK", 150)
    small = NadarayaWatsonRegressor(window=20).fit(X, y)
    streamed = NadarayaWatsonRegressor(window=20)
    got = streamed.predict_then_update(X, y), small.predict(X), small.loo_error_
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-7)


def test_fit_keeps_the_window_and_learns_from_it() -> None:
    X, y = table(40, 2)
    windowed = NadarayaWatsonRegressor(window=15).fit(X, y)
    alone = NadarayaWatsonRegressor().fit(X[25:], y[25:])
    np.testing.assert_array_equal(windowed.bandwidth_, alone.bandwidth_)
    np.testing.assert_array_equal(windowed.predict(X), alone.predict(X))
    assert windowed.n_samples_seen_ == 40


@pytest.mark.parametrize(("bandwidth", "expected"), [(None, [2**0.5] * 2), (0.3, [0.3] * 2), ([0.1, 5], [0.1, 5.0])])
def test_without_fit_bandwidths_are_the_starting_value(bandwidth: Any, expected: list[float]) -> None:
    X, y = table(20, 2)
    model = NadarayaWatsonRegressor(bandwidth).partial_fit(X, y)
    np.testing.assert_allclose(model.bandwidth_, expected)
    assert np.isnan(model.loo_error_)
    model.fit(X, y)
    learned, error = model.bandwidth_.copy(), model.loo_error_
    assert not np.allclose(learned, expected)
    model.partial_fit(*table(20, 2, seed=3))
    np.testing.assert_array_equal(model.bandwidth_, learned)
    assert (model.loo_error_, model.n_samples_seen_) == (error, 40)


def test_weights_count_rows() -> None:
    X, y = table(25, 2, outputs=2)
    w = np.random.default_rng(6).integers(0, 4, 25)
    for window in (None, 3):
        weighted = NadarayaWatsonRegressor(0.6, learn=None, window=window).fit(X, y, w)
        last = np.flatnonzero(w)[-(window or 25) :]
        repeated = NadarayaWatsonRegressor(0.6, learn=None).fit(X[last].repeat(w[last], 0), y[last].repeat(w[last], 0))
        np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=0, atol=1e-12)
    absent = NadarayaWatsonRegressor().fit(X, y, (w > 0).astype(float))
    removed = NadarayaWatsonRegressor().fit(X[w > 0], y[w > 0])
    np.testing.assert_array_equal(absent.bandwidth_, removed.bandwidth_)
    np.testing.assert_array_equal(absent.predict(X), removed.predict(X))
    assert absent.n_samples_seen_ == np.count_nonzero(w)


def test_a_common_factor_of_the_weights_changes_nothing() -> None:
    """So a row is left out with its whole weight: with a copy left, weights of 100 would teach the bandwidth 0."""
    X, y = table(25, 2)
    w = np.random.default_rng(6).uniform(0.5, 2, 25)
    one, other = (NadarayaWatsonRegressor().fit(X, y, factor * w) for factor in (1, 1024))
    np.testing.assert_allclose(one.bandwidth_, other.bandwidth_, rtol=1e-6)
    np.testing.assert_allclose(one.loo_error_, other.loo_error_, rtol=1e-9)


def test_far_queries_are_answered_by_the_nearest_row() -> None:
    X = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    y = np.array([3.0, 5.0, 7.0])
    model = NadarayaWatsonRegressor(0.5, learn=None).fit(X, y)
    far = 1e9 * model.bandwidth_[0]
    queries = [[far, 0.0], [0.0, far], [-far, -far], [100 * far, 0.0]]
    np.testing.assert_array_equal(model.predict(queries), [5.0, 7.0, 3.0, 5.0])
    extremes = model.predict([[1e300, -1e300], [-1.7e308, 1.7e308]])
    assert np.isfinite(extremes).all()
    assert ((extremes >= 3) & (extremes <= 7)).all()
    outlier = NadarayaWatsonRegressor(0.5, learn=None).predict_then_update(np.vstack([X, [far, 0]]), [*y, 0.0])
    assert outlier[-1] == 5.0


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("d", [1, 4, 20])
@pytest.mark.parametrize("kind", ["normal", "identical", "one constant column", "twins"])
def test_few_rows_constant_columns_and_identical_rows(n: int, d: int, kind: str) -> None:
    X, y = table(n, d)
    if kind == "identical":
        X[:] = 0.1
    elif kind == "one constant column":
        X[:, 0] = 1.7e9
    elif kind == "twins":
        X, y = np.vstack([X, X]), np.concatenate([y, y])
    with np.errstate(all="raise", under="ignore"):
        model = NadarayaWatsonRegressor().fit(X, y)
        again = NadarayaWatsonRegressor().fit(X, y)
        predictions = model.predict(np.vstack([X, X + 1]))
    np.testing.assert_array_equal(model.bandwidth_, again.bandwidth_)
    assert model.bandwidth_.shape == (d,)
    assert np.isfinite(model.bandwidth_).all()
    assert (model.bandwidth_ > 0).all()
    assert np.isfinite(predictions).all()
    if len(X) == 1:
        assert np.isnan(model.loo_error_)
    else:
        assert model.loo_error_ == pytest.approx(leave_one_out(X, y, model.bandwidth_), abs=1e-12)
    start = NadarayaWatsonRegressor(learn=None).fit(X, y)
    if kind == "identical":
        np.testing.assert_array_equal(model.bandwidth_, start.bandwidth_)
    elif kind == "one constant column":
        assert model.bandwidth_[0] == start.bandwidth_[0]


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_units_do_not_matter(scale: float) -> None:
    X, y = table(40, 2)
    here = NadarayaWatsonRegressor().fit(X, y)
    target = NadarayaWatsonRegressor().fit(X, scale * y)
    columns = NadarayaWatsonRegressor().fit(X * [scale, 1], y)
    np.testing.assert_allclose(target.bandwidth_, here.bandwidth_, rtol=1e-4)
    np.testing.assert_allclose(target.loo_error_, scale**2 * here.loo_error_, rtol=1e-9)
    np.testing.assert_allclose(columns.bandwidth_, here.bandwidth_ * [scale, 1], rtol=1e-4)
    np.testing.assert_allclose(columns.predict(X * [scale, 1]), here.predict(X), atol=1e-4)


def test_a_constant_target() -> None:
    X, _ = table(20, 2)
    model = NadarayaWatsonRegressor().fit(X, np.full(20, 0.1))
    np.testing.assert_allclose(model.predict(X), 0.1, rtol=1e-14)
    assert model.loo_error_ < 1e-30


def test_many_rows_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    subset, left = bandwidths_of.left_out(50_000)
    assert len(subset) == len(np.unique(subset)) == 2**14
    assert len(left) == len(np.unique(left)) == 2**8
    assert max(len(part) for part in bandwidths_of.left_out(2048)) == len(bandwidths_of.left_out(2048)[1]) == 2048
    monkeypatch.setattr(bandwidths_of, "EXEMPLARS", 40)
    monkeypatch.setattr(bandwidths_of, "PAIRS", 400)
    X, y = table(60, 2)
    w = np.random.default_rng(0).uniform(1, 2, 60)
    model, again = (NadarayaWatsonRegressor().fit(X, y, w) for _ in range(2))
    subset, left = bandwidths_of.left_out(60)
    assert (len(subset), len(left)) == (40, 10)
    errors = []
    for i in subset[left]:
        others = subset[subset != i]
        errors.append((average(X[i], X[others], y[others], model.bandwidth_, w[others]) - y[i]) ** 2)
    assert model.loo_error_ == pytest.approx(np.average(errors, weights=w[subset[left]]), abs=1e-12)
    np.testing.assert_array_equal(model.bandwidth_, again.bandwidth_)
    assert len(model.X_) == 60


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("zero", {"bandwidth": 0}, r"bandwidth=0: pass None, a positive number"),
    ("negative", {"bandwidth": [1.0, -1.0]}, r"bandwidth=\[1.0, -1.0\]"),
    ("infinite", {"bandwidth": np.inf}, "bandwidth=inf"),
    ("wrong-length", {"bandwidth": [1.0, 1.0, 1.0]}, "an array of 2, one per column"),
    ("text", {"bandwidth": "1"}, "bandwidth='1'"),
    ("bool", {"bandwidth": True}, "bandwidth=True"),
    ("learn", {"learn": "gcv"}, "learn='gcv': pass 'loo' or None"),
    ("window", {"window": 0}, "window=0: pass None"),
    ("window-float", {"window": 2.5}, "window=2.5"),
]


@pytest.mark.parametrize(("options", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_wrong_parameters(options: dict[str, Any], message: str) -> None:
    X, y = table(10, 2)
    for call in ("fit", "partial_fit", "predict_then_update"):
        model = NadarayaWatsonRegressor(**options)
        before = dict(vars(model))
        with pytest.raises(ValueError, match=message):
            getattr(model, call)(X, y)
        assert vars(model) == before


@pytest.mark.parametrize("call", ["fit", "partial_fit", "predict_then_update"])
def test_bad_rows_are_named_and_change_nothing(call: str) -> None:
    X, y = table(12, 2)
    frame = pd.DataFrame(X, columns=["wind", "sun"])
    model = NadarayaWatsonRegressor().fit(frame, y)
    before = {name: np.copy(value) for name, value in vars(model).items()}
    holed, infinite = frame.copy(), y.copy()
    holed.loc[7, "sun"], infinite[4] = np.nan, -np.inf
    two = np.column_stack([y, y])
    two[3, 1] = np.nan
    w = np.ones(12)
    w[5] = -2
    cases: list[tuple[Any, Any, Any, str]] = [
        (holed, y, None, r"X: NaN in row 7, column 1 \('sun'\)"),
        (frame, infinite, None, "y: inf in row 4, column 0"),
        (frame, two, None, "y: NaN in row 3, column 1"),
        (frame, y, w, r"sample_weight: -2.0 in row 5: pass weights >= 0"),
        (frame, y, np.full(12, np.nan), "sample_weight: NaN in row 0"),
        (frame, y, np.ones(5), r"sample_weight: shape \[5\]: wanted \[12\]"),
        (frame, y[:5], None, "inconsistent numbers of samples"),
        (frame[:0], y[:0], None, r"0 sample\(s\)"),
    ]
    if call == "fit":
        cases.append((frame, y, np.zeros(12), "sample_weight: all weights are zero"))
    else:
        cases.append((frame[["wind"]], y, None, "feature names"))
        cases.append((frame.rename(columns={"sun": "rain"}), y, None, "feature names"))
        cases.append((frame, np.column_stack([y, y]), None, r"y: shape \[12, 2\]: wanted \[n\], as in the first call"))
    for rows, target, weight, message in cases:
        with pytest.raises(ValueError, match=message):
            getattr(model, call)(rows, target, weight)
        assert vars(model).keys() == before.keys()
        for name, value in before.items():
            np.testing.assert_array_equal(vars(model)[name], value)
    with pytest.raises(ValueError, match=r"X: NaN in row 7, column 1 \('sun'\)"):
        model.predict(holed)


def test_inputs_and_model_share_nothing() -> None:
    X, y = table(20, 2)
    w = np.ones(20)
    copies = X.copy(), y.copy(), w.copy()
    fitted = NadarayaWatsonRegressor().fit(X, y, w)
    streamed = NadarayaWatsonRegressor()
    streamed.predict_then_update(X, y, w)
    for mine, copy in zip((X, y, w), copies, strict=True):
        np.testing.assert_array_equal(mine, copy)
    expected = fitted.predict(X), streamed.predict(X)
    queries = X.copy()
    X[:], y[:], w[:] = 0, 0, 0
    np.testing.assert_array_equal(fitted.predict(queries), expected[0])
    np.testing.assert_array_equal(streamed.predict(queries), expected[1])


@pytest.mark.parametrize("outputs", [None, 2])
@pytest.mark.parametrize("way", ["save", "pickle"])
def test_a_stored_model_goes_on(way: str, outputs: int | None, tmp_path: Path) -> None:
    X, y = table(30, 2, outputs)
    frame = pd.DataFrame(X, columns=["wind", "sun"])
    model = NadarayaWatsonRegressor(np.array([0.5, 2.0]), window=cast(int, np.int64(12))).fit(frame[:20], y[:20])
    if way == "save":
        model.save(tmp_path / "model.safetensors")
        again = NadarayaWatsonRegressor.load(tmp_path / "model.safetensors")
        assert os.listdir(tmp_path) == ["model.safetensors"]
    else:
        again = pickle.loads(pickle.dumps(model))
    assert (again.learn, again.window, list(again.bandwidth)) == ("loo", 12, [0.5, 2.0])
    for name in ("bandwidth_", "loo_error_", "n_samples_seen_", "n_outputs_", "n_features_in_", "feature_names_in_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    for each in (again, model):
        each.partial_fit(frame[20:25], y[20:25])
    np.testing.assert_array_equal(
        again.predict_then_update(frame[25:], y[25:]), model.predict_then_update(frame[25:], y[25:])
    )
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    assert again.predict(frame).shape == y.shape


def test_saving_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = table(20, 2)
    path = tmp_path / "model.safetensors"
    with pytest.raises(NotFittedError):
        NadarayaWatsonRegressor().save(path)
    fresh = NadarayaWatsonRegressor().partial_fit(X, y, np.zeros(20))  # nothing learned yet, and its error unknown
    fresh.save(path)
    np.testing.assert_array_equal(NadarayaWatsonRegressor.load(path).predict(X), 0)
    assert np.isnan(NadarayaWatsonRegressor.load(path).loo_error_)

    def full_disk(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match="no space"):
        NadarayaWatsonRegressor().fit(X, y).save(path)
    assert os.listdir(tmp_path) == ["model.safetensors"]
    assert len(NadarayaWatsonRegressor.load(path).X_) == 0


def test_other_files_are_refused(tmp_path: Path) -> None:
    text, state = tmp_path / "text", tmp_path / "state"
    text.write_text("no tensors here, only words")
    il.init_state(il.get("nadaraya_watson"), 1, 1, 2, 1).save(state)
    with pytest.raises(ValueError, match="is no safetensors file"):
        NadarayaWatsonRegressor.load(text)
    with pytest.raises(ValueError, match="holds no NadarayaWatsonRegressor"):
        NadarayaWatsonRegressor.load(state)


def test_predict_before_anything_was_learned() -> None:
    with pytest.raises(NotFittedError):
        NadarayaWatsonRegressor().predict([[1.0]])
    np.testing.assert_array_equal(NadarayaWatsonRegressor().predict_then_update([[1.0], [2.0]], [3.0, 4.0]), [0.0, 3.0])


EQUIVALENCE = "check_sample_weight_equivalence_on_dense_data"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {EQUIVALENCE: "leave-one-out leaves a row out with its whole weight, and a repeated row once by once"}),
        ({"learn": None}, {EQUIVALENCE: "Scott's rule takes the effective number of rows, which a repeat raises"}),
        ({"bandwidth": 0.5, "learn": None}, {}),
        ({"window": 150}, {EQUIVALENCE: "a window counts rows, and a repeated row more than once"}),
    ],
    ids=["learned", "rule", "fixed", "window"],
)
def test_the_scikit_learn_contract(options: dict[str, Any], expected: dict[str, str]) -> None:
    model = NadarayaWatsonRegressor(**options)
    results = check_estimator(model, expected_failed_checks=expected, on_skip=None)
    assert {result["check_name"] for result in results if result["status"] == "xfail"} == set(expected)
    tags = model.__sklearn_tags__()
    assert tags.target_tags.multi_output
    assert tags.target_tags.required
    assert not tags.input_tags.allow_nan


def test_in_pipelines_and_searches() -> None:
    X, y = book()
    shuffled = np.random.default_rng(0).permutation(40)
    search = GridSearchCV(
        NadarayaWatsonRegressor(learn=None), {"bandwidth": [1e-3, 0.5, 50.0]}, scoring="neg_mean_squared_error"
    ).fit(X[shuffled], y[shuffled])
    assert search.best_params_ == {"bandwidth": 0.5}
    pipeline = make_pipeline(StandardScaler(), NadarayaWatsonRegressor()).fit(X, y)
    np.testing.assert_allclose(
        pipeline.predict(X), NadarayaWatsonRegressor().fit(X, y).predict(X), atol=1e-5
    )  # a bandwidth learned on standardised columns is the same one
    assert pipeline.score(X, y) > 0.5
    again: Any = clone(NadarayaWatsonRegressor([0.1], None, 30))
    assert again.get_params() == {"bandwidth": [0.1], "learn": None, "window": 30}
    folds = TimeSeriesSplit(3).split(X)
    assert all(np.isfinite(again.fit(X[a], y[a]).score(X[b], y[b])) for a, b in folds)


def test_pandas_and_names() -> None:
    X, y = table(20, 2)
    frame = pd.DataFrame(X.astype(np.float32), columns=["wind", "sun"])
    model = NadarayaWatsonRegressor().set_params(bandwidth=1.0).fit(frame, pd.Series(y), pd.Series(np.ones(20)))
    assert list(model.feature_names_in_) == ["wind", "sun"]
    plain = NadarayaWatsonRegressor(1.0).fit(X.astype(np.float32).astype(np.float64), y)
    np.testing.assert_array_equal(model.predict(frame), plain.predict(X.astype(np.float32)))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"sun": "rain"}))


def test_polars() -> None:
    polars = pytest.importorskip("polars")
    X, y = table(20, 2)
    frame = polars.DataFrame({"wind": X[:, 0], "sun": X[:, 1]})
    model = NadarayaWatsonRegressor().fit(frame, polars.Series(y))
    assert list(model.feature_names_in_) == ["wind", "sun"]
    np.testing.assert_array_equal(model.predict(frame), NadarayaWatsonRegressor().fit(X, y).predict(X))
