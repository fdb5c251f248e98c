"""Elementwise functions and small maps that the array API lacks or that several axes share, for any framework.

gelu        x Phi(x)                                  gelu_tanh   its tanh approximation
silu        x sigmoid(x)                              layer_norm  (x - mean) / sqrt(variance + eps), then affine
"""

from __future__ import annotations

from functools import cache
from typing import Any

from array_api_compat import array_namespace, is_torch_array

from .axis import Array

ACTIVATIONS = ("gelu", "gelu_tanh", "silu")
EPS = 1e-6  # of the layer norm, inside the root (TTT's code)


def activation(name: str, x: Array) -> Array:
    """The activation of that name, entry by entry."""
    functions: Any
    if is_torch_array(x):
        import torch.nn.functional as functions

        exact, rounded = {"approximate": "none"}, {"approximate": "tanh"}
    else:
        import importlib

        functions = importlib.import_module("jax.nn")
        exact, rounded = {"approximate": False}, {"approximate": True}
    if name == "silu":
        return functions.silu(x)
    return functions.gelu(x, **(exact if name == "gelu" else rounded))


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    """Layer norm over the last axis of x [B, H, n, V], which is the caller's to lose; weight and bias are [B, H, V]."""
    if is_torch_array(x):
        import torch.nn.functional as functions

        # Its kernel answers NaN where a square overflows, its second derivative where a cube does. Cut in place, as x
        # is always a fresh answer, and with the gradient of what is uncut, about 0 out there: all else costs more
        x.detach().clamp_(-_most(x.dtype), _most(x.dtype))
        unit = functions.layer_norm(x, x.shape[-1:], eps=EPS)
    else:
        xp = array_namespace(x)
        centred = x - xp.mean(x, axis=-1, keepdims=True)
        unit = centred / xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True) + EPS)
    return unit * weight[..., None, :] + bias[..., None, :]


@cache
def _most(dtype: Any) -> float:
    import torch

    return torch.finfo(dtype).max ** 0.25


def fit_channels(x: Array, channels: int) -> Array:
    """x [..., K] cut, or padded with zeros, to that many channels: the residual of a memory whose K is not V."""
    missing = channels - x.shape[-1]
    if missing <= 0:
        return x[..., :channels]
    xp = array_namespace(x)
    zeros = xp.zeros((*x.shape[:-1], missing), dtype=x.dtype, device=x.device)
    return xp.concat([x, zeros], axis=-1)


def safe_power(x: Array, exponent: Array | float) -> Array:
    """`x^exponent` of x >= 0, with 0 (and derivative 0) at x = 0, whatever the exponent."""
    xp = array_namespace(x)
    some = x > 0
    return xp.where(some, xp.where(some, x, xp.ones_like(x)) ** exponent, xp.zeros_like(x))


def safe_norm(x: Array, axes: tuple[int, ...]) -> Array:
    """The 2-norm over some axes (kept), with derivative 0 where it is 0; free of under- and overflow."""
    xp = array_namespace(x)
    largest = xp.max(xp.abs(x), axis=axes, keepdims=True)
    unit = xp.where(largest > 0, largest, xp.ones_like(largest))
    scaled = x / unit
    return unit * safe_power(xp.sum(scaled * scaled, axis=axes, keepdims=True), 0.5)
