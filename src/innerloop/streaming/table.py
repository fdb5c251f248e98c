"""From a table to a stream of rows: the data side of ``innerloop compare`` and ``innerloop forecast``.

The protocol, so that another program can recompute it.  Row t of the file holds features and targets; H is the horizon.

1. Rows are taken in file order.  Lag L is the target L rows earlier *in the file*: lag 1 is the last known value.
2. Features are the named columns, or every numeric column but the targets (and the time); then the lags.
3. At row t the targets are known up to row t - 1.  Its features forecast the targets of row t + H - 1, so H = 1
   forecasts the row itself.  The pair (features of t, targets of t + H - 1) is learned once row t + H - 1 is known: a
   forecast at row t comes from the pairs of the rows up to t - H.
4. Pairs that lack a target, a feature, a lag or the time are neither learned nor scored.
5. Each feature is standardised by the first ``burn_in`` complete pairs: mean and deviation (ddof 0), and a deviation of
   zero counts as 1.  The targets are left as they are.
6. A time column is never a feature.  It must not go backwards.  The time since the pair learned before, divided by the
   median of such times over the burn-in, is the pair's elapsed time: a memory that forgets, forgets by it.

Whatever is wrong with the request raises ``ValueError`` with one readable sentence; a row number counts the rows below
the header, from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from innerloop.streaming.pieces import Clock, Source, numbers

DEFAULT_TARGET = "co2"
DEFAULT_TIME = "date"
DEFAULT_LAGS = (1, 2, 52)
DEFAULT_BURN_IN = 50

Tell = Callable[[int], None]


@dataclass(frozen=True)
class Scheme:
    """What makes rows of a table; ``mean``, ``deviation`` [d] and ``gap`` (the unit of elapsed time) are learned."""

    targets: tuple[str, ...]
    features: tuple[str, ...]
    lags: tuple[int, ...] = ()
    horizon: int = 1
    time: str | None = None
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    gap: float = 1.0

    @property
    def names(self) -> tuple[str, ...]:
        """The features' names, lags included: ``y[t-1]``."""
        names = list(self.features)
        for target in self.targets:
            for lag in self.lags:
                name = f"{target}[t-{lag}]"
                while name in names:
                    name += "'"
                names.append(name)
        return tuple(names)

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns that are read."""
        return (*self.targets, *self.features, *([self.time] if self.time else []))

    def standardise(self, F: np.ndarray) -> np.ndarray:
        """Features [n, d] on the scale of the burn-in."""
        with np.errstate(over="ignore", invalid="ignore"):
            return (F - np.asarray(self.mean)) / np.asarray(self.deviation)


class Rows(NamedTuple):
    """Rows of a table: features F [n, d] as they stand in it, targets Y [n, V], times [n]; NaN where missing."""

    F: np.ndarray
    Y: np.ndarray
    time: np.ndarray | None


class Reader:
    """Frames of one table, in order, as `Rows`; remembers the last targets, which are the next lags."""

    def __init__(self, scheme: Scheme, *, past: np.ndarray | None = None, clock: Clock | None = None) -> None:
        self.scheme = scheme
        longest = max(scheme.lags, default=0)
        self.past = np.full((longest, len(scheme.targets)), np.nan) if past is None else past
        self.clock = clock or Clock()

    def read(self, frame: pd.DataFrame) -> Rows:
        """The frame's rows. A value that is no number, or a time that goes backwards, raises ``ValueError``."""
        scheme = self.scheme
        Y = _stack([numbers(frame[name], "the target") for name in scheme.targets], len(frame))
        F = [numbers(frame[name], "the feature") for name in scheme.features]
        time = self.clock.read(frame[scheme.time]) if scheme.time else None
        history = np.concatenate([self.past, Y])
        longest = len(self.past)
        for v in range(Y.shape[1]):
            F += [history[longest - lag : longest - lag + len(Y), v] for lag in scheme.lags]
        self.past = history[len(history) - longest :].copy()
        return Rows(_stack(F, len(frame)), Y, time)


def _stack(columns: Sequence[np.ndarray], rows: int) -> np.ndarray:
    return np.stack(columns, axis=1) if columns else np.empty((rows, 0))


class Events(NamedTuple):
    """What happens to an estimator, in order: m events, each a forecast and then a lesson, or one of the two.

    X [m, d]: what is forecast from (0 where nothing is). keys [m, d], y [m, V]: what is learned (0 where nothing is);
    keys are X itself at horizon 1. weight [m]: 1 where something is learned, else 0. elapsed [m] or None. asked [m]:
    the row, counted within the piece, that the forecast belongs to, or -1. learned [n] says of each row whether its
    targets complete a pair. late: so many events after its forecast a row's lesson comes.
    """

    X: np.ndarray
    keys: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    elapsed: np.ndarray | None
    asked: np.ndarray
    learned: np.ndarray
    late: int = 0

    def cut(self, start: int, stop: int | None) -> Events:
        """Some of the events."""
        here = slice(start, stop)
        elapsed = None if self.elapsed is None else self.elapsed[here]
        X = self.X[here]
        keys = X if self.keys is self.X else self.keys[here]
        return Events(X, keys, self.y[here], self.weight[here], elapsed, self.asked[here], self.learned, self.late)


class Pairs:
    """Rows of one table, in order, as `Events`: each row's forecast comes before the lesson that its targets bring.

    ``waiting`` [H - 1, d] are the features whose targets are not known yet; ``last`` is the time of the last lesson.
    """

    def __init__(self, horizon: int, gap: float, waiting: np.ndarray, last: float | None = None) -> None:
        self.horizon, self.gap, self.waiting, self.last = horizon, gap, waiting, last

    @staticmethod
    def of(scheme: Scheme) -> Pairs:
        """Before the first row."""
        return Pairs(scheme.horizon, scheme.gap, np.full((scheme.horizon - 1, len(scheme.names)), np.nan))

    def events(self, X: np.ndarray, Y: np.ndarray, time: np.ndarray | None, *, every: bool = False) -> Events:
        """The events of rows X [n, d], Y [n, V].

        ``every``: forecast each row whose features are known, even where its target is known to be missing.
        """
        n = len(X)
        keys = np.concatenate([self.waiting, X])  # row t's targets belong to the features of row t - H + 1
        self.waiting = keys[n:].copy()
        keys = keys[:n]
        learned = np.isfinite(keys).all(1) & np.isfinite(Y).all(1)
        elapsed = None
        if time is not None:
            learned &= np.isfinite(time)
            elapsed = np.zeros(n)
            if learned.any():
                times = time[learned]
                before = times[0] - self.gap if self.last is None else self.last
                elapsed[learned] = np.diff(times, prepend=before) / self.gap
                self.last = float(times[-1])
        asked = np.isfinite(X).all(1) if every or self.horizon > 1 else learned
        # with a horizon every row keeps its place: a row's lesson stands H - 1 places after its forecast
        at = np.arange(n) if self.horizon > 1 else np.flatnonzero(asked | learned)
        queries = np.where(asked[at, None], X[at], 0.0)
        lessons = learned[at, None]
        return Events(
            X=queries,
            keys=queries if self.horizon == 1 else np.where(lessons, keys[at], 0.0),
            y=np.where(lessons, Y[at], 0.0),
            weight=learned[at].astype(np.float64),
            elapsed=None if elapsed is None else elapsed[at],
            asked=np.where(asked[at], at, -1),
            learned=learned,
            late=self.horizon - 1,
        )


# ---------------------------------------------------------------------------------------------- the stream


@dataclass(frozen=True, eq=False)
class Stream:
    """A table that was looked through once: what is read of it, and that it can be.

    ``rows`` counts the complete pairs, ``dropped`` the other rows of the file; ``power`` is the mean of |x|^2 over the
    burn-in; ``dates`` says that the time is a date; ``skipped`` are the columns that hold no numbers; ``digest``
    identifies the values read.
    """

    source: Source
    scheme: Scheme
    rows: int
    dropped: int
    burn_in: int
    power: float
    dates: bool
    digest: str
    skipped: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        return ", ".join(self.scheme.targets)

    @property
    def names(self) -> tuple[str, ...]:
        return self.scheme.names

    def pieces(self, tell: Tell | None = None) -> Iterator[tuple[Rows, Events]]:
        """The rows and events of the table, piece by piece, features standardised in both."""
        reader, pairs = Reader(self.scheme), Pairs.of(self.scheme)
        for frame in self.source.pieces(tell):
            F, Y, time = reader.read(frame)
            X = self.scheme.standardise(F)
            yield Rows(X, Y, time), pairs.events(X, Y, time)

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """All complete pairs at once: X [rows, d], standardised, and the targets [rows] ([rows, V] when several)."""
        lessons = [(e.keys[e.weight > 0], e.y[e.weight > 0]) for _, e in self.pieces()]
        X, y = (np.concatenate(part) for part in zip(*lessons, strict=True))
        return X, y[:, 0] if len(self.scheme.targets) == 1 else y
