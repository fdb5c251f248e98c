"""Recursive least squares over 100,000 rows: predict, then learn, against a per-row loop in numpy.

    python benchmarks/rls.py

Both predict every row before they learn it; the predictions are compared first, in the same run. One thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import innerloop as il

NAME = "rls"
ROWS = 100_000
CHECKED = 1_000


def numpy_loop(X: np.ndarray, y: np.ndarray, forgetting: float, penalty: float) -> np.ndarray:
    """The textbook form: covariance P, one rank-one update per row."""
    with np.errstate(all="ignore"):
        return _numpy_loop(X, y, forgetting, penalty)


def _numpy_loop(X: np.ndarray, y: np.ndarray, forgetting: float, penalty: float) -> np.ndarray:
    P = np.eye(X.shape[1]) / penalty
    w = np.zeros(X.shape[1])
    predictions = np.empty(len(X))
    for t, x in enumerate(X):
        predictions[t] = w @ x
        Px = P @ x
        gain = Px / (forgetting + x @ Px)
        w = w + gain * (y[t] - predictions[t])
        P = (P - np.outer(gain, Px)) / forgetting
    return predictions


def ours(X: np.ndarray, y: np.ndarray, forgetting: list[float], rule: str, penalty: float) -> np.ndarray:
    """Every forgetting factor is a head; [heads, rows]."""
    memory = replace(il.get("rls", penalty=penalty, rule=rule), order="read-write")
    H, n = len(forgetting), len(X)
    k = torch.from_numpy(X)[None, :, None].expand(1, n, H, X.shape[1])
    v = torch.from_numpy(y)[None, :, None, None].expand(1, n, H, 1)
    decay = torch.tensor([math.log(f) for f in forgetting], dtype=torch.float64).expand(1, n, H)
    gates = il.Gates(log_decay=decay if any(f < 1 for f in forgetting) else None)
    with torch.no_grad():
        return il.chunked(memory, k, k, v, gates).output[0, :, :, 0].T.numpy()


def timed(run: Callable[[], Any], repeats: int) -> float:
    """The least time of a few runs, in seconds."""
    best = math.inf
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best


def data(d: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, d))
    drift = np.cumsum(0.01 * rng.normal(size=(rows, d)), axis=0)
    return X, ((drift + 1) * X).sum(1) + 0.1 * rng.normal(size=rows)


def run(rows: int = ROWS) -> list[dict[str, Any]]:
    """One row per dimension and rule: microseconds per data row, and how many times faster than numpy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [line for d in (8, 32) for line in _lines(d, rows)]
    finally:
        torch.set_num_threads(threads)


def _lines(d: int, rows: int) -> list[dict[str, Any]]:
    X, y = data(d, rows)
    lines: list[dict[str, Any]] = []
    loop = 0.0
    sixteen = [1 - 10 ** -(1 + 2 * i / 15) for i in range(16)]
    cases: list[tuple[str, str, list[float]]] = [
        ("no forgetting", "exponential", [1.0]),
        ("exponential .99", "exponential", [0.99]),
        ("16 factors", "exponential", sixteen),
        ("regularized .99", "regularized", [0.99]),
    ]
    one = 0.0
    for label, rule, forgetting in cases:
        repeats = 1 if len(forgetting) > 1 else 3
        if rule == "exponential":
            # the first rows only: with forgetting the loop's covariance loses symmetry and has exploded by row 5,000
            expected = numpy_loop(X[:CHECKED], y[:CHECKED], forgetting[-1], 1.0)
            error = float(np.abs(ours(X[:CHECKED], y[:CHECKED], forgetting, rule, 1.0)[-1] - expected).max())
            if error > 1e-6:
                raise AssertionError(f"d={d}, {label}: predictions differ from the numpy loop by {error:.1e}")
        seconds = timed(lambda f=forgetting, r=rule: ours(X, y, f, r, 1.0), repeats)
        if label == "exponential .99":
            one = seconds
        if len(forgetting) == 1 and rule == "exponential":
            loop = timed(lambda f=forgetting[0]: numpy_loop(X, y, f, 1.0), 2)
        us = seconds * 1e6 / rows
        ratio = "" if len(forgetting) > 1 else f"{loop / seconds:.1f}"
        against = f"{seconds / one:.1f}" if len(forgetting) > 1 else ""
        lines.append({"d": d, "rule": label, "us_per_row": f"{us:.2f}", "numpy_us_per_row": f"{loop * 1e6 / rows:.2f}",
                      "times_faster": ratio, "cost_of_one_head": against})  # fmt: skip
    return lines


if __name__ == "__main__":
    for line in run():
        print("  ".join(f"{key}={value}" for key, value in line.items()))
