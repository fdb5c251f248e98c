"""Tables in: what `StreamingRegressor` accepts, checked before anything changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array, check_consistent_length, validate_data


@dataclass(frozen=True)
class Table:
    """X [n, d], y [n, V] in float64 without NaN (0 in bad rows); weight [n], elapsed [n] or None (all 1).

    flat: y came as [n]. bad: rows that hold no numbers. known: rows whose X does.
    """

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray | None
    elapsed: np.ndarray | None
    flat: bool
    bad: np.ndarray | None = None
    known: np.ndarray | None = None


def features(model: Any, X: Any, *, reset: bool, skip: bool = False) -> tuple[np.ndarray, np.ndarray | None]:
    """X as float64 [n, d], 0 where it is bad, and which rows are whole (None: all). Raises as scikit-learn does."""
    width = getattr(model, "n_features_in_", None)
    plain = type(X) is np.ndarray and X.dtype == np.float64 and X.ndim == 2 and X.shape[0] > 0
    if reset or not (plain and X.shape[1] == width and not hasattr(model, "feature_names_in_")):
        # a row at a time, this check alone would cost more than learning the row
        X = validate_data(model, X, reset=reset, dtype=np.float64, ensure_all_finite=False)
    return finite("X", X, getattr(model, "feature_names_in_", None), skip=skip)


def finite(name: str, x: np.ndarray, names: Any, *, skip: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """x itself where it is finite; else a ValueError that names row and column, or the rows that are whole."""
    if np.isfinite(np.dot(x.ravel(), np.zeros(x.size))):  # 0 times anything finite, in one pass
        return x, None
    good = np.isfinite(x)
    if good.all():  # pragma: no cover  (a sum of zeros is finite then)
        return x, None
    if not skip:
        row, column = (int(i) for i in np.argwhere(~good)[0])
        what = "NaN" if np.isnan(x[row, column]) else "infinity"
        where = f", column {names[column]!r}" if names is not None else f", column {column}" if x.shape[1] > 1 else ""
        raise ValueError(
            f"Input {name} contains {what}: row {row}{where}; pass finite numbers, or on_bad='skip' to leave such rows "
            "out"
        )
    return np.where(good, x, 0.0), good.all(1)


def table(
    model: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    elapsed: Any,
    *,
    reset: bool,
    skip: bool,
    shape: tuple[bool, int] | None,
) -> Table:
    """Everything of a call that learns. `shape`: whether y was flat in the first call, and its outputs."""
    if y is None:
        raise ValueError(f"This {type(model).__name__} estimator requires y to be passed, but the target y is None.")
    x, known = features(model, X, reset=reset, skip=skip)
    if not (type(y) is np.ndarray and y.dtype == np.float64 and y.ndim in (1, 2)):
        y = check_array(y, ensure_2d=False, dtype=None, ensure_all_finite=False, input_name="y", ensure_min_samples=0)
        y = np.asarray(y, dtype=np.float64)
    if y.ndim not in (1, 2) or (y.ndim == 2 and not y.shape[1]):
        raise ValueError(f"y: shape {list(y.shape)}: pass [n] or [n, outputs]")
    check_consistent_length(x, y)
    flat = y.ndim == 1
    columns = y[:, None] if flat else y
    if shape is not None and (flat, columns.shape[1]) != shape:
        wanted = "[n]" if shape[0] else f"[n, {shape[1]}]"
        raise ValueError(f"y: shape {list(y.shape)}: wanted {wanted}, as in the first call")
    columns, labelled = finite("y", columns, None, skip=skip)
    weight = None
    if sample_weight is not None:
        weight = _weights(sample_weight, len(x))
    time = None if elapsed is None else _elapsed(elapsed, len(x))
    bad = None
    for whole in (known, labelled):
        if whole is not None:
            bad = ~whole if bad is None else bad | ~whole
    if bad is not None:
        weight = np.where(bad, 0.0, np.ones(len(x)) if weight is None else weight)
    return Table(x, columns, weight, time, flat, bad, known)


def _weights(sample_weight: Any, rows: int) -> np.ndarray:
    weight = np.array(sample_weight, dtype=np.float64)  # a copy: what pandas hands out is read-only
    if weight.ndim == 0:
        weight = np.full(rows, float(weight))
    if weight.shape != (rows,):
        raise ValueError(f"sample_weight: shape {list(weight.shape)}: wanted [{rows}], one for each row, or a number")
    wrong = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0)))
    if len(wrong):
        raise ValueError(f"sample_weight: {weight[wrong[0]]:g} at row {wrong[0]}: pass finite weights >= 0")
    return weight


def _elapsed(elapsed: Any, rows: int) -> np.ndarray:
    time = np.array(elapsed, dtype=np.float64)
    if time.ndim == 0:
        time = np.full(rows, float(time))
    if time.shape != (rows,):
        raise ValueError(f"elapsed: shape {list(time.shape)}: wanted [{rows}], the time before each row, or a number")
    wrong = np.flatnonzero(~(np.isfinite(time) & (time >= 0)))
    if len(wrong):
        raise ValueError(f"elapsed: {time[wrong[0]]:g} at row {wrong[0]}: pass finite times >= 0")
    return time
