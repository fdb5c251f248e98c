"""A matrix memory under Shampoo: keys and errors are both preconditioned."""

from __future__ import annotations

from ..core.architecture import Matrix
from ..core.memory import Memory
from ..core.objective import L2
from ..core.preconditioned import Shampoo
from ..core.registry import named
from ..core.retention import Decay


@named(letters={"lr": "eta"}, cases=({}, {"segment": 5}))
def shampoo_memory(segment: int = 1) -> Memory:
    """The squared loss, descended by Shampoo: key channels and error channels are preconditioned by the past's moments.

    Equation: g_t = k_t (S_{t-1}^T k_t - v_t)^T,
        L_t = L_{t-1} + g_t g_t^T,   R_t = R_{t-1} + g_t^T g_t,   L_0 = R_0 = 1e-6 I,
        S_t = exp(log_decay_t) S_{t-1} - lr_t L_t^(-1/4) g_t R_t^(-1/4),   o_t = S_t^T q_t
    Axes: Matrix, L2, Decay per head, Shampoo: it preconditions rows and columns.
    Reference: Gupta, Koren and Singer 2018, "Shampoo", arXiv 1802.09568, algorithm 1, for the learner.
    Departs: No paper runs this on a sequence memory: the row that the literature leaves empty. Token by token the step
        is a nonlinear function of all gradients: no parallel form is exact, tokens follow one another. With `segment`
        above 1 the gradients of a segment, at its start, are summed in parallel, and one step is taken at its end.
    """
    return Memory(
        Matrix(), L2(), Decay("head"), Shampoo(), segment=segment, apply="token" if segment == 1 else "segment"
    )
