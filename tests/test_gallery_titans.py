"""Titans' rule in the gallery: a matrix that is overwritten, and a deep memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from innerloop.gallery import deep, overwriting
from innerloop.gallery.experiment import Outcome


@pytest.fixture(scope="module")
def overwritten() -> Outcome:
    return overwriting.overwriting(lambda word: None)


@pytest.fixture(scope="module")
def network() -> Outcome:
    return deep.deep_memory(lambda word: None)


def plain_recall(eta: float, alpha: float, theta: float) -> dict[int, float]:
    """The recipe as a numpy loop over tokens, on the un-halved loss."""
    rng = np.random.default_rng(0)
    found = {}
    for R in (1, 2, 4, 8):
        right = 0
        for _ in range(50):
            ids, order = rng.integers(0, 32, 8 * R), rng.permutation(8 * R)
            keys = np.linalg.qr(rng.normal(size=(64, 8)))[0].T
            values = rng.normal(size=(32, 64))
            values /= np.linalg.norm(values, axis=1, keepdims=True)
            M, U, last = np.zeros((64, 64)), np.zeros((64, 64)), {}
            for i in order:
                k, v = keys[i // R], values[ids[i]]
                U = eta * U - theta * 2 * np.outer(M @ k - v, k)
                M = (1 - alpha) * M + U
                last[i // R] = ids[i]
            right += sum(int((values @ (M @ keys[j])).argmax() == last[j]) for j in range(8))
        found[R] = right / 400
    return found


def test_d5_holds(overwritten: Outcome) -> None:
    assert overwritten.holds


@pytest.mark.parametrize(("eta", "alpha"), [(0.9, 0.1), (0.5, 0.1), (0.0, 0.0)])
def test_recall_is_that_of_a_plain_loop(eta: float, alpha: float) -> None:
    want = plain_recall(eta, alpha, 0.5)
    if eta == 0.9:
        assert {R: f"{x:.3f}" for R, x in want.items()} == {1: "1.000", 2: "0.927", 4: "0.185", 8: "0.100"}
    if alpha == 0:
        assert overwriting.delta_rule() == want == dict.fromkeys((1, 2, 4, 8), 1.0)
    else:
        at = overwriting.MOMENTA.index(eta)
        assert {R: float(x[at]) for R, x in overwriting.sweep().items()} == pytest.approx(want, abs=1e-12)


def test_the_echo_of_one_write() -> None:
    """U_n = eta^n, S_n = keep S_{n-1} + U_n."""
    answers, U, S = [], 0.0, 0.0
    for n in range(40):
        U = 1.0 if n == 0 else 0.5 * U
        S = 0.9 * S + U
        answers.append(S)
    np.testing.assert_allclose(overwriting.echo(0.5).numpy(), answers, atol=1e-12)


def test_radius_of_the_step() -> None:
    """(S, U) -> (.9 S + U', U'), U' = .9 U - S: its eigenvalues by numpy."""
    step = np.array([[0.9 - 1.0, 0.9], [-1.0, 0.9]])
    assert overwriting.radius() == pytest.approx(np.abs(np.linalg.eigvals(step)).max(), abs=1e-12)


def test_d6_holds(network: Outcome) -> None:
    assert network.holds
    assert f"{network.value('retrieval MSE before'):.4f}" == "0.0312"
    assert f"{network.value('retrieval MSE after 64 tokens'):.4f}" == "0.0023"


def test_the_network_is_that_of_a_plain_loop(network: Outcome) -> None:
    """torch modules and autograd, on the un-halved loss, from the recipe's global seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        keys, values = F.normalize(torch.randn(16, 32), dim=-1), F.normalize(torch.randn(16, 32), dim=-1)
        order = torch.randperm(64) % 16
        first, last = torch.nn.Linear(32, 128), torch.nn.Linear(128, 32)
        with torch.no_grad():
            first.weight.normal_()
            for p in (first.bias, last.weight, last.bias):
                p.zero_()
    model = torch.nn.Sequential(first, torch.nn.GELU(), last)
    speed = [torch.zeros_like(p) for p in model.parameters()]
    for i in order:
        loss = (model(keys[i]) - values[i]).square().sum()
        for p, u, g in zip(model.parameters(), speed, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            u.mul_(0.5).sub_(g, alpha=0.005)
            p.data.add_(u)
    with torch.no_grad():
        want = float((model(keys) - values).square().mean())
    assert network.value("retrieval MSE after 64 tokens") == pytest.approx(want, rel=1e-4)


def test_the_picture_ends_where_the_table_does(network: Outcome) -> None:
    """Token by token by `step`, as drawn, against `scan`."""
    curve = deep.curve(deep.network(1), deep.task().initial)
    assert len(curve) == 65
    assert curve[0] == pytest.approx(1 / 32, abs=1e-7)
    assert curve[-1] == pytest.approx(network.value("retrieval MSE after 64 tokens"), rel=1e-4)


def test_drawing_leaves_the_callers_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    deep.task.cache_clear()
    deep.task()
    assert torch.equal(torch.random.get_rng_state(), before)
