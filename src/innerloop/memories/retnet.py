"""RetNet (Sun et al. 2023): linear attention with a fixed decay per head."""

from __future__ import annotations

from ..core.architecture import Matrix
from ..core.learner import GradientStep
from ..core.memory import Memory
from ..core.objective import Dot
from ..core.registry import named
from ..core.retention import Decay


@named(letters={"log_decay": "log gamma"})
def retnet() -> Memory:
    """Retention: linear attention that forgets at a fixed rate per head.

    Equation: S_t = a_h S_{t-1} + lr_t k_t v_t^T,   o_t = S_t^T q_t,   a_h = 1 - 2^-(5+h) for head h = 0, 1, ...
    Axes: Matrix, Dot, Decay per head by a schedule, one gradient step.
    Reference: Sun et al. 2023, "Retentive Network", arXiv 2307.08621, equation (5) and section 2.3.
    Departs: The scale d^-1/2, xPos and the group norm belong to the layer; a `log_decay` gate replaces the schedule.
    """
    return Memory(Matrix(), Dot(), Decay("head", schedule="retnet"), GradientStep())
