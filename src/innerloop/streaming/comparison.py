"""Which memory suits a stream: every memory and baseline, test-then-train, scored alike.

A line of the comparison is ``StreamingRegressor(name, **options).predict_then_update(X, y)``: each row is predicted
before it is learned.  Rows before the burn-in are predicted too but not scored.  The settings of one memory run
side by side as heads of one scan (`innerloop.streaming.lanes`), which is why a dozen of them costs little more than
one.  The table is read in pieces; scores are running sums and curves are thinned, so memory does not grow with it.

    mae   = mean |prediction - y|            over the rows from burn_in on
    rmse  = sqrt(mean (prediction - y)^2)
    skill = 1 - rmse / rmse(last value)      above 0: better than repeating the last known value

Several targets are scored one by one; a line's own numbers are their means, and skill, which has no unit, ranks them.
A number that is not defined (a memory that diverged, a last value that is always right) is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from innerloop.streaming import pieces
from innerloop.streaming.checkpoint import Bundle, Checkpoint
from innerloop.streaming.results import LAST_VALUE, RUNNING_MEAN, Comparison, Line, Options, Score
from innerloop.streaming.scores import Baselines, Scores
from innerloop.streaming.table import Stream

if TYPE_CHECKING:
    from innerloop.streaming.lanes import Lane

Progress = Callable[[str, int], None]


def default_settings(stream: Stream) -> dict[str, list[Options]]:
    """The settings that each memory is tried with; every option is a keyword of ``StreamingRegressor``."""
    width = math.sqrt(len(stream.names))
    rates = list(dict.fromkeys([0.1, 0.01, 1.0 / stream.power if stream.power > 0 else 1.0]))
    return {
        "rls": [{"forgetting": f, "penalty": 1.0} for f in (1.0, 0.999, 0.99, 0.97, 0.95, 0.9)],
        "kalman": [{"process_noise": q} for q in (1e-5, 1e-4, 1e-3, 1e-2)],
        "deltanet": [{"lr": lr} for lr in rates],
        "longhorn": [{"lr": lr} for lr in (1.0, 0.1)],
        "titans_linear": [{"lr": lr, "momentum": 0.9} for lr in rates],
        "nadaraya_watson": [{"bandwidth": h * width, "window": 500} for h in (0.5, 1.0, 2.0)],
    }


# Their order is the order they run in; the table is sorted by score.
MEMORIES = ("rls", "kalman", "deltanet", "longhorn", "titans_linear", "nadaraya_watson")


# The options of each memory's automatic line, whose estimator mixes a bank of settings by itself.
AUTOMATIC: dict[str, Options] = {name: {"forgetting": "auto"} for name in MEMORIES}
AUTOMATIC["nadaraya_watson"] = {"forgetting": "auto", "window": 500}


def check_memories(names: Sequence[str] | None) -> tuple[str, ...]:
    """The memories to compare; None means all. An unknown or repeated name raises ``ValueError``."""
    if names is None:
        return MEMORIES
    unknown = [name for name in names if name not in MEMORIES]
    if unknown:
        raise ValueError(f"no memory {', '.join(map(repr, unknown))} to compare; there are {', '.join(MEMORIES)}")
    twice = next((name for name in names if list(names).count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"memory {twice!r} is named twice")
    if not names:
        raise ValueError(f"no memory to compare; there are {', '.join(MEMORIES)}")
    return tuple(names)


def compare(
    stream: Stream,
    memories: Sequence[str] | None = None,
    *,
    automatic: bool = False,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
) -> Comparison:
    """Run every setting of the memories over the stream and score it beside the baselines.

    Args:
        stream: the table, looked through.
        memories: names out of `MEMORIES`; None means all.
        automatic: add each memory's line ``name(forgetting=auto)``.
        progress: called as ``progress(name, done)`` before each memory of each piece, and at each piece's end with "";
            ``done`` counts what has been read of the source, in its unit.
        checkpoint: a file that is replaced after each piece and removed at the end. If it exists, the run goes on from
            there; one that belongs to other data or other options raises ``ValueError``.

    An interruption (Ctrl-C) keeps the pieces that were finished: the comparison is then not `complete`, unless nothing
    was scored yet.
    """
    names = check_memories(memories)
    settings = default_settings(stream)
    lanes = _lanes(names, settings, stream, automatic)
    run = _Run(stream, lanes)
    mark = Checkpoint(
        checkpoint,
        {
            "command": "compare",
            "data": stream.digest,
            "options": [stream.scheme.columns, stream.scheme.lags, stream.scheme.horizon, stream.burn_in, pieces.PIECE],
            "memories": [[lane.name, lane.options] for lane in lanes],
        },
    )
    if (bundle := mark.load()) is not None:
        run.restore(bundle)
    try:
        run.finish(mark, progress)
    except KeyboardInterrupt:
        if not run.scores.scored:
            raise
    else:
        mark.remove()
    return run.comparison()


def _lanes(
    names: Sequence[str], settings: Mapping[str, list[Options]], stream: Stream, automatic: bool
) -> tuple[Lane, ...]:
    from innerloop.streaming.lanes import Automatic, Settings  # torch is loaded only when there is work for it

    lanes: list[Lane] = []
    for name in names:
        lanes.append(Settings.of(name, settings[name], len(stream.names), len(stream.scheme.targets)))
        if automatic:
            lanes.append(Automatic.of(name, AUTOMATIC[name]))
    return tuple(lanes)


class _Run:
    """A comparison under way: what it holds changes at the end of a piece, all at once."""

    def __init__(self, stream: Stream, lanes: tuple[Lane, ...]) -> None:
        forecasters = 2 + sum(len(lane.options) for lane in lanes)
        V = len(stream.scheme.targets)
        self.stream, self.lanes = stream, lanes
        self.pieces = 0
        self.scores = Scores(forecasters, V, stream.rows, stream.burn_in)
        # Forecasts whose targets are not known yet, [L, H - 1, V].
        self.waiting = np.full((forecasters, stream.scheme.horizon - 1, V), np.nan)

    def finish(self, mark: Checkpoint, progress: Progress | None) -> None:
        baselines = Baselines(len(self.stream.scheme.targets))
        done = 0

        def tell(read: int) -> None:
            nonlocal done
            done = read

        begun, before = self.pieces, 0
        for number, (rows, events) in enumerate(self.stream.pieces(tell)):
            simple = baselines.advance(rows.Y, events.learned)
            if number < begun:  # what an earlier run has done: read again, since lags reach back, but not learned again
                before = done
                continue
            P = np.full((len(self.waiting), *rows.Y.shape), np.nan)
            P[:2] = simple
            asked = events.asked >= 0
            at, lanes = 2, []
            for lane in self.lanes:
                if progress:
                    progress(lane.name, before)
                predictions, after = lane.advance(events)
                P[at : at + len(predictions), events.asked[asked]] = predictions[:, asked]
                at += len(predictions)
                lanes.append(after)
            # The forecast that row t's targets answer was made H - 1 rows before.
            P = np.concatenate([self.waiting, P], 1)
            n = len(rows.Y)
            if rows.time is None:
                x = self.scores.seen + 1.0 + np.arange(events.learned.sum())
            else:
                x = rows.time[events.learned]
            self.scores.add(x, rows.Y[events.learned], P[:, :n][:, events.learned])
            self.waiting, self.lanes, self.pieces = P[:, n:], tuple(lanes), number + 1
            before = done
            if progress:
                progress("", done)
            if mark.path is not None:
                mark.save(*self.snapshot())

    def snapshot(self) -> tuple[dict[str, np.ndarray], dict[str, list[bytes]], dict[str, Any]]:
        arrays = self.scores.arrays() | {"waiting": self.waiting}
        parts = {str(i): lane.to_bytes() for i, lane in enumerate(self.lanes)}
        return arrays, parts, {"pieces": self.pieces, "seconds": [lane.seconds for lane in self.lanes]}

    def restore(self, bundle: Bundle) -> None:
        self.scores.restore(bundle.arrays)
        self.waiting, self.pieces = bundle.arrays["waiting"], bundle.meta["pieces"]
        self.lanes = tuple(
            lane.from_bytes(bundle.parts[str(i)], seconds)
            for i, (lane, seconds) in enumerate(zip(self.lanes, bundle.meta["seconds"], strict=True))
        )

    def comparison(self) -> Comparison:
        mae, rmse = self.scores.mae(), self.scores.rmse()
        last = rmse[0]
        baselines = tuple(_line(name, {}, i, mae, rmse, last) for i, name in enumerate((LAST_VALUE, RUNNING_MEAN)))
        lines, at = [], 2
        for lane in self.lanes:
            costs = (lane.seconds * 1e6 / max(1, self.scores.seen) / len(lane.options), lane.state_floats)
            lines += [_line(lane.name, each, at + s, mae, rmse, last, *costs) for s, each in enumerate(lane.options)]
            at += len(lane.options)
        lines.sort(key=lambda line: line.rank)  # stable: ties keep the running order
        return Comparison(self.stream, self.scores, baselines, tuple(lines))


def _line(
    name: str,
    options: Options,
    index: int,
    mae: np.ndarray,
    rmse: np.ndarray,
    last: np.ndarray,
    us_per_row: float | None = None,
    state_floats: int | None = None,
) -> Line:
    baseline = name in (LAST_VALUE, RUNNING_MEAN)
    skills = [None if baseline else _skill(*pair) for pair in zip(rmse[index], last, strict=True)]
    each = tuple(Score(_known(m), _known(r), s) for m, r, s in zip(mae[index], rmse[index], skills, strict=True))
    known = [skill for skill in skills if skill is not None]
    return Line(
        name=name,
        options=options,
        index=index,
        mae=_known(mae[index].mean()),
        rmse=_known(rmse[index].mean()),
        skill=float(np.mean(known)) if known else None,
        each=each,
        rank=_rank(rmse[index], last),
        us_per_row=us_per_row,
        state_floats=state_floats,
    )


def _rank(rmse: np.ndarray, last: np.ndarray) -> float:
    """What lines are sorted by: the rmse; of several targets the mean of rmse / rmse(last value), which has no unit."""
    if not np.isfinite(rmse).all():
        return math.inf
    usable = np.isfinite(last) & (last > 0)
    if len(rmse) == 1 or not usable.any():
        return float(rmse.mean())
    return float((rmse[usable] / last[usable]).mean())


def _skill(rmse: float, reference: float) -> float | None:
    return _known(1.0 - rmse / reference) if reference > 0 else None


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
