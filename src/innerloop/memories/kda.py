"""Kimi Delta Attention (Kimi Team 2025): the gated delta rule with a decay per key channel."""

from __future__ import annotations

from ..core.architecture import Matrix
from ..core.learner import GradientStep
from ..core.memory import Memory
from ..core.objective import L2
from ..core.registry import named
from ..core.retention import Decay


@named(letters={"lr": "beta", "log_decay": "log alpha"})
def kda() -> Memory:
    """Kimi Delta Attention: the gated delta rule, each key channel forgetting at its own rate.

    Equation: X_t = diag(exp log_decay_t) S_{t-1},   S_t = X_t + lr_t k_t (v_t - X_t^T k_t)^T,   o_t = S_t^T q_t
    Axes: Matrix, L2, Decay per channel, one explicit step anchored at the retained memory.
    Reference: Kimi Team 2025, "Kimi Linear", arXiv 2510.26692, section 3.
    Departs: Nothing; the low-rank gate projections and the output gate belong to the layer.
    """
    return Memory(Matrix(), L2(), Decay("channel"), GradientStep(), anchor="retained")
