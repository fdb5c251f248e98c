"""The delta rule as an integrator in the gallery: its forms, Longhorn as DeltaNet, stability, chunks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import innerloop as il
from innerloop.gallery import delta_forms, integrator
from innerloop.gallery.experiment import Outcome, Tick

RUNS: dict[str, Callable[[Tick], Outcome]] = {
    "W1": delta_forms.recurrence, "W2": integrator.same_rule, "W3": integrator.stability, "W4": delta_forms.chunks
}  # fmt: skip


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    return {name: run(lambda word: None) for name, run in RUNS.items()}


def plain_loop(x: delta_forms.Tokens, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """S <- S (I - beta k k^T) + beta v k^T with states [value, key], in numpy: outputs and states of each token."""
    q, k, v = (t[:, :, 0].numpy() for t in (x.q, x.k, x.v))
    outputs, states = [], []
    for b in range(len(q)):
        S = np.zeros((v.shape[-1], k.shape[-1]))
        for t in range(q.shape[1]):
            S = S @ (np.eye(k.shape[-1]) - beta[b, t] * np.outer(k[b, t], k[b, t])) + beta[b, t] * np.outer(
                v[b, t], k[b, t]
            )
            outputs.append(S @ q[b, t])
            states.append(S)
    n = q.shape[:2]
    return np.array(outputs).reshape(*n, -1), np.array(states).reshape(*n, *states[0].shape)


@pytest.mark.parametrize("name", list(RUNS))
def test_each_holds(outcomes: dict[str, Outcome], name: str) -> None:
    assert outcomes[name].holds


def test_recurrence_loop_and_chunks_are_a_plain_loop() -> None:
    x, memory = delta_forms.draw(), il.get("deltanet")
    assert x.q.shape == (2, 16, 1, 4)
    assert x.v.shape == (2, 16, 1, 5)
    want, states = plain_loop(x, x.beta[..., 0].numpy())
    for result in (delta_forms.naive(memory, x), delta_forms.recurrent(memory, x), delta_forms.chunkwise(memory, x, 5)):
        np.testing.assert_allclose(result.output[:, :, 0].numpy(), want, atol=1e-13)
        np.testing.assert_allclose(result.state.memory["S"][:, 0].mT.numpy(), states[:, -1], atol=1e-13)


def test_w1_tolerances(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["W1"].value("recurrence against loop, float32") < 1e-4
    assert outcomes["W1"].value("recurrence against loop, float64") < 1e-12


def test_norms_are_those_of_a_plain_loop(outcomes: dict[str, Outcome]) -> None:
    x = delta_forms.draw()
    x = x._replace(k=10 * x.k)
    _, wild = plain_loop(x, np.full((2, 16), 0.5))
    _, calm = plain_loop(x, np.full((2, 16), 1 / (1 + 100.0)))
    norms = [np.linalg.norm(s, axis=(2, 3)).mean(0) for s in (wild, calm)]
    w2 = outcomes["W2"]
    assert w2.value("norm of DeltaNet's memory, beta .5, keys x10") == pytest.approx(norms[0][-1], rel=1e-9)
    assert w2.value("largest norm of Longhorn's memory, keys x10") == pytest.approx(norms[1].max(), rel=1e-9)


def test_w3_values(outcomes: dict[str, Outcome]) -> None:
    w3 = outcomes["W3"]
    for z in np.linspace(0, 3, 13):
        row = next(r for r in w3.rows if r.name == f"DeltaNet, |factor| at beta |k|^2 = {z:.2f}")
        assert row.value == pytest.approx(abs(1 - z), abs=1e-12)
        assert ("unstable" in str(row.source)) == (z > 2)
    ratios = [r for r in w3.rows if r.name.startswith("Longhorn, factor at")]
    assert len(ratios) == 13
    np.testing.assert_allclose([float(r.value) for r in ratios], 1 / (1 + np.logspace(-2, 4, 13)), atol=1e-12)
    assert w3.value("implicit midpoint at the same") == pytest.approx((1 - 5000) / (1 + 5000), abs=1e-12)
    assert w3.value("A-stability boundary of the explicit step") == pytest.approx(2, abs=1e-9)


def test_eigenvalues_are_numpys() -> None:
    k, z = integrator.KEY.numpy(), torch.tensor([0.3, 1.9, 2.6], dtype=torch.float64)
    assert k @ k == 1
    for name, steps in (("deltanet", z), ("longhorn", z / (1 + z)), ("efla", 1 - torch.exp(-z))):
        want = [np.linalg.eigvalsh(np.eye(4) - float(b) * np.outer(k, k)) for b in steps]
        np.testing.assert_allclose(integrator.eigenvalues(name, z).numpy(), want, atol=1e-13)


def test_the_midpoint_rule() -> None:
    """Its step solves S' = S - lr k k^T (S + S') / 2, here for the identity."""
    z, k = 1.7, integrator.KEY.numpy()
    half = z / 2 * np.outer(k, k)
    moved = np.linalg.solve(np.eye(4) + half, np.eye(4) - half)
    got = float(integrator.factor("midpoint", torch.tensor([z], dtype=torch.float64)))
    assert got == pytest.approx(k @ moved @ k, abs=1e-13)


def test_wy_is_the_product_of_transitions() -> None:
    x = delta_forms.draw()
    k, beta = x.k[:, :, 0].numpy(), x.beta[..., 0].numpy()
    for b in range(2):
        product = np.eye(4)
        for t in range(16):
            product = (np.eye(4) - beta[b, t] * np.outer(k[b, t], k[b, t])) @ product
        wy = np.eye(4) - k[b].T @ (delta_forms.solved(x)[b].numpy() @ k[b])
        np.testing.assert_allclose(wy, product, atol=1e-13)
        for size in (1, 5, 16):
            got = delta_forms.transition(il.get("deltanet"), x, size)[b].numpy()
            np.testing.assert_allclose(got, product, atol=1e-13)


def test_w4_covers_sizes_that_do_not_divide() -> None:
    found = delta_forms.sizes()
    assert set(found) >= {1, 2, 4, 8, 16, 3, 5, 7}
    assert max(found.values()) < 1e-12
