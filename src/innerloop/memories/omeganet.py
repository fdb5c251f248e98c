"""OmegaNet (Atlas, Behrouz et al. 2025): each step fits a window of pairs, through polynomial features."""

from __future__ import annotations

from typing import Literal

from ..core.architecture import MLP
from ..core.features import Features, polynomial
from ..core.learner import GradientStep
from ..core.memory import Memory
from ..core.objective import L2
from ..core.registry import named
from ..core.retention import Decay


@named(
    letters={"lr": "2 eta", "log_decay": "log alpha", "window": "gamma"},
    cases=({"segment": 5}, {"segment": 7, "window": 3, "degree": 1, "toward": "init"}),
)
def omeganet(
    segment: int = 64, window: int = 4, degree: int = 2, expansion: int = 4,
    toward: Literal["zero", "init"] = "zero", norm: bool = False,
) -> Memory:  # fmt: skip
    """A network on polynomial features; every step is a gradient of the last few pairs' loss.

    Equation: W_t = exp(log_decay_t) W_{t-1} - lr_t sum_{i=t-w+1}^{t} gamma_i^(t) grad 1/2 |f(phi(k_i)) - v_i|^2,
        o_t = f(phi(q_t); W_t),   f(x) = gelu(x W_0) W_1,   phi(x) = all monomials up to the degree, order i times c_i
    Axes: Features(polynomial) before an MLP, L2, Decay per head, one explicit step on a window (the Omega rule); the
        gradients are taken at the segment's start.
    Reference: Behrouz et al. 2025, "Atlas", arXiv 2505.23735, equations (5), (8)-(10).
    Departs: The loss carries 1/2 (the paper's does not). Hidden layers have 4 K channels, K the key's own. No residual:
        features of other size than the values cannot be added to them. The coefficients c_i start at 1/i! and are outer
        parameters (`initial["feature_coefficients"]`). The weights decay to zero as printed, a dead point of an MLP;
        `toward="init"` decays toward the initial memory.
    """
    model = Features(polynomial(degree), MLP(expansion, norm=norm))
    return Memory(model, L2(), Decay("head", toward), GradientStep(), window=window, segment=segment)
