"""Atlas (Behrouz et al. 2025): OmegaNet's window and features, with momentum orthogonalised as in Muon."""

from __future__ import annotations

from typing import Literal

from ..core.architecture import MLP
from ..core.features import Features, polynomial
from ..core.memory import Memory
from ..core.objective import L2
from ..core.preconditioned import Muon
from ..core.registry import named
from ..core.retention import Decay


@named(
    letters={"lr": "eta", "log_decay": "log alpha", "momentum": "theta", "window": "gamma"},
    cases=({"segment": 5}, {"segment": 6, "window": 3, "degree": 1, "apply": "segment"}),
)
def atlas(
    segment: int = 64, window: int = 4, degree: int = 2, num_steps: int = 5,
    apply: Literal["token", "segment"] = "token", expansion: int = 4, toward: Literal["zero", "init"] = "zero",
    norm: bool = False,
) -> Memory:  # fmt: skip
    """A network on polynomial features, moved by orthogonalised momentum of a window's gradients.

    Equation: U_t = momentum_t U_{t-1} + grad sum_{i=t-w+1}^{t} gamma_i^(t) 1/2 |f(phi(k_i)) - v_i|^2 at W_seg,
        W_t = exp(log_decay_t) W_{t-1} - lr_t NS(U_t),   o_t = f(phi(q_t); W_t),   f(x) = gelu(x W_0) W_1
    Axes: Features(polynomial) before an MLP, L2, Decay per head, Muon of five Newton-Schulz steps, on a window.
    Reference: Behrouz et al. 2025, "Atlas", arXiv 2505.23735, equations (32), (33), (39)-(42).
    Departs: The loss carries 1/2. The sign of (32), (33) is that of descent (the paper's table prints ascent). Hidden
        layers have 4 K channels, K the key's own; no residual, since features and values differ in size.
        As printed every token's momentum is orthogonalised; `apply="segment"` does it once, at the segment's end.
    """
    model = Features(polynomial(degree), MLP(expansion, norm=norm))
    return Memory(model, L2(), Decay("head", toward), Muon(num_steps), window=window, segment=segment, apply=apply)
