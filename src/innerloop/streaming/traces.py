"""How a memory changed along a stream: its coefficients, and the weights of its bank, at evenly spaced rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from innerloop.streaming.results import Comparison, Line, is_automatic
from innerloop.streaming.table import Tell

if TYPE_CHECKING:
    from innerloop.streaming.lanes import Lane

POINTS = 120  # places along the stream where the memory is looked at
LINEAR = ("rls", "kalman", "deltanet", "longhorn", "titans_linear")


@dataclass(frozen=True, eq=False)
class Trace:
    """P looks at one memory: ``coefficients`` [P, V, d] or None; ``weights`` [P, S] of ``settings`` or None; x [P]."""

    line: Line
    x: np.ndarray
    coefficients: np.ndarray | None
    weights: np.ndarray | None
    settings: tuple[dict[str, Any], ...] = ()


def traced_lines(comparison: Comparison) -> list[Line]:
    """The best linear memory, and the best automatic one where there is one."""
    scored = [line for line in comparison.memories() if not line.diverged]
    linear = next((line for line in scored if line.name in LINEAR), None)
    mixed = next((line for line in scored if is_automatic(line)), None)
    return [line for line in dict.fromkeys([linear, mixed]) if line is not None]


def trace(comparison: Comparison, line: Line, tell: Tell | None = None) -> Trace:
    """Run one line of the comparison again, stopping at `POINTS` rows to look at it."""
    from innerloop.streaming.lanes import Automatic, Settings

    stream, seen = comparison.stream, comparison.scores.seen
    marks = np.unique(np.linspace(max(1, stream.burn_in), seen, min(POINTS, seen)).astype(int))
    mixed = is_automatic(line)
    d, V = len(stream.names), len(stream.scheme.targets)
    lane: Lane = Automatic.of(line.name, line.options) if mixed else Settings.of(line.name, [line.options], d, V)
    x: list[float] = []
    coefficients: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    settings: tuple[dict[str, Any], ...] = ()
    done = 0
    for rows, events in stream.pieces(tell):
        times = None if rows.time is None else rows.time[events.learned]
        counts = done + np.cumsum(events.weight > 0)  # lessons up to and with each event
        last = int(counts[-1]) if len(counts) else done
        start = 0
        for mark in marks[(marks > done) & (marks <= last)]:
            stop = int(np.searchsorted(counts, mark)) + 1
            _, lane = lane.advance(events.cut(start, stop))
            start = stop
            x.append(float(mark) if times is None else float(times[mark - done - 1]))
            if line.name in LINEAR:
                coefficients.append(lane.coefficients()[0])
            if isinstance(lane, Automatic):
                weights.append(np.array(lane.model.bank_weights_))
                settings = tuple(dict(each) for each in lane.model.bank_settings_)
        _, lane = lane.advance(events.cut(start, None))
        done = last
        if done >= seen:
            break
    stacked = (np.stack(looks) if looks else None for looks in (coefficients, weights))
    return Trace(line, np.array(x), *stacked, settings=settings)
