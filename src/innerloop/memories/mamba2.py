"""Mamba-2 (Dao and Gu 2024): scalar data-dependent decay, write scaled by the step."""

from __future__ import annotations

from ..core.architecture import Matrix
from ..core.learner import GradientStep
from ..core.memory import Memory
from ..core.objective import Dot
from ..core.registry import named
from ..core.retention import Decay


@named(letters={"lr": "Delta", "log_decay": "A Delta"})
def mamba2() -> Memory:
    """State space duality: linear attention with a decay per head and token, whose writes are scaled by the step.

    Equation: S_t = exp(log_decay_t) S_{t-1} + lr_t k_t v_t^T,   o_t = S_t^T q_t     (k = B, v = x, q = C)
    Axes: Matrix, Dot, Decay per head, one gradient step.
    Reference: Dao and Gu 2024, "Transformers are SSMs", arXiv 2405.21060, sections 3 and 7.
    Departs: The skip D x, the short convolution and the tie log_decay = -exp(A_log) lr belong to the layer.
    """
    return Memory(Matrix(), Dot(), Decay("head"), GradientStep())
