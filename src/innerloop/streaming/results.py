"""What a comparison found: scores, the winner, and the words and JSON for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from innerloop.streaming.scores import Scores
from innerloop.streaming.table import Stream

LAST_VALUE = "last_value"
RUNNING_MEAN = "running_mean"

Options = dict[str, Any]


class Score(NamedTuple):
    """The numbers of one forecaster at one target."""

    mae: float | None
    rmse: float | None
    skill: float | None


@dataclass(frozen=True, eq=False)
class Line:
    """One forecaster and its score; ``index`` is its place in the `Scores`, ``each`` its numbers target by target."""

    name: str
    options: Options
    index: int
    mae: float | None
    rmse: float | None
    skill: float | None
    each: tuple[Score, ...]
    rank: float
    us_per_row: float | None = None
    state_floats: int | None = None

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
    """The scores of every baseline and every setting; ``lines`` are sorted, best first, undefined ones last.

    ``scores`` holds the curves. It has seen fewer rows than the stream when the run was interrupted.
    """

    stream: Stream
    scores: Scores
    baselines: tuple[Line, ...]
    lines: tuple[Line, ...]

    @property
    def complete(self) -> bool:
        return self.scores.seen == self.stream.rows

    def memories(self, all_settings: bool = False) -> list[Line]:
        """The best setting of each memory (and its automatic one, where it ran), or every setting; best first."""
        if all_settings:
            return list(self.lines)
        best: dict[tuple[str, bool], Line] = {}
        for line in self.lines:
            best.setdefault((line.name, is_automatic(line)), line)
        return list(best.values())

    @property
    def best(self) -> Line:
        """The best rank, baselines included; a baseline wins a tie, being the simpler forecaster."""
        return min((*self.baselines, *self.lines), key=lambda line: line.rank)

    @property
    def last_value(self) -> Line:
        return next(line for line in self.baselines if line.name == LAST_VALUE)

    def sentence(self) -> str:
        """One sentence that names the winner."""
        best, last, target = self.best, self.last_value, self.stream.target
        scored = f"{self.scores.scored:,} scored rows"
        ahead = f" {self.stream.scheme.horizon} rows ahead" if self.stream.scheme.horizon > 1 else ""
        several = len(self.stream.scheme.targets) > 1
        finite = [line for line in self.lines if line.rmse is not None]
        if several:
            if not best.is_baseline:
                return f"{best.label} forecasts {target} best{ahead}: mean skill {format_skill(best.skill)} ({scored})."
            text = f"No memory beats the {best.label} at {target}{ahead} ({scored})"
            return f"{text}; the nearest is {finite[0].label}." if finite else f"{text}."
        if not best.is_baseline:
            against = ""
            if best.skill is not None:
                against = f", {_percent(best.skill)} below the last value's {format_number(last.rmse)}"
            return f"{best.label} forecasts {target} best{ahead}: RMSE {format_number(best.rmse)}{against} ({scored})."
        text = f"No memory beats the {best.label} at {target}{ahead}: RMSE {format_number(best.rmse)} ({scored})"
        if not finite:
            return f"{text}."
        gap = f", {_percent(finite[0].rank / best.rmse - 1)} above it" if best.rmse else ""
        return f"{text}; the nearest is {finite[0].label} with {format_number(finite[0].rmse)}{gap}."

    def notes(self, all_settings: bool = False) -> list[str]:
        """What the numbers do not say by themselves, one sentence each."""
        stream = self.stream
        late = " or a target beyond the end" if stream.scheme.horizon > 1 else ""
        lost = f", {stream.dropped:,} dropped for a missing value{late}" if stream.dropped else ""
        notes = [f"{stream.rows:,} rows{lost}; scored from row {stream.burn_in + 1} on."]
        if stream.skipped:
            notes.append(f"Left out, not numbers: {', '.join(stream.skipped)}.")
        diverged = [line.label if all_settings else line.name for line in self.memories(all_settings) if line.diverged]
        if diverged:
            every = "" if all_settings else " at every setting"
            notes.append(f"Diverged{every}, so without a score: {', '.join(diverged)}.")
        if not self.complete:
            notes.append(f"Interrupted after row {self.scores.seen:,} of {stream.rows:,}.")
        return notes

    def to_dict(self, all_settings: bool = False) -> dict[str, Any]:
        """The comparison as JSON values.

        Several targets make ``data["target"]`` a list and give every line ``targets``, a list of its numbers in that
        order; a horizon above 1 and an interruption add ``horizon`` and ``scored`` to ``data``.
        """
        stream, scheme = self.stream, self.stream.scheme
        several = len(scheme.targets) > 1
        data: dict[str, Any] = {
            "rows": stream.rows,
            "target": list(scheme.targets) if several else stream.target,
            "features": list(stream.names),
            "dropped": stream.dropped,
        }
        if scheme.horizon > 1:
            data["horizon"] = scheme.horizon
        if not self.complete:
            data["scored"] = self.scores.scored

        def each(line: Line) -> dict[str, Any]:
            if not several:
                return {}
            return {"targets": [{"name": t, **s._asdict()} for t, s in zip(scheme.targets, line.each, strict=True)]}

        return {
            "data": data,
            "baselines": [{"name": b.name, "mae": b.mae, "rmse": b.rmse, **each(b)} for b in self.baselines],
            "memories": [
                {
                    "name": line.name,
                    "options": line.options,
                    "mae": line.mae,
                    "rmse": line.rmse,
                    "skill": line.skill,
                    "us_per_row": line.us_per_row,
                    "state_floats": line.state_floats,
                    **each(line),
                }
                for line in self.memories(all_settings)
            ],
            "best": {"name": self.best.name, "options": self.best.options},
        }


def is_automatic(line: Line) -> bool:
    """Whether the line is a mixture that chose its setting by itself."""
    return line.options.get("forgetting") == "auto"


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
