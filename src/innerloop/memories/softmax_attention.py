"""Softmax attention (Vaswani et al. 2017), as the local average that it is."""

from __future__ import annotations

from ..core.architecture import Exemplars
from ..core.memory import Memory
from ..core.objective import L2
from ..core.registry import named
from ..core.retention import Keep
from ..core.solvers import Append


@named(cases=({}, {"capacity": 5}))
def softmax_attention(capacity: int | None = None) -> Memory:
    """Causal softmax attention: the local constant fit under an exponential kernel.

    Equation: o_t = sum_i w_i v_i / sum_i w_i,   w_i = exp(q_t^T k_i)
    Axes: Exemplars (all pairs, or the last `capacity`: a sliding window), local constant fit under L2, Keep, exact.
    Reference: Vaswani et al. 2017, arXiv 1706.03762, equation (1); Wang, Shi and Fox 2025, arXiv 2501.12352.
    Departs: No hidden scale: the layer multiplies q by K^-1/2.
    """
    return Memory(Exemplars("exp", 0, 1.0, capacity), L2(), Keep(), Append())
