"""TTT-MLP (Sun et al. 2024): a two-layer model with layer norm and residual, trained by mini-batches of sixteen."""

from __future__ import annotations

from ..core.architecture import MLP
from ..core.learner import GradientStep
from ..core.memory import Memory
from ..core.objective import L2
from ..core.registry import named
from ..core.retention import Keep


@named(letters={"lr": "eta sigma(.) / d", "scale": "1/i + delta_i"}, cases=({}, {"segment": 5}))
def ttt_mlp(segment: int = 16, average: bool = True, expansion: int = 4) -> Memory:
    """A two-layer model behind a layer norm and a residual; within a segment it follows the mean gradient.

    Equation: f(x) = x + LN(gelu(x W_0 + b_0) W_1 + b_1),   o_t = f(q_t; W_t),
        W_t = W_seg - scale_t sum_{j<=t} lr_j grad_W 1/2 |f(k_j) - v_j|^2 at W_seg   (each weight and bias)
    Axes: MLP of two layers with biases, norm and residual; L2; Keep; one explicit step at the segment's start.
    Reference: Sun et al. 2024, "Learning to (learn at test time)", arXiv 2407.04620, section 2 and the official code.
    Departs: As the official code, not the paper's equations, has it: biases, the tanh form of gelu, and
        scale_t = 1/i at the segment's i-th token (`average=False` sums the steps). The code's 1/head_dim belongs into
        lr. Where K is not V the residual is cut, or padded with zeros.
    """
    model = MLP(expansion, 2, "gelu_tanh", bias=True, norm=True, residual=True, std=0.02)
    return Memory(model, L2(), Keep(), GradientStep(average=average), segment=segment)
