"""Looking through a table once, before anything is learned from it: is the request sound, and what is the scale?

Whatever is wrong with the request raises ``ValueError`` with one readable sentence; a row number counts the rows below
the header, from 1.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from innerloop.streaming.pieces import FrameSource, Source, is_numeric
from innerloop.streaming.table import Pairs, Reader, Scheme, Stream, Tell

DEFAULT_TARGET = "co2"
DEFAULT_TIME = "date"
DEFAULT_LAGS = (1, 2, 52)
DEFAULT_BURN_IN = 50


def default_table() -> pd.DataFrame:
    """The weekly CO2 record of Mauna Loa that ships with statsmodels, with its dates; 59 weeks are missing."""
    from statsmodels.datasets import co2

    data = co2.load_pandas().data
    return pd.DataFrame({DEFAULT_TIME: data.index.to_numpy(), DEFAULT_TARGET: data["co2"].to_numpy()})


def default_source() -> FrameSource:
    """The table of ``innerloop compare`` without a file."""
    return FrameSource(default_table(), "weekly CO2 at Mauna Loa")


def build_stream(
    data: Source | pd.DataFrame,
    target: str | Sequence[str] | None,
    *,
    features: Sequence[str] | None = None,
    lags: Sequence[int] = (),
    horizon: int = 1,
    burn_in: int = DEFAULT_BURN_IN,
    time: str | None = None,
    tell: Tell | None = None,
) -> Stream:
    """Look through a table by the protocol above; ``features=None`` means every other numeric column.

    Raises:
        ValueError: a request that the table cannot serve, a value that cannot be read, or too few complete pairs.
    """
    source = FrameSource(data) if isinstance(data, pd.DataFrame) else data
    targets = (target,) if isinstance(target, str) else tuple(target or ())
    _check_request(targets, features, lags, horizon, burn_in, time)
    pieces = source.pieces()
    columns = _columns(next(pieces))
    pieces.close()
    if not targets:
        raise ValueError(f"no target: name the column to forecast with --target; the columns are {_names(columns)}")
    _present(columns, [*targets, *(features or ()), *([time] if time else [])])
    if features is not None:
        return _survey(source, Scheme(targets, tuple(features), tuple(lags), horizon, time), burn_in, tell)

    others = [name for name in columns if name not in (*targets, time)]
    words: set[str] = set()
    while True:  # a column of numbers may turn out to hold words further down; then it is left out from the start
        chosen = tuple(name for name in others if name not in words)
        try:
            stream = _survey(source, Scheme(targets, chosen, tuple(lags), horizon, time), burn_in, tell, words)
        except _Words:
            continue
        return replace(stream, skipped=tuple(name for name in others if name in words))


def _check_request(
    targets: Sequence[str],
    features: Sequence[str] | None,
    lags: Sequence[int],
    horizon: int,
    burn_in: int,
    time: str | None,
) -> None:
    if burn_in < 1:
        raise ValueError(f"a burn-in of {burn_in} rows: it must be at least 1, since it sets the features' scale")
    if horizon < 1:
        raise ValueError(f"a horizon of {horizon} rows: it must be at least 1, which forecasts the row itself")
    for lag in lags:
        if lag < 1:
            what = "would be the target itself" if lag == 0 else "would look into the future"
            raise ValueError(f"lag {lag} {what}; lags start at 1")
    _once("target", targets)
    _once("lag", lags)
    _once("feature", features or ())
    for target in targets:
        if target in (features or ()):
            raise ValueError(f"the target {target!r} cannot be a feature too; past values of it are --lags")
    if time is not None and (time in targets or time in (features or ())):
        raise ValueError(f"the time column {time!r} cannot be the target or a feature")


class _Words(Exception):
    """A column of the default features holds something else than numbers."""


def _survey(source: Source, scheme: Scheme, burn_in: int, tell: Tell | None, words: set[str] | None = None) -> Stream:
    """One pass: count and check; learn the scale; the names of columns without numbers go to ``words``."""
    d, V = len(scheme.names), len(scheme.targets)
    reader, pairs = Reader(scheme), Pairs.of(scheme)
    digest = hashlib.blake2b(digest_size=16)
    head: list[np.ndarray] = []  # features of the first pairs
    times: list[np.ndarray] = []
    filled = np.zeros(len(scheme.columns), dtype=bool)
    low, high = np.full(V, np.inf), np.full(V, -np.inf)
    smallest, largest = np.full(d, np.inf), np.full(d, -np.inf)
    rows = total = 0
    for frame in source.pieces(tell):
        found = {name for name in scheme.features if not is_numeric(frame[name])} if words is not None else set()
        found = {name for name in found if frame[name].notna().any()}
        if words is not None and found:
            words |= found
            raise _Words
        if not d:
            raise ValueError("nothing to forecast from: name columns with --features or past values with --lags 1")
        F, Y, time = reader.read(frame)
        events = pairs.events(F, Y, time)
        lessons = events.weight > 0
        for part in (F, Y, *([] if time is None else [time])):
            digest.update(np.ascontiguousarray(part).tobytes())
        filled |= np.array([bool(frame[name].notna().any()) for name in scheme.columns])
        if rows <= burn_in:
            head.append(events.keys[lessons][: burn_in - rows])
            times += [] if time is None else [time[events.learned][: burn_in + 1 - rows]]
        rows, total = rows + int(lessons.sum()), total + len(frame)
        if lessons.any():
            low, high = np.minimum(low, events.y[lessons].min(0)), np.maximum(high, events.y[lessons].max(0))
        if np.isfinite(F).any():
            smallest, largest = np.fmin(smallest, np.fmin.reduce(F)), np.fmax(largest, np.fmax.reduce(F))
    if rows <= burn_in:
        empty = [name for name, some in zip(scheme.columns, filled, strict=True) if not some]
        raise ValueError(_too_few(empty, rows, total - rows, burn_in))
    for name, value, top in zip(scheme.targets, low, high, strict=True):
        if value == top:
            raise ValueError(f"the target {name!r} is constant ({value:g} in every row): nothing to forecast")
    first = np.concatenate(head)
    scheme = _scaled(scheme, first, np.stack([smallest, largest]))
    if scheme.time:
        scheme = replace(scheme, gap=_gap(scheme.time, np.concatenate(times)))
    X = scheme.standardise(first)
    return Stream(
        source=source,
        scheme=scheme,
        rows=rows,
        dropped=total - rows,
        burn_in=burn_in,
        power=float(np.mean(np.sum(X * X, axis=1))),
        dates=reader.clock.dates,
        digest=digest.hexdigest(),
    )


def _scaled(scheme: Scheme, first: np.ndarray, extremes: np.ndarray) -> Scheme:
    """The scheme with the scale of the first pairs [burn_in, d]; extremes [2, d] must survive it."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = first.mean(axis=0), first.std(axis=0)
        # A constant column has a deviation of exactly zero; rounding in the mean may say 1e-17, which is not a scale.
        deviation[first.min(axis=0) == first.max(axis=0)] = 0.0
        deviation[deviation == 0.0] = 1.0
    scheme = replace(scheme, mean=tuple(mean.tolist()), deviation=tuple(deviation.tolist()))
    X = scheme.standardise(extremes)
    bad = np.flatnonzero(~(np.isfinite(X).all(axis=0) & np.isfinite(deviation)))  # x / inf would be a silent 0
    if bad.size:
        raise ValueError(f"the values of {scheme.names[bad[0]]!r} are too large to be standardised")
    return scheme


def _gap(name: str, times: np.ndarray) -> float:
    """The usual time from one pair to the next: the median, or the mean where most pairs share their time."""
    gaps = np.diff(times)
    gap = float(np.median(gaps)) or float(np.mean(gaps))
    if not gap > 0:
        raise ValueError(f"the time {name!r} does not advance in the burn-in: its first {len(times)} rows are equal")
    return gap


def _too_few(empty: Sequence[str], rows: int, dropped: int, burn_in: int) -> str:
    if empty:
        return f"{_listed('column', empty)} {'have' if len(empty) > 1 else 'has'} no values"
    gone = f" ({dropped} of {rows + dropped} miss the target, a feature or a lag)" if dropped else ""
    return f"too few rows: {rows} complete{gone}, and a burn-in of {burn_in} needs at least {burn_in + 1}"


def _columns(frame: pd.DataFrame) -> list[str]:
    # A separator at the end of every line makes a nameless column without a value: nobody meant it.
    names = [str(name) for name in frame.columns]
    return [name for name in names if not (name.startswith("Unnamed: ") and frame[name].isna().all())]


def check_columns(frame: pd.DataFrame, scheme: Scheme) -> None:
    """Refuse a frame that lacks a column which the scheme reads."""
    if not set(scheme.columns) <= set(frame.columns):
        _present(_columns(frame), scheme.columns)


def _present(columns: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in columns]
    if not missing:
        return
    message = f"no {_listed('column', missing)}; the columns are {_names(columns)}"
    if len(columns) == 1 and any(mark in columns[0] for mark in "|: \t"):
        message = f"no {_listed('column', missing)}: the file has one column, {columns[0]!r}"
        message += "; separate columns with commas, semicolons or tabs"
    elif all(_reads_as_number(name) for name in columns):
        message += "; the first line must name the columns"
    raise ValueError(message)


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _once(what: str, values: Sequence[object]) -> None:
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise ValueError(f"{what} {twice[0]!r} is named twice")


def _listed(what: str, names: Sequence[str]) -> str:
    return f"{what}{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))}"


def _names(columns: Iterable[object]) -> str:
    return ", ".join(str(name) for name in columns)
