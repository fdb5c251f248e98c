"""Preconditioned DeltaNet (2026): the written key is scaled by its channels' second moments."""

from __future__ import annotations

from typing import Literal

from ..core.architecture import Matrix
from ..core.memory import Memory
from ..core.objective import L2
from ..core.preconditioned import Diagonal
from ..core.registry import named
from ..core.retention import Decay


@named(
    letters={"lr": "beta", "log_decay": "g", "precond_lr": "beta_atk", "precond_log_decay": "g_atk"},
    cases=({}, {"per": "channel"}),
)
def preconditioned_deltanet(
    center: float = -0.2, span: float = 1.5, per: Literal["head", "channel"] = "head"
) -> Memory:
    """The gated delta rule, written along a preconditioned key and erased along the plain one.

    Equation: A_t = exp(precond_log_decay_t) A_{t-1} + precond_lr_t k_t * k_t,   S'_t = exp(log_decay_t) S_{t-1},
        S_t = S'_t + lr_t (M_t * k_t) (v_t - S'_t^T k_t)^T,   o_t = S_t^T q_t,
        M_t = span^(-l / (1 + |l|)),   l = log(A_t + 1e-6) - center
    Axes: Matrix, L2, Decay per head (per="channel": per key channel), Diagonal; the error at the decayed memory.
    Reference: "Preconditioned DeltaNet", arXiv 2604.21100, and its code (the diagonal form; chunks with A K~^T).
    Departs: Keys are taken as they come (one of the code's two forms normalises them inside).
    """
    return Memory(Matrix(), L2(), Decay(per), Diagonal(center, span), anchor="retained")
