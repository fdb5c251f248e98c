"""Retention: how the past is kept when a token is written.

    Keep    keep(m) = m
    Decay   keep(m) = a m                 a = exp(log_decay), one per head or one per key channel
            keep(m) = m_0 + a (m - m_0)   with toward="init"

and `merge(m, step) = keep(m) + step` for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from array_api_compat import array_namespace

from .axis import Array, Axis, Weights, one_of


def expand(gate: Array, like: Array) -> Array:
    """A gate [B, H] or [B, H, K] as a factor of `like` [B, H, ...]: ones are appended."""
    return gate.reshape(tuple(gate.shape) + (1,) * (like.ndim - gate.ndim))


@dataclass(frozen=True)
class Retention(Axis):
    """How the past is kept. Weights are dicts of arrays [B, H, ...]; `log_decay` is [B, H], [B, H, K] or None."""

    def keep(self, weights: Weights, log_decay: Array | None, initial: Weights) -> Weights:
        """What is left of the memory before the new step."""
        return weights

    def merge(self, weights: Weights, step: Weights, log_decay: Array | None, initial: Weights) -> Weights:
        """The memory after the new step: `keep(m) + step`."""
        kept = self.keep(weights, log_decay, initial)
        return {name: kept[name] + step[name] for name in step}


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
        if log_decay is None:
            return weights
        a = array_namespace(log_decay).exp(log_decay)
        if self.toward == "zero":
            return {name: expand(a, w) * w for name, w in weights.items()}
        return {name: initial[name] + expand(a, w) * (w - initial[name]) for name, w in weights.items()}

    def scheduled(self, heads: int) -> list[float] | None:
        """log_decay of each head when the gate is absent: None means that nothing decays."""
        if self.schedule is None:
            return None
        import math

        return [math.log1p(-(2.0 ** -(5 + head))) for head in range(heads)]
