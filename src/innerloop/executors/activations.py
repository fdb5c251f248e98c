"""Activations, their backward passes, and the backward passes of those: the training of the memory is differentiated.

    backward(g, z) = g act'(z)          d backward / dg = act'(z)          d backward / dz = g act''(z)

gelu       act'' = phi(z) (2 - z^2)                              phi the normal density
gelu_tanh  act = z (1 + t) / 2, t = tanh(u), u = s (z + a z^3):  act'' = (1 - t^2) (u' + z (u'' / 2 - t u'^2))
silu       act = z s, s = sigmoid(z):                            act'' = s (1 - s) (2 + z (1 - 2 s))
"""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import torch
from torch import Tensor

SCALE, CUBIC = sqrt(2 / pi), 0.044715  # of gelu's tanh form


def forward(name: str, z: Tensor) -> Tensor:
    """The activation of that name."""
    if name == "silu":
        return torch.nn.functional.silu(z)
    return torch.nn.functional.gelu(z, approximate="tanh" if name == "gelu_tanh" else "none")


def backward(name: str, grad: Tensor, z: Tensor) -> Tensor:
    """`grad act'(z)`, differentiable any number of times."""
    return _Backward.apply(name, grad, z)  # pyright: ignore


class _Backward(torch.autograd.Function):
    """One kernel for the product, a few for its derivative (autograd alone takes about twenty)."""

    @staticmethod
    def forward(ctx: Any, name: str, grad: Tensor, z: Tensor) -> Tensor:
        ctx.name = name
        ctx.save_for_backward(grad, z)
        return _kernel(name, grad, z)

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        grad, z = ctx.saved_tensors
        of_grad = backward(ctx.name, outer[0], z) if ctx.needs_input_grad[1] else None
        of_z = outer[0] * grad * _curvature(ctx.name, z) if ctx.needs_input_grad[2] else None
        return None, of_grad, of_z


def _kernel(name: str, grad: Tensor, z: Tensor) -> Tensor:
    if name == "silu":
        return torch.ops.aten.silu_backward(grad, z)
    return torch.ops.aten.gelu_backward(grad, z, approximate="tanh" if name == "gelu_tanh" else "none")


def _curvature(name: str, z: Tensor) -> Tensor:
    """`act''(z)`."""
    if name == "silu":
        s = torch.sigmoid(z)
        return s * (1 - s) * (2 + z * (1 - 2 * s))
    squares = z * z
    if name == "gelu":
        return torch.exp(-0.5 * squares) * ((2 - squares) / sqrt(2 * pi))
    t = torch.tanh(z * (SCALE + SCALE * CUBIC * squares))
    slope = SCALE + 3 * SCALE * CUBIC * squares
    return (1 - t * t) * (slope + z * (3 * SCALE * CUBIC * z - t * slope * slope))
