"""Gated linear attention (Yang et al. 2023): a decay per key channel."""

from __future__ import annotations

from ..core.architecture import Matrix
from ..core.learner import GradientStep
from ..core.memory import Memory
from ..core.objective import Dot
from ..core.registry import named
from ..core.retention import Decay


@named(letters={"log_decay": "log alpha"})
def gla() -> Memory:
    """Gated linear attention: each key channel forgets at its own, data-dependent rate.

    Equation: S_t = diag(exp log_decay_t) S_{t-1} + lr_t k_t v_t^T,   o_t = S_t^T q_t
    Axes: Matrix, Dot, Decay per channel, one gradient step.
    Reference: Yang et al. 2023, "Gated Linear Attention Transformers", arXiv 2312.06635, section 4.
    Departs: The scale d^-1/2 and the gate's parametrisation belong to the layer; `lr` is optional, 1 when absent.
    """
    return Memory(Matrix(), Dot(), Decay("channel"), GradientStep())
