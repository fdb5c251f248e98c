"""`NadarayaWatsonRegressor`: the memory `nadaraya_watson` with a bandwidth per column, learned by leave-one-out.

yhat(x) = sum_j w_j K_j(x) y_j / sum_j w_j K_j(x),   K_j(x) = exp(-sum_k (x_k - x_jk)^2 / (2 h_k^2))
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Generator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, validate_data

from ..core.files import write_atomic
from .averaging import Rows, averages
from .leave_one_out import learn_bandwidth, left_out, loo_error, scott

FORMAT = "nadaraya_watson_regressor 1"


class NadarayaWatsonRegressor(RegressorMixin, BaseEstimator):
    """Gaussian kernel average of the rows learned, with one bandwidth per column.

    Equation: y(x) = sum_j w_j K_j y_j / sum_j w_j K_j,  K_j = exp(-sum_k (x_k - x_jk)^2 / (2 bandwidth_k^2))
    Source: Nadaraya 1964; Watson 1964; leave-one-out bandwidths: Haerdle and Marron 1985; Scott's rule: Scott 1992.

    Args:
        bandwidth: a positive number, an array [d], or None: Scott's rule in `fit`, `std_k n^(-1 / (d + 4))`, where n is
            the effective number of rows (sum w)^2 / sum w^2 and a constant column has std 1. It is the starting value
            with learn="loo", the value itself with learn=None.
        learn: "loo" (`fit` minimises the leave-one-out squared error over the log-bandwidths) or None.
        window: how many rows are remembered, the last ones (None: all).

    Attributes:
        bandwidth_: [d], positive.
        loo_error_: mean squared error of the rows that `fit` kept, each predicted by all others, weighted, mean over
            outputs; NaN when there is no other row, or no `fit`. `partial_fit` leaves it as it is.
        X_ [n, d], y_ [n] or [n, outputs], sample_weight_ [n]: the rows remembered.
        n_samples_seen_: rows learned so far (those of weight 0 are not); n_features_in_, feature_names_in_,
            n_outputs_: as in scikit-learn.

    Bandwidths are set once, in `fit`: `partial_fit` and `predict_then_update` keep them, so that results do not depend
    on how rows are cut into calls. Before any `fit` they take `bandwidth`, or for None the square root of d in every
    column (right for standardised columns), since no rule may look at rows to come.

    Weights count rows: weight 2 predicts as two equal rows do, and weight 0 is no row. Leave-one-out leaves a row out
    with its whole weight (two equal rows are two rows, one of which predicts the other), so that a common factor of the
    weights changes nothing.

    Leave-one-out looks at all rows while n^2 <= 2^22 (n <= 2048). Of more rows, 2^22 / n drawn with a fixed seed are
    left out in turn, each predicted by all others; of more than 2^14 rows so many, drawn likewise, stand for all.

    Far from all rows the nearest one answers, as far as float64 can tell their distances apart; nothing overflows.
    A model that has learned nothing predicts 0. A call that raises changes nothing.

    >>> import numpy as np
    >>> X = np.linspace(0, 1, 50)[:, None]
    >>> model = NadarayaWatsonRegressor().fit(X, np.sin(6 * X[:, 0]))
    >>> model.predict([[0.5], [1e9]]).round(2)
    array([ 0.14, -0.28])
    """

    n_features_in_: int
    n_outputs_: int
    feature_names_in_: np.ndarray

    def __init__(self, bandwidth: Any = None, learn: str | None = "loo", window: int | None = None) -> None:
        self.bandwidth = bandwidth
        self.learn = learn
        self.window = window

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> NadarayaWatsonRegressor:
        """Forget everything, learn the rows X [n, d], y [n] or [n, outputs], weights [n], and set the bandwidths.

        Raises:
            ValueError: a parameter out of range, wrong shapes, NaN or infinity, a negative weight, all weights zero.
        """
        with self._unchanged_on_error():
            rows, flat = self._rows(X, y, sample_weight, reset=True)
            seen = np.flatnonzero(rows.weight > 0)
            if not seen.size:
                raise ValueError("sample_weight: all weights are zero: pass at least one positive weight")
            kept = seen if self.window is None else seen[-int(self.window) :]
            rows = Rows(*(part[kept] for part in rows))
            start = scott(rows) if self.bandwidth is None else _bandwidth(self.bandwidth, rows.X.shape[1])
            subset, left = left_out(len(kept))
            part = Rows(*(whole[subset] for whole in rows))
            self.bandwidth_: np.ndarray = learn_bandwidth(part, left, start) if self.learn == "loo" else start
            self.loo_error_: float = loo_error(part, left, self.bandwidth_)
            self._remember(rows, flat)
            self.n_samples_seen_: int = len(seen)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> NadarayaWatsonRegressor:
        """Learn more rows; the bandwidths stay. Shapes and errors as in `fit`, but all weights may be zero."""
        self._learn(X, y, sample_weight, predict=False)
        return self

    def predict_then_update(self, X: Any, y: Any, sample_weight: Any = None) -> np.ndarray:
        """Learn more rows and return the predictions made before each was learned, shaped as y.

        Equal to `predict` then `partial_fit` row by row; the first prediction of a fresh model is 0.
        """
        return self._learn(X, y, sample_weight, predict=True)

    def predict(self, X: Any) -> np.ndarray:
        """Predictions [n] (or [n, outputs]) for rows X [n, d].

        Raises:
            NotFittedError: nothing was ever learned.
            ValueError: another number or other names of columns, NaN or infinity.
        """
        check_is_fitted(self, "X_")
        X = validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite=False)
        _finite("X", X, getattr(self, "feature_names_in_", None))
        rows = self._remembered()
        n = len(rows.X)
        predictions = averages(rows, self.bandwidth_, X, np.zeros(len(X), int), np.full(len(X), n))
        return predictions[:, 0] if self.y_.ndim == 1 else predictions

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one safetensors file, atomically; the parameters are JSON in its metadata."""
        check_is_fitted(self, "X_")
        arrays = {"X": self.X_, "y": self.y_, "sample_weight": self.sample_weight_, "bandwidth": self.bandwidth_}
        arrays["loo_error"] = np.array([self.loo_error_])
        names = getattr(self, "feature_names_in_", None)
        about = {"n_samples_seen_": self.n_samples_seen_, "feature_names_in_": None if names is None else list(names)}
        meta = {"innerloop": FORMAT, "parameters": json.dumps(self.get_params(), default=lambda x: x.tolist())}
        data = safetensors.numpy.save(
            {name: np.ascontiguousarray(array) for name, array in arrays.items()}, meta | {"model": json.dumps(about)}
        )
        write_atomic(path, data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> NadarayaWatsonRegressor:
        """Read what `save` wrote; an array of starting bandwidths comes back as a list. ValueError for other files."""
        try:
            with safetensors.safe_open(os.fspath(path), framework="np") as file:  # pyright: ignore
                meta: dict[str, str] = file.metadata() or {}
                arrays: dict[str, np.ndarray] = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        except safetensors.SafetensorError as error:
            raise ValueError(f"path={os.fspath(path)!r} is no safetensors file ({error})") from None
        if meta.get("innerloop") != FORMAT:
            raise ValueError(
                f"path={os.fspath(path)!r} holds no NadarayaWatsonRegressor: pass a file that its save wrote"
            )
        model, about = cls(**json.loads(meta["parameters"])), json.loads(meta["model"])
        model.X_, model.y_, model.sample_weight_ = arrays["X"], arrays["y"], arrays["sample_weight"]
        model.bandwidth_, model.loo_error_ = arrays["bandwidth"], float(arrays["loo_error"][0])
        model.n_samples_seen_, model.n_features_in_ = about["n_samples_seen_"], model.X_.shape[1]
        model.n_outputs_ = 1 if model.y_.ndim == 1 else model.y_.shape[1]
        if about["feature_names_in_"] is not None:
            model.feature_names_in_ = np.array(about["feature_names_in_"], dtype=object)
        return model

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _learn(self, X: Any, y: Any, sample_weight: Any, *, predict: bool) -> np.ndarray:
        fresh = not hasattr(self, "X_")
        with self._unchanged_on_error():
            new, flat = self._rows(X, y, sample_weight, reset=fresh)
            d, V = new.X.shape[1], new.y.shape[1]
            if fresh:
                given = math.sqrt(d) if self.bandwidth is None else self.bandwidth
                self.bandwidth_, self.loo_error_, self.n_samples_seen_ = _bandwidth(given, d), math.nan, 0
                old = Rows(np.empty((0, d)), np.empty((0, V)), np.empty(0))
            else:
                old = self._remembered()
                if flat != (self.y_.ndim == 1) or self.n_outputs_ != V:
                    wanted = "[n]" if self.y_.ndim == 1 else f"[n, {self.n_outputs_}]"
                    raise ValueError(f"y: shape {list(np.shape(y))}: wanted {wanted}, as in the first call")
            present = new.weight > 0
            rows = Rows(*(np.concatenate([o, n[present]]) for o, n in zip(old, new, strict=True)))
            predictions = np.empty((0, V))
            if predict:
                high = len(old.X) + np.cumsum(present) - present  # rows learned before each
                low = np.zeros_like(high) if self.window is None else np.maximum(0, high - int(self.window))
                predictions = averages(rows, self.bandwidth_, new.X, low, high)
            if self.window is not None:
                rows = Rows(*(part[-int(self.window) :].copy() for part in rows))  # the others' memory is freed
            self._remember(rows, flat)
            self.n_samples_seen_ += int(present.sum())
        return predictions[:, 0] if flat else predictions

    def _rows(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> tuple[Rows, bool]:
        """The rows, checked, with y as [n, V]; and whether y was [n]."""
        if self.learn not in ("loo", None):
            raise ValueError(f"learn={self.learn!r}: pass 'loo' or None")
        whole = isinstance(self.window, Integral) and not isinstance(self.window, bool)
        if self.window is not None and (not whole or int(self.window) < 1):
            raise ValueError(f"window={self.window!r}: pass None (all rows) or an int >= 1")
        loose: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": False}  # `_finite` names the place
        separately: Any = (loose, {**loose, "ensure_2d": False})
        X, y = validate_data(self, X, y, reset=reset, validate_separately=separately)
        check_consistent_length(X, y)
        _finite("X", X, getattr(self, "feature_names_in_", None))
        _finite("y", y)
        if sample_weight is None:
            weight = np.ones(len(X))
        else:
            weight = check_array(sample_weight, ensure_2d=False, input_name="sample_weight", **loose)
            if weight.shape != (len(X),):
                raise ValueError(f"sample_weight: shape {list(weight.shape)}: wanted {[len(X)]}, one weight per row")
            _finite("sample_weight", weight)
            if (weight < 0).any():
                row = int(np.flatnonzero(weight < 0)[0])
                raise ValueError(f"sample_weight: {weight[row]} in row {row}: pass weights >= 0")
        return Rows(X, _columns(y), weight), y.ndim == 1

    def _remember(self, rows: Rows, flat: bool) -> None:
        self.X_, self.sample_weight_ = rows.X, rows.weight
        self.y_ = rows.y[:, 0] if flat else rows.y
        self.n_outputs_ = rows.y.shape[1]

    def _remembered(self) -> Rows:
        return Rows(self.X_, _columns(self.y_), self.sample_weight_)

    @contextmanager
    def _unchanged_on_error(self) -> Generator[None, None, None]:
        """Names and counts of columns are set by validation: a call that raises must leave none of them."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise


def _bandwidth(bandwidth: Any, d: int) -> np.ndarray:
    """A number or [d] as [d]."""
    wrong = ValueError(f"bandwidth={bandwidth!r}: pass None, a positive number, or an array of {d}, one per column")
    try:
        array = np.asarray(bandwidth)
        h = array.astype(np.float64)
    except (TypeError, ValueError):
        raise wrong from None
    if array.dtype.kind not in "iuf" or h.shape not in ((), (d,)) or not (np.isfinite(h) & (h > 0)).all():
        raise wrong
    return np.array(np.broadcast_to(h, (d,)))


def _columns(y: np.ndarray) -> np.ndarray:
    return y[:, None] if y.ndim == 1 else y


def _finite(name: str, x: np.ndarray, columns: np.ndarray | None = None) -> None:
    """Refuse NaN and infinity, by row and column."""
    bad = np.argwhere(~np.isfinite(x))
    if not len(bad):
        return
    row, *rest = (int(i) for i in bad[0])
    what = "NaN" if np.isnan(x[tuple(bad[0])]) else "inf"
    column = rest[0] if rest else 0
    called = "" if columns is None else f" ({columns[column]!r})"
    raise ValueError(f"{name}: {what} in row {row}, column {column}{called}: pass finite numbers")
