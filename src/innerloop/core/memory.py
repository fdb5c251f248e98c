"""`Memory`: one point of the design space, as a value; `Gates`: what a token may say about its own write.

    m_t = argmin_m  sum_{i<=t} gamma_i loss(m(k_i), v_i) + retention(m, m_{t-1})          o_t = m_t(q_t)

architecture = the class of m, objective = loss, retention = how the past is kept, learner = the solver.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from .architecture import Architecture, Exemplars, Matrix
from .axis import Axis, one_of
from .descent import pending_shapes
from .learner import GradientLearner, GradientStep, Learner, LinearLearner
from .objective import L2, Dot, Objective
from .preconditioned import Diagonal
from .retention import Decay, ElasticNet, Keep, Lq, Retention
from .solvers import Append, GradientFlow, Kalman, Proximal, Ridge


class Gates(NamedTuple):
    """What each token says about its write; which of them a memory reads: `innerloop.explain(memory).gates`.

    All are optional. Shapes are [B, T, H] where nothing else is said (one token: without T).
    """

    lr: Any = None
    """Step size, write strength, weight of the pair (DeltaNet's beta, twice Titans' theta); [B, T, H, 3] for the three
    weights of a SwiGLU, [B, T, H, V] for a step size per value channel."""
    log_decay: Any = None
    """Natural log of the fraction kept, <= 0, -inf forgets all; [B, T, H] or [B, T, H, K]."""
    momentum: Any = None
    """Fraction of the past surprise kept, in [0, 1] (Titans' eta)."""
    window: Any = None
    """Gamma of the tokens t, t-1, ..., t-W+1: [B, T, H, W] (Atlas' omega rule)."""
    scale: Any = None
    """Factor of the segment's summed steps when they are averaged (TTT's tau); of a Kalman filter's process noise."""
    delta: Any = None
    """Huber's threshold, token by token (Yaad)."""
    precond_lr: Any = None
    """Weight of the token in a preconditioner's second moments."""
    precond_log_decay: Any = None
    """Natural log of the fraction of those moments that is kept, <= 0."""


@dataclass(frozen=True)
class GateSpec:
    """One gate, as a memory reads it."""

    name: str
    shape: str
    low: float
    high: float
    absent: str
    typical: str
    meaning: str
    letter: str = ""

    @property
    def range(self) -> str:
        """The legal values, as an interval."""
        left = "(-inf" if self.low == float("-inf") and "log_decay" not in self.name else f"[{self.low:g}"
        return f"{left}, {self.high:g}" + (")" if self.high == float("inf") else "]")


@dataclass(frozen=True)
class Memory:
    """A sequence memory as a value: immutable, hashable, printable, with a JSON round trip.

    architecture: `Matrix()`, `MLP(...)`, `SwiGLU(...)`, `Features(map, inner)` or `Exemplars(...)`: what it is.
    objective: `Dot()`, `L2()`, `Lp(p)`, `Huber(...)` or `Robust(radius)`: what its answer is held against.
    retention: `Keep()`, `Decay(...)`, `ElasticNet(...)`, `RowNorm()`, `Lq(q)` or `KL(...)`: how the past is kept.
    learner: `GradientStep(...)`, `Momentum(...)`, `Muon(...)`, `Diagonal(...)`, `AdaGrad()`, `Adam()`, `Shampoo()`,
        `Proximal()`, `GradientFlow()`, `Ridge(...)`, `Kalman(...)`, `Append()`: the solver.
    window: tokens in each step's loss (the omega rule of Atlas); gradient learners only.
    segment: tokens that share an anchor. It is part of the model; chunk sizes only change speed.
    apply: when a learner, link, norm or prox that is not linear in the gradient acts: at every "token", or once, at the
        "segment"'s last token; until then reads see the segment's start.
    anchor: where the gradient is taken when segment == 1: at the "previous" memory, or at the "retained" (decayed) one.
    order: "write-read" (causal with the diagonal) or "read-write" (test, then train).

    Raises ValueError for combinations that mean nothing.
    """

    architecture: Architecture
    objective: Objective
    retention: Retention
    learner: Learner
    window: int = 1
    segment: int = 1
    apply: Literal["token", "segment"] = "token"
    anchor: Literal["previous", "retained"] = "previous"
    order: Literal["write-read", "read-write"] = "write-read"

    def __post_init__(self) -> None:
        kinds = {"architecture": Architecture, "objective": Objective, "retention": Retention, "learner": Learner}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise TypeError(
                    f"Memory({name}={value!r}): pass {kind.__name__} value, e.g. one of innerloop's classes"
                )
            if type(value) in (Architecture, Objective, Retention, Learner, GradientLearner, LinearLearner):
                raise TypeError(
                    f"Memory({name}={value!r}): {type(value).__name__} is a base class: pass one of its kinds"
                )
        for name in ("window", "segment"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"Memory({name}={value!r}): pass an int >= 1")
        one_of("Memory", "apply", self.apply, ("token", "segment"))
        one_of("Memory", "anchor", self.anchor, ("previous", "retained"))
        one_of("Memory", "order", self.order, ("write-read", "read-write"))
        for reason in self._contradictions():
            raise ValueError(f"Memory: {reason}")

    def _contradictions(self) -> list[str]:
        """Why this combination means nothing (empty: it means something)."""
        out: list[str] = []
        learner, retention = self.learner, self.retention
        kind = type(learner).__name__
        gradient = isinstance(learner, GradientLearner)
        if isinstance(learner, Append) != isinstance(self.architecture, Exemplars):
            out.append("Exemplars are written by Append(), and Append() writes nothing else")
        if isinstance(learner, Append | Kalman) and not isinstance(retention, Keep):
            out.append(f"{kind} keeps the past its own way: pass retention=Keep()")
        if isinstance(learner, Proximal | GradientFlow | Ridge | Kalman):
            if not self.is_matrix or not isinstance(self.objective, L2):
                out.append(f"{kind} is exact for Matrix() under L2() only")
            if self.anchor != "previous":
                out.append(f"{kind} takes no gradient at an anchor: leave anchor='previous'")
        if isinstance(learner, Append) and not isinstance(self.objective, L2):
            out.append("Exemplars solve a local least-squares fit: pass objective=L2()")
        if isinstance(learner, Ridge) and isinstance(retention, Decay) and retention != Decay("head"):
            out.append("Ridge forgets evidence per head, toward its prior: pass Decay('head')")
        if not gradient and not isinstance(retention, Keep | Decay):
            out.append(f"retention={type(retention).__name__} follows gradient steps, not {kind}")
        if not gradient and self.window > 1:
            out.append(f"a window needs a gradient learner, not {kind}")
        if not gradient and self.segment > 1:
            out.append(f"a segment's anchor needs a gradient learner, not {kind}")
        if self.segment > 1 and self.anchor == "retained":
            out.append("with segment > 1 the gradient is taken at the segment's start: leave anchor='previous'")
        channel = isinstance(retention, Decay) and retention.per == "channel"
        if channel and not isinstance(self.architecture, Matrix):
            out.append("Decay('channel') has a rate for each key channel of a Matrix(): pass Decay('head')")
        if isinstance(learner, Diagonal) and not self.is_matrix:
            out.append("Diagonal preconditions the keys of a Matrix(): an MLP has several")
        return out + self._contradictory_steps()

    def _contradictory_steps(self) -> list[str]:
        """The same, of options that say when and how steps are taken."""
        out: list[str] = []
        learner, retention = self.learner, self.retention
        linear = not isinstance(learner, GradientLearner) or learner.linear
        if self.apply == "segment" and linear and retention.linear:
            out.append("apply='segment' needs a learner, link or norm that is not linear in the gradient")
        if self.apply == "segment" and isinstance(learner, Diagonal):
            out.append("apply='segment' sums gradients, but Diagonal preconditions each token's key")
        if isinstance(learner, GradientStep) and learner.average and not isinstance(retention, Keep):
            out.append("a running mean counts from the segment's start: pass retention=Keep() with average=True")
        if isinstance(learner, GradientStep) and learner.num_steps > 1 and (self.segment > 1 or self.apply != "token"):
            out.append("num_steps > 1 takes each step where the last one led: it needs segment=1 and apply='token'")
        if self.rate_per == "channel" and (self.architecture.rates or isinstance(retention, ElasticNet)):
            out.append("a step size per value channel weighs the error: it has no place in SwiGLU's three or in a prox")
        return out

    @property
    def is_matrix(self) -> bool:
        """Whether the answer is linear in the weights: a Matrix, of features or not."""
        return isinstance(self.architecture.parametric, Matrix)

    @property
    def rate_per(self) -> str:
        """Whether the step size is one per "head", or per value "channel"."""
        return getattr(self.learner, "per", "head")

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the gates that this memory reads."""
        names = [*self.learner.gates, *self.retention.gates, *self.objective.gates]
        if self.window > 1:
            names.append("window")
        if isinstance(self.learner, GradientStep) and self.learner.average:
            names.append("scale")
        return tuple(name for name in Gates._fields if name in names)

    def shapes(self, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """Everything in `state.memory`, by name, without [B, H]: what is written, then the outer parameters."""
        written = self.learner.memory_shapes(self.architecture, key_dim, value_dim)
        return written | self.architecture.constants(key_dim, value_dim)

    def buffer_shapes(self, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """Everything in `state.buffers`, likewise: the learner's own, and a segment's sums."""
        own = self.learner.buffer_shapes(self.architecture, key_dim, value_dim)
        if self.apply == "token" or not isinstance(self.learner, GradientLearner):
            return own
        weights = self.architecture.shapes(key_dim, value_dim)
        return own | pending_shapes(self.learner, self.retention, weights, len(self.architecture.rates))

    @property
    def parameters(self) -> dict[str, tuple[float, str]]:
        """Scalars that `initial` may override: name -> (value, "H" or "HK")."""
        found: dict[str, tuple[float, str]] = {}
        for axis in (self.architecture, self.objective, self.retention, self.learner):
            found |= {name: (float(getattr(axis, name)), kind) for name, kind in axis.parameters.items()}
        return found

    def gate_specs(self, letters: dict[str, str] | None = None) -> list[GateSpec]:
        """The gates that this memory reads: shape, range, value when absent, typical value, the paper's letter."""
        letters = letters or {}
        evidence = isinstance(self.learner, Ridge | Kalman)
        retention = self.retention
        channel = isinstance(retention, Decay) and retention.per == "channel"
        scheduled = isinstance(retention, Decay) and retention.schedule
        coefficient = f"{getattr(self.learner, 'coefficient', 0.0):g}"
        last = ", 3]" if self.architecture.rates else ", V]" if self.rate_per == "channel" else "]"
        threshold = f"{getattr(self.objective, 'delta', 1.0):g}"
        inf = float("inf")
        head = "[B, T, H]"
        known = {
            "lr": (
                head[:-1] + last, 0.0, inf, "1", typical_lr(self)[1], "weight of the pair" if evidence else "step size",
            ),
            "log_decay": (
                "[B, T, H, K]" if channel else head, -inf, 0.0,
                f"the {scheduled} schedule" if scheduled else "0", "-0.02", "natural log of the fraction kept",
            ),
            "momentum": (head, 0.0, 1.0, coefficient, coefficient, "fraction of past surprise kept"),
            "window": ("[B, T, H, W]", 0.0, inf, "1", "1", "weights of the last W tokens"),
            "scale": (
                (head, 0.0, inf, "1", "1", "factor of the token's process noise") if isinstance(self.learner, Kalman)
                else (head, 0.0, inf, "1 / i", "1 / i", "factor of the segment's summed steps, at its i-th token")
            ),
            "delta": (head, 0.0, inf, threshold, threshold, "threshold between squares and absolute differences"),
            "precond_lr": (head, 0.0, inf, "lr", "1", "weight of the token in the second moments"),
            "precond_log_decay": (head, -inf, 0.0, "0", "-0.02", "natural log of the second moments' fraction kept"),
        }  # fmt: skip
        return [GateSpec(name, *known[name], letter=letters.get(name, "")) for name in self.reads]

    def to_json(self) -> str:
        """The memory as JSON text; `Memory.from_json` is the inverse."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.dumps({k: v.to_dict() if isinstance(v, Axis) else v for k, v in values.items()})

    @staticmethod
    def from_json(text: str) -> Memory:
        """The memory that `to_json` wrote. Raises ValueError for anything else."""
        try:
            data: Any = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"text is not JSON ({error}): pass what Memory.to_json() wrote") from None
        if not isinstance(data, dict):
            raise ValueError(f"text holds {type(data).__name__}: pass what Memory.to_json() wrote, an object")
        values: dict[str, Any] = {str(k): Axis.from_dict(v) if isinstance(v, dict) else v for k, v in data.items()}  # pyright: ignore
        try:
            return Memory(**values)
        except TypeError as error:
            raise ValueError(f"text is not a Memory: {error}") from None


def typical_lr(memory: Memory) -> tuple[Callable[[int], float], str]:
    """A step size with which keys of K normal entries keep the memory finite, as a function of K, and in words.

    An explicit step under a squared loss contracts while `lr |k|^2 < 2`, and |k|^2 is near K; a segment sums the
    gradients of its tokens at one anchor, momentum multiplies them by up to ten, and an MLP's hidden channels outnumber
    K. Steps as long as 1 whatever the gradient (Muon, AdaGrad, Adam, Shampoo) add up to 50 of them under a decay of
    0.02: 1 / (10 K) keeps that sum at 5 / K. The link `A / |A|^(q-2)` with q > 3 needs steps that are long enough: it
    grows as A decays, and behind a layer norm gradients fall as it grows, so that short steps let A die away and the
    link overflow; those of 1/2 balance a decay of 0.02 with K from 4 to 64. The registered rows bear twice these steps,
    over 16,384 tokens in float32.
    """
    learner, retention = memory.learner, memory.retention
    if not isinstance(learner, GradientLearner):
        return lambda K: 1.0, "1"
    if not learner.linear and not isinstance(learner, Diagonal):
        return lambda K: 0.1 / K, "1 / (10 K)"
    if isinstance(memory.objective, Dot) and memory.is_matrix:
        return lambda K: 1.0, "1"
    if isinstance(retention, Lq) and retention.form == "paper" and retention.q > 3:
        return lambda K: 0.5, "1/2"
    if isinstance(learner, GradientStep) and learner.average:
        return lambda K: 0.5 / K, "1 / (2 K)"
    slow = 2 * (10 if "momentum" in learner.gates else 1)
    slow *= memory.segment * memory.window * (1 if memory.is_matrix else 8)
    return lambda K: 1 / (slow * K), f"1 / ({slow} K)"
