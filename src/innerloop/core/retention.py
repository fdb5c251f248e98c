"""Retention: how the past is kept when a token is written.

    Keep         m <- m + step
    Decay        m <- a m + step                     a = exp(log_decay), one per head or one per key channel
                 m <- m_0 + a (m - m_0) + step       with toward="init"
    ElasticNet   m <- argmin |m - (m_prev + step)|^2 / 2 lr + l1 |m|_1 + l2 |m|^2 / 2
    RowNorm      m <- m + step, then each unit's incoming weights get their starting norm back
    Lq           A <- a A + step,  m = A / |A|_q^(q-2)           (or the map that was meant, see the class)
    KL           A <- a A + step,  m = total softmax(A)          over the inputs of each weight matrix

`accumulate` is the part that is linear in the step, `settle` what follows it, `merge` both; `link` maps what is kept
(the dual variable A) to the weights. Links and norms act on matrices; biases are plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from array_api_compat import array_namespace

from .axis import Array, Axis, Weights, one_of, positive
from .functions import safe_norm, safe_power

Parameters = Mapping[str, Array]
"""Scalars of the axis, [B or 1, H or 1, 1] each."""


def expand(gate: Array, like: Array) -> Array:
    """A gate [B, H] or [B, H, K] as a factor of `like` [B, H, ...]: ones are appended."""
    return gate.reshape(tuple(gate.shape) + (1,) * (like.ndim - gate.ndim))


def is_matrix(weight: Array) -> bool:
    """Whether a weight [B, H, ...] is a matrix, not a bias."""
    return weight.ndim == 4


@dataclass(frozen=True)
class Retention(Axis):
    """How the past is kept. Weights are dicts of arrays [B, H, ...]; `log_decay` is [B, H], [B, H, K] or None."""

    #: gates read
    gates: ClassVar[tuple[str, ...]] = ()
    #: `settle` or `link` do something, so that a write is no linear map of the step
    linear: ClassVar[bool] = True
    #: `link` does something: what is kept is not the weights themselves
    dual: ClassVar[bool] = False

    def keep(self, weights: Weights, log_decay: Array | None, initial: Weights) -> Weights:
        """What is left of the memory before the new step."""
        return weights

    def accumulate(self, weights: Weights, step: Weights, log_decay: Array | None, initial: Weights) -> Weights:
        """`keep(m) + step`."""
        kept = self.keep(weights, log_decay, initial)
        return {name: kept[name] + step[name] for name in step}

    def settle(
        self, weights: Weights, initial: Weights, rates: Weights | None = None, parameters: Parameters | None = None
    ) -> Weights:
        """What follows the accumulation; `rates` are the step sizes [B, H] taken, by weight."""
        return weights

    def merge(
        self, weights: Weights, step: Weights, log_decay: Array | None, initial: Weights,
        rates: Weights | None = None, parameters: Parameters | None = None,
    ) -> Weights:  # fmt: skip
        """The memory after the new step: accumulated, then settled."""
        return self.settle(self.accumulate(weights, step, log_decay, initial), initial, rates, parameters)

    def link(self, weights: Weights, parameters: Parameters | None = None) -> Weights:
        """The weights that a read uses."""
        return weights


@dataclass(frozen=True)
class Keep(Retention):
    """Everything is kept."""


@dataclass(frozen=True)
class Decay(Retention):
    """Exponential forgetting by the gate `log_decay`.

    per: "head" reads a gate [B, T, H]; "channel" one [B, T, H, K], a rate for each key channel.
    toward: "zero" as the papers print it; "init" decays toward the initial memory (a departure: an MLP that
        decays to zero is a dead point, its gradients vanish with its weights).
    schedule: None, or "retnet": when the gate is absent, head h of H keeps `1 - 2^-(5 + h)` per token
        (Sun et al. 2023, RetNet, section 2.3).
    """

    gates: ClassVar[tuple[str, ...]] = ("log_decay",)

    per: Literal["head", "channel"] = "head"
    toward: Literal["zero", "init"] = "zero"
    schedule: Literal["retnet"] | None = None

    def __post_init__(self) -> None:
        one_of("Decay", "per", self.per, ("head", "channel"))
        one_of("Decay", "toward", self.toward, ("zero", "init"))
        if self.schedule is not None:
            one_of("Decay", "schedule", self.schedule, ("retnet",))
            if self.per != "head":
                raise ValueError(f"Decay(schedule={self.schedule!r}): the schedule is per head, so pass per='head'")

    def keep(self, weights: Weights, log_decay: Array | None, initial: Weights) -> Weights:
        """`a m`, or `m_0 + a (m - m_0)`."""
        if self.toward == "init" and log_decay is not None:
            a = array_namespace(log_decay).exp(log_decay)
            return {name: initial[name] + expand(a, w) * (w - initial[name]) for name, w in weights.items()}
        return _decayed(weights, log_decay)

    def scheduled(self, heads: int) -> list[float] | None:
        """log_decay of each head when the gate is absent: None means that nothing decays."""
        if self.schedule is None:
            return None
        import math

        return [math.log1p(-(2.0 ** -(5 + head))) for head in range(heads)]


@dataclass(frozen=True)
class ElasticNet(Retention):
    """The proximal step of `l1 |m|_1 + l2 |m|^2 / 2`: weights shrink, and small ones become exactly 0.

    `m <- soft((m + step) / (1 + lr l2), lr l1 / (1 + lr l2))`, `soft(x, c) = sign(x) max(|x| - c, 0)`
    (Miras, equation (22), with l1 = 1/alpha, l2 = 1/beta and lr = eta there).
    """

    parameters: ClassVar[dict[str, str]] = {"l1": "H", "l2": "H"}
    linear: ClassVar[bool] = False

    l1: float = 0.01
    l2: float = 0.01

    def __post_init__(self) -> None:
        positive("ElasticNet", "l1", self.l1, zero=True)
        positive("ElasticNet", "l2", self.l2, zero=True)

    def settle(
        self, weights: Weights, initial: Weights, rates: Weights | None = None, parameters: Parameters | None = None
    ) -> Weights:
        """Shrink, then cut; step sizes that are not given are 1."""
        given = parameters or {}
        out: Weights = {}
        for name, w in weights.items():
            xp = array_namespace(w)
            lr = xp.ones_like(w[(slice(None), slice(None)) + (0,) * (w.ndim - 2)]) if rates is None else rates[name]
            l1, l2 = (given[n][..., 0] if n in given else getattr(self, n) for n in ("l1", "l2"))
            shrink = expand(1 + lr * l2, w)
            size = xp.abs(w) / shrink - expand(lr * l1, w) / shrink
            out[name] = xp.where(size > 0, xp.sign(w) * size, xp.zeros_like(w))
        return out


@dataclass(frozen=True)
class RowNorm(Retention):
    """After a write the weights into each unit are rescaled to the norm they started with (LaCT's weight norm).

    `W <- W / (|W| + 1e-5) |W_init|`, norms over the inputs of each unit. A unit that starts at zero stays there: give a
    `Matrix` another initial memory.
    """

    linear: ClassVar[bool] = False
    eps: ClassVar[float] = 1e-5

    def settle(
        self, weights: Weights, initial: Weights, rates: Weights | None = None, parameters: Parameters | None = None
    ) -> Weights:
        """Rescale every matrix."""
        out: Weights = {}
        for name, w in weights.items():
            wanted = safe_norm(initial[name], (-2,)) if is_matrix(w) else None
            out[name] = w if wanted is None else w / (safe_norm(w, (-2,)) + self.eps) * wanted
        return out


@dataclass(frozen=True)
class _Link(Retention):
    """A dual variable that decays and accumulates steps; `link` maps it to the weights."""

    gates: ClassVar[tuple[str, ...]] = ("log_decay",)
    linear: ClassVar[bool] = False
    dual: ClassVar[bool] = True

    def keep(self, weights: Weights, log_decay: Array | None, initial: Weights) -> Weights:
        """`a A`."""
        return _decayed(weights, log_decay)


@dataclass(frozen=True)
class Lq(_Link):
    """The dual variable of a squared q-norm, over the entries of each matrix (Miras, variant 4 and equation (25)).

    form "paper"      m = A / |A|_q^(q-2)                       as Moneta prints it
         "corrected"  m = sign(A) |A|^(q-1) / |A|_q^(q-2)       the gradient of |A|_q^2 / 2, which mirror descent under
                                                                |m|_p^2 / 2, 1/p + 1/q = 1, asks for
    Both are the identity at q = 2; a zero A gives zero.
    """

    parameters: ClassVar[dict[str, str]] = {"q": "H"}

    q: float = 4.0
    form: Literal["paper", "corrected"] = "paper"

    def __post_init__(self) -> None:
        positive("Lq", "q", self.q)
        if self.q < 1:
            raise ValueError(f"Lq(q={self.q!r}): pass a number >= 1, the exponent of a norm")
        one_of("Lq", "form", self.form, ("paper", "corrected"))

    def link(self, weights: Weights, parameters: Parameters | None = None) -> Weights:
        """Entry by entry, in units of the largest entry (a power of a tiny one would underflow)."""
        q = parameters["q"][..., None] if parameters and "q" in parameters else self.q
        out: Weights = {}
        for name, A in weights.items():
            if not is_matrix(A):
                out[name] = A
                continue
            xp = array_namespace(A)
            largest = xp.max(xp.abs(A), axis=(-2, -1), keepdims=True)
            unit = xp.where(largest > 0, largest, xp.ones_like(largest))
            x = A / unit
            norm = safe_power(xp.sum(safe_power(xp.abs(x), q), axis=(-2, -1), keepdims=True), 1 / q)
            norm = xp.where(norm > 0, norm, xp.ones_like(norm))
            if self.form == "corrected":
                out[name] = unit * xp.sign(x) * safe_power(xp.abs(x), q - 1) / norm ** (q - 2)
            else:
                out[name] = unit ** (3 - q) * x / norm ** (q - 2)
        return out


@dataclass(frozen=True)
class KL(_Link):
    """Weights on a simplex: `m = total softmax(A)` over the inputs of each unit (Miras, equations (19)-(21), (27)).

    The dual variable A are the logits; `softmax(a log m + step)` is `softmax(a A + step)`.
    """

    parameters: ClassVar[dict[str, str]] = {"total": "H"}

    total: float = 1.0

    def __post_init__(self) -> None:
        positive("KL", "total", self.total)

    def link(self, weights: Weights, parameters: Parameters | None = None) -> Weights:
        """A softmax over the inputs of each matrix."""
        total = parameters["total"][..., None] if parameters and "total" in parameters else self.total
        out: Weights = {}
        for name, A in weights.items():
            xp = array_namespace(A)
            if is_matrix(A):
                e = xp.exp(A - xp.max(A, axis=-2, keepdims=True))
                out[name] = total * e / xp.sum(e, axis=-2, keepdims=True)
            else:
                out[name] = A
        return out


def _decayed(weights: Weights, log_decay: Array | None) -> Weights:
    if log_decay is None:
        return weights
    a = array_namespace(log_decay).exp(log_decay)
    return {name: expand(a, w) * w for name, w in weights.items()}
