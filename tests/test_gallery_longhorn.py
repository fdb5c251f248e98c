"""Longhorn's implicit step in the gallery: closed form, linear solve, descent, and the limits of beta."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import innerloop as il
from innerloop.gallery.experiment import Outcome
from innerloop.gallery.implicit import closed_form, descended, double, instances, limits, slope, written


@pytest.fixture(scope="module")
def closed() -> Outcome:
    return closed_form(lambda word: None)


@pytest.fixture(scope="module")
def limit() -> Outcome:
    return limits(lambda word: None)


def test_the_instances_are_the_recipe() -> None:
    """The source seeds torch's own generator; the gallery's must give the same draws and leave that one alone."""
    before = torch.random.get_rng_state()
    drawn = instances(3)
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for case in drawn:
            d = int(torch.randint(2, 16, (1,)))
            assert torch.equal(case.state, torch.randn(d))
            assert torch.equal(case.key, torch.randn(d))
            assert torch.equal(case.value, torch.randn(()))
            assert torch.equal(case.beta, torch.rand(()) * 5 + 0.1)


def test_d4_holds(closed: Outcome) -> None:
    assert closed.holds
    assert 4e-7 < closed.value("closed form against solve, float32") < 4e-5  # the source: 3.99e-06
    assert closed.value("closed form against solve, float64") < 1e-12


def test_the_written_state_solves_the_normal_equations() -> None:
    """numpy: (I + beta k k^T) s = s_0 + beta v k."""
    for case in map(double, instances(20)):
        start, k, v, beta = (x.numpy() for x in case)
        want = np.linalg.solve(np.eye(len(k)) + beta * np.outer(k, k), start + beta * v * k)
        np.testing.assert_allclose(written(il.chunked, il.get("longhorn"), case).numpy(), want, atol=1e-12)


def test_descent_ends_at_the_minimum() -> None:
    """The gradient of the proximal problem, by autograd, vanishes where the gallery's descent stops."""
    case = double(instances(1)[0])
    end = descended(case).requires_grad_()
    loss = (end - case.state).square().sum() / 2 + case.beta / 2 * (end @ case.key - case.value).square()
    (gradient,) = torch.autograd.grad(loss, end)
    assert float(gradient.abs().max()) < 1e-12


def test_x2_holds(limit: Outcome) -> None:
    assert limit.holds
    assert limit.value("beta -> 0: order of the gap to the explicit step") == pytest.approx(2, abs=1e-2)
    assert limit.value("what the answer misses at beta 1e9") == pytest.approx(1 / (1 + 1e9), rel=1e-6)
    assert limit.value("smallest effective step, unit keys") == pytest.approx(1e-6, rel=1e-5)
    assert limit.value("largest effective step, unit keys") == pytest.approx(1 - 1e-6, rel=1e-9)


def test_slope_of_a_power() -> None:
    x = torch.tensor([1.0, 2.0, 4.0, 9.0])
    assert slope(x, 3 * x**1.5) == pytest.approx(1.5, abs=1e-5)
