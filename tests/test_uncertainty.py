"""Standard deviations, weights, skipped rows: against dense linear algebra and repeated rows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

import innerloop as il


def stream(rows: int = 80, d: int = 3, outputs: int | None = None, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, d))
    y = X @ rng.normal(size=(d, outputs or 1)) + 4 + 0.3 * rng.normal(size=(rows, outputs or 1))
    return X, y if outputs else y[:, 0]


def test_least_squares_have_their_textbook_errors() -> None:
    """Penalty near 0: s^2 = RSS / (n - K), std = s sqrt(1 + x^T (X^T X)^-1 x), the intercept included."""
    X, y = stream()
    m = il.StreamingRegressor(penalty=1e-9).fit(X, y)
    D = np.column_stack([X, np.ones(len(X))])
    w = np.linalg.lstsq(D, y, rcond=None)[0]
    s = np.sqrt(((y - D @ w) ** 2).sum() / (len(X) - 4))
    at = np.array([[0.3, -1.0, 2.0], [5.0, 5.0, 5.0]])
    A = np.column_stack([at, np.ones(2)])
    expected = s * np.sqrt(1 + np.einsum("nk,kl,nl->n", A, np.linalg.inv(D.T @ D), A))
    mean, std = m.predict(at, return_std=True)
    np.testing.assert_allclose(mean, A @ w, rtol=1e-6)
    np.testing.assert_allclose(std, expected, rtol=1e-4)
    np.testing.assert_allclose(m.noise_, [s], rtol=1e-4)


def test_ridge_noise_is_the_least_objective() -> None:
    """N of the module's equations is min |y - X w|^2 + penalty |w|^2, whatever the order of rows."""
    X, y = stream()
    m = il.StreamingRegressor(penalty=2.0, fit_intercept=False).fit(X, y)
    w = Ridge(alpha=2.0, fit_intercept=False).fit(X, y).coef_
    objective = ((y - X @ w) ** 2).sum() + 2 * w @ w
    np.testing.assert_allclose(m.noise_, [np.sqrt(objective / len(X))], rtol=1e-4)
    order = np.random.default_rng(1).permutation(len(X))
    np.testing.assert_allclose(
        il.StreamingRegressor(penalty=2.0, fit_intercept=False).fit(X[order], y[order]).noise_, m.noise_, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [("rls", {}), ("rls", {"forgetting": 0.95}), ("rls", {"forgetting": 0.95, "forgetting_rule": "exponential"}),
     ("rls", {"forgetting": 0.95, "forgetting_rule": "static"}), ("kalman", {"process_noise": 1e-3}),
     ("rls", {"forgetting": "auto", "bank": 4})],
    ids=str,
)  # fmt: skip
def test_standard_deviations_row_by_row(name: str, options: dict[str, Any]) -> None:
    """Of `predict_then_update` against the loop; covering what they say; the same however rows are cut."""
    X, y = stream(300, outputs=2)
    at_once = il.StreamingRegressor(name, **options)
    mean, std = at_once.predict_then_update(X, y, return_std=True)
    assert mean.shape == std.shape == y.shape
    pieces = il.StreamingRegressor(name, **options)
    cut = [pieces.predict_then_update(X[a:b], y[a:b], return_std=True) for a, b in ((0, 1), (1, 150), (150, 300))]
    np.testing.assert_allclose(np.concatenate([c[1] for c in cut]), std, rtol=1e-9)
    rows = il.StreamingRegressor(name, **options)
    for t in range(120):
        rows.partial_fit(X[t : t + 1], y[t : t + 1])
    if options.get("forgetting", 1.0) == 1.0 and name == "rls":  # nothing fades between the rows
        np.testing.assert_allclose(rows.predict(X[120:121], return_std=True)[1][0], std[120], rtol=1e-7)
    inside = np.abs(mean - y)[50:] < 1.96 * std[50:]
    assert 0.92 < inside.mean() < 0.98


def test_others_say_that_they_have_none() -> None:
    X, y = stream(10)
    m = il.StreamingRegressor("longhorn").fit(X, y)
    with pytest.raises(ValueError, match="return_std: longhorn keeps no covariance; memory='rls' and 'kalman' do"):
        m.predict(X, return_std=True)
    with pytest.raises(AttributeError, match="noise_: longhorn keeps"):
        _ = m.noise_


@pytest.mark.parametrize(
    "name", ["rls", "kalman", "deltanet", "longhorn", "titans_linear", "titans", "nadaraya_watson"]
)
@pytest.mark.parametrize("forgetting", [1.0, 0.9])
def test_a_row_of_weight_zero_is_absent(name: str, forgetting: float) -> None:
    """And predicted, as if it were asked for there."""
    if forgetting < 1 and name in ("kalman", "deltanet", "nadaraya_watson"):
        pytest.skip("does not forget")
    X, y = stream(60)
    options = {"forgetting": forgetting}
    weight = np.where(np.arange(60) % 3 == 1, 0.0, 1.0)
    weight[:2] = 0
    m = il.StreamingRegressor(name, **options)
    p = m.predict_then_update(X, y, sample_weight=weight)
    there = weight > 0
    other = il.StreamingRegressor(name, **options)
    np.testing.assert_allclose(p[there], other.predict_then_update(X[there], y[there]), atol=1e-9)
    np.testing.assert_allclose(m.predict(X), other.predict(X), atol=1e-9)
    assert m.n_samples_seen_ == there.sum()
    k = 31  # absent: what the model after the rows before it says
    before = il.StreamingRegressor(name, **options).partial_fit(X[:k][there[:k]], y[:k][there[:k]])
    np.testing.assert_allclose(p[k], before.predict(X[k : k + 1])[0], atol=1e-9)


@pytest.mark.parametrize("name", ["rls", "kalman", "nadaraya_watson"])
def test_whole_weights_are_repeated_rows(name: str) -> None:
    X, y = stream(30)
    weight = np.random.default_rng(1).integers(1, 4, 30)
    options = {"process_noise": 0.0} if name == "kalman" else {}
    weighed = il.StreamingRegressor(name, **options).fit(X, y, sample_weight=weight)
    repeated = il.StreamingRegressor(name, **options).fit(np.repeat(X, weight, 0), np.repeat(y, weight))
    np.testing.assert_allclose(weighed.predict(X), repeated.predict(X), atol=1e-9)
    if name != "nadaraya_watson":
        np.testing.assert_allclose(
            weighed.predict(X, return_std=True)[1], repeated.predict(X, return_std=True)[1], rtol=1e-4
        )


def test_weights_that_cannot_be() -> None:
    X, y = stream(4)
    with pytest.raises(ValueError, match="every weight is zero"):
        il.StreamingRegressor().fit(X, y, sample_weight=np.zeros(4))
    with pytest.raises(ValueError, match="sample_weight: -1 at row 2"):
        il.StreamingRegressor().fit(X, y, sample_weight=[1, 1, -1, 1])
    m = il.StreamingRegressor().partial_fit(X, y)
    before = m.predict(X)
    m.partial_fit(X, -y, sample_weight=np.zeros(4))
    np.testing.assert_array_equal(m.predict(X), before)


def test_bad_rows_are_named_before_anything_changes() -> None:
    X, y = stream(20)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame.loc[7, "b"] = np.inf
    m = il.StreamingRegressor()
    with pytest.raises(ValueError, match="Input X contains infinity: row 7, column 'b'"):
        m.partial_fit(frame, y)
    assert not hasattr(m, "n_features_in_")
    X[3, 2] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN: row 3, column 2"):
        m.partial_fit(X, y)
    with pytest.raises(ValueError, match="Input y contains NaN: row 1"):
        m.partial_fit(X[4:], np.where(np.arange(16) == 1, np.nan, y[4:]))


@pytest.mark.parametrize("name", ["rls", "kalman", "longhorn", "titans_linear", "nadaraya_watson"])
@pytest.mark.parametrize("forgetting", [1.0, "auto"])
def test_bad_rows_are_skipped(name: str, forgetting: Any) -> None:
    """Predicted where X allows, learned never, counted; also one at a time."""
    X, y = stream(60)
    X, y = X.copy(), y.copy()
    X[10, 1], X[30, 0], y[20], y[30] = np.nan, np.inf, np.nan, np.nan
    bad = np.isin(np.arange(60), [10, 20, 30])
    options: dict[str, Any] = {"forgetting": forgetting, "on_bad": "skip"}
    if forgetting == "auto":
        options["bank"] = 3
    m = il.StreamingRegressor(name, **options)
    p = m.predict_then_update(X, y)
    clean = il.StreamingRegressor(name, **options)
    np.testing.assert_allclose(p[~bad], clean.predict_then_update(X[~bad], y[~bad]), atol=1e-9)
    assert np.isnan(p[[10, 30]]).all()
    assert np.isfinite(p[20])
    assert m.n_skipped_ == 3
    assert m.n_samples_seen_ == 57
    assert np.isnan(m.predict(X)).tolist() == np.isin(np.arange(60), [10, 30]).tolist()
    rows = il.StreamingRegressor(name, **options)
    loop = np.concatenate([rows.predict_then_update(X[t : t + 1], y[t : t + 1]) for t in range(40)])
    np.testing.assert_allclose(loop, p[:40], atol=1e-9)
    assert rows.n_skipped_ == 3


def test_read_only_columns_are_taken_without_a_word() -> None:
    X, y = stream(20)
    weight, gap = np.ones(20), np.ones(20)
    for a in (X, y, weight, gap):
        a.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        il.StreamingRegressor("kalman").partial_fit(X, y, sample_weight=weight, elapsed=gap)
