"""Titans with a matrix memory (Behrouz et al. 2025): momentum and decay, anchored at the previous memory."""

from __future__ import annotations

from ..core.architecture import Matrix
from ..core.learner import Momentum
from ..core.memory import Memory
from ..core.objective import L2
from ..core.registry import named
from ..core.retention import Decay


@named(letters={"lr": "2 theta", "log_decay": "log(1 - alpha)", "momentum": "eta"}, cases=({}, {"segment": 5}))
def titans_linear(segment: int = 1) -> Memory:
    """Titans' rule on a matrix: the surprise is remembered, the memory decays.

    Equation: U_t = momentum_t U_{t-1} + lr_t k_t (v_t - S_{t-1}^T k_t)^T,   S_t = exp(log_decay_t) S_{t-1} + U_t,
        o_t = S_t^T q_t
    Axes: Matrix, L2, Decay per head, momentum; the gradient is taken at the previous memory, before it decays.
    Reference: Behrouz, Zhong and Mirrokni 2025, "Titans", arXiv 2501.00663, equations (9)-(15).
    Departs: The loss carries 1/2 (the paper's (12) does not), so lr is twice theta; the exact per-token rule
        (segment = 1), where the paper trains with the gradient at a chunk's start: `segment=64` is that.
    """
    return Memory(Matrix(), L2(), Decay("head"), Momentum(), segment=segment)
