"""One row at a time in numpy: what `bank.py` computes for blocks of rows, without the cost of a call.

rls     A <- the rule's forgetting, + l x x^T,    w <- w + l A^-1 x (y - w^T x)^T
kalman  P <- P + scale Q,    g = l P x / (r + l x^T P x),    w <- w + g (y - w^T x)^T,    P <- P - g x^T P
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.linalg.lapack import dpotrf, dpotrs  # pyright: ignore[reportAttributeAccessIssue]

from ..core.solvers import Ridge
from ..core.state import State
from .bank import FADE, Bank

# what is held beside the weights, and where the state has it
_ENTRY = {
    "rls": ("memory", "gram"), "kalman": ("memory", "covariance"), "deltanet": ("memory", "S"),
    "longhorn": ("memory", "S"), "titans_linear": ("buffers", "S"),
}  # fmt: skip
EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Online:
    """Weights w [K, V] of one setting; the Gram matrix or covariance [K, K] of rls and kalman, U [K, V] of momentum."""

    w: np.ndarray
    matrix: np.ndarray

    @staticmethod
    def serves(bank: Bank) -> bool:
        """Whether a row of this bank can be learned here."""
        return bank.heads == 1 and bank.name in _ENTRY and not _static(bank)

    @staticmethod
    def of(bank: Bank, state: State) -> Online:
        """From a state."""
        group, name = _ENTRY[str(bank.name)]
        coef, level = bank.linear(state, None)
        w = np.concatenate([coef[0], level]) if bank.intercept else coef[0]
        return Online(np.ascontiguousarray(w), getattr(state, group)[name][0, 0].numpy().copy())

    def into(self, bank: Bank, state: State) -> State:
        """The state that holds these; `state` gives what a row does not change."""
        w, matrix = torch.from_numpy(self.w)[None, None], torch.from_numpy(self.matrix)[None, None]
        if bank.name == "kalman":
            return replace(state, memory={"S": w, "covariance": matrix})
        if bank.name == "titans_linear":
            return replace(state, memory={"S": w}, buffers={"S": matrix})
        if bank.name != "rls":
            return replace(state, memory={"S": w})
        return replace(state, memory={"gram": matrix, "moment": matrix @ w})

    def learn(
        self, bank: Bank, x: np.ndarray, y: np.ndarray, weight: float, elapsed: float
    ) -> tuple[np.ndarray, float, Online] | None:
        """The prediction [V] before, its variance, and what the row x [K], y [V] leaves; None where A is singular."""
        prediction = x @ self.w
        if weight == 0.0:
            return prediction, math.inf, self
        setting = bank.settings[0]
        if bank.name == "kalman":
            noise = 1e-3 if setting.process_noise is None else setting.process_noise
            P = self.matrix.copy()
            P.flat[:: len(P) + 1] += elapsed * noise
            Px = P @ x
            variance = float(x @ Px)
            gain = (weight / (1.0 + weight * variance)) * Px
            return prediction, variance, Online(self.w + np.outer(gain, y - prediction), P - np.outer(gain, Px))
        if bank.name != "rls":
            return prediction, math.inf, self._step(bank, x, y - prediction, weight, elapsed)
        A = self._faded(bank, x, elapsed)
        A += np.outer(weight * x, x)
        factor, info = dpotrf(A, lower=1)
        diagonal: Any = factor.diagonal()
        if info or bool((diagonal * diagonal <= 4 * len(A) * EPS * A.diagonal()).any()):
            return None
        u, _ = dpotrs(factor, x, lower=1)
        left = 1.0 - weight * float(x @ u)
        variance = float(x @ u) / left if left > 1e-12 else math.inf
        return prediction, variance, Online(self.w + np.outer(weight * u, y - prediction), A)

    def _step(self, bank: Bank, x: np.ndarray, error: np.ndarray, weight: float, elapsed: float) -> Online:
        sizes = bank.step_sizes()
        assert sizes is not None
        lr = weight * float(sizes[0])
        w, f = self.w, math.exp(max(elapsed * float(bank.log_fade[0]), FADE)) if bank.forgets else 1.0
        if bank.name == "longhorn":
            kept = f * w
            error = error + (x @ w) * (1 - f)  # of the weights that are kept
            w = kept + np.outer(lr / (1 + lr * float(x @ x)) * x, error)
            return Online(w, w)
        if bank.name == "titans_linear":
            momentum = bank.settings[0].momentum
            U = (0.9 if momentum is None else momentum) * self.matrix + np.outer(lr * x, error)
            return Online(f * w + U, U)
        w = w + np.outer(lr * x, error)
        return Online(w, w)

    def _faded(self, bank: Bank, x: np.ndarray, elapsed: float) -> np.ndarray:
        setting, A = bank.settings[0], self.matrix
        if not bank.forgets:
            return A.copy()
        f = math.exp(max(elapsed * math.log(setting.forgetting), FADE))
        if setting.forgetting_rule == "directional":
            Ax = A @ x
            excitation = float(x @ Ax)
            return A - np.outer((1 - f) / excitation * Ax, Ax) if excitation > 0 else A.copy()
        A = f * A
        if setting.forgetting_rule == "regularized":
            A.flat[: bank.features * (len(A) + 1) : len(A) + 1] += (1 - f) * setting.penalty
        return A


def _static(bank: Bank) -> bool:
    learner = bank.memory.learner
    return isinstance(learner, Ridge) and learner.rule == "static"
