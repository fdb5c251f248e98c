"""MesaNet (von Oswald et al. 2025): ridge regression whose penalty never decays."""

from __future__ import annotations

from ..core.architecture import Matrix
from ..core.memory import Memory
from ..core.objective import L2
from ..core.registry import named
from ..core.retention import Decay
from ..core.solvers import Ridge


@named(letters={"lr": "beta", "log_decay": "log gamma"})
def mesa(penalty: float = 1.0) -> Memory:
    """The Mesa layer: each token reads the optimal ridge regressor of the weighted past.

    Equation: H_t = f_t H_{t-1} + lr_t k_t k_t^T,   G_t = f_t G_{t-1} + lr_t k_t v_t^T,
        o_t = G_t^T (H_t + penalty I)^-1 q_t,   f_t = exp(log_decay_t),   H_0 = G_0 = 0
    Axes: Matrix, L2, Decay per head (of the evidence), exact ridge with a static penalty.
    Reference: von Oswald et al. 2025, "MesaNet", arXiv 2506.05233, section 3.
    Departs: Solved to rounding error, where the paper stops at 30 steps of conjugate gradients.
    """
    return Memory(Matrix(), L2(), Decay("head"), Ridge(penalty, "static"))
