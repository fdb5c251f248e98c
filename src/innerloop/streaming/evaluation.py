"""Test, then train: the error of a regressor on a stream, each row predicted before its label is learned.

    prediction_t = m(x_t),   m has learned rows 0 .. t-1-delay           error_t = prediction_t - y_t
    mae   = mean |error_t|                over the rows from burn_in on
    rmse  = sqrt(mean error_t^2)
    skill = 1 - rmse / rmse(last value)   above 0: better than repeating the last label that has arrived

Source: A. P. Dawid, "Present position and potential developments: some personal views: statistical theory: the
prequential approach", J. R. Stat. Soc. A 147 (1984); for streams, J. Gama, R. Sebastiao and P. P. Rodrigues, "On
evaluating stream learning algorithms", Machine Learning 90 (2013), whose sliding window is `Forecast.rolling`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array

from .regressors import StreamingRegressor

BLOCK = (
    8192  # rows handed over at once where a model takes many: the steps of the progress bar, no number depends on it
)

PerRow = dict[str, np.ndarray]  # what `partial_fit` gets beside X and y: sample_weight [n], elapsed [n]


class Rolling(NamedTuple):
    """Errors over the last rows at every row: mae and rmse, each shaped as y."""

    mae: np.ndarray
    rmse: np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class Forecast:
    """Predictions of one forecaster and the truth, row by row.

    Attributes:
        predictions, y: [n] or [n, V].
        burn_in: the first rows, which mae and rmse leave out.
    """

    predictions: np.ndarray
    y: np.ndarray
    burn_in: int

    @property
    def errors(self) -> np.ndarray:
        """prediction - y of every row, shaped as y."""
        return self.predictions - self.y

    @property
    def mae(self) -> float | np.ndarray:
        """Mean absolute error of the rows from burn_in on: a float, or [V] for several outputs."""
        return _one_or_many(np.abs(self.errors[self.burn_in :]).mean(0))

    @property
    def rmse(self) -> float | np.ndarray:
        """Root of the mean squared error of the rows from burn_in on: a float, or [V] for several outputs."""
        with np.errstate(over="ignore"):  # a forecaster that diverged has an infinite error
            return _one_or_many(np.sqrt((self.errors[self.burn_in :] ** 2).mean(0)))

    def rolling(self, window: int) -> Rolling:
        """Errors over the last `window` rows at every row (over all rows so far at the first ones), burn-in included.

        An error leaves no trace once it has left the window, however large it was: sums are never subtracted.

        Raises:
            ValueError: window is no int >= 1.
        """
        n = len(self.y)
        window = min(_int("window", window, 1), n)
        rows = np.minimum(np.arange(1, n + 1), window).reshape(n, *[1] * (self.y.ndim - 1))
        errors = np.abs(self.errors)
        with np.errstate(over="ignore"):
            mean, square = (_rolling_sum(values, window) / rows for values in (errors, errors**2))
        return Rolling(mean, np.sqrt(square))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Prequential(Forecast):
    """What `prequential` returns: the forecasts of the model beside those of two baselines; `print` shows a table.

    Attributes:
        predictions, y: [n] or [n, V], every row, burn-in included.
        burn_in: the first rows, which mae, rmse and skill leave out.
        delay: how many rows late the labels came.
        model: the fitted clone, which in the end has learned all rows.
        last_value: a `Forecast`: the last label that has arrived, 0 before the first.
        running_mean: a `Forecast`: the mean of the labels that have arrived, 0 before the first.
    """

    delay: int
    model: Any
    last_value: Forecast
    running_mean: Forecast

    @property
    def skill(self) -> float | np.ndarray:
        """1 - rmse / rmse of the last value: a float, or [V]; NaN where the last value is always right."""
        return _one_or_many(self._skill(self))

    def _skill(self, forecast: Forecast) -> np.ndarray:
        reference = np.asarray(self.last_value.rmse)
        with np.errstate(invalid="ignore"):
            return 1 - np.asarray(forecast.rmse) / np.where(reference > 0, reference, np.nan)

    def __str__(self) -> str:
        late = f", labels {self.delay:,} row{'s' * (self.delay != 1)} late" if self.delay else ""
        named = {_name(self.model): self, "last value": self.last_value, "running mean": self.running_mean}
        width = max(map(len, named))
        lines = [f"{len(self.y):,} rows, each predicted before it is learned; scored from row {self.burn_in} on{late}"]
        for output in range(1 if self.y.ndim == 1 else self.y.shape[1]):
            title = "" if self.y.ndim == 1 else f"output {output}"
            lines.append(f"{title:<{width}}  {'MAE':>10}  {'RMSE':>10}  {'skill':>10}")
            for name, forecast in named.items():
                scores = (np.atleast_1d(x)[output] for x in (forecast.mae, forecast.rmse, self._skill(forecast)))
                lines.append(f"{name:<{width}}  " + "  ".join(f"{score:>#10.4g}" for score in scores))
        return "\n".join(lines)

    __repr__ = __str__


def prequential(
    model: Any,
    X: Any,
    y: Any,
    *,
    burn_in: int = 0,
    delay: int = 0,
    progress: bool = False,
    elapsed: Any = None,
    sample_weight: Any = None,
) -> Prequential:
    """Run a regressor over a table in its order: predict each row, then learn it.

    Works on a clone; the given model is untouched. A model with `predict_then_update` (`StreamingRegressor`) reads the
    table at chunk speed; any other with `partial_fit` goes row by row, and so does every model whose labels are late.
    In a scikit-learn `Pipeline` every step learns the row before the next one sees it, so each needs `partial_fit`,
    but for steps wrapped in `FrozenEstimator`, which stay as they are.

    Args:
        model: a scikit-learn regressor with `partial_fit`.
        X: [n, d], an array or a data frame.
        y: [n], or [n, V] for several outputs.
        burn_in: the first rows: predicted and learned, but not scored.
        delay: labels arrive so many rows late: row t is predicted by a model (and by baselines) that has learned rows
            0 .. t-1-delay. The last ones are learned after the last prediction. (A label that comes in together with
            the next row's features has delay 0; river's `progressive_val_score` calls that a delay of 1.)
        progress: show a bar on stderr.
        elapsed: [n], the time that passed before each row, for a model whose `partial_fit` takes it.
        sample_weight: [n], likewise; scores and baselines weigh all rows alike.

    Returns:
        `Prequential`; predictions are 0 before the first label has been learned.

    Raises:
        TypeError: a model (or a step of a Pipeline) without `partial_fit`, or whose `partial_fit` does not take what
            was given.
        ValueError: a NaN or an infinity, named by row and column; lengths that differ; burn_in or delay that are no
            ints >= 0; a burn-in that leaves no row to score.

    >>> from sklearn.linear_model import SGDRegressor
    >>> X = np.linspace(-1, 1, 200)[:, None]
    >>> result = prequential(SGDRegressor(eta0=0.5, learning_rate="constant", alpha=0.0), X, 2 * X[:, 0], burn_in=100)
    >>> bool(result.rmse < result.running_mean.rmse)
    True
    """
    burn_in, delay = _int("burn_in", burn_in, 0), _int("delay", delay, 0)
    numbers, truth = _tables(X, y)
    n = len(truth)
    if burn_in >= n:
        raise ValueError(f"burn_in={burn_in}: it leaves no row to score of {n}: pass at most {n - 1}")
    given = {"elapsed": elapsed, "sample_weight": sample_weight}
    per_row = {name: _per_row(name, values, n) for name, values in given.items() if values is not None}
    _check_model(model, per_row)

    model = clone(model)
    rows = X if hasattr(X, "columns") else numbers  # a data frame keeps its names
    with _bar(progress, n) as advance:
        if isinstance(model, StreamingRegressor) or (delay == 0 and hasattr(model, "predict_then_update")):
            predictions = _by_blocks(model, rows, truth, delay, per_row, advance)
        else:
            predictions = _row_by_row(model, rows, truth, delay, per_row, advance)
    last_value, running_mean = (Forecast(known, truth, burn_in) for known in _baselines(truth, delay))
    return Prequential(
        predictions, truth, burn_in, delay=delay, model=model, last_value=last_value, running_mean=running_mean
    )


def _by_blocks(
    model: Any, X: Any, y: np.ndarray, delay: int, per_row: PerRow, advance: Callable[[int], None]
) -> np.ndarray:
    predictions = np.zeros_like(y)
    n = len(y)
    for first in range(0, n, BLOCK):
        block = slice(first, first + BLOCK)
        given: dict[str, Any] = {name: values[block] for name, values in per_row.items()}
        if not delay:
            predictions[block] = model.predict_then_update(_rows(X, block), y[block], **given)
        else:  # the row `delay` further on is predicted by what had been learned before the row in its place
            last = min(first + BLOCK, n)
            places = np.minimum(np.arange(first, last) + delay, n - 1)
            ahead = model.predict_then_update(_rows(X, block), y[block], query=_rows(X, places), late=delay, **given)
            kept = max(0, min(last, n - delay) - first)
            predictions[first + delay : first + delay + kept] = ahead[:kept]
        advance(len(y[block]))
    return predictions


def _row_by_row(
    model: Any, X: Any, y: np.ndarray, delay: int, per_row: PerRow, advance: Callable[[int], None]
) -> np.ndarray:
    n = len(y)

    def learn(t: int) -> None:
        row = slice(t, t + 1)
        _learn(model, _rows(X, row), y[row], {name: values[row] for name, values in per_row.items()})

    predictions = np.zeros_like(y)
    for t in range(n):
        arrived = t - 1 - delay  # the label that comes in just before row t is predicted
        if arrived >= 0:
            learn(arrived)
            predictions[t] = _predict(model, _rows(X, slice(t, t + 1)), y.shape[1:])
        advance(1)
    for t in range(max(0, n - 1 - delay), n):
        learn(t)
    return predictions


def _learn(model: Any, X: Any, y: np.ndarray, given: PerRow) -> None:
    if isinstance(model, Pipeline):  # which has no partial_fit of its own
        for _, step in model.steps[:-1]:
            if _is_passed(step):
                continue
            if not isinstance(step, FrozenEstimator):
                step.partial_fit(X, y)
            X = step.transform(X)
        model = model.steps[-1][1]
    model.partial_fit(X, y, **given)


def _predict(model: Any, X: Any, shape: tuple[int, ...]) -> np.ndarray:
    try:
        return np.reshape(model.predict(X), shape)
    except NotFittedError:  # every label so far had no weight
        return np.zeros(shape)


def _baselines(y: np.ndarray, delay: int) -> tuple[np.ndarray, np.ndarray]:
    """The last label and the mean of the labels that have arrived before each row; 0 before the first."""
    last, mean = np.zeros_like(y), np.zeros_like(y)
    arrived = y[: max(0, len(y) - 1 - delay)]
    if len(arrived):
        count = np.arange(1, len(arrived) + 1).reshape(-1, *[1] * (y.ndim - 1))
        last[1 + delay :] = arrived
        mean[1 + delay :] = y[0] + np.cumsum(arrived - y[0], 0) / count  # about y_0: a far level costs no digits
    return last, mean


def _rolling_sum(values: np.ndarray, window: int) -> np.ndarray:
    """Sums of rows t-window+1 .. t, shaped as values [n, ...], by additions only.

    The rows are cut into blocks of `window`. A window is the end of one block and the start of the next, so cumulative
    sums from both ends of every block give all of them (van Herk's scheme for running maxima, with a sum).
    """
    n = len(values)
    blocks = -(-n // window)
    cut = np.zeros((blocks * window, *values.shape[1:]))
    cut[:n] = values
    cut = cut.reshape(blocks, window, *values.shape[1:])
    starts = np.cumsum(cut, 1).reshape(-1, *values.shape[1:])  # row t: from its block's first row to t
    ends = np.cumsum(cut[:, ::-1], 1)[:, ::-1].reshape(-1, *values.shape[1:])  # row t: from t to its block's last row
    t = np.arange(window, n)
    t = t[(t + 1) % window != 0]  # the window of a block's last row is the block
    starts[t] += ends[t - window + 1]
    return starts[:n]


@contextmanager
def _bar(shown: bool, rows: int) -> Generator[Callable[[int], None]]:
    if not shown:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("rows", total=rows)
        yield lambda done: bar.advance(task, done)


# ---------------------------------------------------------------------------------------------- border


def _tables(X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """X and y as finite numbers; a ValueError names the first that is none."""
    options: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": False}
    numbers = check_array(X, input_name="X", **options)
    if np.ndim(y) not in (1, 2):
        raise ValueError(f"y: shape {list(np.shape(y))}: pass [n], or [n, outputs]")
    truth = check_array(y, input_name="y", ensure_2d=False, copy=True, **options)  # kept: no later edit may reach it
    if len(numbers) != len(truth):
        raise ValueError(f"X and y: {len(numbers)} and {len(truth)} rows: pass as many labels as rows")
    _check_finite("X", numbers, list(getattr(X, "columns", range(numbers.shape[1]))))
    _check_finite("y", truth, list(getattr(y, "columns", range(truth.shape[-1]))))
    return numbers, truth


def _check_finite(name: str, values: np.ndarray, columns: list[Any]) -> None:
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, *column = bad[0]
        where = f"row {row}" + (f", column {columns[column[0]]!r}" if column else "")
        raise ValueError(f"{name}: {values[tuple(bad[0])]} in {where} (counted from 0): pass finite numbers")


def _per_row(name: str, values: Any, rows: int) -> np.ndarray:
    numbers = np.array(values, dtype=np.float64)
    if numbers.shape != (rows,):
        raise ValueError(f"{name}: shape {list(numbers.shape)}: wanted [{rows}], a number for every row")
    _check_finite(name, numbers, [])
    return numbers


def _int(name: str, value: Any, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
        raise ValueError(f"{name}={value!r}: pass an int >= {low}")
    return int(value)


def _check_model(model: Any, per_row: PerRow) -> None:
    *transformers, last = [step for _, step in model.steps] if isinstance(model, Pipeline) else [model]
    for step in transformers:
        if not (_is_passed(step) or isinstance(step, FrozenEstimator) or hasattr(step, "partial_fit")):
            cure = "fit it beforehand and wrap it in sklearn.frozen.FrozenEstimator"
            raise TypeError(f"model: the step {_name(step)} has no partial_fit: {cure}")
    if not hasattr(last, "partial_fit"):
        raise TypeError(f"model: {_name(last)} has no partial_fit: pass a regressor that can learn row by row")
    accepted = inspect.signature(last.partial_fit).parameters
    for name in per_row:
        if name not in accepted and not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
            raise TypeError(f"{name}: {_name(last)}.partial_fit does not take it; leave it out")


def _is_passed(step: Any) -> bool:
    return step is None or step == "passthrough"


def _name(model: Any) -> str:
    if isinstance(model, Pipeline):
        return " | ".join(_name(step) for _, step in model.steps if not _is_passed(step))
    return type(model).__name__


def _rows(X: Any, rows: slice | np.ndarray) -> Any:
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


def _one_or_many(values: Any) -> float | np.ndarray:
    return float(values) if np.ndim(values) == 0 else values
