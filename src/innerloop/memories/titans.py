"""Titans (Behrouz et al. 2025): a deep memory with momentum and decay."""

from __future__ import annotations

from typing import Literal

from ..core.architecture import MLP
from ..core.learner import Momentum
from ..core.memory import Memory
from ..core.objective import L2
from ..core.registry import named
from ..core.retention import Decay


@named(
    letters={"lr": "2 theta", "log_decay": "log(1 - alpha)", "momentum": "eta"},
    cases=(
        {},
        {"segment": 6, "toward": "init"},
        {"segment": 4, "bias": True, "norm": True, "residual": True, "depth": 3},
    ),
)
def titans(
    segment: int = 64, depth: int = 2, expansion: int = 4, toward: Literal["zero", "init"] = "zero",
    bias: bool = False, norm: bool = False, residual: bool = False,
) -> Memory:  # fmt: skip
    """A network learns the pairs while it reads: surprise is remembered, the weights decay.

    Equation: U_t = momentum_t U_{t-1} - lr_t grad 1/2 |f(k_t) - v_t|^2 at W_seg,
        W_t = exp(log_decay_t) W_{t-1} + U_t,   o_t = f(q_t; W_t),   f(x) = gelu(x W_0) W_1   (each weight of f alike)
    Axes: MLP, L2, Decay per head, momentum; the gradient is taken at the segment's start.
    Reference: Behrouz, Zhong and Mirrokni 2025, "Titans", arXiv 2501.00663, equations (9)-(15), (18).
    Departs: The loss carries 1/2 (the paper's (12) does not), so lr is twice theta. The paper leaves open the width,
        the activation and the segment: 4 K, gelu and 64 here, without biases, norm or residual, which are options.
        As printed the weights decay to zero, a dead point of an MLP (there its gradients vanish): over long streams
        with few surprises `toward="init"`, decay toward the initial memory, is advisable.
    """
    model = MLP(expansion, depth, bias=bias, norm=norm, residual=residual)
    return Memory(model, L2(), Decay("head", toward), Momentum(), segment=segment)
