"""Architectures: what a memory is, as a function of a key.

Matrix      m(x) = S^T x                                        S: [B, H, K, V]
Exemplars   m(x) = sum_j p_j(x) v_j                             all pairs are kept
            p_j = w_j / sum w,   w_j = exp(<x, k_j> / h^2)      kernel "exp"
                                 w_j = exp(-|x - k_j|^2 / 2h^2) kernel "gaussian"
            order 1: the intercept of the weighted linear fit around x
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from array_api_compat import array_namespace

from .axis import Array, Axis, Weights, one_of, positive


@dataclass(frozen=True)
class Architecture(Axis):
    """The class of functions that a memory is drawn from."""

    def shapes(self, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """Name and shape (without [B, H]) of each weight."""
        raise TypeError(f"{type(self).__name__} has no weights")

    def apply(self, weights: Weights, x: Array) -> Array:
        """The memory's answers to x [B, H, n, K]: [B, H, n, V]."""
        raise TypeError(f"{type(self).__name__} is not a parametric function")


@dataclass(frozen=True)
class Matrix(Architecture):
    """A linear memory `S: [B, H, K, V]`, read by `S^T x`; it starts at zero."""

    def shapes(self, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """One weight, `S: (K, V)`."""
        return {"S": (key_dim, value_dim)}

    def apply(self, weights: Weights, x: Array) -> Array:
        """`x S`, row by row."""
        return array_namespace(x).matmul(x, weights["S"])


@dataclass(frozen=True)
class Exemplars(Architecture):
    """All pairs (or the last `capacity`), read by a kernel around the query.

    kernel: "exp" (softmax attention without its scale) or "gaussian" (Nadaraya and Watson, 1964).
    order: 0 is the local constant fit, 1 the local linear fit, whose slope is penalised by `penalty / 2 |W|^2`.
    bandwidth: h above; `penalty` is read by order 1 only.
    """

    parameters: ClassVar[dict[str, str]] = {"bandwidth": "H", "penalty": "H"}

    kernel: Literal["exp", "gaussian"] = "exp"
    order: Literal[0, 1] = 0
    bandwidth: float = 1.0
    capacity: int | None = None
    penalty: float = 1.0

    def __post_init__(self) -> None:
        one_of("Exemplars", "kernel", self.kernel, ("exp", "gaussian"))
        if self.order not in (0, 1):
            raise ValueError(f"Exemplars(order={self.order!r}): pass 0 (local constant) or 1 (local linear)")
        positive("Exemplars", "bandwidth", self.bandwidth)
        positive("Exemplars", "penalty", self.penalty)
        if self.capacity is not None and (not isinstance(self.capacity, int) or self.capacity < 1):
            raise ValueError(f"Exemplars(capacity={self.capacity!r}): pass None (keep all) or an int >= 1")

    def log_weights(self, queries: Array, keys: Array, bandwidth: Array) -> Array:
        """`log w` of queries [..., n, K] against keys [..., m, K]: [..., n, m]; bandwidth broadcasts to [..., 1, 1]."""
        xp = array_namespace(queries)
        if self.kernel == "exp":
            return xp.matmul(queries, xp.matrix_transpose(keys)) / bandwidth**2
        difference = queries[..., :, None, :] - keys[..., None, :, :]
        return -0.5 * xp.sum(difference * difference, axis=-1) / bandwidth**2
