"""Streaming regression: rows per second against river, padasip and scikit-learn; banks; a million rows.

    python benchmarks/streaming.py

Every row is predicted before it is learned, by everyone. `StreamingRegressor.predict_then_update` learns a table in one
call; river's `BayesianLinearRegression` and padasip's `FilterRLS` are called row by row, as they are made for. Checked
first: predictions against the textbook loop in numpy. One thread, the best of interleaved repeats.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from benchmarks.deep import _peak
from benchmarks.rls import numpy_loop

import innerloop as il

NAME = "streaming"

Row = dict[str, Any]
ROWS = 100_000
FEW = 4_000  # rows of those that go one by one


def data(d: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A regression whose weights drift."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, d))
    weights = 1 + np.cumsum(0.003 * rng.normal(size=(rows, d)), axis=0)
    return X, (weights * X).sum(1) + 0.1 * rng.normal(size=rows)


def ours(X: np.ndarray, y: np.ndarray, **options: Any) -> np.ndarray:
    """Predictions of one call."""
    return il.StreamingRegressor("rls", fit_intercept=False, **options).predict_then_update(X, y)


def river_loop(X: np.ndarray, y: np.ndarray, smoothing: float | None) -> Callable[[], object]:
    """river's Bayesian linear regression over dicts made beforehand."""
    from river.linear_model import BayesianLinearRegression

    rows = [dict(enumerate(row)) for row in X.tolist()]
    targets = y.tolist()

    def run() -> object:
        model = BayesianLinearRegression(smoothing=smoothing)
        for x, target in zip(rows, targets, strict=True):
            model.predict_one(x)
            model.learn_one(x, target)
        return model

    return run


def padasip_loop(X: np.ndarray, y: np.ndarray, forgetting: float) -> Callable[[], object]:
    """padasip's recursive least squares, by its own loop."""
    from padasip.filters import FilterRLS

    return lambda: FilterRLS(n=X.shape[1], mu=forgetting, eps=1.0, w="zeros").run(y, X)


def best(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The least seconds of each, taken in turns."""
    found = dict.fromkeys(runs, float("inf"))
    for _ in range(repeats):
        for name, run in runs.items():
            gc.collect()
            began = time.perf_counter()
            run()
            found[name] = min(found[name], time.perf_counter() - began)
    return found


def check(d: int) -> Row:
    """Largest difference to the numpy loops, relative to y."""
    X, y = data(d, 1000)
    worst = 0.0
    for forgetting, rule in ((1.0, "regularized"), (0.99, "exponential"), (0.99, "regularized")):
        got = ours(X, y, forgetting=forgetting, forgetting_rule=rule)
        loop = regularized_loop if rule == "regularized" else numpy_loop
        worst = max(worst, float(np.abs(got - loop(X, y, forgetting, 1.0)).max() / np.abs(y).max()))
    if not worst < 1e-9:
        raise AssertionError(f"d={d}: predictions differ from the numpy loop by {worst:.1e}")
    return {"what": f"d {d}: largest relative difference to the numpy loop", "ours": worst}


def blocks(d: int, repeats: int = 5) -> list[Row]:
    """Microseconds per row of a table in one call."""
    X, y = data(d, ROWS)
    few = X[:FEW], y[:FEW]
    kinds: dict[str, dict[str, Any]] = {
        "forgetting 1": {},
        "exponential .99": {"forgetting": 0.99, "forgetting_rule": "exponential"},
        "regularized .99": {"forgetting": 0.99},
    }
    runs: dict[str, Callable[[], object]] = {k: (lambda o=o: ours(X, y, **o)) for k, o in kinds.items()}
    runs |= {
        "river": river_loop(*few, None), "river smoothing": river_loop(*few, 0.99),
        "padasip": padasip_loop(*few, 1.0), "padasip .99": padasip_loop(*few, 0.99),
    }  # fmt: skip
    seconds = best(runs, repeats)
    us = {name: 1e6 * s / (ROWS if name in kinds else FEW) for name, s in seconds.items()}
    rows: list[Row] = []
    for kind in kinds:
        plain = kind == "forgetting 1"
        river, padasip = us["river" if plain else "river smoothing"], us["padasip" if plain else "padasip .99"]
        rows += [
            {"what": f"rls, {kind}, d {d}, us per row", "ours": us[kind], "other": other, "who": who,
             "ratio": other / us[kind]}
            for who, other in (("river", river), ("padasip", padasip))
        ]  # fmt: skip
    return rows


def one_row(repeats: int = 5) -> list[Row]:
    """`predict` and `partial_fit` of one row, against SGDRegressor's pair."""
    from sklearn.linear_model import SGDRegressor

    X, y = data(8, 600)

    def pairs(model: Any) -> Callable[[], object]:
        model.partial_fit(X[:50], y[:50])

        def run() -> object:
            for t in range(50, 350):
                model.predict(X[t : t + 1])
                model.partial_fit(X[t : t + 1], y[t : t + 1])
            return model

        return run

    models = {"rls": {}, "rls, forgetting .99": {"forgetting": 0.99}, "kalman": {}, "longhorn": {}}
    runs: dict[str, Callable[[], object]] = {
        name: pairs(il.StreamingRegressor(name.partition(",")[0], **options)) for name, options in models.items()
    }
    seconds = best({**runs, "SGDRegressor": pairs(SGDRegressor())}, repeats)
    other = seconds["SGDRegressor"] / 300
    return [
        {"what": f"{name}: predict and partial_fit of a row, d 8, us", "ours": 1e6 * seconds[name] / 300,
         "other": 1e6 * other, "who": "SGDRegressor", "ratio": other / (seconds[name] / 300)}
        for name in models
    ]  # fmt: skip


def regularized_loop(X: np.ndarray, y: np.ndarray, forgetting: float, penalty: float) -> np.ndarray:
    """The rule that keeps its prior, in numpy: a solve per row."""
    prior = penalty * np.eye(X.shape[1])
    A, w = prior.copy(), np.zeros(X.shape[1])
    predictions = np.empty(len(X))
    for t, x in enumerate(X):
        predictions[t] = w @ x
        A = forgetting * A + (1 - forgetting) * prior + np.outer(x, x)
        w = w + np.linalg.solve(A, x) * (y[t] - predictions[t])
    return predictions


def bank(repeats: int = 3) -> list[Row]:
    """forgetting="auto", 16 settings mixed, against one setting's row loop in numpy, of the same rule."""
    X, y = data(8, 20_000)
    runs: dict[str, Callable[[], object]] = {
        "numpy exponential": lambda: numpy_loop(X[:FEW], y[:FEW], 0.99, 1.0),
        "numpy regularized": lambda: regularized_loop(X[:FEW], y[:FEW], 0.99, 1.0),
        "exponential": lambda: ours(X, y, forgetting="auto", forgetting_rule="exponential"),
        "regularized": lambda: ours(X, y, forgetting="auto"),
    }
    seconds = best(runs, repeats)
    rows: list[Row] = []
    for rule in ("exponential", "regularized"):
        mine, loop = 1e6 * seconds[rule] / len(y), 1e6 * seconds[f"numpy {rule}"] / FEW
        rows.append({"what": f"bank of 16, {rule}, d 8, us per row", "ours": mine, "other": loop,
                     "who": "numpy, one setting", "ratio": loop / mine})  # fmt: skip
    return rows


def million() -> list[Row]:
    """A million rows, d 8, in pieces: seconds, and what the process grows by beyond the first piece."""
    rows: list[Row] = []
    X, y = data(8, 50_000)
    for label, options in (("rls, regularized .99", {"forgetting": 0.99}), ("kalman", {"memory": "kalman"})):
        model = il.StreamingRegressor(**options)
        model.predict_then_update(X, y)
        before = _peak()
        began = time.perf_counter()
        for _ in range(20):
            model.predict_then_update(X, y)
        seconds = time.perf_counter() - began
        rows.append({"what": f"{label}: a million rows, d 8, seconds", "ours": seconds})
        rows.append({"what": f"{label}: what the process grew by meanwhile, MB", "ours": (_peak() - before) / 1e6})
    return rows


def run() -> list[Row]:
    """Correctness, tables, single rows, banks, a million rows; one thread."""
    import padasip  # noqa: F401  (missing: said before anything is measured)
    import river  # noqa: F401

    warnings.filterwarnings("ignore", module="padasip")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = [check(8), check(32), *blocks(8), *blocks(32), *one_row(), *bank(), *million()]
    finally:
        torch.set_num_threads(threads)
    columns = list(dict.fromkeys(name for row in found for name in row))
    show = dict.fromkeys(columns, "")
    return [show | {k: f"{x:.3g}" if isinstance(x, float) else x for k, x in row.items()} for row in found]


if __name__ == "__main__":
    for row in run():
        print("   ".join(f"{name} {value}" for name, value in row.items() if value != ""))
