"""Recursive least squares: the regression itself, solved exactly at every token."""

from __future__ import annotations

from typing import Literal

from ..core.architecture import Matrix
from ..core.memory import Memory
from ..core.objective import L2
from ..core.registry import named
from ..core.retention import Decay
from ..core.solvers import Ridge

Rule = Literal["exponential", "static", "regularized", "directional"]


@named(
    letters={"lr": "weight", "log_decay": "log lambda"},
    cases=({}, {"rule": "static"}, {"rule": "regularized"}, {"rule": "directional"}),
)
def rls(penalty: float = 1.0, rule: Rule = "exponential") -> Memory:
    """Recursive least squares with forgetting: exact ridge regression on all pairs so far.

    Equation: A_t = f_t A_{t-1} + lr_t k_t k_t^T,   b_t = f_t b_{t-1} + lr_t k_t v_t^T,   A_0 = penalty I,
        o_t = (A_t^-1 b_t)^T q_t,   f_t = exp(log_decay_t)
    Axes: Matrix, L2, Decay per head (of the evidence), exact ridge. `rule` says what becomes of the prior: it decays
        with the data ("exponential"), stays ("static"), stays while the mean is kept ("regularized"), or only the
        excited direction is forgotten ("directional").
    Reference: Plackett 1950; Haykin, "Adaptive Filter Theory", chapter 10; Cao and Schwartz 2000 (directional).
    Departs: Kept in information form, which keeps its symmetry; log_decay = -inf restores the prior. Under
        "exponential", the textbook rule, the prior fades as well, and what is not excited winds up; the other rules
        do not.
    """
    return Memory(Matrix(), L2(), Decay("head"), Ridge(penalty, rule))
