"""Activations with their slopes: the memory's own training needs both, and is itself differentiated.

    a = act(z), s = act'(z)            backward of (a, s):  g_a act'(z) + g_s act''(z)

gelu       act = z F, s = F + z f, act'' = f (2 - z^2)           F the normal distribution, f its density
gelu_tanh  act = z (1 + t) / 2, t = tanh(u), u = r (z + q z^3):  act'' = (1 - t^2) (u' + z (u'' / 2 - t u'^2))
silu       act = z p, p = sigmoid(z), s = p (1 + z (1 - p)):     act'' = p (1 - p) (2 + z (1 - 2 p))
"""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten  # the slope has a kernel of its own there, which torch.nn.functional does not show
ROOT, CUBIC = sqrt(2 / pi), 0.044715  # r and q of gelu's tanh form


def with_slope(name: str, z: Tensor) -> tuple[Tensor, Tensor]:
    """The activation of that name and its derivative, differentiable any number of times."""
    return _WithSlope.apply(name, z)  # pyright: ignore


class _WithSlope(torch.autograd.Function):
    """Few kernels and few temporaries: autograd alone would take about twenty for the second derivative."""

    @staticmethod
    def forward(ctx: Any, name: str, z: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = _forward(name, z)
        ctx.name = name
        ctx.save_for_backward(z, slope)
        return value, slope

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        z, slope = ctx.saved_tensors
        of_value, of_slope = outer
        if torch.is_grad_enabled():  # someone differentiates this too
            return None, of_value * slope + of_slope * _CURVATURE[ctx.name](z)
        return None, torch.addcmul(_CURVATURE[ctx.name](z).mul_(of_slope), of_value, slope)


def _forward(name: str, z: Tensor) -> tuple[Tensor, Tensor]:
    one = torch.ones_like(z)
    if name == "silu":
        return aten.silu(z), aten.silu_backward(one, z)
    form = "tanh" if name == "gelu_tanh" else "none"
    return aten.gelu(z, approximate=form), aten.gelu_backward(one, z, approximate=form)


def _gelu_curvature(z: Tensor) -> Tensor:
    squares = z * z
    return torch.exp(-0.5 * squares) * ((2 - squares) / sqrt(2 * pi))


def _gelu_tanh_curvature(z: Tensor) -> Tensor:
    squares = z * z
    t = torch.tanh(z * (ROOT + ROOT * CUBIC * squares))
    slope = ROOT + 3 * ROOT * CUBIC * squares
    return (1 - t * t) * (slope + z * (3 * ROOT * CUBIC * z - t * slope * slope))


def _silu_curvature(z: Tensor) -> Tensor:
    p = torch.sigmoid(z)
    return p * (1 - p) * (2 + z * (1 - 2 * p))


_CURVATURE = {"gelu": _gelu_curvature, "gelu_tanh": _gelu_tanh_curvature, "silu": _silu_curvature}
