"""Objectives: what a memory's answer is held against, token by token; r = m(k) - v.

    Dot      loss = -<m(k), v>                    error = v                    (Hebbian: the answer is not looked at)
    L2       loss = 1/2 |r|^2                     error = -r
    Lp       loss = 1/p sum |r_c|^p               error = -sign(r) |r|^(p-1)
    Huber    coordinate  sum 1/2 r_c^2, or delta (|r_c| - delta/2) where |r_c| > delta
             norm        1/2 |r|^2, or delta (|r| - delta/2) where |r| > delta
             switch      the step of 1/2 |r|^2, or that of delta sum |r_c| where |r| > delta   (Yaad as printed)
    Robust   loss = max over |d| <= radius of 1/2 |r - d|^2 = 1/2 (|r| + radius)^2
                                                  error = -(1 + radius/|r|) r

`error` is the negative gradient of the loss at the prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from array_api_compat import array_namespace, is_torch_array

from .axis import Array, Axis, one_of, positive
from .functions import safe_norm, safe_power

Scalars = Mapping[str, Array]
"""Values of the objective's own scalars, each broadcasting against the loss [...]."""


@dataclass(frozen=True)
class Objective(Axis):
    """The loss of one pair. `loss` maps predictions and values [..., V] to [...].

    An objective without scalars of its own may leave the last argument out.
    """

    #: gates read: a scalar of the same name, token by token
    gates: ClassVar[tuple[str, ...]] = ()

    def loss(self, prediction: Array, value: Array, scalars: Scalars | None = None) -> Array:
        """The loss, summed over the value's channels; `scalars` override the fields of their names."""
        raise TypeError(f"{type(self).__name__} defines no loss")

    def error(self, prediction: Array, value: Array, scalars: Scalars | None = None) -> Array:
        """The negative gradient of `loss` at the prediction, [..., V]: by autograd, unless a subclass knows it."""
        given = (scalars,) if scalars else ()
        if is_torch_array(prediction):
            from torch.func import grad
        else:
            import importlib

            grad = importlib.import_module("jax").grad
        return -grad(lambda p: self.loss(p, value, *given).sum())(prediction)

    def _scalar(self, name: str, scalars: Scalars | None, channels: bool = True) -> Array | float:
        """The scalar's value, broadcasting against [..., V]."""
        if not scalars or name not in scalars:
            return getattr(self, name)
        return scalars[name][..., None] if channels else scalars[name]


@dataclass(frozen=True)
class Dot(Objective):
    """`-<m(k), v>`: its gradient step is the Hebbian write of linear attention (equation (8) of Miras)."""

    def loss(self, prediction: Array, value: Array, scalars: Scalars | None = None) -> Array:
        """`-<prediction, value>`."""
        return -array_namespace(prediction).sum(prediction * value, axis=-1)

    def error(self, prediction: Array, value: Array, scalars: Scalars | None = None) -> Array:
        """`value`, whatever was predicted."""
        return value + 0 * prediction


@dataclass(frozen=True)
class L2(Objective):
    """`1/2 |m(k) - v|^2`: with the half, `lr` is DeltaNet's beta and twice Titans' theta."""

    def loss(self, prediction: Array, value: Array, scalars: Scalars | None = None) -> Array:
        """`1/2 |prediction - value|^2`."""
        residual = prediction - value
        return 0.5 * array_namespace(prediction).sum(residual * residual, axis=-1)

    def error(self, prediction: Array, value: Array, scalars: Scalars | None = None) -> Array:
        """`value - prediction`."""
        return value - prediction


@dataclass(frozen=True)
class Lp(Objective):
    """`1/p sum |r|^p`, p >= 1 (Miras, equations (10), (11)): p = 2 is L2, p = 1 looks at signs only.

    With 1/p in front, `lr` is p times Miras' eta. Where r = 0 the error and its derivative are 0.
    """

    parameters: ClassVar[dict[str, str]] = {"p": "H"}

    p: float = 3.0

    def __post_init__(self) -> None:
        positive("Lp", "p", self.p)
        if self.p < 1:
            raise ValueError(f"Lp(p={self.p!r}): pass a number >= 1, else the loss is not convex")

    def loss(self, prediction: Array, value: Array, scalars: Scalars | None = None) -> Array:
        """`1/p sum |prediction - value|^p`."""
        xp = array_namespace(prediction)
        p = self._scalar("p", scalars)
        return xp.sum(safe_power(xp.abs(prediction - value), p) / p, axis=-1)

    def error(self, prediction: Array, value: Array, scalars: Scalars | None = None) -> Array:
        """`-sign(r) |r|^(p-1)`."""
        xp = array_namespace(prediction)
        residual = prediction - value
        return -xp.sign(residual) * safe_power(xp.abs(residual), self._scalar("p", scalars) - 1)


@dataclass(frozen=True)
class Huber(Objective):
    """Squares near the value, absolute differences beyond `delta` (Miras, equations (14)-(16)).

    form: "coordinate" and "norm" are Huber's function of each channel and of the residual's norm; "switch" is Yaad as
        printed (equation (26)): the whole step is that of the squares while |r| <= delta, else delta sign(r).
    The gate `delta` gives every token a threshold of its own; in a window each pair keeps the one it came with.
    """

    parameters: ClassVar[dict[str, str]] = {"delta": "H"}
    gates: ClassVar[tuple[str, ...]] = ("delta",)

    delta: float = 1.0
    form: Literal["coordinate", "norm", "switch"] = "coordinate"

    def __post_init__(self) -> None:
        positive("Huber", "delta", self.delta)
        one_of("Huber", "form", self.form, ("coordinate", "norm", "switch"))

    def loss(self, prediction: Array, value: Array, scalars: Scalars | None = None) -> Array:
        """The form's loss (that of "switch" jumps at |r| = delta, where its step does)."""
        xp = array_namespace(prediction)
        residual = prediction - value
        squares = 0.5 * xp.sum(residual * residual, axis=-1)
        delta = self._scalar("delta", scalars, channels=False)
        if self.form == "coordinate":
            d = self._scalar("delta", scalars)
            size = xp.abs(residual)
            return xp.sum(xp.where(size <= d, 0.5 * residual * residual, d * (size - 0.5 * d)), axis=-1)
        norm = safe_norm(residual, (-1,))[..., 0]
        if self.form == "norm":
            return xp.where(norm <= delta, squares, delta * (norm - 0.5 * delta))
        return xp.where(norm <= delta, squares, delta * xp.sum(xp.abs(residual), axis=-1))

    def error(self, prediction: Array, value: Array, scalars: Scalars | None = None) -> Array:
        """`-r` within delta; beyond it -delta sign(r), or -delta r / |r| for "norm"."""
        xp = array_namespace(prediction)
        residual = prediction - value
        d = self._scalar("delta", scalars)
        if self.form == "coordinate":
            return -xp.where(xp.abs(residual) <= d, residual, d * xp.sign(residual))
        norm = safe_norm(residual, (-1,))
        if self.form == "norm":
            far = norm > d
            return -residual * xp.where(far, d / xp.where(far, norm, xp.ones_like(norm)), xp.ones_like(norm))
        return -xp.where(norm <= d, residual, d * xp.sign(residual))


@dataclass(frozen=True)
class Robust(Objective):
    """The squared loss under the worst change of the value within `radius` (Miras, equation (17)).

    `max over |d| <= radius of 1/2 |m(k) - (v + d)|^2 = 1/2 |r|^2 + radius |r| + 1/2 radius^2`.
    """

    parameters: ClassVar[dict[str, str]] = {"radius": "H"}

    radius: float = 1.0

    def __post_init__(self) -> None:
        positive("Robust", "radius", self.radius, zero=True)

    def loss(self, prediction: Array, value: Array, scalars: Scalars | None = None) -> Array:
        """`1/2 (|r| + radius)^2`, written out."""
        residual = prediction - value
        radius = self._scalar("radius", scalars, channels=False)
        squares = 0.5 * array_namespace(prediction).sum(residual * residual, axis=-1)
        return squares + radius * safe_norm(residual, (-1,))[..., 0] + 0.5 * radius * radius

    def error(self, prediction: Array, value: Array, scalars: Scalars | None = None) -> Array:
        """`-(r + radius r / |r|)`; the second part is 0 at r = 0."""
        xp = array_namespace(prediction)
        residual = prediction - value
        norm = safe_norm(residual, (-1,))
        some = norm > 0
        share = xp.where(some, self._scalar("radius", scalars) / xp.where(some, norm, xp.ones_like(norm)), 0 * norm)
        return -(residual + share * residual)
