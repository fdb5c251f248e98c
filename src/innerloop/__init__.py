"""innerloop: sequence memories that learn while they read.

    m_t = argmin over m of  sum_{i<=t} gamma_i loss(m(k_i), v_i) + retention(m, m_{t-1})        o_t = m_t(q_t)

A published layer is a choice in that equation. `get` gives it as a value, `scan` runs it exactly, `chunked` fast,
`step` one token at a time; `explain` says what it is. Names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import __version__

_HOMES = {
    "core.architecture": ("Architecture", "Exemplars", "MLP", "Matrix", "SwiGLU"),
    "core.dispatch": ("chunked", "read", "scan", "step"),
    "core.explain": ("Explanation", "Stability", "default_gates", "explain", "stability"),
    "core.features": ("FeatureMap", "Features", "Fourier", "Polynomial", "fourier", "polynomial"),
    "core.learner": ("GradientLearner", "GradientStep", "Learner", "Momentum"),
    "core.memory": ("GateSpec", "Gates", "Memory"),
    "core.objective": ("Dot", "Huber", "L2", "Lp", "Objective", "Robust"),
    "core.preconditioned": ("AdaGrad", "Adam", "Diagonal", "Muon", "Shampoo", "newton_schulz"),
    "core.reference": ("Result",),
    "core.registry": ("Exemption", "get", "named", "names"),
    "core.retention": ("Decay", "ElasticNet", "KL", "Keep", "Lq", "Retention", "RowNorm"),
    "core.solvers": ("Append", "GradientFlow", "Kalman", "Proximal", "Ridge"),
    "core.state": ("State", "init_state"),
    "streaming": ("NadarayaWatsonRegressor", "Prequential", "StreamingRegressor", "prequential", "to_river"),
}
_WHERE = {name: home for home, members in _HOMES.items() for name in members}

__all__ = [  # noqa: RUF022  (sorted as the tables above are)
    "AdaGrad", "Adam", "Append", "Architecture", "Decay", "Diagonal", "Dot", "ElasticNet", "Exemplars", "Exemption",
    "Explanation", "FeatureMap", "Features", "Fourier", "GateSpec", "Gates", "GradientFlow", "GradientLearner",
    "GradientStep", "Huber", "KL", "Kalman", "Keep", "L2", "Learner", "Lp", "Lq", "MLP", "Matrix", "Memory",
    "Momentum", "Muon", "NadarayaWatsonRegressor", "Objective", "Polynomial", "Prequential", "Proximal", "Result",
    "Retention", "Ridge", "Robust", "RowNorm", "Shampoo", "Stability", "State", "StreamingRegressor",
    "SwiGLU", "__version__", "chunked", "default_gates",
    "explain", "fourier", "get", "init_state", "named", "names", "newton_schulz", "polynomial", "prequential", "read",
    "scan", "stability", "step", "to_river",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    import importlib

    if name in _WHERE:
        value = getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
        globals()[name] = value
        return value
    if name in ("testing", "streaming", "core", "executors", "memories"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'innerloop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from .core.architecture import MLP, Architecture, Exemplars, Matrix, SwiGLU
    from .core.dispatch import chunked, read, scan, step
    from .core.explain import Explanation, Stability, default_gates, explain, stability
    from .core.features import FeatureMap, Features, Fourier, Polynomial, fourier, polynomial
    from .core.learner import GradientLearner, GradientStep, Learner, Momentum
    from .core.memory import Gates, GateSpec, Memory
    from .core.objective import L2, Dot, Huber, Lp, Objective, Robust
    from .core.preconditioned import AdaGrad, Adam, Diagonal, Muon, Shampoo, newton_schulz
    from .core.reference import Result
    from .core.registry import Exemption, get, named, names
    from .core.retention import KL, Decay, ElasticNet, Keep, Lq, Retention, RowNorm
    from .core.solvers import Append, GradientFlow, Kalman, Proximal, Ridge
    from .core.state import State, init_state
    from .streaming import NadarayaWatsonRegressor, Prequential, StreamingRegressor, prequential, to_river
