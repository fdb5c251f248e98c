"""Running scores and thinned curves of several forecasters: constant memory however long the stream is.

    mae = sum |e| / n          rmse = sqrt(sum e^2 / n)          e = prediction - target, n rows from burn-in on

Letters: L forecasters, V targets, n rows of a piece, B bins of a curve.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

MAX_POINTS = 4000  # a curve with more is thinned to the extremes of each pixel column: same picture, smaller file
ZOOM_ROWS = 150  # or half of the stream if that is less
WINDOW = 100  # rows of the rolling error, or a tenth of the stream if that is less

Arrays = dict[str, np.ndarray]


class Curve:
    """Curves over ``total`` points as the least and the largest value of each of B bins, [*lead, B]."""

    def __init__(self, lead: tuple[int, ...], total: int) -> None:
        self.total = total
        self.bins = total if total <= MAX_POINTS else MAX_POINTS // 2
        self.low = np.full((*lead, self.bins), np.nan)
        self.high = np.full((*lead, self.bins), np.nan)

    def add(self, first: int, values: np.ndarray) -> None:
        """Take in the points from ``first`` on, [*lead, n]."""
        if not values.shape[-1]:
            return
        at = np.arange(first, first + values.shape[-1]) * self.bins // self.total
        starts = np.flatnonzero(np.diff(at, prepend=-1))
        part = (..., slice(at[0], at[-1] + 1))
        self.low[part] = np.fmin(self.low[part], np.fmin.reduceat(values, starts, axis=-1))
        self.high[part] = np.fmax(self.high[part], np.fmax.reduceat(values, starts, axis=-1))

    def points(self, *index: int) -> np.ndarray:
        """One curve, ready to be drawn: the values, or the least and the largest of each bin in turn."""
        low, high = self.low[index], self.high[index]
        return low if self.bins == self.total else np.stack([low, high], -1).ravel()


class Scores:
    """What is known of L forecasters of V targets after the rows so far.

    Attributes:
        seen: rows so far, the burn-in included.
        absolute, squares: sums of |e| and e^2 over the scored rows, [L, V].
        finite: whether every prediction was a finite number, [L].
        x: the axis of the curves, one value per scored row.
        truth, predictions, rolling, cumulative: curves [V] and [L, V]; rolling is the RMSE of the last ``window`` rows.
        zoom_x, zoom_truth, zoom_predictions: the last ``zoom`` rows as they are.
    """

    def __init__(self, forecasters: int, targets: int, rows: int, burn_in: int) -> None:
        L, V, scored = forecasters, targets, rows - burn_in
        self.rows, self.burn_in, self.seen = rows, burn_in, 0
        self.absolute, self.squares = np.zeros((L, V)), np.zeros((L, V))
        self.finite = np.ones(L, dtype=bool)
        self.window = max(1, min(WINDOW, scored // 10))
        self.zoom = max(1, min(ZOOM_ROWS, scored // 2))
        self.x, self.truth = Curve((), scored), Curve((V,), scored)
        self.predictions, self.rolling, self.cumulative = (Curve((L, V), scored) for _ in range(3))
        self.zoom_x, self.zoom_truth, self.zoom_predictions = np.empty(0), np.empty((V, 0)), np.empty((L, V, 0))
        self.recent = np.empty((L, V, 0))  # the last squares, which the next rolling errors reach back to

    @property
    def scored(self) -> int:
        """Rows that the sums are over."""
        return max(0, self.seen - self.burn_in)

    def add(self, x: np.ndarray, Y: np.ndarray, P: np.ndarray) -> None:
        """Score the next rows: x [n], targets Y [n, V], predictions P [L, n, V]."""
        self.finite &= np.isfinite(P).all((1, 2))
        skip = min(len(x), max(0, self.burn_in - self.seen))
        first = max(0, self.seen - self.burn_in)
        self.seen += len(x)
        x, truth, P = x[skip:], Y[skip:].T, P[:, skip:].transpose(0, 2, 1)
        if not len(x):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            errors = P - truth
            sizes, squares = np.abs(errors), errors * errors
            self.cumulative.add(first, self.absolute[..., None] + np.cumsum(sizes, -1))
            self.absolute += sizes.sum(-1)
            self.squares += squares.sum(-1)
        self.x.add(first, x)
        self.truth.add(first, truth)
        self.predictions.add(first, P)
        self.rolling.add(first, self._rolling(squares))
        self.zoom_x = np.concatenate([self.zoom_x, x])[-self.zoom :]
        self.zoom_truth = np.concatenate([self.zoom_truth, truth], -1)[..., -self.zoom :]
        self.zoom_predictions = np.concatenate([self.zoom_predictions, P], -1)[..., -self.zoom :]

    def _rolling(self, squares: np.ndarray) -> np.ndarray:
        """RMSE of the trailing window; undefined until a quarter of it is there, since a few rows say nothing."""
        L, V, n = squares.shape
        series = np.concatenate([self.recent, squares], -1)
        self.recent = series[..., max(0, series.shape[-1] - self.window + 1) :].copy()
        # pandas adds compensated: a difference of running sums would leave the huge first errors in all later ones.
        table = pd.DataFrame(series.reshape(L * V, -1).T)
        means = table.rolling(self.window, min_periods=-(-self.window // 4)).mean().clip(lower=0.0)
        return np.sqrt(means.to_numpy()[-n:].T.reshape(L, V, n))

    def mae(self) -> np.ndarray:
        """[L, V]; NaN where a forecaster has no score."""
        return self._defined(self.absolute / max(1, self.scored))

    def rmse(self) -> np.ndarray:
        """[L, V]; NaN where a forecaster has no score: a prediction or its square was not finite."""
        return self._defined(np.sqrt(self.squares / max(1, self.scored)))

    def _defined(self, values: np.ndarray) -> np.ndarray:
        # A forecaster is scored at all targets or at none.
        fine = self.finite & np.isfinite(self.absolute).all(1) & np.isfinite(self.squares).all(1)
        return np.where(fine[:, None], values, np.nan)

    _PLAIN = ("absolute", "squares", "finite", "zoom_x", "zoom_truth", "zoom_predictions", "recent")
    _CURVES = ("x", "truth", "predictions", "rolling", "cumulative")

    def arrays(self) -> Arrays:
        """Everything, for a checkpoint."""
        curves = {
            f"{name}/{end}": getattr(getattr(self, name), end) for name in self._CURVES for end in ("low", "high")
        }
        return {name: getattr(self, name) for name in self._PLAIN} | curves | {"seen": np.array([self.seen])}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from what `arrays` gave."""
        for name in self._PLAIN:
            setattr(self, name, np.array(arrays[name]))
        for name in self._CURVES:
            curve = getattr(self, name)
            curve.low, curve.high = np.array(arrays[f"{name}/low"]), np.array(arrays[f"{name}/high"])
        self.seen = int(arrays["seen"][0])


class Baselines:
    """The last known target and the running mean of the known ones, [2, n, V]; 0 before the first."""

    def __init__(self, targets: int) -> None:
        self.last, self.total, self.count = np.zeros(targets), np.zeros(targets), 0

    def advance(self, Y: np.ndarray, learned: np.ndarray) -> np.ndarray:
        """Forecasts made at each row before its targets Y [n, V] are known; only rows ``learned`` [n] bring any."""
        n = len(Y)
        known = np.concatenate([self.last[None], Y[learned]])
        counts = np.concatenate([[0], np.cumsum(learned)])  # lessons before each row, and in all
        last = known[counts[:n]]
        with np.errstate(over="ignore", invalid="ignore"):
            sums = np.concatenate([self.total[None], self.total + np.cumsum(Y[learned], 0)])
            mean = sums[counts[:n]] / np.maximum(1, self.count + counts[:n])[:, None]
        self.last, self.total, self.count = known[-1], sums[-1], self.count + int(counts[-1])
        return np.stack([last, mean])
