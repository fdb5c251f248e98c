"""The Kalman filter of a regression whose weights walk at random."""

from __future__ import annotations

from ..core.architecture import Matrix
from ..core.memory import Memory
from ..core.objective import L2
from ..core.registry import named
from ..core.retention import Keep
from ..core.solvers import Kalman


@named(
    letters={"lr": "1 / relative noise", "scale": "time step"},
    cases=({}, {"process_noise": 0.0}, {"process_noise": 0.1}),
)
def kalman(process_noise: float = 1e-3, observation_noise: float = 1.0, prior_variance: float = 1.0) -> Memory:
    """A Kalman filter: the weights drift as a random walk, and each pair is weighed against that drift.

    Equation: P = P_{t-1} + scale_t process_noise I,   g_t = P k_t / (observation_noise / lr_t + k_t^T P k_t),
        S_t = S_{t-1} + g_t (v_t - S_{t-1}^T k_t)^T,   P_t = P - g_t k_t^T P,   o_t = S_t^T q_t
    Axes: Matrix, L2, Keep (the past fades by the process noise), exact Gaussian conditioning.
    Reference: Kalman 1960; Anderson and Moore, "Optimal Filtering", chapter 3.
    Departs: Nothing. Every token adds process noise, also one of weight 0; a masked token does not.
    """
    return Memory(Matrix(), L2(), Keep(), Kalman(process_noise, observation_noise, prior_variance))
