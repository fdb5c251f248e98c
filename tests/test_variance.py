"""`info=("variance",)`: k^T P k of least squares and the Kalman filter, against matrices inverted in numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import innerloop as il
from innerloop.testing.check import assert_close

B, T, H, K, V = 2, 29, 2, 3, 2
RULES = ("exponential", "static", "regularized", "directional")


def drawn(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    mask = rng.random((B, T)) < 0.85
    reset = rng.random((B, T)) < 0.08
    return {
        "q": rng.normal(size=(B, T, H, K)), "k": rng.normal(size=(B, T, H, K)), "v": rng.normal(size=(B, T, H, V)),
        "lr": rng.uniform(0.2, 2, (B, T, H)), "log_decay": -rng.uniform(0, 0.5, (B, T, H)),
        "scale": rng.uniform(0, 3, (B, T, H)), "mask": mask, "reset": reset,
    }  # fmt: skip


def ridge(x: dict[str, np.ndarray], rule: str, penalty: float, b: int, h: int) -> np.ndarray:
    """Row by row, with an inverse each."""
    prior = penalty * np.eye(K)
    start = np.zeros((K, K)) if rule == "static" else prior
    A, out = start, np.zeros(T)
    for t in range(T):
        if x["reset"][b, t]:
            A = start
        if not x["mask"][b, t]:
            continue
        f, k, weight = np.exp(x["log_decay"][b, t, h]), x["k"][b, t, h], x["lr"][b, t, h]
        if rule == "directional":
            A = A - (1 - f) * np.outer(A @ k, A @ k) / (k @ A @ k)
        else:
            A = f * A + ((1 - f) * prior if rule == "regularized" else 0)
        out[t] = k @ np.linalg.inv(A + (prior if rule == "static" else 0)) @ k
        A = A + weight * np.outer(k, k)
    return out


def walk(x: dict[str, np.ndarray], noise: float, r: float, p: float, b: int, h: int) -> np.ndarray:
    P, out = p * np.eye(K), np.zeros(T)
    for t in range(T):
        if x["reset"][b, t]:
            P = p * np.eye(K)
        if not x["mask"][b, t]:
            continue
        k = x["k"][b, t, h]
        P = P + x["scale"][b, t, h] * noise * np.eye(K)
        out[t] = k @ P @ k
        P = P - np.outer(P @ k, P @ k) / (r / x["lr"][b, t, h] + out[t])
    return out


def told(memory: il.Memory, x: dict[str, np.ndarray], gates: tuple[str, ...], run: Any, **options: Any) -> torch.Tensor:
    t = {name: torch.from_numpy(a) for name, a in x.items()}
    made = il.Gates(**{name: t[name] for name in gates})
    q = t["k"] if memory.order == "read-write" else t["q"]
    result = run(memory, q, t["k"], t["v"], made, mask=t["mask"], reset=t["reset"], info=("variance",), **options)
    assert result.info is not None
    plain = il.scan(memory, q, t["k"], t["v"], made, mask=t["mask"], reset=t["reset"])
    assert_close(result.output, plain.output, "outputs with and without info")
    return result.info["variance"]


@pytest.mark.parametrize("order", ["write-read", "read-write"])
@pytest.mark.parametrize("rule", RULES)
def test_least_squares(rule: str, order: Any) -> None:
    x = drawn()
    memory = replace(il.get("rls", rule=rule, penalty=0.7), order=order)
    wanted = np.stack([[ridge(x, rule, 0.7, b, h) for h in range(H)] for b in range(B)]).transpose(0, 2, 1)
    for run, options in ((il.scan, {}), (il.chunked, {}), (il.chunked, {"chunk_size": 5})):
        got = told(memory, x, ("lr", "log_decay"), run, **options)
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("order", ["write-read", "read-write"])
def test_kalman(order: Any) -> None:
    """With a time step of its own for each token (the gate `scale`)."""
    x = drawn(1)
    memory = replace(il.get("kalman", process_noise=0.05, observation_noise=0.5, prior_variance=2.0), order=order)
    wanted = np.stack([[walk(x, 0.05, 0.5, 2.0, b, h) for h in range(H)] for b in range(B)]).transpose(0, 2, 1)
    for run, options in ((il.scan, {}), (il.chunked, {}), (il.chunked, {"chunk_size": 5})):
        got = told(memory, x, ("lr", "scale"), run, **options)
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_pairs_of_weight_zero_have_one_too(rule: str) -> None:
    x = drawn(2)
    x["lr"][:, ::3] = 0.0
    wanted = np.stack([[ridge(x, rule, 0.7, b, h) for h in range(H)] for b in range(B)]).transpose(0, 2, 1)
    got = told(il.get("rls", rule=rule, penalty=0.7), x, ("lr", "log_decay"), il.chunked)
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("forgets", [True, False])
def test_what_was_never_seen_is_infinite(rule: str, forgets: bool) -> None:
    """Without a prior: the first K keys are each new, the later ones are not, a key in a seen direction never was."""
    memory = il.get("rls", rule=rule, penalty=0.0)
    k = torch.eye(3, dtype=torch.float64)[[0, 0, 1, 0, 2, 1]][None, :, None]
    gates = il.Gates(log_decay=torch.full((1, 6, 1), -0.1, dtype=torch.float64)) if forgets else None
    for run in (il.scan, il.chunked):
        result = run(memory, k, k, k, gates, info=("variance",))
        assert result.info is not None
        known = result.info["variance"][0, :, 0].isfinite().tolist()
        assert known == [False, True, False, True, False, True]


def test_others_have_none() -> None:
    x = torch.randn(1, 2, 1, 3)
    with pytest.raises(ValueError, match="info='variance': GradientStep keeps no covariance"):
        il.chunked(il.get("deltanet"), x, x, x, info=("variance",))
