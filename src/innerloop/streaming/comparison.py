"""Which memory suits a stream: every memory and baseline, test-then-train, scored alike.

A line of the comparison is ``StreamingRegressor(name, **options).predict_then_update(X, y)``: each row is predicted
before it is learned.  Rows before the burn-in are predicted too but not scored.  The settings of one memory run
side by side as heads of one scan (`innerloop.streaming.bank`), which is why a dozen of them costs little more than
one.

    mae   = mean |prediction - y|            over the rows from burn_in on
    rmse  = sqrt(mean (prediction - y)^2)
    skill = 1 - rmse / rmse(last value)      above 0: better than repeating the last value

A number that is not defined (a memory that diverged, a last value that is always right) is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from innerloop.streaming.table import Stream

LAST_VALUE = "last_value"
RUNNING_MEAN = "running_mean"

Options = dict[str, Any]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Line:
    """One forecaster and its score; ``predictions`` are kept for the best setting of each memory only."""

    name: str
    options: Options
    mae: float | None
    rmse: float | None
    skill: float | None = None
    us_per_row: float | None = None
    state_floats: int | None = None
    predictions: np.ndarray | None = None

    @property
    def is_baseline(self) -> bool:
        return self.name in (LAST_VALUE, RUNNING_MEAN)

    @property
    def diverged(self) -> bool:
        return self.rmse is None

    @property
    def label(self) -> str:
        """The name with its options: ``rls(forgetting=0.95, penalty=1)``."""
        return f"{self.name}({format_options(self.options)})" if self.options else self.name.replace("_", " ")


@dataclass(frozen=True, eq=False)
class Comparison:
    """The scores of every baseline and every setting; ``lines`` are sorted, lowest rmse first, undefined ones last.

    ``unfinished`` names the memories that an interruption left out.
    """

    stream: Stream
    baselines: tuple[Line, ...]
    lines: tuple[Line, ...]
    unfinished: tuple[str, ...] = ()

    def memories(self, all_settings: bool = False) -> list[Line]:
        """The best setting of each memory, or every setting; best first."""
        if all_settings:
            return list(self.lines)
        best: dict[str, Line] = {}
        for line in self.lines:
            best.setdefault(line.name, line)
        return list(best.values())

    @property
    def best(self) -> Line:
        """The lowest rmse, baselines included; a baseline wins a tie, being the simpler forecaster."""
        return min((*self.baselines, *self.lines), key=lambda line: _rank(line.rmse))

    @property
    def last_value(self) -> Line:
        return next(line for line in self.baselines if line.name == LAST_VALUE)

    def sentence(self) -> str:
        """One sentence that names the winner."""
        best, last, target = self.best, self.last_value, self.stream.target
        scored = f"{self.stream.rows - self.stream.burn_in:,} scored rows"
        if not best.is_baseline:
            against = ""
            if best.skill is not None:
                against = f", {_percent(best.skill)} below the last value's {format_number(last.rmse)}"
            return f"{best.label} forecasts {target} best: RMSE {format_number(best.rmse)}{against} ({scored})."
        text = f"No memory beats the {best.label} at {target}: RMSE {format_number(best.rmse)} ({scored})"
        finite = [line for line in self.lines if line.rmse is not None]
        if not finite:
            return f"{text}."
        gap = f", {_percent(_rank(finite[0].rmse) / best.rmse - 1)} above it" if best.rmse else ""
        return f"{text}; the nearest is {finite[0].label} with {format_number(finite[0].rmse)}{gap}."

    def notes(self, all_settings: bool = False) -> list[str]:
        """What the numbers do not say by themselves, one sentence each."""
        stream = self.stream
        lost = f", {stream.dropped:,} dropped for a missing value" if stream.dropped else ""
        notes = [f"{stream.rows:,} rows{lost}; scored from row {stream.burn_in + 1} on."]
        if stream.skipped:
            notes.append(f"Left out, not numbers: {', '.join(stream.skipped)}.")
        diverged = [line.label if all_settings else line.name for line in self.memories(all_settings) if line.diverged]
        if diverged:
            every = "" if all_settings else " at every setting"
            notes.append(f"Diverged{every}, so without a score: {', '.join(diverged)}.")
        if self.unfinished:
            notes.append(f"Interrupted before: {', '.join(self.unfinished)}.")
        return notes

    def to_dict(self, all_settings: bool = False) -> dict[str, Any]:
        """The comparison as JSON values."""
        stream = self.stream
        return {
            "data": {
                "rows": stream.rows,
                "target": stream.target,
                "features": list(stream.names),
                "dropped": stream.dropped,
            },
            "baselines": [{"name": b.name, "mae": b.mae, "rmse": b.rmse} for b in self.baselines],
            "memories": [
                {
                    "name": line.name,
                    "options": line.options,
                    "mae": line.mae,
                    "rmse": line.rmse,
                    "skill": line.skill,
                    "us_per_row": line.us_per_row,
                    "state_floats": line.state_floats,
                }
                for line in self.memories(all_settings)
            ],
            "best": {"name": self.best.name, "options": self.best.options},
        }


def default_settings(stream: Stream) -> dict[str, list[Options]]:
    """The settings that each memory is tried with; every option is a keyword of ``StreamingRegressor``."""
    head = stream.X[: stream.burn_in]
    power = float(np.mean(np.sum(head * head, axis=1)))  # mean |x|^2 of the burn-in rows
    width = math.sqrt(stream.X.shape[1])
    rates = list(dict.fromkeys([0.1, 0.01, 1.0 / power if power > 0 else 1.0]))
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


def compare(stream: Stream, memories: Sequence[str] | None = None, *, progress: Progress | None = None) -> Comparison:
    """Run every setting of the memories over the stream and score it beside the baselines.

    ``progress(name, done, total)`` is called before each memory and once at the end.  An interruption (Ctrl-C) keeps
    what was finished: the comparison then lists the rest as ``unfinished``, unless nothing was finished.
    """
    from innerloop.streaming.bank import run_settings  # torch is loaded only when there is work for it

    names = check_memories(memories)
    baselines = _baselines(stream)
    settings = default_settings(stream)
    reference = baselines[0].rmse
    lines: list[Line] = []
    unfinished: tuple[str, ...] = ()
    for index, name in enumerate(names):
        try:
            if progress:
                progress(name, index, len(names))
            settled = run_settings(name, settings[name], stream.X, stream.y)
        except KeyboardInterrupt:
            if not lines:
                raise
            unfinished = names[index:]
            break
        lines += _score_memory(stream, name, settings[name], settled, reference)
    if progress and not unfinished:
        progress("", len(names), len(names))
    lines.sort(key=lambda line: _rank(line.rmse))  # stable: ties keep the running order
    return Comparison(stream, baselines, tuple(lines), unfinished)


def _score_memory(
    stream: Stream, name: str, settings: list[Options], settled: Any, reference: float | None
) -> list[Line]:
    predictions = np.asarray(settled.predictions, dtype=np.float64)  # [S, T]
    us_per_row = settled.seconds * 1e6 / stream.rows / len(settings)
    scores = [_score(p, stream) for p in predictions]
    keep = min(range(len(scores)), key=lambda s: _rank(scores[s][1]))
    return [
        Line(
            name=name,
            options=options,
            mae=mae,
            rmse=rmse,
            skill=_skill(rmse, reference),
            us_per_row=us_per_row,
            state_floats=int(settled.state_floats),
            predictions=predictions[index].copy() if index == keep else None,
        )
        for index, (options, (mae, rmse)) in enumerate(zip(settings, scores, strict=True))
    ]


def _baselines(stream: Stream) -> tuple[Line, Line]:
    y = stream.y
    before = np.concatenate([[0.0], y[:-1]])
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.concatenate([[0.0], np.cumsum(y)[:-1] / np.arange(1, len(y))])
    last = Line(LAST_VALUE, {}, *_score(before, stream), predictions=before)
    mean = Line(RUNNING_MEAN, {}, *_score(means, stream), predictions=means)
    return last, mean


def _score(predictions: np.ndarray, stream: Stream) -> tuple[float | None, float | None]:
    """(mae, rmse) of the rows from burn-in on; (None, None) if any prediction is not a finite number."""
    if not np.isfinite(predictions).all():
        return None, None
    with np.errstate(over="ignore"):
        errors = predictions[stream.burn_in :] - stream.y[stream.burn_in :]
        mae, rmse = float(np.mean(np.abs(errors))), float(np.sqrt(np.mean(errors * errors)))
    return (mae, rmse) if math.isfinite(mae) and math.isfinite(rmse) else (None, None)


def _rank(rmse: float | None) -> float:
    """What scores are sorted by: an undefined one is the worst."""
    return math.inf if rmse is None else rmse


def _skill(rmse: float | None, reference: float | None) -> float | None:
    return None if rmse is None or not reference else 1.0 - rmse / reference


# ---------------------------------------------------------------------------------------------- words


def format_number(value: float | None) -> str:
    """Four significant digits (an integer has all of them), or a dash for an undefined number."""
    if value is None:
        return "–"
    if isinstance(value, int) or 1e4 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:#.4g}"


def format_skill(value: float | None) -> str:
    """Four decimals near zero, where skill is read; fewer far below it."""
    return format_number(value) if value is None or abs(value) >= 1 else f"{value:.4f}"


def format_options(options: Mapping[str, Any]) -> str:
    """``forgetting=0.95, penalty=1``: four digits, for people; the JSON has them all."""
    return ", ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in options.items()
    )


def _percent(fraction: float) -> str:
    return f"{100 * fraction:,.1f} %"
