"""What an experiment of the gallery is: rows of values beside the source's, and pictures.

A file of the gallery registers one or more experiments:

    @experiment("D1", "Bandwidth sweep", source="Dive into Deep Learning, section 12.6")
    def bandwidth_sweep(tick: Tick) -> Outcome:
        ...
        return Outcome([near("MSE, sigma 0.5", mse, 0.136, 5e-4)], {"fit": Picture(paint)})
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..look import Painter

Tick = Callable[[str], None]
"""Called now and then with a word on what runs: progress."""


@dataclass(frozen=True)
class Row:
    """One line of an experiment's table: a value, the source's (None: the source has none), whether it holds.

    source: as the source prints it, or in words what is claimed ("diverges", "< 1e-9").
    """

    name: str
    value: float | str
    source: float | str | None
    holds: bool


@dataclass(frozen=True)
class Picture:
    """What draws a figure onto a matplotlib Figure, for a palette; size in inches."""

    paint: Painter
    size: tuple[float, float] = (8.0, 4.2)


@dataclass(frozen=True)
class Outcome:
    """What an experiment found. notes: sentences, e.g. where the source is wrong or vague."""

    rows: list[Row]
    figures: dict[str, Picture] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every row does."""
        return all(row.holds for row in self.rows)

    def value(self, name: str) -> Any:
        """The value of the row of that name."""
        return next(row.value for row in self.rows if row.name == name)


@dataclass(frozen=True)
class Experiment:
    """One experiment: `run(tick)` gives its outcome. text: what it shows, for the gallery's page."""

    id: str
    title: str
    source: str
    run: Callable[[Tick], Outcome]
    text: str


_experiments: dict[str, Experiment] = {}


def experiment(id: str, title: str, *, source: str) -> Callable[[Callable[[Tick], Outcome]], Callable[[Tick], Outcome]]:
    """Register a function as the experiment `id`; its docstring says what it shows."""

    def registered(run: Callable[[Tick], Outcome]) -> Callable[[Tick], Outcome]:
        if id in _experiments and _experiments[id].run is not run:
            raise ValueError(f"experiment {id!r} is registered twice")
        _experiments[id] = Experiment(id, title, source, run, (run.__doc__ or "").strip())
        return run

    return registered


def near(name: str, value: float, source: float, within: float) -> Row:
    """A row that holds when the value is within so much of the source's."""
    return Row(name, float(value), source, math.isfinite(value) and abs(value - source) <= within)


def digits(name: str, value: float, printed: str) -> Row:
    """A row that holds when the value, rounded to the digits that the source prints, is what it prints."""
    places = len(printed.partition(".")[2])
    return Row(
        name, float(value), printed, math.isfinite(value) and f"{value:.{places}f}" == f"{float(printed):.{places}f}"
    )


def below(name: str, value: float, limit: float) -> Row:
    """A row that holds when the value is at most a limit."""
    return Row(name, float(value), f"<= {limit:g}", bool(value <= limit))


def claim(name: str, value: float | str, source: str, holds: bool) -> Row:
    """A row whose claim is in words."""
    return Row(name, value, source, bool(holds))
