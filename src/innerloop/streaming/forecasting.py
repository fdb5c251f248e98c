"""One memory on one stream, file after file: what ``innerloop forecast`` runs, saves and continues.

    file 1, then file 2   =   the two as one file

because a saved model holds all that the next row depends on: the estimator, the scale of the features, the last targets
(which are the next lags), the features whose targets are still to come (horizon above 1), and the time of the last row.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from innerloop.core.files import write_atomic
from innerloop.streaming.checkpoint import Bundle, pack, unpack
from innerloop.streaming.lanes import learn, learn_with_std, loaded, saved
from innerloop.streaming.pieces import Clock
from innerloop.streaming.scores import Baselines
from innerloop.streaming.survey import check_columns
from innerloop.streaming.table import Pairs, Reader, Scheme, Stream

if TYPE_CHECKING:
    from innerloop.streaming.regressors import StreamingRegressor

FORM = "innerloop forecast 1"
UNCERTAIN = ("rls", "kalman")  # memories that know how sure they are


@dataclass(eq=False)
class Forecaster:
    """An estimator that reads tables; ``rows`` counts those it has read, in all files."""

    scheme: Scheme
    burn_in: int
    model: StreamingRegressor
    reader: Reader
    pairs: Pairs
    baselines: Baselines
    rows: int = 0

    @staticmethod
    def start(stream: Stream, memory: str, options: Mapping[str, Any]) -> Forecaster:
        """A fresh estimator for a table that was looked through; options are keywords of ``StreamingRegressor``."""
        from innerloop.streaming.regressors import StreamingRegressor

        scheme = stream.scheme
        return Forecaster(
            scheme=scheme,
            burn_in=stream.burn_in,
            model=StreamingRegressor(memory, **options),
            reader=Reader(scheme),
            pairs=Pairs.of(scheme),
            baselines=Baselines(len(scheme.targets)),
        )

    @property
    def lessons(self) -> int:
        """Pairs learned so far."""
        return self.baselines.count

    @property
    def uncertain(self) -> bool:
        """Whether forecasts come with a standard deviation."""
        return self.model.memory in UNCERTAIN

    def advance(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Forecast and learn the next rows; one line of forecasts per row, see `Forecasts`."""
        check_columns(frame, self.scheme)
        F, Y, time = self.reader.read(frame)
        events = self.pairs.events(self.scheme.standardise(F), Y, time, every=True)
        last = self.baselines.advance(Y, events.learned)[0]
        mean, std = np.full(Y.shape, np.nan), np.full(Y.shape, np.nan)
        made = np.zeros(len(Y), dtype=bool)
        if len(events.y):
            asked = events.asked >= 0
            answers = learn_with_std(self.model, events) if self.uncertain else (learn(self.model, events), std)
            made[events.asked[asked]] = True
            mean[events.asked[asked]] = answers[0][asked]
            if self.uncertain:
                std[events.asked[asked]] = answers[1][asked]
        columns: dict[str, Any] = {"row": np.arange(self.rows + 1, self.rows + len(frame) + 1)}
        if self.scheme.time:
            columns["time"] = _words(frame[self.scheme.time])
        columns["made"] = made
        for v in range(Y.shape[1]):
            columns |= {f"target{v}": Y[:, v], f"prediction{v}": mean[:, v], f"last{v}": last[:, v]}
            columns |= {f"std{v}": std[:, v]} if self.uncertain else {}
        self.rows += len(frame)
        return pd.DataFrame(columns)

    # ------------------------------------------------------------------------------------------ files

    def to_bundle(self) -> Bundle:
        """Everything, as named arrays, bytes and JSON."""
        arrays = {
            "past": self.reader.past,
            "waiting": self.pairs.waiting,
            "clock": np.array([self.reader.clock.last, math.nan if self.pairs.last is None else self.pairs.last]),
            "last": self.baselines.last,
            "total": self.baselines.total,
        }
        meta = {
            "scheme": asdict(self.scheme),
            "burn_in": self.burn_in,
            "rows": self.rows,
            "lessons": self.baselines.count,
            "time_kind": self.reader.clock.kind,
        }
        return Bundle(arrays, {"model": [saved(self.model.save)]}, meta)

    @staticmethod
    def from_bundle(bundle: Bundle) -> Forecaster:
        """What `to_bundle` made."""
        from innerloop.streaming.regressors import StreamingRegressor

        arrays, meta = bundle.arrays, bundle.meta
        fields = {key: tuple(value) if isinstance(value, list) else value for key, value in meta["scheme"].items()}
        scheme = Scheme(**fields)
        baselines = Baselines(len(scheme.targets))
        baselines.last, baselines.total, baselines.count = arrays["last"], arrays["total"], meta["lessons"]
        latest, taught = arrays["clock"].tolist()
        return Forecaster(
            scheme=scheme,
            burn_in=meta["burn_in"],
            model=loaded(StreamingRegressor.load, bundle.parts["model"][0]),
            reader=Reader(scheme, past=arrays["past"], clock=Clock(meta["time_kind"], latest)),
            pairs=Pairs(scheme.horizon, scheme.gap, arrays["waiting"], None if math.isnan(taught) else taught),
            baselines=baselines,
            rows=meta["rows"],
        )

    def save(self, path: str | Path) -> None:
        """Write everything to one safetensors file, atomically; columns, lags and scale are JSON in its metadata."""
        write_atomic(path, pack(FORM, *self.to_bundle()))

    @staticmethod
    def load(path: str | Path) -> Forecaster:
        """What `save` wrote. ``ValueError`` for any other file."""
        bundle = unpack(FORM, path)
        try:
            return Forecaster.from_bundle(bundle)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"{path} is a damaged forecast model: {error}") from None


def _words(times: pd.Series) -> np.ndarray:
    """Times as a file has them; a date of a Parquet file always with its hour, whatever the piece holds."""
    if pd.api.types.is_datetime64_any_dtype(times):
        times = times.map(lambda time: time.isoformat(sep=" "), na_action="ignore")
    return times.astype(object).map(str, na_action="ignore").fillna("").to_numpy(dtype=object)


class Forecasts:
    """Lines of forecasts on their way to a CSV file: a line waits until its target is known, or the file ends.

    A line is a row of the table: ``row`` (counted over all files), ``time``, ``target``, ``prediction`` and ``std``.
    With a horizon above 1 it says in ``forecast_row`` which row the target and the prediction belong to.  Several
    targets have columns of their own, ``target_A``, ``prediction_A``, ``std_A``.  The first ``burn_in`` lines whose
    target is known are not scored.
    """

    def __init__(self, path: str | Path | None, scheme: Scheme, burn_in: int) -> None:
        self.path = None if path is None else Path(path)
        self.partial = None if path is None else Path(path).with_name(f"{Path(path).name}.partial")
        self.scheme = scheme
        self.waiting: pd.DataFrame | None = None
        self.size = 0  # bytes written so far
        self.burn_in, self.known = burn_in, 0
        self.rows = self.forecast = 0  # lines so far, and those with a prediction
        self.diverged = 0  # the first row whose prediction is no finite number
        self.sums = np.zeros((2, 2, len(scheme.targets)))  # of |e| and e^2, of the model and of the last value

    def add(self, lines: pd.DataFrame) -> None:
        """Take in the next lines, and write those whose target is known by now."""
        self.rows += len(lines)
        self.forecast += int(lines["made"].sum())
        wild = lines["made"] & ~np.isfinite(lines.filter(regex="^prediction")).all(axis=1)
        if wild.any() and not self.diverged:
            self.diverged = int(lines["row"][wild].iloc[0])
        lines = lines if self.waiting is None else pd.concat([self.waiting, lines], ignore_index=True)
        ready = len(lines) - (self.scheme.horizon - 1)
        self._write(self._answered(lines), max(0, ready))
        self.waiting = lines.iloc[max(0, ready) :]

    def close(self) -> None:
        """Write the lines whose target is still unknown, and put the file in its place."""
        if self.waiting is not None:
            self._write(self._answered(self.waiting), len(self.waiting))
        if self.path is not None and self.partial is not None:
            os.replace(self.partial, self.path)

    def discard(self) -> None:
        """Leave nothing behind."""
        if self.partial is not None:
            self.partial.unlink(missing_ok=True)

    def _resume(self, size: int) -> None:
        """Go on after that many bytes; whatever came after them is written again."""
        if self.partial is not None:
            if not self.partial.exists() or self.partial.stat().st_size < size:
                raise ValueError(f"the checkpoint needs {self.partial}, which is gone; remove the checkpoint")
            os.truncate(self.partial, size)
        self.size = size

    def _answered(self, lines: pd.DataFrame) -> pd.DataFrame:
        """The lines with the targets of the rows that they forecast."""
        late = self.scheme.horizon - 1
        return lines.assign(**{f"target{v}": lines[f"target{v}"].shift(-late) for v in range(len(self.scheme.targets))})

    def _write(self, lines: pd.DataFrame, count: int) -> None:
        lines = lines.iloc[:count]
        self._score(lines)
        if self.partial is None:
            return
        several = len(self.scheme.targets) > 1
        columns = {"row": lines["row"]}
        if "time" in lines:
            columns["time"] = lines["time"]
        if self.scheme.horizon > 1:
            columns["forecast_row"] = lines["row"] + self.scheme.horizon - 1
        for v, target in enumerate(self.scheme.targets):
            suffix = f"_{target}" if several else ""
            parts = ("target", "prediction", "std")
            columns |= {f"{part}{suffix}": lines[f"{part}{v}"] for part in parts if f"{part}{v}" in lines}
        with self.partial.open("ab" if self.size else "wb") as file:
            file.write(pd.DataFrame(columns).to_csv(index=False, header=not self.size, lineterminator="\n").encode())
            self.size = file.tell()

    def _score(self, lines: pd.DataFrame) -> None:
        V = range(len(self.scheme.targets))
        y, p, last = (lines[[f"{part}{v}" for v in V]].to_numpy() for part in ("target", "prediction", "last"))
        known = np.flatnonzero(np.isfinite(y).all(1) & lines["made"].to_numpy(dtype=bool))
        known, self.known = known[max(0, self.burn_in - self.known) :], self.known + len(known)
        with np.errstate(over="ignore", invalid="ignore"):
            errors = np.stack([p[known], last[known]]) - y[known]
            self.sums += np.stack([np.abs(errors).sum(1), (errors * errors).sum(1)])

    @property
    def scored(self) -> int:
        """Lines that the scores are over."""
        return max(0, self.known - self.burn_in)

    def scores(self) -> list[dict[str, Any]]:
        """mae, rmse, the last value's rmse and the skill of each target; None where a number is not defined."""
        mae, rmse = self.sums[0] / max(1, self.scored), np.sqrt(self.sums[1] / max(1, self.scored))
        found = []
        for v, target in enumerate(self.scheme.targets):
            skill = 1.0 - rmse[0, v] / rmse[1, v] if rmse[1, v] > 0 else math.nan
            numbers = {"mae": mae[0, v], "rmse": rmse[0, v], "last_value_rmse": rmse[1, v], "skill": skill}
            defined = {key: float(x) if self.scored and math.isfinite(x) else None for key, x in numbers.items()}
            found.append({"target": target, **defined})
        return found

    _COUNTS = ("size", "known", "rows", "forecast", "diverged")

    def to_bundle(self) -> Bundle:
        """Where the writing stands, for a checkpoint."""
        meta: dict[str, Any] = {name: getattr(self, name) for name in self._COUNTS}
        arrays = {"sums": self.sums}
        if self.waiting is not None:
            meta["columns"] = list(self.waiting.columns)
            meta["time"] = self.waiting["time"].tolist() if "time" in self.waiting else None
            arrays["waiting"] = self.waiting.drop(columns="time", errors="ignore").to_numpy(dtype=np.float64)
        return Bundle(arrays, {}, meta)

    def restore(self, bundle: Bundle) -> None:
        """Stand where `to_bundle` was called."""
        meta = bundle.meta
        self.sums = bundle.arrays["sums"]
        for name in self._COUNTS:
            setattr(self, name, meta[name])
        if "columns" in meta:
            numbers = [name for name in meta["columns"] if name != "time"]
            lines = pd.DataFrame(bundle.arrays["waiting"], columns=numbers).astype({"row": np.int64})
            self.waiting = (lines if meta["time"] is None else lines.assign(time=meta["time"]))[meta["columns"]]
        self._resume(meta["size"])
