"""Objectives: what a memory's answer is held against, token by token.

    Dot   loss = -<m(k), v>              error = v          (Hebbian: the answer is not looked at)
    L2    loss = 1/2 |m(k) - v|^2        error = v - m(k)

`error` is the negative gradient of the loss at the prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

from array_api_compat import array_namespace

from .axis import Array, Axis


@dataclass(frozen=True)
class Objective(Axis):
    """The loss of one pair. `loss` maps predictions and values [..., V] to [...]."""

    def loss(self, prediction: Array, value: Array) -> Array:
        """The loss, summed over the value's channels."""
        raise TypeError(f"{type(self).__name__} defines no loss")

    def error(self, prediction: Array, value: Array) -> Array:
        """The negative gradient of `loss` at the prediction, [..., V]."""
        raise TypeError(f"{type(self).__name__} has no closed form of its error")


@dataclass(frozen=True)
class Dot(Objective):
    """`-<m(k), v>`: its gradient step is the Hebbian write of linear attention (equation (8) of Miras)."""

    def loss(self, prediction: Array, value: Array) -> Array:
        """`-<prediction, value>`."""
        return -array_namespace(prediction).sum(prediction * value, axis=-1)

    def error(self, prediction: Array, value: Array) -> Array:
        """`value`, whatever was predicted."""
        return value + 0 * prediction


@dataclass(frozen=True)
class L2(Objective):
    """`1/2 |m(k) - v|^2`: with the half, `lr` is DeltaNet's beta and twice Titans' theta."""

    def loss(self, prediction: Array, value: Array) -> Array:
        """`1/2 |prediction - value|^2`."""
        residual = prediction - value
        return 0.5 * array_namespace(prediction).sum(residual * residual, axis=-1)

    def error(self, prediction: Array, value: Array) -> Array:
        """`value - prediction`."""
        return value - prediction
