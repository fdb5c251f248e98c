"""Sums over rows that fade, and the noise level that is learned from them.

    s^2 = N / D,   N <- f N + (1 - c) l e^2 / (1 + l h),   D <- f D + l - c,   f = forgetting ^ elapsed

e is the error of the prediction made before the row was learned, l its weight and h = x^T P x the variance of that
prediction in units of s^2, so that e^2 has mean s^2 (1 / l + h). Without forgetting N is the least value of the ridge
objective so far. c = u / (1 + u), u = 10^-6 l h, is 1 where nothing was known of the row's direction and 0 elsewhere:
with a penalty near 0, D counts the degrees of freedom.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

VAGUE = 1e-6  # c is 1/2 where the prediction is a million times as uncertain as the row itself
BLOCK = 128


class Noise(NamedTuple):
    """N [H, V] and D [H] of every setting."""

    squares: np.ndarray
    evidence: np.ndarray

    @staticmethod
    def start(heads: int, outputs: int) -> Noise:
        """Nothing seen."""
        return Noise(np.zeros((heads, outputs)), np.zeros(heads))

    @property
    def variance(self) -> np.ndarray:
        """s^2 [H, V]; infinite before anything is known."""
        return _ratio(self.squares, self.evidence)


@dataclass(frozen=True)
class Rows:
    """What some rows say of the noise: predictions and y [n, (H,) V], variance h [n, H], weight l [n], log f [n, H]."""

    predictions: np.ndarray
    y: np.ndarray
    variance: np.ndarray
    weight: np.ndarray
    log_fade: np.ndarray

    def terms(self) -> tuple[np.ndarray, np.ndarray]:
        """What each row adds to N [n, H, V] and D [n, H]."""
        weight = self.weight[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            spread = 1 + np.where(weight > 0, weight * self.variance, 0.0)
            known = 1 / (1 + VAGUE * (spread - 1))  # 1 - c: 0 where h is infinite
            errors = self.y[:, None] - self.predictions
            squares = (known * weight / spread)[..., None] * errors * errors
        return np.where(np.isfinite(squares), squares, 0.0), np.where(weight > 0, weight - 1 + known, 0.0)


def learn(noise: Noise, rows: Rows) -> Noise:
    """The noise after the rows."""
    squares, count = rows.terms()
    later = np.cumsum(rows.log_fade[::-1], axis=0)[::-1]  # from the row itself to the last
    tail = np.exp(np.concatenate([later[1:], np.zeros_like(later[:1])]))
    whole = np.exp(later[0]) if len(later) else np.ones_like(noise.evidence)
    return Noise(
        whole[:, None] * noise.squares + (tail[..., None] * squares).sum(0),
        whole * noise.evidence + (tail * count).sum(0),
    )


def learn_one(noise: Noise, error: np.ndarray, variance: float, weight: float, log_fade: float) -> Noise:
    """The noise of one setting after one row of weight > 0, error [V]: `learn` without its arrays."""
    spread = 1 + weight * variance
    known = 1 / (1 + VAGUE * (spread - 1))
    kept = math.exp(log_fade)
    return Noise(
        kept * noise.squares + known * weight / spread * error * error, kept * noise.evidence + weight - 1 + known
    )


def levels(noise: Noise, rows: Rows) -> np.ndarray:
    """s^2 as each row found it, [n, H, V]."""
    squares, count = rows.terms()
    out = np.empty_like(squares)
    for first in range(0, len(squares), BLOCK):
        here = slice(first, first + BLOCK)
        fade = np.cumsum(rows.log_fade[here], axis=0)
        before = fade - rows.log_fade[here]
        # exp of differences, row against row: no sum is divided by a factor that has faded away
        between = np.exp(np.minimum(before[:, None] - fade[None], 0)) * np.tri(len(fade), k=-1)[..., None]
        kept = np.exp(before)
        N = kept[..., None] * noise.squares + np.einsum("tih,ihv->thv", between, squares[here])
        D = kept * noise.evidence + np.einsum("tih,ih->th", between, count[here])
        out[here] = _ratio(N, D)
        part = Rows(*(getattr(rows, name)[here] for name in Rows.__dataclass_fields__))
        noise = learn(noise, part)
    return out


def _ratio(squares: np.ndarray, count: np.ndarray) -> np.ndarray:
    some = (count > 1e-3)[..., None]  # below: only rows in unknown directions
    return np.where(some, squares / np.where(some, count[..., None], 1.0), np.inf)
