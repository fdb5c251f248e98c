"""A bandwidth per column by leave-one-out, along the exact gradient on log-bandwidths.

    E(log h)    = sum_i w_i |e_i|^2 / (V sum_i w_i),                   e_i = sum_{j != i} p_ij y_j - y_i
    dE/dlog h_k = 2 / (V sum_i w_i) sum_i w_i sum_j p_ij <e_i, y_j - yhat_i> (x_ik - x_jk)^2 / h_k^2

with rows x_j [d], targets y_j [V], weights w_j, bandwidths h [d] and the p of `averaging.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from .averaging import BLOCK, Rows, averages

EXEMPLARS = 2**14  # rows that leave-one-out looks at, at most
PAIRS = 2**22  # pairs (row left out, other row) of one leave-one-out error, at most
SMALL = 2**18  # up to so many pairs the search is dense: the error of few rows has many local minima


def loo_error(rows: Rows, left: np.ndarray, bandwidth: np.ndarray) -> float:
    """E of the rows `left` [m], each predicted by all others; NaN when there is no other."""
    n = len(rows.X)
    if n < 2:
        return math.nan
    every = np.full(len(left), n)
    errors = averages(rows, bandwidth, rows.X[left], np.zeros_like(every), every, own=left) - rows.y[left]
    return float(np.average((errors**2).mean(1), weights=rows.weight[left]))


def left_out(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Which of n rows leave-one-out looks at, and which of those (by their place among them) it leaves out."""
    rng = np.random.default_rng(0)  # drawn, since evenly spaced rows of a periodic table are all alike
    subset = np.arange(n) if n <= EXEMPLARS else np.sort(rng.permutation(n)[:EXEMPLARS])
    m = len(subset)
    return subset, np.arange(m) if m * m <= PAIRS else np.sort(rng.permutation(m)[: PAIRS // m])


def scott(rows: Rows) -> np.ndarray:
    """Scott's rule per column, [d]: std n^(-1 / (d + 4)) with the effective n of the weights; constant: std 1."""
    w, varies = rows.weight / rows.weight.sum(), _varies(rows.X)
    X = rows.X[:, varies] - rows.X[0, varies]
    std = np.ones(rows.X.shape[1])
    std[varies] = np.sqrt(np.maximum(w @ (X - w @ X) ** 2, 1e-300))
    return std * (w @ w) ** (1 / (len(std) + 4))


def _varies(X: np.ndarray) -> np.ndarray:
    """Columns [d] whose differences can be squared without vanishing or overflowing."""
    with np.errstate(over="ignore"):
        span = np.ptp(X, axis=0)
    return (span > 1e-150) & (span < 1e150)


def learn_bandwidth(rows: Rows, left: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The bandwidths [d] of least leave-one-out error; `start` if none is better, and for constant columns.

    A line first: multiples of `start` (and, where it points elsewhere, of Scott's rule) from a fraction of the
    smallest distance of two neighbours to a multiple of the largest of all. Then L-BFGS on the log-bandwidths from
    the lowest of these points, within bounds beyond which rows of a column are all alike or all apart.
    """
    varies = _varies(rows.X)
    if len(rows.X) < 3 or not varies.any() or not np.ptp(rows.y, axis=0).any():
        return start  # the error does not depend on the bandwidth
    X = rows.X[:, varies]
    gaps = np.array([np.diff(np.unique(column)).min() for column in X.T])
    span = np.ptp(X, axis=0)
    bounds = np.log(np.maximum(gaps, 1e-12 * span) / 4), np.log(1e3 * span)
    error = _Error.of(Rows(X, rows.y, rows.weight), left)
    small = len(rows.X) * len(left) <= SMALL

    begin, rule = (np.clip(np.log(h[varies]), *bounds) for h in (start, scott(rows)))
    best, theta = error(begin)[0], begin
    found = [(best, begin)]
    for direction in [begin] if np.ptp(rule - begin) < 1e-9 else [begin, rule]:
        logs, errors = error.along(direction, 0.1 if small else 0.35)
        padded = np.concatenate([[math.inf], errors, [math.inf]])
        valleys = np.flatnonzero((errors <= padded[:-2]) & (errors < padded[2:]))
        found += [(errors[i], np.clip(direction + logs[i], *bounds)) for i in valleys]
    found.sort(key=lambda pair: pair[0])
    options = {"ftol": 1e-13, "gtol": 1e-9, "maxfun": 200} if small else {"ftol": 1e-10, "gtol": 1e-7, "maxfun": 60}
    for value, point in found[: 5 if small else 1]:
        scale = value or 1.0
        result = minimize(
            lambda at, scale: tuple(part / scale for part in error(at)), point, args=(scale,), jac=True,
            method="L-BFGS-B", bounds=np.transpose(bounds), options=options,
        )  # fmt: skip
        if result.fun * scale < best:
            best, theta = result.fun * scale, result.x
    learned = start.copy()
    learned[varies] = np.clip(start[varies], *np.exp(bounds)) if theta is begin else np.exp(theta)
    return learned


@dataclass(frozen=True)
class _Error:
    """E and its gradient at log-bandwidths theta [d], in units of the largest deviation of y, by blocks of rows."""

    X: np.ndarray
    y: np.ndarray
    log_weight: np.ndarray
    left: np.ndarray
    weight: np.ndarray  # of the rows left out, summing to 1 / V

    @staticmethod
    def of(rows: Rows, left: np.ndarray) -> _Error:
        y = rows.y - rows.y.mean(0)
        weight = rows.weight[left] / rows.weight[left].sum() / y.shape[1]
        # around the medians: one far row must not cost the others their digits
        X = rows.X - np.median(rows.X, axis=0)
        return _Error(X, y / np.abs(y).max(), np.log(rows.weight), left, weight)

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        z, value, gradient = self.X * np.exp(-theta), 0.0, np.zeros(len(theta))
        for block, rows, squares in self._squares(z):
            p, e = self._residuals(rows, squares)
            scaled = 2 * self.weight[block, None] * e
            value += float((scaled * e).sum()) / 2
            G = p * (scaled @ self.y.T - (scaled * (e + self.y[rows])).sum(1, keepdims=True))  # dE/dlog K
            # sum_ij G_ij (z_ik - z_jk)^2, where sum_j G_ij = 0
            gradient += G.sum(0) @ z**2 - 2 * (z[rows] * (G @ z)).sum(0)
        return value, gradient

    def along(self, theta: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray]:
        """Logs of multiples of exp(theta), and E there."""
        z = self.X * np.exp(-theta)
        nearest, furthest = [], 0.0
        for _, _, squares in self._squares(z):
            nearest.append(np.where(squares > 0, squares, math.inf).min(1))
            furthest = max(furthest, float(squares[np.isfinite(squares)].max()))
        near = np.concatenate(nearest)
        near = np.sqrt(near[np.isfinite(near)])
        if not near.size:
            return np.empty(0), np.empty(0)
        low, high = math.log(max(near.min(), 1e-3 * float(np.median(near))) / 4), math.log(4 * math.sqrt(furthest))
        logs = np.linspace(low, high, max(2, math.ceil((high - low) / step)))
        errors = np.zeros(len(logs))
        for block, rows, squares in self._squares(z):
            for i, log in enumerate(logs):
                _, e = self._residuals(rows, squares * math.exp(-2 * log))
                errors[i] += float((self.weight[block, None] * e**2).sum())
        return logs, errors

    def _squares(self, z: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Blocks of rows left out: their slice of `left`, their places, squared distances [m, n] (own: inf)."""
        size = max(1, BLOCK // 4 // len(z))
        for a in range(0, len(self.left), size):
            rows = self.left[a : a + size]
            squares = cdist(z[rows], z, "sqeuclidean")
            squares[np.arange(len(rows)), rows] = math.inf
            yield slice(a, a + size), rows, squares

    def _residuals(self, rows: np.ndarray, squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """p [m, n] and e [m, V] of a block."""
        logits = self.log_weight - squares / 2
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        return p, p @ self.y - self.y[rows]
