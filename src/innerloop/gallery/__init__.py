"""The books' experiments, run with the library's own memories and estimators: one family to a file.

`experiments()` gives them in order; `innerloop reproduce` runs them.
"""

from __future__ import annotations

import importlib
import pkgutil

from .experiment import Experiment, _experiments

__all__ = ["Experiment", "experiments"]


def experiments() -> dict[str, Experiment]:
    """All experiments by id: D1 .. D7, X1 .. X6, W1 .. W4, N1 .. N6, A1, A2, M."""
    for module in pkgutil.iter_modules(__path__):
        if module.name != "experiment":
            importlib.import_module(f".{module.name}", __name__)
    order = "DXWNAM"
    return dict(sorted(_experiments.items(), key=lambda item: (order.index(item[0][0]), item[0])))
