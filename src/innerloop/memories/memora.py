"""Memora (Miras, Behrouz et al. 2025): weights on a simplex, kept close in Kullback-Leibler divergence."""

from __future__ import annotations

from typing import Literal

from ..core.architecture import MLP
from ..core.learner import GradientStep
from ..core.memory import Memory
from ..core.objective import L2
from ..core.registry import named
from ..core.retention import KL


@named(letters={"lr": "eta", "log_decay": "log alpha"}, cases=({"segment": 5}, {"segment": 5, "apply": "segment"}))
def memora(
    variant: Literal["paper", "corrected"] = "paper", segment: int = 64, apply: Literal["token", "segment"] = "token",
    total: float = 1.0, norm: bool = True, residual: bool = True,
) -> Memory:  # fmt: skip
    """A network whose weights into each unit are a softmax: positive, of a fixed sum.

    Equation: A_t = exp(log_decay_t) A_{t-1} - lr_t grad 1/2 |f(k_t) - v_t|^2 at W_seg,   W_t = total softmax(A_t),
        o_t = f(q_t; W_t),   f(x) = x + LN(gelu(x W_0) W_1)   (softmax over the inputs of each unit)
    Axes: MLP with norm and residual, L2, KL, one explicit step; the gradient is taken at the segment's start.
    Reference: Behrouz et al. 2025, "It's all connected", arXiv 2504.13173, equations (19)-(21), (27).
    Departs: The state holds the logits A, since log W of a softmax differs from them by what the next softmax cancels.
        (27) is the exact minimiser of its problem, so that the variants "paper" and "corrected" are the same rule.
        Gates are per head, the paper's per channel. `apply="segment"` takes the softmax at the segment's end only.
    """
    if variant not in ("paper", "corrected"):
        raise ValueError(f"memora(variant={variant!r}): pass 'paper' or 'corrected'")
    model = MLP(norm=norm, residual=residual)
    return Memory(model, L2(), KL(total), GradientStep(), segment=segment, apply=apply)
