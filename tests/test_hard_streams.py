"""Streams that break other regressors: quiet sensors, collinear columns, time stamps, huge and tiny units, gaps."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge

import innerloop as il

RULES = ("regularized", "static", "exponential", "directional")
SURVIVE = ("regularized", "static", "directional")  # "exponential" is the textbook rule, which forgets its prior


def model(rule: str = "regularized", forgetting: float = 0.9, **options: Any) -> il.StreamingRegressor:
    return il.StreamingRegressor("rls", forgetting=forgetting, forgetting_rule=rule, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rls", "kalman"])
def test_four_hundred_thousand_zero_rows_and_then_recovery(name: str) -> None:
    rng = np.random.default_rng(0)
    w = rng.normal(size=3)
    X = np.concatenate([rng.normal(size=(200, 3)), np.zeros((400_000, 3)), rng.normal(size=(200, 3))])
    y = X @ w + 0.01 * rng.normal(size=len(X))
    options: dict[str, Any] = {"forgetting": 0.99} if name == "rls" else {"process_noise": 1e-4}
    p = il.StreamingRegressor(name, fit_intercept=False, **options).predict_then_update(X, y)
    assert np.isfinite(p).all()
    assert np.abs(p[-200:-180] - y[-200:-180]).mean() < 0.6  # what it knew before is not blown up
    assert np.abs(p[-100:] - y[-100:]).mean() < 0.05


@pytest.mark.parametrize("rule", SURVIVE)
def test_a_constant_regressor_does_not_wind_up(rule: str) -> None:
    rows = 40_000 if rule == "regularized" else 4_000  # the others take a solve by the loop of their rule
    rng = np.random.default_rng(0)
    X = np.full((rows, 2), 0.7)
    y = 3 + 0.1 * rng.normal(size=rows)
    m = model(rule)
    p = m.predict_then_update(X, y)
    assert np.isfinite(p).all()
    assert np.abs(p[-1000:] - 3).max() < 0.5
    mean, std = m.predict([[0.7, 0.7], [5.0, -3.0]], return_std=True)
    assert np.isfinite(std).all()
    assert np.abs(m.coef_).max() < 10
    assert abs(mean[0] - 3) < 0.2


def test_excitation_that_returns() -> None:
    """59,000 quiet rows; the first 20 after them are wrong by no more than noise and .1."""
    rng = np.random.default_rng(1)
    w = rng.normal(size=4)
    X = np.concatenate([rng.normal(size=(1000, 4)), 1e-3 * rng.normal(size=(59_000, 4)), rng.normal(size=(20, 4))])
    y = X @ w + 0.1 * rng.normal(size=len(X))
    for forgetting in (0.99, 0.95):
        p = model(forgetting=forgetting, fit_intercept=False).predict_then_update(X, y)
        excess = np.sqrt(np.mean((p[-20:] - y[-20:]) ** 2)) - np.sqrt(np.mean((X[-20:] @ w - y[-20:]) ** 2))
        assert excess < 0.1


@pytest.mark.parametrize("rule", RULES)
def test_rank_deficient_starts_and_collinear_columns(rule: str) -> None:
    rng = np.random.default_rng(2)
    base = rng.normal(size=(300, 2))
    X = np.column_stack([base, base[:, 0], base @ [1.0, 2.0], np.ones(300)])
    y = base @ [1.0, -2.0] + 0.5
    m = model(rule, 1.0, penalty=1e-8)
    p = m.predict_then_update(X, y)
    assert np.isfinite(p).all()
    assert np.abs(p[20:] - y[20:]).max() < 1e-4
    np.testing.assert_allclose(m.predict(X), Ridge(alpha=1e-8, solver="svd").fit(X, y).predict(X), atol=1e-5)
    assert np.isfinite(model(rule, 0.95).predict_then_update(X, y)).all()


@pytest.mark.parametrize("forgetting", [1.0, 0.98])
@pytest.mark.parametrize("name", ["rls", "kalman"])
def test_a_time_stamp_column(name: str, forgetting: float) -> None:
    """Seconds since 1970: as well as the same column counted from its first row, and cut as one likes."""
    rng = np.random.default_rng(3)
    stamp = 1.7e9 + 60.0 * np.arange(500)
    other = rng.normal(size=500)
    y = 1e-4 * (stamp - stamp[0]) + 2 * other + 0.1 * rng.normal(size=500)
    options: dict[str, Any] = (
        {"forgetting": forgetting} if name == "rls" else {"process_noise": 1e-6 * (1 - forgetting)}
    )
    at_once = il.StreamingRegressor(name, **options).predict_then_update(np.column_stack([stamp, other]), y)
    small = il.StreamingRegressor(name, **options).predict_then_update(np.column_stack([stamp - stamp[0], other]), y)
    np.testing.assert_allclose(at_once, small, rtol=0, atol=1e-9 * np.abs(y).max())
    rows = il.StreamingRegressor(name, **options)
    X = np.column_stack([stamp, other])
    loop = np.concatenate([rows.predict_then_update(X[t : t + 1], y[t : t + 1]) for t in range(200)])
    np.testing.assert_allclose(loop, at_once[:200], rtol=0, atol=1e-9 * np.abs(y).max())
    if name == "rls" and forgetting == 1:
        ridge = Ridge(alpha=1.0).fit(np.column_stack([stamp - stamp.mean(), other]), y)
        m = il.StreamingRegressor(name).fit(X, y)
        np.testing.assert_allclose(m.coef_, ridge.coef_, rtol=1e-6)


def test_a_near_constant_column_that_jumps() -> None:
    rng = np.random.default_rng(4)
    X = np.column_stack([rng.normal(size=2000), 5 + 1e-9 * rng.normal(size=2000)])
    X[1500:, 1] += 100.0
    y = X[:, 0] + 0.05 * rng.normal(size=2000)
    p = model(forgetting=0.98).predict_then_update(X, y)
    assert np.abs(p[1500] - y[1500]) < 1.0
    assert np.sqrt(np.mean((p[1550:] - y[1550:]) ** 2)) < 0.08


@pytest.mark.parametrize("rule", RULES)
def test_two_identical_columns_share(rule: str) -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=400)
    y = 2 * x + 1
    m = model(rule, 0.99 if rule != "exponential" else 1.0, penalty=1e-3).fit(np.column_stack([x, x]), y)
    np.testing.assert_allclose(m.coef_, [1, 1], atol=2e-2)
    assert np.isfinite(m.predict([[3.0, 3.0]])).all()


@pytest.mark.parametrize("name", ["rls", "kalman", "nadaraya_watson", "longhorn"])
@pytest.mark.parametrize("unit", [1e12, 1e-12])
@pytest.mark.parametrize("forgetting", [1.0, "auto"])
def test_units_of_the_target_do_not_matter(name: str, unit: float, forgetting: Any) -> None:
    rng = np.random.default_rng(6)
    X = rng.normal(size=(200, 3))
    y = X @ [1.0, 2.0, -1.0] + 3 + 0.1 * rng.normal(size=200)
    options = {"forgetting": forgetting, "bank": 5} if forgetting == "auto" else {}
    one = il.StreamingRegressor(name, **options).predict_then_update(X, y)
    other = il.StreamingRegressor(name, **options).predict_then_update(X, unit * y)
    np.testing.assert_allclose(other / unit, one, rtol=0, atol=1e-8)


def test_float32_input_is_what_it_says() -> None:
    rng = np.random.default_rng(7)
    X = rng.normal(size=(50, 2)).astype(np.float32)
    y = (X @ [1, 2]).astype(np.float32)
    m = il.StreamingRegressor().fit(X, y)
    np.testing.assert_array_equal(
        m.predict(X), il.StreamingRegressor().fit(X.astype(float), y.astype(float)).predict(X)
    )


@pytest.mark.parametrize(
    "name", ["rls", "kalman", "deltanet", "longhorn", "titans_linear", "titans", "nadaraya_watson"]
)
def test_one_feature_one_row_no_rows(name: str) -> None:
    m = il.StreamingRegressor(name)
    with pytest.raises(NotFittedError):
        m.predict([[1.0]])
    assert m.predict_then_update([[2.0]], [3.0]).tolist() == [0.0]
    assert np.isfinite(m.predict([[2.0], [1e3]])).all()
    with pytest.raises(ValueError, match="0 sample"):
        m.partial_fit(np.empty((0, 1)), [])
    with pytest.raises(ValueError, match="0 feature"):
        il.StreamingRegressor(name).fit(np.empty((3, 0)), [1.0, 2.0, 3.0])


@pytest.mark.parametrize("rule", RULES)
def test_a_long_gap(rule: str) -> None:
    """elapsed 2.5 decays by forgetting^2.5; after a very long time the prior's uncertainty, and nothing infinite."""
    rng = np.random.default_rng(8)
    X = rng.normal(size=(60, 2))
    y = X @ [1.0, 2.0] + 0.1 * rng.normal(size=60)
    gap = np.where(np.arange(60) == 30, 1e9, 1.0)
    m = model(rule, 0.95, fit_intercept=False).partial_fit(X[:30], y[:30])
    fresh = model(rule, 0.95, fit_intercept=False)
    p = m.predict_then_update(X[30:], y[30:], elapsed=gap[30:])
    assert np.isfinite(p).all()
    assert np.isfinite(np.concatenate(m.predict(X, return_std=True))).all()
    if rule in ("regularized", "static"):
        fresh.partial_fit(X[30:], y[30:] - (X[30:] @ np.linalg.solve(np.eye(2), [0, 0])))
        # the same evidence as a fresh one's: x^T P x agrees, whatever the noise level learned
        ratio = m.predict(X, return_std=True)[1] / m.noise_ / (fresh.predict(X, return_std=True)[1] / fresh.noise_)
        np.testing.assert_allclose(ratio, 1, atol=1e-6)
    with pytest.raises(ValueError, match="elapsed: -1 at row 1"):
        m.partial_fit(X[:2], y[:2], elapsed=[1.0, -1.0])
    with pytest.raises(ValueError, match=r"elapsed: shape \[3\]: wanted \[2\]"):
        m.partial_fit(X[:2], y[:2], elapsed=[1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("name", "options"), [("rls", {"forgetting": 0.9}), ("kalman", {}), ("longhorn", {"forgetting": 0.9})], ids=str
)
def test_elapsed_is_several_rows_time(name: str, options: dict[str, Any]) -> None:
    """A gap of 3 is what three rows' decay is: against rows of weight near 0, which fade and say nothing."""
    rng = np.random.default_rng(9)
    X, y = rng.normal(size=(20, 2)), rng.normal(size=20)
    m = il.StreamingRegressor(name, **options).partial_fit(X[:10], y[:10])
    m.partial_fit(X[10:], y[10:], elapsed=np.where(np.arange(10) == 0, 3.0, 1.0))
    other = il.StreamingRegressor(name, **options).partial_fit(X[:10], y[:10])
    blank = np.repeat(X[10:11], 2, axis=0)
    other.partial_fit(blank, [0.0, 0.0], sample_weight=[1e-14, 1e-14])
    other.partial_fit(X[10:], y[10:])
    np.testing.assert_allclose(m.predict(X), other.predict(X), atol=1e-9)


@pytest.mark.parametrize("memory", ["deltanet", "titans_linear"])
def test_unstable_steps_are_said_once(memory: str) -> None:
    X = np.full((5, 2), 10.0)
    m = il.StreamingRegressor(memory, lr=0.1)
    with pytest.warns(UserWarning, match=r"largest stable lr for these rows is 0\.00995 .*longhorn"):
        m.partial_fit(X, np.zeros(5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        m.partial_fit(X, np.zeros(5))
        il.StreamingRegressor(memory, lr=0.009).partial_fit(X, np.zeros(5))
        il.StreamingRegressor("longhorn", lr=1e6).partial_fit(X, np.zeros(5))
