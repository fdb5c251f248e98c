"""Linear attention (Katharopoulos et al. 2020): the sum of all outer products."""

from __future__ import annotations

from ..core.architecture import Matrix
from ..core.learner import GradientStep
from ..core.memory import Memory
from ..core.objective import Dot
from ..core.registry import named
from ..core.retention import Keep


@named()
def linear_attention() -> Memory:
    """Linear attention: every pair is added, nothing is forgotten or corrected.

    Equation: S_t = S_{t-1} + lr_t k_t v_t^T,   o_t = S_t^T q_t
    Axes: Matrix, Dot, Keep, one gradient step. As a regression: least squares with (K^T K)^-1 replaced by I.
    Reference: Katharopoulos et al. 2020, "Transformers are RNNs", arXiv 2006.16236, equations (16)-(20).
    Departs: No feature map and no normaliser (both belong to the layer); `lr` is an optional write strength,
        1 when absent.
    """
    return Memory(Matrix(), Dot(), Keep(), GradientStep())
