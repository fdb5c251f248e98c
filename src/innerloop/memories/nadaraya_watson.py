"""The Nadaraya-Watson estimator (1964): the local average around the query."""

from __future__ import annotations

from ..core.architecture import Exemplars
from ..core.memory import Memory
from ..core.objective import L2
from ..core.registry import named
from ..core.retention import Keep
from ..core.solvers import Append


@named(cases=({}, {"bandwidth": 0.5, "capacity": 5}))
def nadaraya_watson(bandwidth: float = 1.0, capacity: int | None = None) -> Memory:
    """Gaussian kernel smoothing: the average of the values, weighted by the keys' distance to the query.

    Equation: o_t = sum_i w_i v_i / sum_i w_i,   w_i = exp(-|q_t - k_i|^2 / (2 bandwidth^2))
    Axes: Exemplars (all pairs, or the last `capacity`), local constant fit under L2, Keep, exact.
    Reference: Nadaraya 1964; Watson 1964; Wang, Shi and Fox 2025, "Test-time regression", arXiv 2501.12352.
    Departs: Far queries stay finite (the nearest exemplars answer); an empty memory reads 0.
    """
    return Memory(Exemplars("gaussian", 0, bandwidth, capacity), L2(), Keep(), Append())
