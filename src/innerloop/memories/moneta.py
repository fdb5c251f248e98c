"""Moneta (Miras, Behrouz et al. 2025): an lp loss under an lq regulariser."""

from __future__ import annotations

from typing import Literal

from ..core.architecture import MLP
from ..core.learner import GradientStep
from ..core.memory import Memory
from ..core.objective import Lp
from ..core.registry import named
from ..core.retention import Lq


@named(
    letters={"lr": "p eta", "log_decay": "log alpha"},
    cases=({"segment": 5}, {"segment": 5, "variant": "corrected"}, {"segment": 5, "apply": "segment"}),
)
def moneta(
    variant: Literal["paper", "corrected"] = "paper", segment: int = 64, apply: Literal["token", "segment"] = "token",
    p: float = 3.0, q: float = 4.0, norm: bool = True, residual: bool = True,
) -> Memory:  # fmt: skip
    """A network under the lp loss, whose weights are a normalised accumulation of its gradients.

    Equation: A_t = exp(log_decay_t) A_{t-1} - lr_t grad 1/p sum |f(k_t) - v_t|^p at W_seg,   o_t = f(q_t; W_t),
        W_t = A_t / |A_t|_q^(q-2)                          variant "paper"
        W_t = sign(A_t) |A_t|^(q-1) / |A_t|_q^(q-2)        variant "corrected";     f(x) = x + LN(gelu(x W_0) W_1)
    Axes: MLP with norm and residual, Lp(3), Lq(4), one explicit step; the gradient is taken at the segment's start.
    Reference: Behrouz et al. 2025, "It's all connected", arXiv 2504.13173, variant 4 and equations (24), (25).
    Departs: The loss carries 1/p, so lr is p times eta, which (25) counts twice. "paper" is the link as printed, which
        lost the elementwise power that the regulariser's dual map has; "corrected" has it, for the dual exponent q
        (its regulariser is the squared norm of exponent q / (q - 1)). A_0 is the initial weights. Gates are per head,
        the paper's per channel. The paper's chunked form normalises at chunk ends only: `apply="segment"`.
    """
    model = MLP(norm=norm, residual=residual)
    return Memory(model, Lp(p), Lq(q, variant), GradientStep(), segment=segment, apply=apply)
