"""`forgetting="auto"`: what is tried, what is mixed, and what it costs in accuracy against the best in hindsight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import innerloop as il
from innerloop.streaming import mixture


def drifting(speed: float, rows: int = 2500, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 4))
    w = rng.normal(size=4) + np.cumsum(speed * rng.normal(size=(rows, 4)), axis=0)
    return X, (X * w).sum(1) + 0.3 * rng.normal(size=rows)


@pytest.mark.parametrize("name", ["rls", "kalman", "longhorn"])
@pytest.mark.parametrize("speed", [0.0, 0.003, 0.2])
def test_within_three_percent_of_the_best_in_hindsight(name: str, speed: float) -> None:
    X, y = drifting(speed)
    auto = il.StreamingRegressor(name, forgetting="auto")
    error = np.sqrt(np.mean((auto.predict_then_update(X, y) - y) ** 2))
    singles = []
    for options in auto.bank_settings_:
        p = il.StreamingRegressor(name, **options).predict_then_update(X, y)
        singles.append(np.sqrt(np.mean((p - y) ** 2)))
    assert len(singles) == 16
    assert error < 1.03 * min(singles)
    assert error < max(singles)


def test_the_mixture_is_the_settings_alone_mixed() -> None:
    X, y = drifting(0.02, 300)
    bank = [{"forgetting": f, "penalty": p} for f in (1.0, 0.95) for p in (0.1, 10.0)]
    auto = il.StreamingRegressor("rls", forgetting="auto", bank=bank)
    p = auto.predict_then_update(X, y)
    alone = np.stack([il.StreamingRegressor("rls", **o).predict_then_update(X, y) for o in bank], 1)
    mixed, path, after = mixture.mix(mixture.start(4, 1), alone[..., None], y[:, None], np.ones(300, bool))
    np.testing.assert_allclose(p, mixed[:, 0], atol=1e-9)
    np.testing.assert_allclose(auto.bank_path_, path, atol=1e-9)
    np.testing.assert_allclose(auto.bank_weights_, after.weights, atol=1e-9)
    assert auto.bank_settings_ == bank
    np.testing.assert_allclose(auto.predict(X), X @ auto.coef_ + auto.intercept_, atol=1e-9)
    each = [il.StreamingRegressor("rls", **o).fit(X, y) for o in bank]
    np.testing.assert_allclose(
        auto.coef_, sum(w * m.coef_ for w, m in zip(after.weights, each, strict=True)), atol=1e-9
    )


@pytest.mark.parametrize(
    ("name", "count"),
    [("rls", 16), ("kalman", 16), ("deltanet", 16), ("longhorn", 16), ("titans_linear", 16), ("nadaraya_watson", 16)],
)
def test_every_memory_has_a_bank(name: str, count: int) -> None:
    X, y = drifting(0.02, 400)
    auto = il.StreamingRegressor(name, forgetting="auto", window=100 if name == "nadaraya_watson" else None)
    p = auto.predict_then_update(X, y)
    assert np.isfinite(p).all()
    assert auto.bank_path_.shape == (400, count)
    assert len(auto.bank_settings_) == count
    np.testing.assert_allclose(auto.bank_path_.sum(1), 1)
    assert np.mean((p[100:] - y[100:]) ** 2) < np.var(y[100:])


@pytest.mark.parametrize("name", ["rls", "nadaraya_watson"])
def test_a_bank_row_by_row(name: str) -> None:
    X, y = drifting(0.02, 60)
    options: dict[str, Any] = {"forgetting": "auto", "bank": 5}
    at_once = il.StreamingRegressor(name, **options).predict_then_update(X, y)
    rows = il.StreamingRegressor(name, **options)
    loop = [rows.predict_then_update(X[:1], y[:1])[0]]
    for t in range(1, 60):
        loop.append(rows.predict(X[t : t + 1])[0])
        rows.partial_fit(X[t : t + 1], y[t : t + 1])
    np.testing.assert_allclose(loop, at_once, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"forgetting": "fast"}, "forgetting='fast'"),
        ({"bank": 3}, "bank=3: only forgetting='auto' has one"),
        ({"forgetting": "auto", "bank": 1}, "bank=1"),
        ({"forgetting": "auto", "bank": []}, "at least one"),
        ({"forgetting": "auto", "bank": [{"alpha": 1}]}, "bank: 'alpha' is no option"),
        ({"forgetting": "auto", "bank": [{"forgetting": 2.0}]}, "forgetting=2.0"),
        ({"forgetting": "auto", "bank": [{"forgetting_rule": "static"}, {}]}, "share forgetting_rule"),
    ],
    ids=str,
)
def test_banks_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        il.StreamingRegressor("rls", **options).fit(*drifting(0.0, 10))


def test_only_banks_have_weights() -> None:
    m = il.StreamingRegressor().fit(*drifting(0.0, 10))
    for name in ("bank_weights_", "bank_path_"):
        with pytest.raises(AttributeError, match=f"{name}: there is no bank"):
            getattr(m, name)


def test_queries_are_answered_by_what_was_known_then() -> None:
    """`query` predicts other rows in the places of those learned, a bank's weights being those of the place."""
    X, y = drifting(0.02, 80)
    for options in ({"forgetting": 0.97}, {"forgetting": "auto", "bank": 3}):
        m = il.StreamingRegressor("rls", **options)
        got = m.predict_then_update(X[:-5], y[:-5], query=X[5:])
        rows = il.StreamingRegressor("rls", **options)
        for t in range(40):
            rows.partial_fit(X[t : t + 1], y[t : t + 1])
        np.testing.assert_allclose(got[40], rows.predict(X[45:46])[0], atol=1e-9)
        np.testing.assert_allclose(
            m.predict(X), il.StreamingRegressor("rls", **options).fit(X[:-5], y[:-5]).predict(X), atol=1e-9
        )
    with pytest.raises(ValueError, match="query: 3 rows: wanted 80"):
        m.predict_then_update(X, y, query=X[:3])


def test_a_bank_is_weighed_by_its_late_forecasts() -> None:
    """Against the settings alone, mixed with the forecasts of three rows earlier; the same however rows are cut."""
    X, y = drifting(0.05, 300)
    bank = [{"forgetting": f} for f in (1.0, 0.95, 0.7)]
    heads = np.stack(
        [il.StreamingRegressor("rls", **o).predict_then_update(X[:-3], y[:-3], query=X[3:]) for o in bank], 1
    )
    said = np.concatenate([np.zeros((3, 3)), heads[:-3]])[..., None]  # of the rows in their own places
    _, path, _ = mixture.mix(mixture.start(3, 1), said, y[:-3, None], np.arange(297) >= 3)
    wanted = (path * heads).sum(1)
    auto = il.StreamingRegressor("rls", forgetting="auto", bank=bank)
    np.testing.assert_allclose(auto.predict_then_update(X[:-3], y[:-3], query=X[3:], late=3), wanted, atol=1e-9)
    cut = il.StreamingRegressor("rls", forgetting="auto", bank=bank)
    pieces = [
        cut.predict_then_update(X[a:b], y[a:b], query=X[a + 3 : b + 3], late=3) for a, b in ((0, 1), (1, 2), (2, 297))
    ]
    np.testing.assert_allclose(np.concatenate(pieces), wanted, atol=1e-9)
    with pytest.raises(ValueError, match="late=-1"):
        auto.predict_then_update(X, y, late=-1)
