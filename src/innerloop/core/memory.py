"""`Memory`: one point of the design space, as a value; `Gates`: what a token may say about its own write.

    m_t = argmin_m  sum_{i<=t} gamma_i loss(m(k_i), v_i) + retention(m, m_{t-1})          o_t = m_t(q_t)

architecture = the class of m, objective = loss, retention = how the past is kept, learner = the solver.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from .architecture import Architecture, Exemplars, Matrix
from .axis import Axis, one_of
from .learner import Append, GradientFlow, GradientLearner, Kalman, Learner, Proximal, Ridge
from .objective import L2, Objective
from .retention import Decay, Keep, Retention


class Gates(NamedTuple):
    """What each token says about its write; which of them a memory reads: `innerloop.explain(memory).gates`.

    All are optional. Shapes are [B, T, H] where nothing else is said (one token: without T).
    """

    lr: Any = None
    """Step size, write strength, weight of the pair (DeltaNet's beta, twice Titans' theta)."""
    log_decay: Any = None
    """Natural log of the fraction kept, <= 0, -inf forgets all; [B, T, H] or [B, T, H, K]."""
    momentum: Any = None
    """Fraction of the past surprise kept, in [0, 1] (Titans' eta)."""
    window: Any = None
    """Gamma of the tokens t, t-1, ..., t-W+1: [B, T, H, W] (Atlas' omega rule)."""


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
        left = "(-inf" if self.low == float("-inf") and self.name != "log_decay" else f"[{self.low:g}"
        return f"{left}, {self.high:g}" + (")" if self.high == float("inf") else "]")


@dataclass(frozen=True)
class Memory:
    """A sequence memory as a value: immutable, hashable, printable, with a JSON round trip.

    architecture: `Matrix()` or `Exemplars(...)`: what the memory is.
    objective: `Dot()` or `L2()`: what its answer is held against.
    retention: `Keep()` or `Decay(...)`: how the past is kept.
    learner: `GradientStep()`, `Momentum()`, `Proximal()`, `GradientFlow()`, `Ridge(...)`, `Kalman(...)`, `Append()`.
    window: tokens in each step's loss (the omega rule of Atlas); gradient learners only.
    segment: tokens that share an anchor. It is part of the model; chunk sizes only change speed.
    apply: "token", or "segment" when a non-linear learner acts once at the segment's end.
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
        learner = self.learner
        gradient = isinstance(learner, GradientLearner)
        if isinstance(learner, Append) != isinstance(self.architecture, Exemplars):
            out.append("Exemplars are written by Append(), and Append() writes nothing else")
        if isinstance(learner, Append | Kalman) and not isinstance(self.retention, Keep):
            out.append(f"{type(learner).__name__} keeps the past its own way: pass retention=Keep()")
        if isinstance(learner, Proximal | GradientFlow | Ridge | Kalman):
            if not isinstance(self.architecture, Matrix) or not isinstance(self.objective, L2):
                out.append(f"{type(learner).__name__} is exact for Matrix() under L2() only")
            if self.anchor != "previous":
                out.append(f"{type(learner).__name__} takes no gradient at an anchor: leave anchor='previous'")
        if isinstance(learner, Append) and not isinstance(self.objective, L2):
            out.append("Exemplars solve a local least-squares fit: pass objective=L2()")
        if isinstance(learner, Ridge) and isinstance(self.retention, Decay) and self.retention != Decay("head"):
            out.append("Ridge forgets evidence per head, toward its prior: pass Decay('head')")
        if not gradient and self.window > 1:
            out.append(f"a window needs a gradient learner, not {type(learner).__name__}")
        if not gradient and self.segment > 1:
            out.append(f"a segment's anchor needs a gradient learner, not {type(learner).__name__}")
        if self.segment > 1 and self.anchor == "retained":
            out.append("with segment > 1 the gradient is taken at the segment's start: leave anchor='previous'")
        if self.apply == "segment":
            out.append("apply='segment' needs a learner, link or norm that is not linear in the gradient")
        return out

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the gates that this memory reads."""
        names = list(self.learner.gates)
        if isinstance(self.retention, Decay):
            names.append("log_decay")
        if self.window > 1:
            names.append("window")
        return tuple(name for name in Gates._fields if name in names)

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
        explicit = isinstance(self.learner, GradientLearner) and isinstance(self.objective, L2)
        lr_typical = "1" if not explicit else "1 / (20 K)" if "momentum" in self.learner.gates else "1 / (2 K)"
        coefficient = f"{getattr(self.learner, 'coefficient', 0.0):g}"
        inf = float("inf")
        known = {
            "lr": ("[B, T, H]", 0.0, inf, "1", lr_typical, "weight of the pair" if evidence else "step size"),
            "log_decay": (
                "[B, T, H, K]" if channel else "[B, T, H]", -inf, 0.0,
                f"the {scheduled} schedule" if scheduled else "0", "-0.02", "natural log of the fraction kept",
            ),
            "momentum": ("[B, T, H]", 0.0, 1.0, coefficient, coefficient, "fraction of past surprise kept"),
            "window": ("[B, T, H, W]", 0.0, inf, "1", "1", "weights of the last W tokens"),
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
