"""StreamingRegressor: the row loop, ridge regression, cuts, and calls that fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge

import innerloop as il
from innerloop.streaming.bank import Bank, Setting, groups_of

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("rls", {}),
    ("rls", {"forgetting": 0.9}),
    ("rls", {"forgetting": 0.9, "forgetting_rule": "exponential"}),
    ("rls", {"forgetting": 0.9, "forgetting_rule": "static"}),
    ("rls", {"forgetting": 0.9, "forgetting_rule": "directional"}),
    ("rls", {"penalty": 0.3, "fit_intercept": False}),
    ("kalman", {}),
    ("kalman", {"process_noise": 0.0, "penalty": 2.0}),
    ("kalman", {"fit_intercept": False}),
    ("deltanet", {"lr": 0.1}),
    ("longhorn", {}),
    ("longhorn", {"forgetting": 0.99}),
    ("titans_linear", {"lr": 0.02, "momentum": 0.5}),
    ("nadaraya_watson", {"window": 20}),
    ("nadaraya_watson", {"bandwidth": 0.5}),
]
IDS = [f"{name}-{'-'.join(map(str, options.values()))}" for name, options in SETTINGS]


def stream(rows: int = 90, d: int = 3, outputs: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, d))
    y = X @ rng.normal(size=(d, outputs or 1)) + 4 + 0.1 * rng.normal(size=(rows, outputs or 1))
    return X, y if outputs else y[:, 0]


@pytest.mark.parametrize(("name", "options"), SETTINGS, ids=IDS)
def test_predict_then_update_is_the_row_loop(name: str, options: dict[str, Any]) -> None:
    X, y = stream()
    model = il.StreamingRegressor(name, **options)
    at_once = model.predict_then_update(X, y)
    rows = il.StreamingRegressor(name, **options)
    loop = [0.0]  # a fresh model predicts 0
    rows.partial_fit(X[:1], y[:1])
    for t in range(1, len(X)):
        loop.append(rows.predict(X[t : t + 1])[0])
        rows.partial_fit(X[t : t + 1], y[t : t + 1])
    np.testing.assert_allclose(at_once, loop, rtol=0, atol=1e-9 * np.abs(y).max())
    np.testing.assert_allclose(model.predict(X), rows.predict(X), rtol=0, atol=1e-9 * np.abs(y).max())
    assert rows.n_samples_seen_ == model.n_samples_seen_ == len(X)


@pytest.mark.parametrize(("name", "options"), SETTINGS, ids=IDS)
def test_cuts_change_nothing(name: str, options: dict[str, Any]) -> None:
    X, y = stream(outputs=2)
    whole = il.StreamingRegressor(name, **options).predict_then_update(X, y)
    model = il.StreamingRegressor(name, **options)
    pieces = [model.predict_then_update(X[a:b], y[a:b]) for a, b in ((0, 1), (1, 38), (38, 39), (39, 90))]
    np.testing.assert_allclose(np.concatenate(pieces), whole, rtol=0, atol=1e-10 * np.abs(y).max())


@pytest.mark.parametrize("memory", ["rls", "kalman"])
@pytest.mark.parametrize("rule", ["regularized", "static", "exponential", "directional"])
@pytest.mark.parametrize("intercept", [True, False])
def test_without_forgetting_it_is_ridge_on_all_rows_so_far(memory: str, rule: str, intercept: bool) -> None:
    X, y = stream()
    options: dict[str, Any] = {"forgetting_rule": rule} if memory == "rls" else {"process_noise": 0.0}
    model = il.StreamingRegressor(memory, penalty=0.7, fit_intercept=intercept, **options)
    for cut in (1, 2, 5, 40):
        model.partial_fit(
            X[model.n_samples_seen_ if cut > 1 else 0 : cut], y[model.n_samples_seen_ if cut > 1 else 0 : cut]
        )
        ridge = Ridge(alpha=0.7, fit_intercept=intercept).fit(X[:cut], y[:cut])
        np.testing.assert_allclose(model.predict(X), ridge.predict(X), atol=1e-9)


@pytest.mark.parametrize("name", ["rls", "kalman", "deltanet", "longhorn", "titans_linear", "nadaraya_watson"])
def test_settings_together_are_each_alone(name: str) -> None:
    X, y = stream(200)
    settings: dict[str, list[dict[str, Any]]] = {
        "rls": [{"forgetting": f, "penalty": 1.0} for f in (1.0, 0.99, 0.9)],
        "kalman": [{"process_noise": q} for q in (0.0, 1e-4, 1e-2)],
        "deltanet": [{"lr": r} for r in (0.1, 0.01)],
        "longhorn": [{"lr": r} for r in (1.0, 0.1)],
        "titans_linear": [{"lr": r, "momentum": 0.9} for r in (0.01, 0.001)],
        "nadaraya_watson": [{"bandwidth": h, "window": 50} for h in (0.5, 2.0)],
    }
    made = [Setting(**options) for options in settings[name]]
    together = np.empty((len(made), len(y)))
    for group in groups_of(made):
        bank = Bank.of(name, [made[i] for i in group], X.shape[1], 1)
        together[group] = bank.run(X, y[:, None], None).predictions[..., 0].T
    for options, row in zip(settings[name], together, strict=True):
        alone = il.StreamingRegressor(name, **options).predict_then_update(X, y)
        np.testing.assert_allclose(row, alone, rtol=0, atol=1e-10 * np.abs(y).max())


def test_kalman_equals_a_filter_with_a_vague_level() -> None:
    """The first row's limit against a filter that starts from a finite, huge prior variance of the intercept.

    Columns are counted from the first row: about which point the weights walk is part of the model.
    """
    X, y = stream(40)
    got = il.StreamingRegressor("kalman", process_noise=0.02).predict_then_update(X, y)
    X = X - X[0]
    P, w = np.diag([1.0, 1.0, 1.0, 1e9]), np.zeros(4)
    expected = []
    for x, target in zip(np.column_stack([X, np.ones(40)]), y, strict=True):
        expected.append(w @ x)
        P = P + 0.02 * np.eye(4)
        gain = P @ x / (1 + x @ P @ x)
        w, P = w + gain * (target - w @ x), P - np.outer(gain, x @ P)
    np.testing.assert_allclose(got[1:], expected[1:], atol=1e-5)


def test_a_prequential_call_reads_what_the_general_one_reads() -> None:
    """q being k takes a shorter road; outputs and gradients must not tell."""
    memory = replace(il.get("rls"), order="read-write")
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(2, 70, 2, n, dtype=torch.float64, generator=generator).requires_grad_() for n in (3, 2))
    decay = (-0.2 * torch.rand(2, 70, 2, dtype=torch.float64, generator=generator)).requires_grad_()
    outputs = []
    for q in (k, k.clone()):
        output = il.chunked(memory, q, k, v, il.Gates(log_decay=decay)).output
        outputs.append((output, *torch.autograd.grad(output.sin().sum(), (k, v, decay))))
    for short, general in zip(*outputs, strict=True):
        torch.testing.assert_close(short, general, rtol=0, atol=1e-9 * float(general.detach().abs().max()))


def test_fit_forgets_and_clone_is_fresh() -> None:
    X, y = stream()
    model = il.StreamingRegressor("rls").fit(X, y).fit(X[:30], -y[:30])
    np.testing.assert_allclose(model.predict(X), il.StreamingRegressor("rls").fit(X[:30], -y[:30]).predict(X))
    assert model.n_samples_seen_ == 30
    with pytest.raises(NotFittedError):
        clone(model).predict(X)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.full((2, 3), np.nan)}, "NaN"),
        ({"X": np.full((2, 3), np.inf)}, "infinity"),
        ({"y": np.array([1.0, np.nan])}, "NaN"),
        ({"X": np.zeros((2, 4))}, "features"),
        ({"X": np.zeros((3, 3))}, "inconsistent"),
        ({"y": np.zeros((2, 2))}, "first call"),
    ],
)
@pytest.mark.parametrize("fitted", [True, False])
def test_a_call_that_raises_changes_nothing(change: dict[str, Any], message: str, fitted: bool) -> None:
    X, y = stream()
    model = il.StreamingRegressor("kalman")
    if fitted:
        model.partial_fit(X, y)
    elif message in ("features", "first call"):
        return  # a fresh model takes any width
    before = dict(vars(model))
    state = model.state_.clone() if fitted else None
    with pytest.raises(ValueError, match=message):
        model.partial_fit(change.get("X", X[:2]), change.get("y", y[:2]))
    after = vars(model)
    assert after.keys() == before.keys()
    assert all(after[n] is before[n] for n in before)
    assert not fitted or model.state_ == state


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rsl", {}, "memory='rsl'"),
        ("rls", {"forgetting": 0.0}, "forgetting=0.0"),
        ("rls", {"forgetting": 1.1}, "forgetting=1.1"),
        ("rls", {"forgetting_rule": "none"}, "forgetting_rule='none'"),
        ("rls", {"penalty": 0.0}, "penalty=0.0"),
        ("rls", {"lr": 0.1}, "lr=0.1: rls does not read it"),
        ("deltanet", {"forgetting": 0.9}, "forgetting=0.9: deltanet does not read it"),
        ("kalman", {"process_noise": -1.0}, "process_noise=-1.0"),
        ("longhorn", {"lr": float("nan")}, "lr=nan"),
        ("titans_linear", {"momentum": 2.0}, "momentum=2.0"),
        ("nadaraya_watson", {"bandwidth": 0.0}, "bandwidth=0.0"),
        ("nadaraya_watson", {"window": 0}, "window=0"),
    ],
)
def test_bad_options_are_named(name: str, options: dict[str, Any], message: str) -> None:
    X, y = stream(5)
    with pytest.raises(ValueError, match=message):
        il.StreamingRegressor(name, **options).fit(X, y)


def test_a_first_row_far_away_costs_no_digits() -> None:
    """Kernel distances are products around the first row only where that keeps the digits."""
    X, y = stream(60)
    X[0] = 1e9
    at_once = il.StreamingRegressor("nadaraya_watson", bandwidth=0.7).predict_then_update(X, y)
    for t in (1, 5, 59):
        weights = np.exp(-((X[:t] - X[t]) ** 2).sum(1) / (2 * 0.7**2))
        if weights.sum() > 1e-200:
            np.testing.assert_allclose(at_once[t], weights @ y[:t] / weights.sum(), rtol=1e-9)
