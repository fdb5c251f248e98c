"""A matrix memory under AdaGrad: each entry has its own falling step size."""

from __future__ import annotations

from ..core.architecture import Matrix
from ..core.memory import Memory
from ..core.objective import L2
from ..core.preconditioned import AdaGrad
from ..core.registry import named
from ..core.retention import Decay


@named(letters={"lr": "eta"}, cases=({}, {"segment": 5}))
def adagrad_memory(segment: int = 1) -> Memory:
    """The squared loss, descended by AdaGrad: every entry of the matrix is preconditioned by its own past gradients.

    Equation: g_t = k_t (S_{t-1}^T k_t - v_t)^T,   G_t = G_{t-1} + g_t * g_t,   o_t = S_t^T q_t,
        S_t = exp(log_decay_t) S_{t-1} - lr_t g_t / (sqrt(G_t) + 1e-8)
    Axes: Matrix, L2, Decay per head, AdaGrad: it preconditions single entries.
    Reference: Duchi, Hazan and Singer 2011, "Adaptive subgradient methods", for the learner.
    Departs: No paper runs this on a sequence memory: the row that the literature leaves empty. Token by token the step
        is a nonlinear function of all gradients: no parallel form is exact, tokens follow one another. With `segment`
        above 1 the gradients of a segment, at its start, are summed in parallel, and one step is taken at its end.
    """
    return Memory(
        Matrix(), L2(), Decay("head"), AdaGrad(), segment=segment, apply="token" if segment == 1 else "segment"
    )
