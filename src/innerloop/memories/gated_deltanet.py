"""Gated DeltaNet (Yang et al. 2024): forget, then correct."""

from __future__ import annotations

from ..core.architecture import Matrix
from ..core.learner import GradientStep
from ..core.memory import Memory
from ..core.objective import L2
from ..core.registry import named
from ..core.retention import Decay


@named(letters={"lr": "beta", "log_decay": "log alpha"})
def gated_deltanet() -> Memory:
    """The delta rule with a decay per head: the memory forgets first, and the rest is corrected.

    Equation: X_t = exp(log_decay_t) S_{t-1},   S_t = X_t + lr_t k_t (v_t - X_t^T k_t)^T,   o_t = S_t^T q_t
    Axes: Matrix, L2, Decay per head, one explicit step anchored at the retained memory.
    Reference: Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks", arXiv 2412.06464, equation (10).
    Departs: Nothing; norms, convolutions and the gates' parametrisation belong to the layer.
    """
    return Memory(Matrix(), L2(), Decay("head"), GradientStep(), anchor="retained")
