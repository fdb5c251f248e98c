"""Longhorn (Liu et al. 2024): the implicit step of the delta rule."""

from __future__ import annotations

from ..core.architecture import Matrix
from ..core.memory import Memory
from ..core.objective import L2
from ..core.registry import named
from ..core.retention import Decay, Keep
from ..core.solvers import Proximal


@named(letters={"lr": "beta"}, cases=({}, {"decay": True}))
def longhorn(decay: bool = False) -> Memory:
    """The exact proximal step: stable at any step size, it interpolates the pair as lr grows.

    Equation: S_t = argmin_S 1/2 |S - X_t|^2 + lr_t / 2 |S^T k_t - v_t|^2
        = X_t + eps_t k_t (v_t - X_t^T k_t)^T,   eps_t = lr_t / (1 + lr_t |k_t|^2),   X_t = S_{t-1};   o_t = S_t^T q_t
    Axes: Matrix, L2, Keep (with `decay=True`, Decay per head: X_t = exp(log_decay_t) S_{t-1}), proximal step.
    Reference: Liu et al. 2024, "Longhorn", arXiv 2407.14207, equation (5) and theorem 3.1.
    Departs: lr is one number per head and token, where the theorem allows one per value channel; the official layer
        ships a diagonal approximation of this rule, which is another model. `decay` is an addition, off by default.
    """
    return Memory(Matrix(), L2(), Decay("head") if decay else Keep(), Proximal())
