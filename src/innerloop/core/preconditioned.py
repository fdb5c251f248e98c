"""Learners that shape the gradient before they step.

    Muon      U <- momentum U + g,           m <- keep(m) - lr NS(U)          NS: towards the nearest orthogonal matrix
    Diagonal  A <- f A + lr' k * k,          m <- keep(m) - lr diag(M(A)) g   M in [1/span, span]: the written key only
    AdaGrad   G <- G + g * g,                m <- keep(m) - lr g / (sqrt(G) + eps)
    Adam      M <- b M + (1 - b) g,  N <- .99 N + .01 g * g,  both divided by what they would be for g = 1
                                             m <- keep(m) - lr M / (sqrt(N) + eps)
    Shampoo   L <- L + g g^T,  R <- R + g^T g,   m <- keep(m) - lr L^(-1/4) g R^(-1/4)

A bias is a matrix of one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from array_api_compat import array_namespace

from .architecture import Architecture
from .axis import Array, Weights, one_of, positive
from .functions import safe_norm, safe_power
from .learner import Buffers, GradientLearner, Problem, carried, check_coefficient, rate, rates
from .retention import expand, is_matrix

COEFFICIENTS = {
    "standard": ((3.4445, -4.7750, 2.0315),),
    "lact": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
}
"""`(a, b, c)` of each Newton-Schulz step; the last triple repeats."""


def newton_schulz(matrix: Array, num_steps: int = 5, coefficients: str = "standard") -> Array:
    """The matrices [..., n, m] with their singular values moved towards 1.

    `X <- a X + b (X X^T) X + c (X X^T)^2 X` from `X = S / |S|_F`, on the side with fewer rows. "standard" lands
    singular values of [.01, 1] in [.68, 1.13] after five steps, "lact" in [.98, 1.03]. Exactly as it would be at any
    other scale of S; a zero matrix gives zero.
    """
    one_of("newton_schulz", "coefficients", coefficients, tuple(COEFFICIENTS))
    if num_steps < 0:
        raise ValueError(f"newton_schulz(num_steps={num_steps!r}): pass an int >= 0")
    xp = array_namespace(matrix)
    tall = matrix.shape[-2] > matrix.shape[-1]
    X = xp.matrix_transpose(matrix) if tall else matrix
    norm = safe_norm(X, (-2, -1))
    X = X / xp.where(norm > 0, norm, xp.ones_like(norm))
    triples = COEFFICIENTS[coefficients]
    for i in range(num_steps):
        a, b, c = triples[min(i, len(triples) - 1)]
        A = xp.matmul(X, xp.matrix_transpose(X))
        X = a * X + xp.matmul(b * A + c * xp.matmul(A, A), X)
    return xp.matrix_transpose(X) if tall else X


@dataclass(frozen=True)
class Muon(GradientLearner):
    """Momentum whose step is orthogonalised by Newton-Schulz iterations (Atlas, equations (32), (33); LaCT).

    num_steps: iterations. coefficients: "standard" (Jordan's constant triple) or "lact" (five triples).
    lr: "outside" multiplies the orthogonalised step (Atlas), "inside" weighs the gradients before it (LaCT).
    coefficient: the momentum when the gate is absent.
    """

    gates: ClassVar[tuple[str, ...]] = ("lr", "momentum")

    num_steps: int = 5
    coefficients: Literal["standard", "lact"] = "standard"
    lr: Literal["outside", "inside"] = "outside"
    coefficient: float = 0.9

    def __post_init__(self) -> None:
        if not isinstance(self.num_steps, int) or isinstance(self.num_steps, bool) or self.num_steps < 1:
            raise ValueError(f"Muon(num_steps={self.num_steps!r}): pass an int >= 1")
        one_of("Muon", "coefficients", self.coefficients, tuple(COEFFICIENTS))
        one_of("Muon", "lr", self.lr, ("outside", "inside"))
        check_coefficient("Muon", self.coefficient)

    @property
    def weighs_inside(self) -> bool:
        """With lr "inside"."""
        return self.lr == "inside"

    def buffer_shapes(self, architecture: Architecture, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """The accumulated gradient U of each weight, under the weight's name."""
        return architecture.shapes(key_dim, value_dim)

    def update(self, problem: Problem, gradient: Weights, buffers: Buffers) -> tuple[Weights, Buffers]:
        """`-lr NS(U)`, or `-NS(U)` of weighted gradients."""
        past, lr = carried(problem, self.coefficient, buffers), rates(problem, gradient)
        if self.weighs_inside:
            kept = {n: past[n] + expand(lr[n], g) * g for n, g in gradient.items()}
            return {n: -self.orthogonal(u) for n, u in kept.items()}, kept
        kept = {n: past[n] + g for n, g in gradient.items()}
        return {n: -expand(lr[n], u) * self.orthogonal(u) for n, u in kept.items()}, kept

    def orthogonal(self, weight: Array) -> Array:
        """Newton-Schulz of a weight [B, H, in, out] or a bias [B, H, out]."""
        return _as_matrix(weight, lambda x: newton_schulz(x, self.num_steps, self.coefficients))


@dataclass(frozen=True)
class Diagonal(GradientLearner):
    """The key that is written is preconditioned channel by channel; the key that is read and erased is not.

    `A <- exp(precond_log_decay) A + precond_lr k * k` from 0, `s = l / (1 + |l|)` of `l = log(A + 1e-6) - center`,
    `M = exp(-log(span) s)` in [1/span, span] (preconditioned DeltaNet, arXiv 2604.21100).
    """

    gates: ClassVar[tuple[str, ...]] = ("lr", "precond_lr", "precond_log_decay")
    parameters: ClassVar[dict[str, str]] = {"center": "H", "span": "H"}

    center: float = -0.2
    span: float = 1.5

    def __post_init__(self) -> None:
        if not isinstance(self.center, int | float) or not abs(self.center) < float("inf"):
            raise ValueError(f"Diagonal(center={self.center!r}): pass a finite number")
        positive("Diagonal", "span", self.span)
        if self.span < 1:
            raise ValueError(f"Diagonal(span={self.span!r}): pass a number >= 1")

    def buffer_shapes(self, architecture: Architecture, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """The second moment A of the key's channels."""
        return {"second": (architecture.inputs(key_dim),)}

    def update(self, problem: Problem, gradient: Weights, buffers: Buffers) -> tuple[Weights, Buffers]:
        """`-lr diag(M) g`."""
        xp = array_namespace(problem.key)
        lr, gates = rate(problem), problem.gates
        evidence = lr if gates.precond_lr is None else gates.precond_lr
        past = buffers["second"]
        if gates.precond_log_decay is not None:
            past = expand(xp.exp(gates.precond_log_decay), past) * past
        A = past + expand(evidence, past) * problem.key**2
        M = self.scale(A, problem.parameter("center"), xp.log(problem.parameter("span")))
        return {name: -expand(lr, g) * M[..., None] * g for name, g in gradient.items()}, {"second": A}

    def scale(self, second: Array, center: Any, log_span: Any) -> Array:
        """M of second moments [..., K]."""
        xp = array_namespace(second)
        level = xp.log(second + 1e-6) - center
        return xp.exp(-log_span * level / (1 + xp.abs(level)))


@dataclass(frozen=True)
class AdaGrad(GradientLearner):
    """Each entry's step is divided by the root of its sum of squares (Duchi, Hazan and Singer 2011)."""

    eps: float = 1e-8

    def __post_init__(self) -> None:
        positive("AdaGrad", "eps", self.eps)

    def buffer_shapes(self, architecture: Architecture, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """The sum of squares of each entry, under the weight's name."""
        return architecture.shapes(key_dim, value_dim)

    def update(self, problem: Problem, gradient: Weights, buffers: Buffers) -> tuple[Weights, Buffers]:
        """`-lr g / (sqrt(G) + eps)`."""
        lr = rates(problem, gradient)
        sums = {n: buffers[n] + g * g for n, g in gradient.items()}
        return {n: -expand(lr[n], g) * g / (safe_power(sums[n], 0.5) + self.eps) for n, g in gradient.items()}, sums


@dataclass(frozen=True)
class Adam(GradientLearner):
    """Adam (Kingma and Ba 2015), whose first moment forgets by the gate `momentum`.

    coefficient: the momentum when the gate is absent. second: what is kept of the squares at each token.
    Both moments are divided by their own weights' sum, which is what bias correction means under a changing gate.
    """

    gates: ClassVar[tuple[str, ...]] = ("lr", "momentum")

    coefficient: float = 0.9
    second: float = 0.99
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_coefficient("Adam", self.coefficient)
        positive("Adam", "second", self.second, zero=True)
        if self.second >= 1:
            raise ValueError(f"Adam(second={self.second!r}): pass a number in [0, 1)")
        positive("Adam", "eps", self.eps)

    def buffer_shapes(self, architecture: Architecture, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """`first.W` and `second.W` of each weight W, and the sums of their weights."""
        shapes = architecture.shapes(key_dim, value_dim)
        moments = {f"{moment}.{name}": shape for moment in ("first", "second") for name, shape in shapes.items()}
        return moments | {"first_mass": (), "second_mass": ()}

    def update(self, problem: Problem, gradient: Weights, buffers: Buffers) -> tuple[Weights, Buffers]:
        """`-lr M / (sqrt(N) + eps)`, both bias-corrected."""
        momentum, lr = problem.gates.momentum, rates(problem, gradient)
        xp = array_namespace(problem.key)
        b = self.coefficient * xp.ones_like(problem.key[..., 0]) if momentum is None else momentum
        first_mass = b * buffers["first_mass"] + (1 - b)
        second_mass = self.second * buffers["second_mass"] + (1 - self.second)
        known = first_mass > 0  # with momentum 1 from the start nothing has been gathered
        kept: Buffers = {"first_mass": first_mass, "second_mass": second_mass}
        step: Weights = {}
        for name, g in gradient.items():
            first = expand(b, g) * buffers[f"first.{name}"] + expand(1 - b, g) * g
            second = self.second * buffers[f"second.{name}"] + (1 - self.second) * g * g
            kept |= {f"first.{name}": first, f"second.{name}": second}
            mean = first / expand(xp.where(known, first_mass, xp.ones_like(b)), first)
            size = safe_power(second / expand(second_mass, second), 0.5) + self.eps
            step[name] = -expand(lr[name], g) * mean / size
        return step, kept


@dataclass(frozen=True)
class Shampoo(GradientLearner):
    """Left and right preconditioning by the fourth roots of the gradient's second moments (Gupta et al. 2018).

    The moments start from `1e-6 I` and hold the token's own gradient.
    """

    eps: float = 1e-6

    def __post_init__(self) -> None:
        positive("Shampoo", "eps", self.eps)

    def buffer_shapes(self, architecture: Architecture, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """`left.W` and `right.W` of each weight W: the moments without `eps I`."""
        out: dict[str, tuple[int, ...]] = {}
        for name, shape in architecture.shapes(key_dim, value_dim).items():
            rows, columns = shape if len(shape) == 2 else (1, *shape)
            out |= {f"left.{name}": (rows, rows), f"right.{name}": (columns, columns)}
        return out

    def update(self, problem: Problem, gradient: Weights, buffers: Buffers) -> tuple[Weights, Buffers]:
        """`-lr L^(-1/4) g R^(-1/4)`."""
        lr = rates(problem, gradient)
        xp = array_namespace(problem.key)
        kept: Buffers = {}
        step: Weights = {}
        for name, gradient_of in gradient.items():
            g = gradient_of if is_matrix(gradient_of) else gradient_of[..., None, :]
            gT = xp.matrix_transpose(g)
            left = buffers[f"left.{name}"] + xp.matmul(g, gT)
            right = buffers[f"right.{name}"] + xp.matmul(gT, g)
            kept |= {f"left.{name}": left, f"right.{name}": right}
            roots = [problem.power(m + self.eps * _eye(xp, m), -0.25) for m in (left, right)]
            shaped = xp.matmul(xp.matmul(roots[0], g), roots[1])
            step[name] = -expand(lr[name], gradient_of) * shaped.reshape(gradient_of.shape)
        return step, kept


def _eye(xp: Any, matrix: Array) -> Array:
    return xp.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def _as_matrix(weight: Array, function: Any) -> Array:
    return function(weight) if is_matrix(weight) else function(weight[..., None, :])[..., 0, :]
