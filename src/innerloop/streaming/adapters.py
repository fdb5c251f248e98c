"""A scikit-learn regressor as one of river's: one row, a dict, at a time.

    learn_one(x, y)   partial_fit on the row (x[name] for name in the names of the first row learned)
    predict_one(x)    predict on the same row; 0.0 before any label was learned

river (https://riverml.xyz) is optional: without it `to_river` says how to get it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Hashable, Iterator, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

if TYPE_CHECKING:
    from river.base import Regressor
else:
    try:
        from river.base import Regressor  # what river's metrics and pipelines ask for is this very class
    except ModuleNotFoundError:
        Regressor = object


class RiverRegressor(Regressor):
    """A regressor with `partial_fit` that learns and predicts dicts, for river's evaluation, metrics and pipelines.

    The first row learned fixes the columns: their names, and their order. In later rows a feature that is missing
    counts as 0 and one with a new name is ignored, so features may come and go as in river's own linear models; put
    `river.preprocessing.StatImputer` before it where 0 is far from usual. None is a missing number (NaN), which the
    estimator refuses or, if it was told to, skips.

    Args:
        estimator: a scikit-learn regressor with `partial_fit` and one output. It is copied, never changed: one that has
            learned goes on from there (columns learned by name keep their names), while `clone()` is fresh, as always
            in river.

    Attributes:
        estimator: the estimator's parameters, unfitted: what `clone`, `_get_params` and `repr` see.
        fitted_: the copy that learns.

    >>> from river import evaluate, metrics, preprocessing, stream
    >>> from innerloop import StreamingRegressor
    >>> table = [({"a": t % 7, "b": t % 3}, 2 * (t % 7) - t % 3) for t in range(300)]
    >>> model = preprocessing.StandardScaler() | to_river(StreamingRegressor("rls", forgetting=0.9))
    >>> evaluate.progressive_val_score(table, model, metrics.MAE()).get() < 0.5
    True
    """

    def __init__(self, estimator: Any) -> None:
        if Regressor is object:
            raise ImportError("to_river needs river: pip install river")
        for method in ("partial_fit", "predict"):
            if isinstance(estimator, type) or not hasattr(estimator, method):
                raise TypeError(f"estimator={estimator!r} has no {method}: pass a regressor that can learn row by row")
        outputs = getattr(estimator, "n_outputs_", 1)
        if outputs != 1:
            raise ValueError(f"estimator={estimator!r} has learned {outputs} outputs: a regressor of river's has one")
        self.estimator = clone(estimator)
        self.fitted_ = deepcopy(estimator)
        # names are matched here: the copy sees bare rows, and must not warn at each of them
        names = vars(self.fitted_).pop("feature_names_in_", None)
        self._names: tuple[Hashable, ...] | None = None if names is None else tuple(names)

    def learn_one(self, x: dict[Any, Any], y: float, w: float = 1.0) -> None:
        """Learn one row.

        Args:
            x: number of each feature, by name; not changed.
            y: the label.
            w: its weight, for an estimator whose `partial_fit` takes `sample_weight`.

        Raises:
            ValueError: a feature or label that the estimator refuses, named; nothing was learned.
            TypeError: x is no dict, y no number, or the estimator takes no weights.
        """
        names, row = self._row(x)
        if not names:
            raise ValueError("x={}: the first row learned fixes the columns: pass at least one feature")
        given: dict[str, Any] = {}
        if w != 1:
            if "sample_weight" not in inspect.signature(self.fitted_.partial_fit).parameters:
                raise TypeError(f"w={w!r}: {type(self.fitted_).__name__}.partial_fit takes no sample_weight")
            given["sample_weight"] = np.array([w], dtype=np.float64)
        try:
            target = float(y)
        except (TypeError, ValueError):
            raise TypeError(f"y={y!r}: pass a number") from None
        try:
            self.fitted_.partial_fit(row, np.array([target]), **given)
        except ValueError as error:
            _check_finite(names, row, target, error)
            raise
        self._names = names

    def predict_one(self, x: dict[Any, Any]) -> float:
        """The prediction for one row, 0.0 before any label was learned. Changes nothing.

        Raises:
            ValueError: a feature that the estimator refuses, named.
            TypeError: x is no dict.
        """
        names, row = self._row(x)
        try:
            return float(np.ravel(self.fitted_.predict(row))[0])
        except NotFittedError:
            return 0.0
        except ValueError as error:
            _check_finite(names, row, 0.0, error)
            raise

    def _row(self, x: Mapping[Any, Any]) -> tuple[tuple[Hashable, ...], np.ndarray]:
        """The columns' names, and the row [1, columns]."""
        if not isinstance(x, Mapping):
            raise TypeError(f"x={x!r}: pass a dict from the features' names to numbers")
        names = tuple(x) if self._names is None else self._names
        values = [x.get(name, 0.0) for name in names]
        try:
            return names, np.array([values], dtype=np.float64)
        except (TypeError, ValueError):
            bad = next(name for name in names if not _is_number(x.get(name, 0.0)))
            raise ValueError(f"x[{bad!r}]={x[bad]!r}: pass a number, e.g. after a OneHotEncoder") from None

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        """Arguments for river's own checks of its estimators."""
        from .regressors import StreamingRegressor

        yield {"estimator": StreamingRegressor()}


def to_river(estimator: Any) -> RiverRegressor:
    """The estimator as a river regressor, with `learn_one` and `predict_one`.

    It runs wherever river's regressors do: `river.evaluate.progressive_val_score`, a pipeline after a
    `StandardScaler`, `clone`. Predictions equal those of `predict_then_update` on the table of the same rows.

    Args:
        estimator: a scikit-learn regressor with `partial_fit` and one output; `RiverRegressor` tells how features are
            matched to its columns, and what becomes of one that has already learned.

    Raises:
        ImportError: river is not installed.
        TypeError: no `partial_fit` or no `predict`.
        ValueError: it has learned several outputs.
    """
    return RiverRegressor(estimator)


def _is_number(value: Any) -> bool:
    try:
        np.array([value], dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return True


def _check_finite(names: tuple[Hashable, ...], row: np.ndarray, target: float, error: ValueError) -> None:
    """Say the estimator's complaint in the features' names: it knows only a column."""
    bad = [f"x[{name!r}]={value}" for name, value in zip(names, row[0], strict=True) if not math.isfinite(value)]
    if not math.isfinite(target):
        bad.append(f"y={target}")
    if bad:
        raise ValueError(f"{', '.join(bad)}: pass finite numbers") from error
