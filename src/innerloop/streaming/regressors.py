"""`StreamingRegressor`: the memories as a scikit-learn regressor that tests, then trains."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ..core.state import State
from .bank import Bank, Setting


class StreamingRegressor(RegressorMixin, BaseEstimator):
    """A linear (or kernel) regression that learns row by row and may forget.

    Args:
        memory: "rls" (exact least squares), "kalman" (weights that walk at random), "deltanet" (normalised-LMS-like
            explicit steps), "longhorn" (implicit steps, stable at any size), "titans_linear" (steps with momentum) or
            "nadaraya_watson" (Gaussian kernel average of past rows).
        forgetting: fraction of the past evidence kept per row, in (0, 1]; for "longhorn" and "titans_linear" the
            fraction of the weights kept.
        forgetting_rule: what forgetting does to the prior of "rls": "regularized" (the penalty stays, the mean is kept:
            never winds up, never shrinks), "static", "exponential" or "directional"; see `innerloop.Ridge`.
        penalty: ridge penalty of "rls" and inverse prior variance of "kalman"; never on the intercept.
        process_noise: variance added to every weight per row by "kalman" (None: 1e-3).
        lr: step size (None: 1 for "longhorn", 1 / (2 K) for "deltanet" and a tenth of that for "titans_linear", where
            K counts the columns, the intercept included: right for standardised columns).
        momentum: of "titans_linear" (None: 0.9).
        bandwidth: of "nadaraya_watson", exp(-d^2 / 2 h^2) (None: the square root of the number of columns).
        window: rows that "nadaraya_watson" remembers (None: all).
        fit_intercept: append a column of ones ("nadaraya_watson" needs none).

    Attributes:
        n_features_in_, feature_names_in_, n_outputs_, n_samples_seen_: as in scikit-learn.
        state_: the memory's `innerloop.State`.

    With forgetting 1, "rls" equals `sklearn.linear_model.Ridge(alpha=penalty)` on all rows so far. Columns should have
    similar scales for every memory but "rls" without penalty. A call that raises changes nothing.

    >>> import numpy as np
    >>> X = np.arange(8.0)[:, None]
    >>> model = StreamingRegressor("rls", penalty=1e-6)
    >>> model.predict_then_update(X, 3 * X[:, 0] + 1).round(3)
    array([ 0.,  1.,  7., 10., 13., 16., 19., 22.])
    """

    def __init__(
        self,
        memory: str = "rls",
        *,
        forgetting: float = 1.0,
        forgetting_rule: str = "regularized",
        penalty: float = 1.0,
        process_noise: float | None = None,
        lr: float | None = None,
        momentum: float | None = None,
        bandwidth: float | None = None,
        window: int | None = None,
        fit_intercept: bool = True,
    ) -> None:
        self.memory = memory
        self.forgetting = forgetting
        self.forgetting_rule = forgetting_rule
        self.penalty = penalty
        self.process_noise = process_noise
        self.lr = lr
        self.momentum = momentum
        self.bandwidth = bandwidth
        self.window = window
        self.fit_intercept = fit_intercept

    def fit(self, X: Any, y: Any) -> StreamingRegressor:
        """Forget everything, then learn the rows X [n, d], y [n] or [n, outputs] in order."""
        self._learn(X, y, afresh=True)
        return self

    def partial_fit(self, X: Any, y: Any) -> StreamingRegressor:
        """Learn more rows. Results do not depend on how rows are cut into calls."""
        self._learn(X, y, afresh=False)
        return self

    def predict_then_update(self, X: Any, y: Any) -> np.ndarray:
        """Learn more rows and return the predictions made before each was learned, shaped as y.

        Equal to `predict` then `partial_fit` row by row; the first prediction of a fresh model is 0.
        """
        return self._learn(X, y, afresh=False)

    def predict(self, X: Any) -> np.ndarray:
        """Predictions [n] (or [n, outputs]) by what has been learned so far; NotFittedError before that."""
        check_is_fitted(self, "state_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return self._shaped(self._bank(self.n_outputs_).predict(X, self.state_)[:, 0])

    def _learn(self, X: Any, y: Any, *, afresh: bool) -> np.ndarray:
        fresh = afresh or not hasattr(self, "state_")
        before = dict(vars(self))
        try:
            X, y = validate_data(self, X, y, reset=fresh, dtype=np.float64, multi_output=True, y_numeric=True)
            y = np.asarray(y, dtype=np.float64)
            flat = y.ndim == 1
            columns = y[:, None] if flat else y
            if not fresh and (flat != self._flat or columns.shape[1] != self.n_outputs_):
                wanted = "[n]" if self._flat else f"[n, {self.n_outputs_}]"
                raise ValueError(f"y: shape {list(y.shape)}: wanted {wanted}, as in the first call")
            bank = self._bank(columns.shape[1])
            predictions, state = bank.predict_then_update(X, columns, None if fresh else self.state_)
        except BaseException:
            # names and counts of columns are set by validation: a call that raises must leave none of them
            vars(self).clear()
            vars(self).update(before)
            raise
        self._flat = flat
        self.n_outputs_: int = columns.shape[1]
        self.n_samples_seen_: int = len(columns) + (0 if fresh else self.n_samples_seen_)
        self.state_: State = state
        return self._shaped(predictions[:, 0])

    def _bank(self, outputs: int) -> Bank:
        options = {name: getattr(self, name) for name in Setting.__dataclass_fields__}
        return Bank.of(self.memory, [Setting(**options)], self.n_features_in_, outputs)

    def _shaped(self, predictions: np.ndarray) -> np.ndarray:
        return predictions[:, 0] if self._flat else predictions
