"""Learners: how the equation is solved at each token.

    GradientStep   m <- keep(m) - lr grad                   one explicit step (or a few, or the segment's running mean)
    Momentum       U <- momentum U - lr grad,   m <- keep(m) + U

Muon, Diagonal, AdaGrad, Adam and Shampoo, which shape the gradient, are in preconditioned.py; Proximal, GradientFlow,
Ridge, Kalman and Append, which solve exactly, in solvers.py. A learner sees the token through a `Problem`, which the
interpreting framework supplies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from array_api_compat import array_namespace

from .architecture import Architecture
from .axis import Array, Axis, Weights, boolean, one_of, positive
from .functions import safe_norm
from .retention import Retention, expand


class Problem(Protocol):
    """One token, as a learner sees it. Arrays are [B, H, ...]."""

    @property
    def key(self) -> Array:
        """[B, H, K], after the architecture's feature map."""
        ...

    @property
    def value(self) -> Array:
        """[B, H, V]."""
        ...

    @property
    def gates(self) -> Any:
        """The token's Gates: [B, H] or [B, H, K] each, or None."""
        ...

    @property
    def architecture(self) -> Architecture:
        """What the memory is, behind the feature map."""
        ...

    @property
    def retention(self) -> Retention:
        """The memory's retention."""
        ...

    @property
    def initial(self) -> Weights:
        """The memory that a reset restores."""
        ...

    @property
    def anchor(self) -> Weights | None:
        """The memory at the segment's start; None when segment == 1."""
        ...

    @property
    def anchored_at(self) -> Literal["previous", "retained"]:
        """Where a gradient is taken when segment == 1."""
        ...

    @property
    def apply(self) -> Literal["token", "segment"]:
        """When what is not linear in the gradient acts."""
        ...

    @property
    def position(self) -> Array:
        """[B], tokens of the segment before this one."""
        ...

    @property
    def closes(self) -> Array:
        """[B], whether the token is the segment's last."""
        ...

    @property
    def segment(self) -> int:
        """Tokens of a segment."""
        ...

    @property
    def scalars(self) -> Mapping[str, Array]:
        """Scalars of the axes by name, [B or 1, H or 1, 1 or K]."""
        ...

    def gradient(self, weights: Weights) -> Weights:
        """The gradient of the loss (of the window, when there is one) at these weights."""
        ...

    def with_gates(self, **gates: Any) -> Problem:
        """The same problem under other gates."""
        ...

    def parameter(self, name: str) -> Array:
        """A scalar of the learner: [B, H, 1], or [B, H, K] where it was overridden per channel."""
        ...

    def solve(self, matrix: Array, right: Array) -> Array:
        """`matrix^-1 right` of symmetric positive matrices; the minimum-norm solution where singular."""
        ...

    def quadratic(self, matrix: Array, x: Array) -> Array:
        """`x^T matrix^-1 x`; infinite where a singular matrix says nothing of x."""
        ...

    def expm(self, matrix: Array) -> Array:
        """The matrix exponential."""
        ...

    def power(self, matrix: Array, exponent: float) -> Array:
        """A power of symmetric positive matrices."""
        ...


Buffers = Weights


def outer(a: Array, b: Array) -> Array:
    """`a b^T` of [B, H, K] and [B, H, V]."""
    return a[..., :, None] * b[..., None, :]


def rate(problem: Problem) -> Array:
    """The step size [B, H] (1 when the gate is absent)."""
    lr = problem.gates.lr
    return array_namespace(problem.key).ones_like(problem.key[..., 0]) if lr is None else lr


def rates(problem: Problem, weights: Weights) -> Weights:
    """The step size [B, H] of each weight."""
    named, lr = problem.architecture.rates, problem.gates.lr
    if lr is None or lr.ndim == 2:
        return dict.fromkeys(weights, rate(problem))
    if not named:  # one for each value channel: it has weighed the error already
        return dict.fromkeys(weights, array_namespace(lr).ones_like(lr[..., 0]))
    return {name: lr[..., named.index(name)] for name in weights}


def kept_matrix(problem: Problem, memory: Weights) -> Array:
    """The decayed matrix, from which implicit steps and flows start."""
    return problem.retention.keep(memory, problem.gates.log_decay, problem.initial)["S"]


@dataclass(frozen=True)
class Learner(Axis):
    """How the memory is moved by a token."""

    #: gates read, besides the retention's
    gates: ClassVar[tuple[str, ...]] = ("lr",)

    def memory_shapes(self, architecture: Architecture, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what `state.memory` holds."""
        return architecture.shapes(key_dim, value_dim)

    def buffer_shapes(self, architecture: Architecture, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the learner's own buffers (all start at zero)."""
        return {}

    def start(self, eye: Array, parameters: dict[str, Array]) -> Weights:
        """Initial memory entries that are not zero; eye is [K, K], parameters [B or 1, H or 1, K or 1]."""
        return {}

    def write(self, problem: Problem, memory: Weights, buffers: Buffers) -> tuple[Weights, Buffers]:
        """The memory and buffers after the token."""
        raise TypeError(f"{type(self).__name__} writes nothing")

    def weights(self, memory: Weights, parameters: Mapping[str, Array], solve: Any) -> Weights:
        """The architecture's weights that a read uses: the memory itself, unless it keeps statistics instead."""
        return memory


@dataclass(frozen=True)
class GradientLearner(Learner):
    """Explicit steps along the gradient: `update` maps the gradient to a step, `write` is `descend`."""

    #: whether the step is linear in the gradient; if not, `apply` says when it is taken
    linear: ClassVar[bool] = False

    @property
    def weighs_inside(self) -> bool:
        """Whether step sizes weigh the gradients before what is not linear, so that the step has none of its own."""
        return False

    def update(self, problem: Problem, gradient: Weights, buffers: Buffers) -> tuple[Weights, Buffers]:
        """The step added to the retained memory, and the next buffers."""
        raise TypeError(f"{type(self).__name__} defines no update")

    def write(self, problem: Problem, memory: Weights, buffers: Buffers) -> tuple[Weights, Buffers]:
        """`descend`."""
        from .descent import descend

        return descend(self, problem, memory, buffers)


@dataclass(frozen=True)
class LinearLearner(GradientLearner):
    """A step that is linear in the gradient (unless it is clipped).

    per: "head" has one step size [B, T, H]; "channel" one for each value channel, [B, T, H, V]: it weighs the error
        before it goes backward through the memory (Longhorn's beta, the per-channel gates of Miras).
    max_norm: the gradient over all weights, as step sizes per channel have weighed it, is cut to this norm when it is
        longer (None: it is not).
    """

    linear: ClassVar[bool] = True


@dataclass(frozen=True)
class GradientStep(LinearLearner):
    """`-lr grad`: linear attention (with Dot), the delta rule (with L2).

    num_steps: steps on each token, each at the memory that the one before left; the past decays once.
    average: within a segment the *mean* gradient is followed, `m_t = m_anchor - scale_t sum_{j<=t} lr_j g_j`, with the
        gate `scale` 1/i by default at the segment's i-th token (TTT's code).
    per, max_norm: see `LinearLearner`.
    """

    num_steps: int = 1
    average: bool = False
    per: Literal["head", "channel"] = "head"
    max_norm: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.num_steps, int) or isinstance(self.num_steps, bool) or self.num_steps < 1:
            raise ValueError(f"GradientStep(num_steps={self.num_steps!r}): pass an int >= 1")
        boolean("GradientStep", "average", self.average)
        if self.average and self.num_steps > 1:
            raise ValueError(f"GradientStep(num_steps={self.num_steps!r}): a running mean takes one gradient per token")
        check_step("GradientStep", self.per, self.max_norm)

    def buffer_shapes(self, architecture: Architecture, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """With `average`, the segment's sum of `lr grad`, under the weight's name."""
        return architecture.shapes(key_dim, value_dim) if self.average else {}

    def update(self, problem: Problem, gradient: Weights, buffers: Buffers) -> tuple[Weights, Buffers]:
        """`-lr g`."""
        lr = rates(problem, gradient)
        return {name: -expand(lr[name], g) * g for name, g in gradient.items()}, buffers


@dataclass(frozen=True)
class Momentum(LinearLearner):
    """`U <- momentum U - lr grad`, added to the memory (Titans, equations (9), (10)).

    coefficient: the momentum when the gate is absent. per, max_norm: see `LinearLearner`.
    """

    gates: ClassVar[tuple[str, ...]] = ("lr", "momentum")
    coefficient: float = 0.9
    per: Literal["head", "channel"] = "head"
    max_norm: float | None = None

    def __post_init__(self) -> None:
        check_coefficient("Momentum", self.coefficient)
        check_step("Momentum", self.per, self.max_norm)

    def buffer_shapes(self, architecture: Architecture, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """The past surprise U of each weight, under the weight's name."""
        return architecture.shapes(key_dim, value_dim)

    def update(self, problem: Problem, gradient: Weights, buffers: Buffers) -> tuple[Weights, Buffers]:
        """`U`, which is both the step and the next buffer."""
        lr, past = rates(problem, gradient), carried(problem, self.coefficient, buffers)
        step = {name: past[name] - expand(lr[name], g) * g for name, g in gradient.items()}
        return step, step


def carried(problem: Problem, coefficient: float, buffers: Buffers) -> Buffers:
    """The buffers times the momentum gate, or the coefficient when the gate is absent."""
    momentum = problem.gates.momentum
    return {n: (coefficient if momentum is None else expand(momentum, u)) * u for n, u in buffers.items()}


def clipped(gradient: Weights, max_norm: float | None) -> Weights:
    """The gradient, cut to a norm over all weights together."""
    if max_norm is None:
        return gradient
    xp = array_namespace(*gradient.values())
    norms = [safe_norm(g.flatten(2), (-1,)) for g in gradient.values()]
    norm = safe_norm(xp.concat(norms, axis=-1), (-1,))[..., 0]
    factor = max_norm / xp.where(norm > max_norm, norm, max_norm * xp.ones_like(norm))
    return {name: expand(factor, g) * g for name, g in gradient.items()}


def check_coefficient(owner: str, value: float) -> None:
    """Refuse a momentum outside [0, 1]."""
    positive(owner, "coefficient", value, zero=True)
    if value > 1:
        raise ValueError(f"{owner}(coefficient={value!r}): pass a number in [0, 1]")


def check_step(owner: str, per: str, max_norm: float | None) -> None:
    """Refuse what is no granularity of the step size, or no norm."""
    one_of(owner, "per", per, ("head", "channel"))
    if max_norm is not None:
        positive(owner, "max_norm", max_norm)
