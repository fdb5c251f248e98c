"""DeltaNet (Schlag et al. 2021; Yang et al. 2024): one explicit step of the delta rule."""

from __future__ import annotations

from ..core.architecture import Matrix
from ..core.learner import GradientStep
from ..core.memory import Memory
from ..core.objective import L2
from ..core.registry import named
from ..core.retention import Keep


@named(letters={"lr": "beta"})
def deltanet() -> Memory:
    """The delta rule: what the memory answers to the key is corrected toward the value.

    Equation: S_t = S_{t-1} + lr_t k_t (v_t - S_{t-1}^T k_t)^T,   o_t = S_t^T q_t
    Axes: Matrix, L2, Keep, one explicit gradient step at the previous memory.
    Reference: Schlag et al. 2021, arXiv 2102.11174, section 4.2; Yang et al. 2024, arXiv 2406.06484, section 2.2.
    Departs: Nothing. The step is stable while lr |k|^2 < 2: normalise the keys, or see `longhorn`.
    """
    return Memory(Matrix(), L2(), Keep(), GradientStep())
