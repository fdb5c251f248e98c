"""LaCT (Zhang et al. 2025): a gated network written once in a large segment, by Muon, its weights' norms kept."""

from __future__ import annotations

from ..core.architecture import SwiGLU
from ..core.memory import Memory
from ..core.objective import Dot
from ..core.preconditioned import Muon
from ..core.registry import named
from ..core.retention import RowNorm


@named(letters={"lr": "lr of W0, W2, W1", "momentum": "m"}, cases=({"segment": 5},))
def lact(segment: int = 2048, expansion: int = 4, num_steps: int = 5) -> Memory:
    """A SwiGLU network; a segment reads it, then its gradients are summed, orthogonalised and added.

    Equation: o_t = f(q_t; W_seg),   f(x) = (silu(x gate) * (x up)) down;   at the segment's end, for each weight,
        U <- mean(momentum) U - sum_i lr_i grad <f(k_i), v_i>,   W <- W - NS(U),   W <- W / |W| |W_init|  unit by unit
    Axes: SwiGLU, Dot, RowNorm, Muon with the step sizes inside; apply "segment"; read, then write.
    Reference: Zhang et al. 2025, "Test-time training done right", arXiv 2505.23884, section 3 and the official code.
    Departs: Momentum is averaged over the segment, as in the code. The initial weights are normal of variance
        1 / fan in. A segment that is not complete is never written. Newton-Schulz runs in the state's precision.
    """
    muon = Muon(num_steps, "lact", lr="inside", coefficient=0.0)
    return Memory(SwiGLU(expansion), Dot(), RowNorm(), muon, segment=segment, apply="segment", order="read-write")
