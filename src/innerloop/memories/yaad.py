"""Yaad (Miras, Behrouz et al. 2025): a Huber loss, so that outliers write less."""

from __future__ import annotations

from typing import Literal

from ..core.architecture import MLP
from ..core.learner import GradientStep
from ..core.memory import Memory
from ..core.objective import Huber
from ..core.registry import named
from ..core.retention import Decay


@named(
    letters={"lr": "eta", "log_decay": "log alpha", "delta": "delta"},
    cases=({"segment": 5}, {"segment": 5, "variant": "corrected", "toward": "init"}),
)
def yaad(
    variant: Literal["paper", "corrected"] = "paper", segment: int = 64, delta: float = 1.0,
    toward: Literal["zero", "init"] = "zero", norm: bool = True, residual: bool = True,
) -> Memory:  # fmt: skip
    """A network under a Huber loss with a threshold for every token, and decay.

    Equation: W_t = exp(log_decay_t) W_{t-1} - lr_t grad loss_t(f(k_t) - v_t) at W_seg,   o_t = f(q_t; W_t),
        f(x) = x + LN(gelu(x W_0) W_1);  with r = f(k) - v the gradient at the prediction is
        r while |r| <= delta_t, else delta_t sign(r)            variant "paper"
        r_c where |r_c| <= delta_t, else delta_t sign(r_c)      variant "corrected", channel by channel
    Axes: MLP with norm and residual, Huber, Decay per head, one explicit step at the segment's start.
    Reference: Behrouz et al. 2025, "It's all connected", arXiv 2504.13173, equations (14)-(16), (26).
    Departs: As printed, (26) switches the whole step, which jumps at |r| = delta; "corrected" is Huber's loss of each
        channel, (14). Gates are per head, the paper's per channel. The weights decay to zero as printed, a dead point
        of an MLP; `toward="init"` decays toward the initial memory.
    """
    form: Literal["switch", "coordinate"] = "switch" if variant == "paper" else "coordinate"
    if variant not in ("paper", "corrected"):
        raise ValueError(f"yaad(variant={variant!r}): pass 'paper' or 'corrected'")
    model = MLP(norm=norm, residual=residual)
    return Memory(model, Huber(delta, form), Decay("head", toward), GradientStep(), segment=segment)
