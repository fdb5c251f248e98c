"""What stands behind `StreamingRegressor`: a bank, its noise, its mixture; what has been learned is a value."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from ..core.architecture import Matrix
from ..core.memory import Memory
from ..core.state import State
from . import mixture as mixing
from .bank import Bank
from .online import Online
from .running import Noise, Rows, learn, learn_one, levels
from .settings import Setting, bank_settings, check_memory_option, check_setting
from .validation import Table

FOURIER = 100  # random features
OPTIONS = (*Setting.__dataclass_fields__, "memory", "features", "bank", "random_state")


class Told(NamedTuple):
    """Predictions [n, V] and, if asked, their standard deviations."""

    mean: np.ndarray
    std: np.ndarray | None


@dataclass(frozen=True)
class Learned:
    """Everything that a regressor knows; a call that learns makes another one.

    state: None before the first row. pending: a bank's forecasts [late, H, V] whose rows are yet to be learned.
    online: one row's form of the state, newer than it where there is one.
    """

    engine: Engine
    state: State | None
    center: np.ndarray | None
    noise: Noise
    mixture: mixing.MixtureState | None
    flat: bool
    rows: int = 0
    skipped: int = 0
    warned: bool = False
    path: np.ndarray | None = None
    pending: np.ndarray | None = None
    online: Online | None = None
    cache: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def settled(self) -> Learned:
        """The same with everything in `state`."""
        if self.online is None or self.state is None:
            return self
        if "settled" not in self.cache:
            state = self.online.into(self.engine.bank, self.state)
            self.cache["settled"] = replace(self, state=state, online=None, cache={})
        return self.cache["settled"]

    def weights(self, name: str) -> np.ndarray:
        """Of the settings, for the next row."""
        if self.mixture is None:
            raise AttributeError(f"{name}: there is no bank; pass forgetting='auto'")
        return self.mixture.weights.copy()

    def path_of(self, name: str) -> np.ndarray:
        """Weights of the last call's rows."""
        if self.path is None:
            raise AttributeError(f"{name}: there is no bank; pass forgetting='auto'")
        return self.path


@dataclass(frozen=True)
class Engine:
    """A regressor's options made into a bank, for a table of known width."""

    options: tuple[Any, ...]
    bank: Bank
    base: Setting
    auto: bool
    transformer: Any

    @staticmethod
    def of(model: Any, rows: Table) -> Engine:
        """From a regressor and its first rows (of which only the width counts)."""
        return Engine.made(model, rows.X.shape[1], rows.y.shape[1])

    @staticmethod
    def made(model: Any, columns: int, outputs: int) -> Engine:
        """From a regressor's options, for tables of so many columns and outputs."""
        given = {name: getattr(model, name) for name in Setting.__dataclass_fields__}
        auto = isinstance(given["forgetting"], str)
        if auto:
            if given["forgetting"] != "auto":
                raise ValueError(f"forgetting={given['forgetting']!r}: pass a number in (0, 1] or 'auto'")
            given["forgetting"] = 1.0
        elif model.bank is not None:
            raise ValueError(f"bank={model.bank!r}: only forgetting='auto' has one")
        check_memory_option(model.memory)
        transformer = _transformer(model, columns)
        if transformer is not None:
            columns = _transformed(transformer, np.zeros((1, columns)), model).shape[1]
            given["bandwidth"] = None if isinstance(model.features, str) else given["bandwidth"]
        base = Setting(**given)
        check_setting(model.memory, base)
        settings = [base]
        if auto:
            settings = bank_settings(model.memory, base, model.bank, columns + bool(base.fit_intercept))
        options = tuple(getattr(model, name) for name in OPTIONS)
        return Engine(options, Bank.of(model.memory, settings, columns, outputs), base, auto, transformer)

    def checked(self, model: Any) -> Engine:
        """This one, or another where options were set since."""
        if all(
            a is b or (type(a) is type(b) and _same(a, b)) for a, b in zip(self.options, _options(model), strict=True)
        ):
            return self
        return Engine.made(model, model.n_features_in_, self.bank.outputs)

    # ------------------------------------------------------------------------------------------- learning

    def learn(
        self, old: Learned | None, rows: Table, query: np.ndarray | None, *, std: bool, late: int = 0
    ) -> tuple[Learned, Told]:
        """What is known after some rows, and what was predicted before each (of `query`, where it is given).

        late: so many places after its prediction a row is learned; a bank is weighed by those predictions.
        """
        if old is not None and len(rows.X) == 1 and query is None and not std and Online.serves(self.bank):
            one = self._learn_one(old, rows)
            if one is not None:
                return one
        bank, n = self.bank, len(rows.X)
        if old is None:
            mixture = mixing.start(bank.heads, bank.outputs) if self.auto else None
            old = Learned(self, None, None, Noise.start(bank.heads, bank.outputs), mixture, rows.flat)
        old = old.settled()
        if std and (query is not None or not bank.uncertain):
            raise ValueError("return_std: pass query=None with it" if bank.uncertain else self._no_std("return_std"))
        x = self._columns(rows.X)
        run = bank.run(x, rows.y, old.state, old.center, weight=rows.weight, elapsed=rows.elapsed)
        p = asked = run.predictions
        if query is not None:
            questions = self._columns(query)
            asked = bank.run(
                x, rows.y, old.state, old.center, query=questions, weight=rows.weight, elapsed=rows.elapsed
            ).predictions
        weight = np.ones(n) if rows.weight is None else rows.weight
        noise, deviation = old.noise, None
        if bank.uncertain:
            assert run.variance is not None
            seen = Rows(p, rows.y, run.variance, weight, bank.fades(rows.weight, rows.elapsed, n))
            if std:
                deviation = np.sqrt(levels(noise, seen) * (1 + run.variance)[..., None])
            noise = learn(noise, seen)
        mixture, path, pending, mean = old.mixture, None, None, asked[:, 0]
        if mixture is not None:
            said, judged = p, weight > 0
            if late:
                past = old.pending
                if past is None or len(past) != late:
                    past = np.full((late, *asked.shape[1:]), np.nan)
                every = np.concatenate([past, asked])
                said, pending = every[:n], every[n:]
                judged = judged & ~np.isnan(said).all((1, 2))
            _, path, mixture = mixing.mix(mixture, said, rows.y, judged, weight=rows.weight)
            if said is not asked:
                path = _renewed(path, asked)
            mean = mixed(path, asked)
            deviation = None if deviation is None else mixed_deviation(path, asked, mean, deviation)
        elif deviation is not None:
            deviation = deviation[:, 0]
        after = Learned(
            self, run.state, run.center, noise, mixture, old.flat, old.rows + int((weight > 0).sum()),
            old.skipped + (0 if rows.bad is None else int(rows.bad.sum())), old.warned or self._steep(rows) is not None,
            path, pending,
        )  # fmt: skip
        return after, Told(mean, deviation)

    def _learn_one(self, old: Learned, rows: Table) -> tuple[Learned, Told] | None:
        """The same for one row, in numpy; None where that does not serve."""
        if old.state is None:
            return None
        bank = self.bank
        online = old.online or Online.of(bank, old.state)
        weight = 1.0 if rows.weight is None else float(rows.weight[0])
        elapsed = 1.0 if rows.elapsed is None else float(rows.elapsed[0])
        x = self._keys(rows.X, old.center)[0]
        found = online.learn(bank, x, rows.y[0], weight, elapsed)
        if found is None:
            return None
        mean, variance, online = found
        noise = old.noise
        if weight > 0:
            fade = float(bank.fades(rows.weight, rows.elapsed, 1)[0, 0]) if bank.forgets else 0.0
            noise = learn_one(noise, rows.y - mean, variance, weight, fade)
        after = replace(
            old, engine=self, online=online, noise=noise, rows=old.rows + (weight > 0),
            skipped=old.skipped + (rows.bad is not None), cache={},
        )  # fmt: skip
        return after, Told(mean[None], None)

    # ------------------------------------------------------------------------------------------- answers

    def predict(self, fit: Learned, X: np.ndarray, *, std: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Means [n, V] and, if asked, standard deviations, by what has been learned so far."""
        bank = self.bank
        if std and not bank.uncertain:
            raise ValueError(self._no_std("return_std"))
        x = self._columns(X)
        if fit.online is not None:
            heads = (self._keys(X, fit.center) @ fit.online.w)[:, None]
        elif self._is_linear:
            coef, level = self._maps(fit)
            heads = np.einsum("nd,hdv->nhv", x if fit.center is None else x - fit.center, coef) + level
        else:
            assert fit.state is not None
            heads = bank.predict(x, fit.state, fit.center)
        path = None if fit.mixture is None else mixing.weigh(fit.mixture, heads)
        mean = heads[:, 0] if path is None else mixed(path, heads)
        if not std:
            return mean, None
        state = fit.settled().state
        assert state is not None
        variance = bank.variance(x, state, fit.center)
        deviation = np.sqrt(fit.noise.variance * (1 + variance)[..., None])
        return mean, deviation[:, 0] if path is None else mixed_deviation(path, heads, mean, deviation)

    def linear(self, fit: Learned, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients [d, V] and intercepts [V]; AttributeError where there are none."""
        if not self._is_linear:
            raise AttributeError(f"{name}: this memory is no linear function of its columns")
        if fit.state is None:
            raise AttributeError(f"{name}: no row has been learned yet")
        settled = fit.settled()
        coef, level = self._maps(settled)
        if fit.mixture is None:
            coef, level = coef[0], level[0]
        else:
            weights = mixing.weigh(fit.mixture, coef.reshape(1, len(coef), -1))[0]
            used = weights[:, None] > 0
            coef = np.einsum("h,hdv->dv", weights, np.where(used[..., None], coef, 0.0))
            level = weights @ np.where(used, level, 0.0)
        return coef, level if fit.center is None else level - fit.center @ coef

    def noise_level(self, fit: Learned, name: str) -> np.ndarray:
        """s [V]."""
        if not self.bank.uncertain:
            raise AttributeError(self._no_std(name))
        weights = np.ones(1) if fit.mixture is None else fit.mixture.weights
        variance = fit.noise.variance
        return np.sqrt(weights @ np.where(weights[:, None] > 0, variance, 0.0))

    def listed(self) -> list[dict[str, Any]]:
        """The options that differ between settings."""
        base = Setting()
        varying = [
            name for name in Setting.__dataclass_fields__
            if any(getattr(s, name) != getattr(self.bank.settings[0], name) for s in self.bank.settings)
            or getattr(self.bank.settings[0], name) != getattr(base, name)
        ]  # fmt: skip
        return [{name: getattr(s, name) for name in varying} for s in self.bank.settings]

    def warn_of_steps(self, rows: Table, old: Learned | None) -> None:
        """Say once that explicit steps of this size diverge."""
        found = self._steep(rows)
        if found is None or (old is not None and old.warned):
            return
        lr, power = found
        warnings.warn(
            f"lr |k|^2 reaches {lr * power:.3g}: explicit steps diverge from 2 on. The largest stable lr for these "
            f"rows is {2 / power:.3g} (it is {lr:.3g}): standardise the columns, or take memory='longhorn', whose "
            "implicit steps are stable at any size.",
            UserWarning,
            stacklevel=4,
        )

    def _steep(self, rows: Table) -> tuple[float, float] | None:
        """lr and the largest |k|^2, where their product reaches 2 and nothing else would cure it."""
        if self.auto or self.bank.name not in ("deltanet", "titans_linear") or not len(rows.X):
            return None
        sizes = self.bank.step_sizes()
        assert sizes is not None
        squares = np.einsum("nd,nd->n", *(self._columns(rows.X),) * 2) + self.bank.intercept
        power = float((squares if rows.weight is None else squares * rows.weight).max())
        return (float(sizes[0]), power) if sizes[0] * power >= 2 else None

    @property
    def _is_linear(self) -> bool:
        return isinstance(self.bank.memory.architecture, Matrix)

    def _maps(self, fit: Learned) -> tuple[np.ndarray, np.ndarray]:
        if "maps" not in fit.cache:
            assert fit.state is not None
            fit.cache["maps"] = self.bank.linear(fit.state, None)
        return fit.cache["maps"]

    def _columns(self, X: np.ndarray) -> np.ndarray:
        return X if self.transformer is None else _transformed(self.transformer, X, None)

    def _keys(self, X: np.ndarray, center: np.ndarray | None) -> np.ndarray:
        x = self._columns(X)
        x = x if center is None else x - center
        return np.concatenate([x, np.ones((len(x), 1))], 1) if self.bank.intercept else x

    def _no_std(self, name: str) -> str:
        memory = self.bank.name
        kind = "this memory" if isinstance(memory, Memory) else memory
        return f"{name}: {kind} keeps no covariance; memory='rls' and 'kalman' do"


def mixed(weights: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """`sum_h w_h p_h`, [n, V]; a weight of 0 takes even what is not finite out."""
    used = np.where(weights[..., None] > 0, predictions, 0.0)
    return np.einsum("nh,nhv->nv", weights, used)


def mixed_deviation(
    weights: np.ndarray, predictions: np.ndarray, mean: np.ndarray, deviation: np.ndarray
) -> np.ndarray:
    """The standard deviation of the mixture: within its settings and between them."""
    used = weights[..., None] > 0
    between = np.where(used, predictions - mean[:, None], 0.0)
    return np.sqrt(np.einsum("nh,nhv->nv", weights, np.where(used, deviation, 0.0) ** 2 + between**2))


def _renewed(weights: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Weights [n, H] for other predictions than those they were made for: none for what is not finite."""
    usable = np.where(np.isfinite(predictions).all(-1), weights, 0.0)
    total = usable.sum(1, keepdims=True)
    even = np.isfinite(predictions).all(-1) / predictions.shape[1]  # nothing known of any: all alike
    return np.where(total > 0, usable / np.where(total > 0, total, 1.0), even)


def _options(model: Any) -> list[Any]:
    return [getattr(model, name) for name in OPTIONS]


def _same(a: Any, b: Any) -> bool:
    return isinstance(a, int | float | str | Memory) and a == b


def _transformer(model: Any, columns: int) -> Any:
    features = model.features
    if features is None:
        return None
    if isinstance(features, str):
        if features != "fourier":
            raise ValueError(f"features={features!r}: pass None, 'fourier' or a fitted transformer")
        from sklearn.kernel_approximation import RBFSampler

        width = math.sqrt(columns) if model.bandwidth is None else float(model.bandwidth)
        if not (math.isfinite(width) and width > 0):
            raise ValueError(f"bandwidth={model.bandwidth!r}: pass a number in (0, inf)")
        seed = 0 if model.random_state is None else model.random_state
        sampler = RBFSampler(gamma=0.5 / width**2, n_components=FOURIER, random_state=seed)
        return sampler.fit(np.zeros((1, columns)))  # what it draws depends on the number of columns alone
    if not hasattr(features, "transform"):
        raise TypeError(f"features={features!r}: pass None, 'fourier' or a fitted transformer")
    try:
        check_is_fitted(features)
    except NotFittedError:
        raise NotFittedError(
            f"features: {features!r} is not fitted yet: fit it first, or put it into a Pipeline"
        ) from None
    return features


def _transformed(transformer: Any, X: np.ndarray, model: Any) -> np.ndarray:
    names = getattr(transformer, "feature_names_in_", None)
    given: Any = X
    if names is not None:
        import pandas as pd

        given = pd.DataFrame(X, columns=names)
    out = transformer.transform(given)
    out = out.toarray() if hasattr(out, "toarray") else out
    return np.ascontiguousarray(np.asarray(out, dtype=np.float64))
