"""Forecasters that run side by side over the events of a stream, and can stop and go on.

A lane is a value: `advance` returns the forecasts and the lane after them, so a piece that was interrupted leaves no
trace.  `Settings` runs every setting of one memory as heads of few scans; `Automatic` runs the estimator that mixes a
bank of settings by itself.
"""

from __future__ import annotations

import copy
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from innerloop.core.state import State
from innerloop.streaming.bank import Bank, Setting, groups_of
from innerloop.streaming.table import Events

if TYPE_CHECKING:
    from innerloop.streaming.regressors import StreamingRegressor

Options = dict[str, Any]
WARM_UP = 64  # events that are run once and forgotten before the clock starts: first calls load code


class Lane(Protocol):
    """One or more forecasters of the same memory."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> tuple[Options, ...]: ...

    @property
    def seconds(self) -> float:
        """What its scans took so far, all forecasters together."""
        ...

    def advance(self, events: Events) -> tuple[np.ndarray, Lane]:
        """Forecasts [S, m, V], each made before its event's lesson, and the lane after the last event."""
        ...

    @property
    def state_floats(self) -> int:
        """Floats in the state of one forecaster."""
        ...

    def coefficients(self) -> np.ndarray:
        """What each forecaster multiplies the features by, [S, V, d]; only of linear memories."""
        ...

    def to_bytes(self) -> list[bytes]:
        """Where the lane stands."""
        ...

    def from_bytes(self, parts: Sequence[bytes], seconds: float) -> Lane:
        """This lane, standing where ``to_bytes`` was called."""
        ...


class After(NamedTuple):
    """Where a bank stands: its state and what its columns are counted from; None before the first lesson."""

    state: State | None
    center: np.ndarray | None


@dataclass(frozen=True)
class Settings:
    """``StreamingRegressor(name, **options)`` for each of S options."""

    name: str
    options: tuple[Options, ...]
    groups: tuple[tuple[int, ...], ...]
    banks: tuple[Bank, ...]
    after: tuple[After, ...]
    seconds: float = 0.0

    @staticmethod
    def of(name: str, options: Sequence[Options], features: int, targets: int) -> Settings:
        made = [Setting(**each) for each in options]
        groups = tuple(tuple(group) for group in groups_of(made))
        banks = tuple(Bank.of(name, [made[i] for i in group], features, targets) for group in groups)
        return Settings(name, tuple(options), groups, banks, (After(None, None),) * len(banks))

    def advance(self, events: Events) -> tuple[np.ndarray, Settings]:
        if not self.seconds:
            self._run(events.cut(0, WARM_UP))
        began = time.perf_counter()
        predictions, after = self._run(events)
        return predictions, replace(self, after=after, seconds=self.seconds + time.perf_counter() - began)

    def _run(self, events: Events) -> tuple[np.ndarray, tuple[After, ...]]:
        predictions = np.empty((len(self.options), *events.y.shape))
        weight = None if events.weight.all() else events.weight
        after: list[After] = []
        for group, bank, (state, center) in zip(self.groups, self.banks, self.after, strict=True):
            # The queries are named even where they are the keys: then no variance is computed, which nobody reads.
            out = bank.run(events.keys, events.y, state, center, query=events.X, weight=weight, elapsed=events.elapsed)
            predictions[list(group)] = out.predictions.transpose(1, 0, 2)
            after.append(After(out.state, out.center))
        return predictions, tuple(after)

    @property
    def state_floats(self) -> int:
        pairs = zip(self.after, self.groups, strict=True)
        return max((_floats(after.state) // len(group) for after, group in pairs if after.state), default=0)

    def coefficients(self) -> np.ndarray:
        found = np.empty((len(self.options), self.banks[0].outputs, self.banks[0].features))
        for group, bank, (state, center) in zip(self.groups, self.banks, self.after, strict=True):
            if state is not None:
                found[list(group)] = bank.linear(state, center)[0].transpose(0, 2, 1)
        return found

    def to_bytes(self) -> list[bytes]:
        parts: list[bytes] = []
        for state, center in self.after:
            parts.append(b"" if state is None else saved(state.save))
            parts.append(b"" if center is None else center.tobytes())
        return parts

    def from_bytes(self, parts: Sequence[bytes], seconds: float) -> Settings:
        after = tuple(
            After(loaded(State.load, state) if state else None, np.frombuffer(center) if center else None)
            for state, center in zip(parts[::2], parts[1::2], strict=True)
        )
        return replace(self, after=after, seconds=seconds)


@dataclass(frozen=True)
class Automatic:
    """``StreamingRegressor(name, forgetting="auto", ...)``: a bank of settings, mixed as the stream goes on."""

    name: str
    model: StreamingRegressor
    options: tuple[Options, ...]
    seconds: float = 0.0

    @staticmethod
    def of(name: str, options: Options) -> Automatic:
        from innerloop.streaming.regressors import StreamingRegressor  # scikit-learn is loaded only where it is needed

        return Automatic(name, StreamingRegressor(name, **options), (dict(options),))

    def advance(self, events: Events) -> tuple[np.ndarray, Automatic]:
        if not self.seconds:
            learn(copy.deepcopy(self.model), events.cut(0, WARM_UP))
        began = time.perf_counter()
        model = copy.deepcopy(self.model)
        predictions = learn(model, events)
        return predictions[None], replace(self, model=model, seconds=self.seconds + time.perf_counter() - began)

    @property
    def state_floats(self) -> int:
        return _floats(self.model.state_)

    def coefficients(self) -> np.ndarray:
        return np.reshape(self.model.coef_, (1, -1, self.model.n_features_in_))

    def to_bytes(self) -> list[bytes]:
        return [saved(self.model.save)] if hasattr(self.model, "n_features_in_") else []

    def from_bytes(self, parts: Sequence[bytes], seconds: float) -> Automatic:
        return replace(self, model=loaded(type(self.model).load, parts[0]) if parts else self.model, seconds=seconds)


def learn(model: StreamingRegressor, events: Events) -> np.ndarray:
    """Forecasts [m, V] of the events, each made before its lesson, by an estimator that learns them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of steps that diverge: the score says so
        return _learn(model, events, events.X, std=False)[0]


def learn_with_std(model: StreamingRegressor, events: Events) -> tuple[np.ndarray, np.ndarray]:
    """The same with the standard deviation of each forecast, [m, V]."""
    if events.keys is not events.X:
        # The deviation is that of a row in its place: each event becomes two, a forecast and then a lesson.
        elapsed = None if events.elapsed is None else _alternate(events.elapsed)
        both = np.stack([events.X, events.keys], 1).reshape(-1, events.X.shape[1])
        events = events._replace(
            X=both, keys=both, y=_alternate(events.y), weight=_alternate(events.weight), elapsed=elapsed
        )
        mean, std = _learn(model, events._replace(late=2 * events.late + 1), both, std=True)
        return mean[::2], std[::2]
    mean, std = _learn(model, events, events.X, std=True)
    return mean, std


def _learn(model: StreamingRegressor, events: Events, asked: np.ndarray, *, std: bool) -> list[np.ndarray]:
    if not len(asked):
        return [np.zeros(events.y.shape), np.full(events.y.shape, np.inf)]
    answers = model.predict_then_update(
        events.keys,
        events.y if events.y.shape[1] > 1 else events.y[:, 0],
        sample_weight=None if events.weight.all() else events.weight,
        elapsed=events.elapsed,
        query=None if events.keys is events.X else asked,
        late=events.late,
        return_std=std,
    )
    return [np.reshape(part, events.y.shape) for part in (answers if std else [answers])]


def _alternate(values: np.ndarray) -> np.ndarray:
    """0, v_0, 0, v_1, ..."""
    return np.stack([np.zeros_like(values), values], 1).reshape(-1, *values.shape[1:])


def _floats(state: State) -> int:
    held = [t for group in (state.memory, state.buffers) for t in group.values() if t.is_floating_point()]
    return sum(t.numel() for t in held)


def saved(save: Callable[[str], Any]) -> bytes:
    """The bytes that ``save(path)`` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "part")
        save(path)
        return Path(path).read_bytes()


def loaded(load: Callable[[str], Any], data: bytes) -> Any:
    """What ``load(path)`` reads from the bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part"
        path.write_bytes(data)
        return load(str(path))
