"""A matrix memory under Adam: momentum, and steps in units of the recent gradients."""

from __future__ import annotations

from ..core.architecture import Matrix
from ..core.memory import Memory
from ..core.objective import L2
from ..core.preconditioned import Adam
from ..core.registry import named
from ..core.retention import Decay


@named(letters={"lr": "alpha", "momentum": "beta_1"}, cases=({}, {"segment": 5}))
def adam_memory(segment: int = 1) -> Memory:
    """The squared loss, descended by Adam: every entry is preconditioned by its recent gradients, with momentum.

    Equation: g_t = k_t (S_{t-1}^T k_t - v_t)^T,
        M_t = b_t M_{t-1} + (1 - b_t) g_t,   N_t = .99 N_{t-1} + .01 g_t * g_t,
        S_t = exp(log_decay_t) S_{t-1} - lr_t M^_t / (sqrt(N^_t) + 1e-8),   o_t = S_t^T q_t,   b = momentum
        (M^, N^: divided by the sums of their weights, which corrects the start from zero)
    Axes: Matrix, L2, Decay per head, Adam: it preconditions single entries.
    Reference: Kingma and Ba 2015, "Adam", arXiv 1412.6980, algorithm 1, for the learner.
    Departs: No paper runs this on a sequence memory: the row that the literature leaves empty. Token by token the step
        is a nonlinear function of all gradients: no parallel form is exact, tokens follow one another. With `segment`
        above 1 the gradients of a segment, at its start, are summed in parallel, and one step is taken at its end.
    """
    return Memory(Matrix(), L2(), Decay("head"), Adam(), segment=segment, apply="token" if segment == 1 else "segment")
