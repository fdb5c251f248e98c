"""Error-free linear attention (EFLA, 2025): the exact gradient flow of the delta rule."""

from __future__ import annotations

from ..core.architecture import Matrix
from ..core.memory import Memory
from ..core.objective import L2
from ..core.registry import named
from ..core.retention import Decay, Keep
from ..core.solvers import GradientFlow


@named(letters={"lr": "beta"}, cases=({}, {"decay": True}))
def efla(decay: bool = False) -> Memory:
    """The gradient flow of the pair's loss, followed exactly for time lr: the delta rule without Euler's error.

    Equation: dS/ds = -k_t (S^T k_t - v_t)^T from S(0) = X_t = S_{t-1} until s = lr_t:
        S_t = X_t + alpha_t k_t (v_t - X_t^T k_t)^T,   alpha_t = (1 - exp(-lr_t |k_t|^2)) / |k_t|^2;   o_t = S_t^T q_t
    Axes: Matrix, L2, Keep (with `decay=True`, Decay per head: X_t = exp(log_decay_t) S_{t-1}), gradient flow.
    Reference: "Error-Free Linear Attention", 2025, arXiv 2512.12602.
    Departs: `decay` is an addition, off by default. A zero key writes with alpha = lr, the limit (it writes nothing).
    """
    return Memory(Matrix(), L2(), Decay("head") if decay else Keep(), GradientFlow())
