"""Streaming regression: the memories as forecasters of a drifting table."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {  # imported when asked for: reading a table needs no PyTorch
    "NadarayaWatsonRegressor": "kernel",
    "Prequential": "evaluation",
    "RiverRegressor": "adapters",
    "StreamingRegressor": "regressors",
    "prequential": "evaluation",
    "to_river": "adapters",
}

__all__ = [
    "NadarayaWatsonRegressor", "Prequential", "RiverRegressor", "StreamingRegressor", "prequential", "to_river",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'innerloop.streaming' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
    globals()[name] = value
    return value


if TYPE_CHECKING:
    from .adapters import RiverRegressor, to_river
    from .evaluation import Prequential, prequential
    from .kernel import NadarayaWatsonRegressor
    from .regressors import StreamingRegressor
