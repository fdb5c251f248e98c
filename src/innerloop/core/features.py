"""Feature maps in front of a memory: `Features(map, inner)` answers `inner(phi(x))`.

Polynomial   phi(x) = [c_0,  c_1 x_i,  c_2 x_i x_j (i <= j), ...]     every monomial up to the degree, c_i = 1/i!
Fourier      phi(x) = sqrt(2 / n) cos(w_j^T x / bandwidth + b_j)      w normal, b uniform: a Gaussian kernel's features

The inner memory never learns that there is a map: to it, keys and queries have other channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from math import comb, factorial, pi
from typing import Any

from array_api_compat import array_namespace

from .architecture import MLP, Architecture, Exemplars, Layer, Linear, Matrix
from .axis import Array, Axis, Weights, positive


@dataclass(frozen=True)
class FeatureMap(Axis):
    """A fixed map of keys and queries, with outer parameters of its own."""

    def size(self, key_dim: int) -> int:
        """Channels of the features."""
        raise TypeError(f"{type(self).__name__} has no size")

    def constants(self, key_dim: int) -> dict[str, tuple[int, ...]]:
        """Name and shape of its outer parameters."""
        return {}

    def start(self, draw: Callable[[tuple[int, ...]], Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
        """Their starting values."""
        return {}

    def features(self, weights: Weights, x: Array) -> Array:
        """Features of x [B, H, n, K]: [B, H, n, size]."""
        raise TypeError(f"{type(self).__name__} has no features")


@dataclass(frozen=True)
class Polynomial(FeatureMap):
    """All `C(K + degree, degree)` monomials up to the degree, those of order i times `feature_coefficients[i]`.

    The coefficients [B, H, degree + 1] are outer parameters, 1/i! at the start (Atlas, Behrouz et al. 2025, (5)).
    """

    degree: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.degree, int) or isinstance(self.degree, bool) or self.degree < 1:
            raise ValueError(f"Polynomial(degree={self.degree!r}): pass an int >= 1")

    def size(self, key_dim: int) -> int:
        """`C(K + degree, degree)`."""
        return comb(key_dim + self.degree, self.degree)

    def constants(self, key_dim: int) -> dict[str, tuple[int, ...]]:
        """One coefficient for each order."""
        return {"feature_coefficients": (self.degree + 1,)}

    def start(self, draw: Callable[[tuple[int, ...]], Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
        """1/i!."""
        return {"feature_coefficients": [1 / factorial(i) for i in range(self.degree + 1)]}

    def features(self, weights: Weights, x: Array) -> Array:
        """Order by order, the index tuples in lexicographic order."""
        xp = array_namespace(x)
        coefficients = weights["feature_coefficients"][..., None, :]
        parts = [xp.ones_like(x[..., :1]) * coefficients[..., :1], x * coefficients[..., 1:2]]
        monomials = x
        for order in range(2, self.degree + 1):
            monomials = self._next(xp, monomials, x, order)
            parts.append(monomials * coefficients[..., order : order + 1])
        return xp.concat(parts, axis=-1)

    def _next(self, xp: Any, monomials: Array, x: Array, order: int) -> Array:
        """Monomials of `order` out of those of the order before, times each variable that is not smaller."""
        shorter = {t: i for i, t in enumerate(combinations_with_replacement(range(x.shape[-1]), order - 1))}
        tuples = list(combinations_with_replacement(range(x.shape[-1]), order))
        first = xp.asarray([shorter[t[:-1]] for t in tuples], device=x.device)
        last = xp.asarray([t[-1] for t in tuples], device=x.device)
        return xp.take(monomials, first, axis=-1) * xp.take(x, last, axis=-1)


@dataclass(frozen=True)
class Fourier(FeatureMap):
    """`num` random cosines, whose inner products approximate `exp(-|x - y|^2 / 2 bandwidth^2)`.

    Rahimi and Recht 2007, "Random features for large-scale kernel machines", algorithm 1. The frequencies
    `feature_frequencies` [B, H, K, num] and `feature_phases` [B, H, num] are outer parameters, drawn from a fixed seed,
    whatever the data are; `bandwidth` may be overridden in `initial`.
    """

    num: int = 64
    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.num, int) or isinstance(self.num, bool) or self.num < 1:
            raise ValueError(f"Fourier(num={self.num!r}): pass an int >= 1")
        positive("Fourier", "bandwidth", self.bandwidth)

    def size(self, key_dim: int) -> int:
        """`num`."""
        return self.num

    def constants(self, key_dim: int) -> dict[str, tuple[int, ...]]:
        """Frequencies, phases and bandwidth."""
        return {"feature_frequencies": (key_dim, self.num), "feature_phases": (self.num,), "bandwidth": ()}

    def start(self, draw: Callable[[tuple[int, ...]], Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
        """Normal frequencies; phases uniform on the circle, as the angles of normal points in the plane."""
        import numpy as np

        frequencies, x, y = draw(shapes["feature_frequencies"]), draw((self.num,)), draw((self.num,))
        return {
            "feature_frequencies": frequencies,
            "feature_phases": np.arctan2(y, x) + pi,
            "bandwidth": self.bandwidth,
        }

    def features(self, weights: Weights, x: Array) -> Array:
        """`sqrt(2 / num) cos(x w / bandwidth + b)`."""
        xp = array_namespace(x)
        angles = xp.matmul(x / weights["bandwidth"][..., None, None], weights["feature_frequencies"])
        return (2 / self.num) ** 0.5 * xp.cos(angles + weights["feature_phases"][..., None, :])


@dataclass(frozen=True)
class Features(Architecture):
    """`inner(map(x))`: a `Matrix` or an `MLP` that sees features of the key.

    An inner MLP's hidden width is `expansion * K` with the key's own K. Its residual would add a vector of another
    size and is refused.
    """

    map: FeatureMap
    inner: Architecture = field(default_factory=Matrix)

    def __post_init__(self) -> None:
        if not isinstance(self.map, FeatureMap):
            raise TypeError(f"Features(map={self.map!r}): pass a feature map, e.g. polynomial(2)")
        if not isinstance(self.inner, Architecture) or isinstance(self.inner, Exemplars | Features):
            raise TypeError(f"Features(inner={self.inner!r}): pass Matrix(), MLP(...) or SwiGLU(...)")
        if isinstance(self.inner, MLP) and self.inner.residual:
            raise ValueError(
                "Features(inner=MLP(residual=True)): the features have no place in the answer to be added to"
            )

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Those of the inner memory."""
        return self.inner.layers

    @property
    def rates(self) -> tuple[str, ...]:
        """Those of the inner memory."""
        return self.inner.rates

    @property
    def parametric(self) -> Architecture:
        """The inner memory."""
        return self.inner

    def inputs(self, key_dim: int) -> int:
        """Channels of the features."""
        return self.map.size(key_dim)

    def embed(self, weights: Weights, x: Array) -> Array:
        """The features."""
        return self.map.features(weights, x)

    def shapes(self, key_dim: int, value_dim: int, width: int | None = None) -> dict[str, tuple[int, ...]]:
        """Those of the inner memory on features."""
        return self.inner.shapes(self.inputs(key_dim), value_dim, width or key_dim)

    def constants(self, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """The map's outer parameters, then the inner memory's."""
        return self.map.constants(key_dim) | self.inner.constants(key_dim, value_dim)

    def start(self, draw: Callable[[tuple[int, ...]], Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
        """The map's, then the inner memory's."""
        return self.map.start(draw, shapes) | self.inner.start(draw, shapes)

    def apply(self, weights: Weights, x: Array, linear: Linear | None = None) -> Array:
        """`inner(map(x))`."""
        return self.inner.apply(weights, self.embed(weights, x), linear)


def polynomial(degree: int = 2) -> Polynomial:
    """The feature map of all monomials up to a degree (see `Polynomial`)."""
    return Polynomial(degree)


def fourier(num: int = 64, bandwidth: float = 1.0) -> Fourier:
    """The feature map of `num` random cosines of a Gaussian kernel (see `Fourier`)."""
    return Fourier(num, bandwidth)
