"""`StreamingRegressor`: the memories as a scikit-learn regressor that tests, then trains."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.exceptions import NotFittedError

from ..core.memory import Memory
from ..core.state import State
from . import saving
from .engine import Engine, Learned
from .validation import features, table


class StreamingRegressor(RegressorMixin, BaseEstimator):
    """A regression that learns row by row and may forget.

    Args:
        memory: "rls" (exact least squares), "kalman" (weights that walk at random), "deltanet" (normalised-LMS-like
            explicit steps), "longhorn" (implicit steps, stable at any size), "titans_linear" (steps with momentum),
            "titans" (a network of two layers), "nadaraya_watson" (Gaussian kernel average of past rows), or a `Memory`.
        forgetting: fraction of the past evidence kept per row, in (0, 1]; for gradient memories the fraction of the
            weights kept. "auto": a bank of settings (see `bank`) runs side by side and is mixed by exponential weights
            on discounted losses with fixed share (Herbster and Warmuth 1998).
        forgetting_rule: what forgetting does to the prior of "rls": "regularized" (the penalty stays, the mean is kept:
            never winds up, never shrinks), "static", "exponential" or "directional"; see `innerloop.Ridge`.
        penalty: ridge penalty of "rls" and inverse prior variance of "kalman"; never on the intercept.
        process_noise: variance that "kalman" adds to every weight per row, in units of the noise variance, which is
            learned online (None: 1e-3).
        lr: step size (None: 1 for "longhorn", 1 / (2 K) for "deltanet" and a tenth of that for "titans_linear", where
            K counts the columns, the intercept included: right for standardised columns).
        momentum: of "titans_linear" and "titans" (None: 0.9).
        bandwidth: of "nadaraya_watson" and of features="fourier", exp(-d^2 / 2 h^2) (None: root of the number of
            columns).
        window: rows that "nadaraya_watson" remembers (None: all).
        features: None, "fourier" (100 random Fourier features of a Gaussian kernel, seeded by `random_state`, whatever
            the data), or a fitted transformer.
        fit_intercept: append a column of ones ("nadaraya_watson" needs none).
        bank: settings of forgetting="auto": None (16, log-spaced: forgetting of "rls", process noise of "kalman", step
            sizes, bandwidths), how many, or a list of dicts of options.
        on_bad: rows that hold NaN or infinity "raise" a ValueError that names row and column before anything changes,
            or are predicted where X allows it (NaN elsewhere), left out and counted ("skip").
        random_state: seed of features="fourier".

    Attributes:
        coef_ [d] or [outputs, d], intercept_: of linear memories (a bank's: the mixture's).
        n_features_in_, feature_names_in_, n_outputs_, n_samples_seen_ (rows learned), n_skipped_: as in scikit-learn.
        noise_: the noise's standard deviation [outputs], as learned (rls, kalman).
        state_: the memory's `innerloop.State`.
        bank_settings_, bank_weights_ [H], bank_path_ [n, H]: what forgetting="auto" tries, the weights of the next row,
            and those of the rows of the last call.

    With forgetting 1, "rls" equals `sklearn.linear_model.Ridge(alpha=penalty)` on all rows so far. Results do not
    depend on how rows are cut into calls. A row of weight 0 is absent: nothing fades either. A call that raises changes
    nothing.

    >>> import numpy as np
    >>> X = np.arange(8.0)[:, None]
    >>> model = StreamingRegressor("rls", penalty=1e-6)
    >>> model.predict_then_update(X, 3 * X[:, 0] + 1).round(3)
    array([ 0.,  1.,  7., 10., 13., 16., 19., 22.])
    """

    def __init__(
        self,
        memory: str | Memory = "rls",
        *,
        forgetting: float | str = 1.0,
        forgetting_rule: str = "regularized",
        penalty: float = 1.0,
        process_noise: float | None = None,
        lr: float | None = None,
        momentum: float | None = None,
        bandwidth: float | None = None,
        window: int | None = None,
        features: Any = None,
        fit_intercept: bool = True,
        bank: Any = None,
        on_bad: str = "raise",
        random_state: Any = None,
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
        self.features = features
        self.fit_intercept = fit_intercept
        self.bank = bank
        self.on_bad = on_bad
        self.random_state = random_state

    # ------------------------------------------------------------------------------------------- learning

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> StreamingRegressor:
        """Forget everything, then learn the rows X [n, d], y [n] or [n, outputs] in order; weights [n] >= 0."""
        self._learn(X, y, sample_weight, None, afresh=True)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, elapsed: Any = None) -> StreamingRegressor:
        """Learn more rows.

        elapsed: the time before each row [n] (or one number for all), in rows: forgetting acts as
        `forgetting ** elapsed`, process noise as `elapsed * process_noise`. After a very long gap the uncertainty is
        the prior's (an intercept, which has none, keeps a trillionth of its evidence).
        """
        self._learn(X, y, sample_weight, elapsed, afresh=False)
        return self

    def predict_then_update(
        self, X: Any, y: Any, sample_weight: Any = None, elapsed: Any = None, *, query: Any = None,
        late: int = 0, return_std: bool = False,
    ) -> Any:  # fmt: skip
        """Learn more rows and return the predictions made before each was learned, shaped as y.

        Equal to `predict` then `partial_fit` row by row; the first prediction of a fresh model is 0.

        query: rows [n, d] to predict instead, each by what had been learned before the row in its place (labels that
        arrive late, say). late: so many places later each of them is learned itself, query[i] = X[i + late]: a bank is
        then weighed by these predictions, not by those made when the label was about to come.

        return_std: also the standard deviations, shaped alike (infinite where nothing is known).
        """
        return self._learn(X, y, sample_weight, elapsed, afresh=False, query=query, late=late, std=return_std)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predictions [n] (or [n, outputs]) by what has been learned so far; NotFittedError before that.

        return_std: also their standard deviation `s sqrt(1 + x^T P x)` (rls, kalman), shaped alike.
        """
        fit = self._fitted()
        x, known = features(self, X, reset=False, skip=self.on_bad == "skip")
        mean, std = fit.engine.predict(fit, x, std=return_std)
        if known is not None:
            mean[~known] = np.nan
        mean = mean[:, 0] if fit.flat else mean
        if not return_std:
            return mean
        assert std is not None
        return mean, (std[:, 0] if fit.flat else std)

    def _learn(
        self, X: Any, y: Any, weight: Any, elapsed: Any, *, afresh: bool, query: Any = None, late: int = 0,
        std: bool = False,
    ) -> Any:  # fmt: skip
        old: Learned | None = None if afresh else vars(self).get("_fit")
        before = dict(vars(self))
        try:
            if self.on_bad not in ("raise", "skip"):
                raise ValueError(f"on_bad={self.on_bad!r}: pass 'raise' or 'skip'")
            if isinstance(late, bool) or not isinstance(late, int | np.integer) or late < 0:  # pyright: ignore
                raise ValueError(f"late={late!r}: pass an int >= 0")
            skip = self.on_bad == "skip"
            shape = None if old is None else (old.flat, old.engine.bank.outputs)
            rows = table(self, X, y, weight, elapsed, reset=old is None, skip=skip, shape=shape)
            asked = None if query is None else features(self, query, reset=False, skip=skip)
            if asked is not None and len(asked[0]) != len(rows.X):
                raise ValueError(f"query: {len(asked[0])} rows: wanted {len(rows.X)}, one for each row of X")
            if afresh and rows.weight is not None and not rows.weight.any():
                raise ValueError("sample_weight: every weight is zero: pass a row of positive weight to learn from")
            engine = Engine.of(self, rows) if old is None else old.engine.checked(self)
            engine.warn_of_steps(rows, old)
            fit, told = engine.learn(old, rows, None if asked is None else asked[0], std=std, late=int(late))
        except BaseException:
            # names and counts of columns are set by validation: a call that raises must leave none of them
            vars(self).clear()
            vars(self).update(before)
            raise
        self._fit = fit
        known = rows.known if asked is None else asked[1]
        answers = [told.mean, told.std] if std else [told.mean]
        if known is not None:
            for answer in answers:
                answer[~known] = np.nan
        shaped = [a[:, 0] if rows.flat else a for a in answers]
        return tuple(shaped) if std else shaped[0]

    # ------------------------------------------------------------------------------------------ inspection

    def _fitted(self) -> Learned:
        fit: Learned | None = vars(self).get("_fit")
        if fit is None or fit.state is None:
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet. Call 'fit' or 'partial_fit' before using it."
            )
        return fit

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(vars(self).get("_fit"), "state", None) is not None

    def _seen(self, name: str) -> Learned:
        fit = vars(self).get("_fit")
        if fit is None:
            raise AttributeError(f"{type(self).__name__} has no {name} before it has learned; call fit or partial_fit")
        return fit

    @property
    def n_outputs_(self) -> int:
        """Targets."""
        return self._seen("n_outputs_").engine.bank.outputs

    @property
    def n_samples_seen_(self) -> int:
        """Rows learned."""
        return self._seen("n_samples_seen_").rows

    @property
    def n_skipped_(self) -> int:
        """Rows left out because they held NaN or infinity."""
        return self._seen("n_skipped_").skipped

    @property
    def state_(self) -> State:
        """The memory's state."""
        state = self._seen("state_").settled().state
        if state is None:
            raise AttributeError("state_: no row has been learned yet")
        return state

    @property
    def coef_(self) -> np.ndarray:
        """Coefficients [d], or [outputs, d], of the (transformed) columns."""
        fit = self._seen("coef_")
        coef, _ = fit.engine.linear(fit, "coef_")
        return coef[:, 0] if fit.flat else coef.T

    @property
    def intercept_(self) -> Any:
        """The intercept, a float or [outputs]."""
        fit = self._seen("intercept_")
        _, level = fit.engine.linear(fit, "intercept_")
        return float(level[0]) if fit.flat else level

    @property
    def noise_(self) -> np.ndarray:
        """The standard deviation of the noise, [outputs], as learned so far."""
        fit = self._seen("noise_")
        return fit.engine.noise_level(fit, "noise_")

    @property
    def bank_settings_(self) -> list[dict[str, Any]]:
        """The options that differ between the settings of forgetting="auto"."""
        return self._seen("bank_settings_").engine.listed()

    @property
    def bank_weights_(self) -> np.ndarray:
        """Weights of the settings in the next prediction, [H]."""
        return self._seen("bank_weights_").weights("bank_weights_")

    @property
    def bank_path_(self) -> np.ndarray:
        """Weights behind each prediction of the last call that learned, [n, H]."""
        return self._seen("bank_path_").path_of("bank_path_")

    # ------------------------------------------------------------------------------------------- elsewhere

    def save(self, path: str | PathLike[str]) -> None:
        """Write everything to one safetensors file, atomically. Features that are a transformer cannot be saved so."""
        saving.save(self, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> StreamingRegressor:
        """What `save` wrote, going on exactly where it stopped. ValueError for any other file."""
        return saving.load(cls, path)

    def to_river(self) -> Any:
        """An object with `learn_one` and `predict_one`, for river's pipelines and evaluation; starts unfitted."""
        from .adapters import to_river

        return to_river(self)

    def __sklearn_clone__(self) -> StreamingRegressor:
        """Unfitted, with the same options; a fitted transformer in `features` stays fitted."""
        options = self.get_params(deep=False)
        kept = {"features": options.pop("features"), "memory": options.pop("memory")}
        return type(self)(**kept, **{n: clone(v, safe=False) for n, v in options.items()})

    def __getstate__(self) -> Any:
        state: Any = super().__getstate__()
        values = dict(state)
        if "_fit" in values:
            values["_fit"] = saving.pack(values["_fit"])
        return values

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        values = dict(state)
        packed = values.pop("_fit", None)
        super().__setstate__(values)
        if packed is not None:
            self._fit = saving.unpack(self, packed)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        # exact ones fit whatever a line can; the others take steps, or average, in units that the user sets
        tags.regressor_tags.poor_score = self.memory not in ("rls", "kalman")
        tags.input_tags.allow_nan = self.on_bad == "skip"
        return tags
