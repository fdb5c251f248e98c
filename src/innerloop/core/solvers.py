"""Exact solvers: learners that state their argmin, flow or filter and solve it densely (no executor reads them).

Proximal       m <- argmin 1/2 |m - keep(m)|^2 + lr loss(m)                  the implicit step
GradientFlow   m <- the solution at time lr of dm/ds = -grad loss(m), m(0) = keep(m)
Ridge          m  = argmin sum_i lr_i prod_{j>i} f_j |m(k_i) - v_i|^2 / 2 + penalty |m|^2 / 2
Kalman         m  = mean of a Gaussian random walk given all pairs so far
Append         the pair is kept (Exemplars)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from array_api_compat import array_namespace

from .architecture import Architecture
from .axis import Array, Weights, one_of, positive
from .learner import Buffers, Learner, Problem, kept_matrix, outer, rate
from .retention import expand


@dataclass(frozen=True)
class Proximal(Learner):
    """The implicit step, `(I + lr k k^T) S = keep(S) + lr k v^T` (Longhorn, equation (5) and theorem 3.1)."""

    def write(self, problem: Problem, memory: Weights, buffers: Buffers) -> tuple[Weights, Buffers]:
        """Solve the normal equations of the proximal problem."""
        key, lr = problem.key, rate(problem)
        eye = array_namespace(key).eye(key.shape[-1], dtype=key.dtype, device=key.device)
        weighted = expand(lr, key) * key
        right = kept_matrix(problem, memory) + outer(weighted, problem.value)
        return {"S": problem.solve(eye + outer(weighted, key), right)}, buffers


@dataclass(frozen=True)
class GradientFlow(Learner):
    """The gradient flow of 1/2 |S^T k - v|^2, followed for time `lr` (EFLA).

    `d/ds [S; I] = [[-k k^T, k v^T], [0, 0]] [S; I]`, so one matrix exponential of size K + V gives S.
    """

    def write(self, problem: Problem, memory: Weights, buffers: Buffers) -> tuple[Weights, Buffers]:
        """Exponentiate the flow's generator."""
        key, value = problem.key, problem.value
        xp = array_namespace(key)
        K = key.shape[-1]
        S = kept_matrix(problem, memory)
        top = xp.concat([-outer(key, key), outer(key, value)], axis=-1)
        bottom = xp.concat([0 * outer(value, key), 0 * outer(value, value)], axis=-1)
        flow = problem.expm(expand(rate(problem), top) * xp.concat([top, bottom], axis=-2))
        return {"S": xp.matmul(flow[..., :K, :K], S) + flow[..., :K, K:]}, buffers


@dataclass(frozen=True)
class Ridge(Learner):
    """Exact least squares; `lr` is the weight of the pair, `f = exp(log_decay)` the evidence kept per token.

    rule "exponential"  A <- f A + lr k k^T,                        b <- f b + lr k v^T     A_0 = penalty I: classic RLS
         "static"       the same from A_0 = 0, read with A + penalty I                      Mesa: the prior never decays
         "regularized"  A <- f A + (1 - f) penalty I + lr k k^T,    w <- w + lr A^-1 k (v - w^T k)^T
         "directional"  A <- A - (1 - f) A k k^T A / (k^T A k) + lr k k^T,  w likewise      Cao and Schwartz (2000)

    The memory is the Gram matrix A and the moment `b = A w`. `log_decay = -inf` restores the prior.
    A penalty may be overridden per channel and contain zeros; a singular A reads the minimum-norm solution.
    """

    parameters: ClassVar[dict[str, str]] = {"penalty": "HK"}

    penalty: float = 1.0
    rule: Literal["exponential", "static", "regularized", "directional"] = "exponential"

    def __post_init__(self) -> None:
        positive("Ridge", "penalty", self.penalty, zero=True)
        one_of("Ridge", "rule", self.rule, ("exponential", "static", "regularized", "directional"))

    def memory_shapes(self, architecture: Architecture, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """`gram: (K, K)` and `moment: (K, V)`."""
        inputs = architecture.inputs(key_dim)
        return {"gram": (inputs, inputs), "moment": (inputs, value_dim)}

    def start(self, eye: Array, parameters: dict[str, Array]) -> Weights:
        """The prior's Gram matrix `diag(penalty)`; zero under "static", whose prior stands apart."""
        return {} if self.rule == "static" else {"gram": parameters["penalty"][..., None] * eye}

    def write(self, problem: Problem, memory: Weights, buffers: Buffers) -> tuple[Weights, Buffers]:
        """One step of the rule."""
        xp = array_namespace(problem.key)
        key, value, lr = problem.key, problem.value, rate(problem)
        A, b, f = self._faded(problem, memory)
        weighted = expand(lr, key) * key
        if self.rule in ("exponential", "static"):
            return {"gram": A + outer(weighted, key), "moment": expand(f, b) * b + outer(weighted, value)}, buffers
        w = problem.solve(self._kept(problem, memory["gram"]), b)
        A = A + outer(weighted, key)
        residual = value - xp.matmul(xp.matrix_transpose(w), key[..., None])[..., 0]
        return {"gram": A, "moment": xp.matmul(A, w) + outer(weighted, residual)}, buffers

    def _kept(self, problem: Problem, A: Array) -> Array:
        """The Gram matrix, or the prior's where everything is forgotten."""
        decay = problem.gates.log_decay
        xp = array_namespace(A)
        return A if decay is None else xp.where(expand(xp.isinf(decay), A), problem.initial["gram"], A)

    def _faded(self, problem: Problem, memory: Weights) -> tuple[Array, Array, Array]:
        """Gram matrix (the rule's forgetting done), moment (as it was, or the prior's), fraction kept."""
        key, A, b, decay = problem.key, self._kept(problem, memory["gram"]), memory["moment"], problem.gates.log_decay
        xp = array_namespace(key)
        if decay is None:
            return A, b, xp.ones_like(key[..., 0])
        forget = xp.isinf(decay)
        b = xp.where(expand(forget, b), problem.initial["moment"], b)
        f = xp.where(forget, xp.ones_like(decay), xp.exp(decay))
        if self.rule != "directional":
            A = expand(f, A) * A
            if self.rule == "regularized":
                eye = xp.eye(key.shape[-1], dtype=key.dtype, device=key.device)
                A = A + expand(1 - f, A) * (problem.parameter("penalty")[..., None] * eye)
            return A, b, f
        Ak = xp.matmul(A, key[..., None])[..., 0]
        excitation = xp.sum(key * Ak, axis=-1)
        excited = excitation > 0
        share = xp.where(excited, (1 - f) / xp.where(excited, excitation, xp.ones_like(f)), xp.zeros_like(f))
        return A - expand(share, A) * outer(Ak, Ak), b, f

    def variance(self, problem: Problem, memory: Weights) -> Array:
        """`k^T A^-1 k` once the evidence has faded and before the pair is added: in units of the noise variance."""
        A, _, _ = self._faded(problem, memory)
        if self.rule == "static":
            key = problem.key
            eye = array_namespace(key).eye(key.shape[-1], dtype=key.dtype, device=key.device)
            A = A + problem.parameter("penalty")[..., None] * eye
        return problem.quadratic(A, problem.key)

    def weights(self, memory: Weights, parameters: Mapping[str, Array], solve: Any) -> Weights:
        """`w = A^-1 b`, with the penalty added under "static"."""
        A = memory["gram"]
        if self.rule == "static":
            xp = array_namespace(A)
            A = A + parameters["penalty"][..., None] * xp.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        return {"S": solve(A, memory["moment"])}


@dataclass(frozen=True)
class Kalman(Learner):
    """The Kalman filter of `w_t = w_{t-1} + N(0, process_noise I)`, `v_t = w_t^T k_t + N(0, observation_noise)`.

        P <- P + scale process_noise I,   g = P k / (observation_noise / lr + k^T P k)
        S <- S + g (v - S^T k)^T,   P <- P - g k^T P

    The gate `scale` multiplies a token's process noise (a longer time before it, say).
    Starts at S = 0, P = prior_variance I; with process noise 0 it is recursive least squares (Kalman 1960).
    """

    gates: ClassVar[tuple[str, ...]] = ("lr", "scale")
    parameters: ClassVar[dict[str, str]] = {"process_noise": "HK", "observation_noise": "H", "prior_variance": "HK"}

    process_noise: float = 1e-3
    observation_noise: float = 1.0
    prior_variance: float = 1.0

    def __post_init__(self) -> None:
        positive("Kalman", "process_noise", self.process_noise, zero=True)
        positive("Kalman", "observation_noise", self.observation_noise)
        positive("Kalman", "prior_variance", self.prior_variance)

    def memory_shapes(self, architecture: Architecture, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """`S: (K, V)` and `covariance: (K, K)`."""
        inputs = architecture.inputs(key_dim)
        return {"S": (inputs, value_dim), "covariance": (inputs, inputs)}

    def start(self, eye: Array, parameters: dict[str, Array]) -> Weights:
        """`prior_variance I`."""
        return {"covariance": parameters["prior_variance"][..., None] * eye}

    def write(self, problem: Problem, memory: Weights, buffers: Buffers) -> tuple[Weights, Buffers]:
        """Predict, then condition on the pair."""
        xp = array_namespace(problem.key)
        key, lr = problem.key, rate(problem)
        P = self._walked(problem, memory)
        Pk = xp.matmul(P, key[..., None])[..., 0]
        # multiplied through by lr, so that a pair of weight 0 writes nothing instead of dividing by it
        spread = (lr * xp.sum(key * Pk, axis=-1))[..., None]
        gain = expand(lr, Pk) * Pk / (problem.parameter("observation_noise") + spread)
        S = memory["S"]
        residual = problem.value - xp.matmul(xp.matrix_transpose(S), key[..., None])[..., 0]
        return {"S": S + outer(gain, residual), "covariance": P - outer(gain, Pk)}, buffers

    def _walked(self, problem: Problem, memory: Weights) -> Array:
        xp = array_namespace(problem.key)
        eye = xp.eye(problem.key.shape[-1], dtype=problem.key.dtype, device=problem.key.device)
        noise = problem.parameter("process_noise")[..., None] * eye
        scale = problem.gates.scale
        return memory["covariance"] + (noise if scale is None else expand(scale, noise) * noise)

    def variance(self, problem: Problem, memory: Weights) -> Array:
        """`k^T P k` once the weights have walked and before the pair is seen."""
        xp = array_namespace(problem.key)
        Pk = xp.matmul(self._walked(problem, memory), problem.key[..., None])[..., 0]
        return xp.sum(problem.key * Pk, axis=-1)

    def weights(self, memory: Weights, parameters: Mapping[str, Array], solve: Any) -> Weights:
        """The mean."""
        return {"S": memory["S"]}


@dataclass(frozen=True)
class Append(Learner):
    """Keep the pair itself: the exact solver of `Exemplars`, whose memory grows."""

    gates: ClassVar[tuple[str, ...]] = ()

    def memory_shapes(self, architecture: Architecture, key_dim: int, value_dim: int) -> dict[str, tuple[int, ...]]:
        """Nothing of fixed size: `keys`, `values` and `valid` grow."""
        return {}
