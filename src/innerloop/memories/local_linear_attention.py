"""Local linear attention (2025): softmax attention with its first-order correction."""

from __future__ import annotations

from ..core.architecture import Exemplars
from ..core.memory import Memory
from ..core.objective import L2
from ..core.registry import named
from ..core.retention import Keep
from ..core.solvers import Append


@named(cases=({}, {"penalty": 0.1, "capacity": 5}))
def local_linear_attention(penalty: float = 1.0, capacity: int | None = None) -> Memory:
    """Local linear regression around each query, under the softmax kernel.

    Equation: min over b, W of  1/2 sum_i w_i |v_i - b - W (k_i - q_t)|^2 + penalty / 2 |W|^2,   o_t = b,
        w_i = exp(q_t^T k_i)
    Axes: Exemplars (all pairs, or the last `capacity`), local linear fit under L2, Keep, exact.
    Reference: "Local linear attention", 2025, arXiv 2510.01450, section 3.
    Departs: Solved to rounding error, where the paper's kernel runs conjugate gradients.
    """
    return Memory(Exemplars("exp", 1, 1.0, capacity, penalty), L2(), Keep(), Append())
