"""Objectives: losses as the docstrings state them, errors against autograd and differences, and where they bend."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import innerloop as il
from innerloop.testing import assert_close

torch.set_num_threads(1)

V = 3


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def coordinate(d: float) -> Callable[[Any], float]:
    return lambda r: sum(0.5 * x * x if abs(x) <= d else d * (abs(x) - d / 2) for x in r)


def by_norm(d: float) -> Callable[[Any], float]:
    def loss(r: Any) -> float:
        n = math.sqrt(sum(x * x for x in r))
        return 0.5 * n * n if n <= d else d * (n - d / 2)

    return loss


def switched(d: float) -> Callable[[Any], float]:
    def loss(r: Any) -> float:
        squares = sum(x * x for x in r)
        return 0.5 * squares if math.sqrt(squares) <= d else d * sum(abs(x) for x in r)

    return loss


def power(p: float) -> Callable[[Any], float]:
    return lambda r: sum(abs(x) ** p for x in r) / p


# each with its loss of a residual, written out
STATED: list[tuple[Any, Callable[[Any], float]]] = [
    (il.L2(), lambda r: 0.5 * sum(x * x for x in r)),
    (il.Lp(1.0), power(1.0)),
    (il.Lp(1.3), power(1.3)),
    (il.Lp(2.0), power(2.0)),
    (il.Lp(3.0), power(3.0)),
    (il.Lp(4.5), power(4.5)),
    (il.Huber(1.1), coordinate(1.1)),
    (il.Huber(1.1, "norm"), by_norm(1.1)),
    (il.Huber(1.1, "switch"), switched(1.1)),
    (il.Robust(0.6), lambda r: 0.5 * (math.sqrt(sum(x * x for x in r)) + 0.6) ** 2),
    (il.Robust(0.0), lambda r: 0.5 * sum(x * x for x in r)),
]
OBJECTIVES = [objective for objective, _ in STATED]
HUBERS = [il.Huber(0.8), il.Huber(0.8, "norm"), il.Huber(0.8, "switch")]


def by_autograd(objective: Any, prediction: Tensor, value: Tensor, *more: Any) -> Tensor:
    leaf = prediction.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective.loss(leaf, value, *more).sum(), leaf)
    return -gradient


@pytest.mark.parametrize(("objective", "stated"), STATED, ids=[str(objective) for objective, _ in STATED])
def test_losses_as_stated(objective: Any, stated: Callable[[Any], float]) -> None:
    """At residuals on both sides of every threshold, and at zero; one number for each pair."""
    prediction, value = normal(4, 5, V), normal(4, 5, V, seed=1)
    value[0] = prediction[0]
    loss = objective.loss(prediction, value)
    wanted = [[stated((prediction[i, j] - value[i, j]).tolist()) for j in range(5)] for i in range(4)]
    assert_close(loss, torch.tensor(wanted, dtype=torch.float64), "loss")


def test_dot_by_hand() -> None:
    prediction, value = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])
    assert float(il.Dot().loss(prediction, value)) == -1.0
    assert torch.equal(il.Dot().error(prediction, value), value)
    assert float(il.L2().loss(prediction, value)) == 6.5  # (4 + 9) / 2: the loss carries 1/2
    assert torch.equal(il.L2().error(prediction, value), torch.tensor([2.0, -3.0]))


@pytest.mark.parametrize("objective", [il.Dot(), *OBJECTIVES], ids=str)
def test_error_is_the_negative_gradient_of_the_loss(objective: Any) -> None:
    """Against autograd, and against differences of the loss, which no derivative rule enters."""
    prediction, value = 1.5 * normal(4, 5, V), normal(4, 5, V, seed=1)
    error = objective.error(prediction, value)
    assert_close(error, by_autograd(objective, prediction, value), "error")
    h = 1e-6
    for channel in range(V):
        shift = torch.zeros(V, dtype=torch.float64)
        shift[channel] = h
        slope = (objective.loss(prediction + shift, value) - objective.loss(prediction - shift, value)) / (2 * h)
        assert float((error[..., channel] + slope).abs().max()) < 1e-7


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_a_perfect_answer_asks_for_nothing(objective: Any) -> None:
    """At r = 0 the error is exactly 0, by the formula and by autograd, and its derivative is finite."""
    prediction = normal(2, V).requires_grad_()
    value = prediction.detach().clone()
    error = objective.error(prediction, value)
    assert torch.equal(error, torch.zeros_like(error))
    assert torch.equal(by_autograd(objective, prediction.detach(), value), torch.zeros_like(value))
    (slope,) = torch.autograd.grad(error.sum(), prediction)
    assert bool(slope.isfinite().all())
    if isinstance(objective, il.Lp) and objective.p != 2:
        assert torch.equal(slope, torch.zeros_like(slope))


@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_one_perfect_channel_leaves_the_others(objective: Any) -> None:
    """A residual of 0 in one channel only: finite first and second derivatives, the other channels' errors stand."""
    prediction = torch.tensor([0.4, 0.7, -1.3], dtype=torch.float64, requires_grad=True)
    value = torch.tensor([0.9, 0.7, 0.5], dtype=torch.float64)
    error = objective.error(prediction, value)
    assert error.detach().sign().tolist() == [1, 0, 1]
    assert_close(error, by_autograd(objective, prediction.detach(), value), "error")
    (slope,) = torch.autograd.grad(error.square().sum(), prediction)
    assert bool(slope.isfinite().all())


@pytest.mark.parametrize("objective", HUBERS, ids=str)
def test_huber_at_its_threshold(objective: Any) -> None:
    """Exactly at delta the residual still counts whole; just beyond, the three forms part as stated."""
    d = objective.delta
    zero = torch.zeros(2, dtype=torch.float64)
    at = torch.tensor([0.0, -d], dtype=torch.float64)
    assert torch.equal(objective.error(at, zero), -at)
    assert_close(by_autograd(objective, at, zero), -at, "autograd at the threshold")
    assert float(objective.loss(at, zero)) == pytest.approx(d * d / 2, rel=1e-15)
    far = torch.tensor([0.6 * d, -0.9 * d], dtype=torch.float64)  # each channel within delta, the norm beyond it
    unit = far / math.hypot(0.6 * d, 0.9 * d)
    wanted = {"coordinate": -far, "norm": -d * unit, "switch": -d * far.sign()}[objective.form]
    assert_close(objective.error(far, zero), wanted, "within delta by channels, beyond it by norm")
    beyond = torch.tensor([3 * d, -0.5 * d], dtype=torch.float64)
    unit = beyond / math.hypot(3 * d, 0.5 * d)
    wanted = {
        "coordinate": torch.tensor([-d, 0.5 * d], dtype=torch.float64),
        "norm": -d * unit,
        "switch": torch.tensor([-d, d], dtype=torch.float64),
    }[objective.form]
    assert_close(objective.error(beyond, zero), wanted, "beyond")


@pytest.mark.parametrize("form", ["norm", "switch"])
def test_huber_by_norm_at_its_threshold(form: Any) -> None:
    """|(3, -4)| is 5 exactly: not beyond it yet."""
    at, zero = torch.tensor([3.0, -4.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    assert torch.equal(il.Huber(5.0, form).error(at, zero), -at)
    assert torch.equal(by_autograd(il.Huber(5.0, form), at, zero), -at)
    assert float(il.Huber(5.0, form).loss(at, zero)) == 12.5


def test_huber_is_continuous_unless_it_switches() -> None:
    zero = torch.zeros(2, dtype=torch.float64)
    for objective in HUBERS:
        inside, outside = (torch.tensor([0.6, 0.8], dtype=torch.float64) * (0.8 + s) for s in (-1e-9, 1e-9))
        if objective.form == "coordinate":
            inside, outside = (torch.tensor([0.3, 0.8 + s], dtype=torch.float64) for s in (-1e-9, 1e-9))
        jump = (objective.error(inside, zero) - objective.error(outside, zero)).abs().max()
        loss = (objective.loss(inside, zero) - objective.loss(outside, zero)).abs()
        if objective.form == "switch":
            assert float(jump) == pytest.approx(0.8 * 0.4, abs=1e-8)  # 0.6 * 0.8 against 0.8 * 1
            assert float(loss) == pytest.approx(0.8 * 0.8 * 1.4 - 0.32, abs=1e-8)
        else:
            assert float(jump) < 3e-9
            assert float(loss) < 3e-9


def test_huber_meets_the_squares_and_the_absolute_differences() -> None:
    prediction, value = normal(6, V), normal(6, V, seed=1)
    for form in ("coordinate", "norm", "switch"):
        assert_close(il.Huber(1e6, form).error(prediction, value), value - prediction, f"{form}: squares")
    signs = (value - prediction).sign()
    for form in ("coordinate", "switch"):
        assert_close(il.Huber(1e-6, form).error(prediction, value), 1e-6 * signs, f"{form}: signs")


def test_lp_near_one_looks_at_signs() -> None:
    """p = 1 exactly; p just above 1 is near it, however small the residual; and it stays differentiable in p."""
    r = torch.tensor([2.0, -1e-12, 1e-200, -3.0], dtype=torch.float64)
    zero = torch.zeros_like(r)
    assert torch.equal(il.Lp(1.0).error(r, zero), -r.sign())
    assert float((il.Lp(1 + 1e-8).error(r, zero) + r.sign()).abs().max()) < 1e-5
    p = torch.tensor(1.2, dtype=torch.float64, requires_grad=True)
    error = il.Lp(3.0).error(torch.tensor([2.0, 0.0, -0.5], dtype=torch.float64), zero[:3], {"p": p})
    (slope,) = torch.autograd.grad(error.sum(), p)
    assert float(slope) == pytest.approx(-(2**0.2) * math.log(2) + 0.5**0.2 * math.log(0.5), rel=1e-12)


def test_lp_at_two_is_l2() -> None:
    prediction, value = normal(6, V), normal(6, V, seed=1)
    assert_close(il.Lp(2.0).error(prediction, value), il.L2().error(prediction, value), "error")
    assert_close(il.Lp(2.0).loss(prediction, value), il.L2().loss(prediction, value), "loss")


@pytest.mark.parametrize("radius", [0.0, 0.4, 3.0])
def test_robust_is_the_worst_case_in_the_ball(radius: float) -> None:
    """The largest loss over a fine grid of changed values: none exceeds the closed form, and one reaches it."""
    prediction, value = normal(7, 2), normal(7, 2, seed=1)
    prediction[0] = value[0]
    angle = np.linspace(0, 2 * np.pi, 20_001)
    for length in (0.0, 0.5 * radius, radius):
        change = length * np.stack([np.cos(angle), np.sin(angle)], -1)
        away = (prediction - value).numpy()[:, None] - change
        worst = 0.5 * (away**2).sum(-1).max(1)
        stated = il.Robust(radius).loss(prediction, value).numpy()
        assert (worst <= stated + 1e-12).all()
        if length == radius:
            assert np.abs(worst - stated).max() < 1e-6


HUGE_AND_TINY = [(torch.float32, 1e18), (torch.float32, 1e-30), (torch.float64, 1e100), (torch.float64, 1e-200)]


@pytest.mark.parametrize(("dtype", "size"), HUGE_AND_TINY)
@pytest.mark.parametrize("objective", [il.Dot(), *OBJECTIVES], ids=str)
def test_huge_and_tiny_residuals_have_finite_errors(objective: Any, dtype: torch.dtype, size: float) -> None:
    """By the formula and by autograd; the direction is that of the residual, up to what each channel may weigh."""
    if isinstance(objective, il.Lp) and size > 1 and objective.p > 3:
        return  # |r|^(p-1) is beyond the dtype's largest number
    residual = torch.tensor([3.0, -4.0, 0.0], dtype=dtype) * size
    zero = torch.zeros(3, dtype=dtype)
    error, derived = objective.error(residual, zero), by_autograd(objective, residual, zero)
    assert bool(error.isfinite().all())
    assert_close(derived, error, "autograd")
    if not isinstance(objective, il.Dot):
        tiny = size < 1 and isinstance(objective, il.Lp) and objective.p > 2  # |r|^(p-1) may underflow to 0
        assert tiny or torch.equal(error.sign(), -residual.sign())
    if objective == il.Robust(0.6) and size < 1:  # the ball decides, whatever the residual's size
        assert_close(error, torch.tensor([-0.36, 0.48, 0.0], dtype=dtype), "along the residual")
    if objective == il.Huber(1.1, "norm") and size > 1:
        assert_close(error, torch.tensor([-0.66, 0.88, 0.0], dtype=dtype), "along the residual")
        assert bool(objective.loss(residual, zero).isfinite())


SCALARS = [
    (il.Lp(3.0), "p", torch.tensor([1.5, 2.5])),
    (il.Huber(1.0), "delta", torch.tensor([0.3, 2.0])),
    (il.Huber(1.0, "norm"), "delta", torch.tensor([0.3, 2.0])),
    (il.Huber(1.0, "switch"), "delta", torch.tensor([0.3, 2.0])),
    (il.Robust(1.0), "radius", torch.tensor([0.0, 2.0])),
]


@pytest.mark.parametrize(("objective", "name", "values"), SCALARS, ids=str)
def test_scalars_override_the_fields(objective: Any, name: str, values: Tensor) -> None:
    """One value for each pair [..., no channel]: each pair is that of the objective with the value as its field."""
    prediction, value = normal(2, V), normal(2, V, seed=1)
    scalars = {name: values.double()}
    for i, x in enumerate(values.double().tolist()):
        alone = type(objective)(**{**{f: getattr(objective, f) for f in ("form",) if hasattr(objective, f)}, name: x})
        loss, error = objective.loss(prediction, value, scalars)[i], objective.error(prediction, value, scalars)[i]
        assert_close(loss, alone.loss(prediction[i], value[i]), "loss")
        assert_close(error, alone.error(prediction[i], value[i]), "error")


def test_an_objective_of_the_users_own_needs_a_loss_only() -> None:
    """`error` is autograd's then, also where no gradient is being recorded."""
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class LogCosh(il.Objective):
        """`sum log cosh r`."""

        def loss(self, prediction: Tensor, value: Tensor, scalars: Any = None) -> Tensor:
            """The sum over channels."""
            return (prediction - value).cosh().log().sum(-1)

    prediction, value = normal(4, V), normal(4, V, seed=1)
    with torch.no_grad():
        error = LogCosh().error(prediction, value)
    assert_close(error, -(prediction - value).tanh(), "error")
