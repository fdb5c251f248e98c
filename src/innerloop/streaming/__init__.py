"""Streaming regression: the memories as forecasters of a drifting table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["StreamingRegressor"]


def __getattr__(name: str) -> Any:
    if name == "StreamingRegressor":  # imported when asked for: reading a table needs no PyTorch
        from .regressors import StreamingRegressor

        return StreamingRegressor
    raise AttributeError(f"module 'innerloop.streaming' has no attribute {name!r}")


if TYPE_CHECKING:
    from .regressors import StreamingRegressor
