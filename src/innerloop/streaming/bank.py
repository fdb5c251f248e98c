"""Settings of one streaming memory, side by side: each is a head of one scan.

    row t:   x_t (and a 1, when there is an intercept) is key and query, y_t the value; order "read-write"

so a call of `chunked` gives the predictions made before each row was learned. The scalars that differ between settings
(forgetting, penalty, process noise, step size, bandwidth) enter as gates or as overrides of the initial state, [1, H].
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.dispatch import chunked, read
from ..core.memory import Gates, Memory
from ..core.registry import get
from ..core.state import State, init_state

MEMORIES = ("rls", "kalman", "deltanet", "longhorn", "titans_linear", "nadaraya_watson")
RULES = ("regularized", "static", "exponential", "directional")
BLOCK = 32768  # rows times heads handed over at once: bounds the memory of a long call, changes no number
WARM_UP = 64  # rows learned once before the clock of `run_settings` starts


@dataclass(frozen=True)
class Setting:
    """The options of one regressor; see `StreamingRegressor`."""

    forgetting: float = 1.0
    forgetting_rule: str = "regularized"
    penalty: float = 1.0
    process_noise: float | None = None
    lr: float | None = None
    momentum: float | None = None
    bandwidth: float | None = None
    window: int | None = None
    fit_intercept: bool = True


# Which options a memory reads, beside fit_intercept; any other must keep its default.
_READS: dict[str, tuple[str, ...]] = {
    "rls": ("forgetting", "forgetting_rule", "penalty"),
    "kalman": ("process_noise", "penalty"),
    "deltanet": ("lr",),
    "longhorn": ("lr", "forgetting"),
    "titans_linear": ("lr", "forgetting", "momentum"),
    "nadaraya_watson": ("bandwidth", "window"),
}


def check_setting(name: str, setting: Setting) -> None:
    """Refuse an unknown memory, an option out of range, or one that the memory does not read."""
    if name not in MEMORIES:
        raise ValueError(f"memory={name!r}: pass one of {', '.join(map(repr, MEMORIES))}")
    default = Setting()
    for option, value in vars(setting).items():
        if option not in (*_READS[name], "fit_intercept", "forgetting_rule", "penalty") and value != getattr(
            default, option
        ):
            raise ValueError(f"{option}={value!r}: {name} does not read it; it reads {', '.join(_READS[name])}")
    if setting.forgetting_rule not in RULES:
        raise ValueError(f"forgetting_rule={setting.forgetting_rule!r}: pass one of {', '.join(map(repr, RULES))}")
    _number("forgetting", setting.forgetting, 0.0, 1.0, open_low=True)
    _number("penalty", setting.penalty, 0.0, math.inf, open_low=True)
    for option in ("process_noise", "lr", "momentum", "bandwidth"):
        value = getattr(setting, option)
        if value is not None:
            _number(
                option, value, 0.0, 1.0 if option == "momentum" else math.inf, open_low=option in ("lr", "bandwidth")
            )
    window = setting.window
    if window is not None and (isinstance(window, bool) or not isinstance(window, int | np.integer) or window < 1):
        raise ValueError(f"window={window!r}: pass None (all rows) or an int >= 1")


def _number(option: str, value: Any, low: float, high: float, *, open_low: bool) -> None:
    real = isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)
    if not (real and (low < value if open_low else low <= value) and value <= high and math.isfinite(value)):
        left = "(" if open_low else "["
        right = "inf)" if high == math.inf else f"{high:g}]"
        raise ValueError(f"{option}={value!r}: pass a number in {left}{low:g}, {right}")


@dataclass(frozen=True)
class Bank:
    """Settings of one memory for tables of `features` columns and `outputs` targets."""

    name: str
    settings: tuple[Setting, ...]
    features: int
    outputs: int

    @staticmethod
    def of(name: str, settings: Sequence[Setting], features: int, outputs: int) -> Bank:
        """Check the settings; those of one bank share the options that are not numbers."""
        for setting in settings:
            check_setting(name, setting)
        shared = {(s.forgetting_rule, s.fit_intercept, s.window) for s in settings}
        if len(shared) != 1:
            raise ValueError(
                "settings: those that run together share forgetting_rule, fit_intercept and window: pass them apart"
            )
        return Bank(name, tuple(settings), features, outputs)

    @property
    def intercept(self) -> bool:
        """Whether a column of ones is appended; a local average has its level anyway."""
        return self.settings[0].fit_intercept and self.name != "nadaraya_watson"

    @property
    def width(self) -> int:
        """Key dimension K."""
        return self.features + self.intercept

    @property
    def memory(self) -> Memory:
        """The memory value that every head runs, order "read-write"."""
        first = self.settings[0]
        forgets = any(s.forgetting < 1 for s in self.settings)
        options: dict[str, Any] = {}
        if self.name == "rls":
            # with forgetting 1 all rules are one regression, and "exponential" needs no solve per row
            options = {"rule": first.forgetting_rule if forgets else "exponential"}
        elif self.name == "longhorn":
            options = {"decay": forgets}
        elif self.name == "nadaraya_watson":
            options = {"capacity": None if first.window is None else int(first.window)}
        return replace(get(self.name, **options), order="read-write")

    def initial(self) -> dict[str, Tensor]:
        """Overrides of the initial state, [1, H] or [1, H, K]."""
        if self.name == "rls":
            penalty = self._column([s.penalty for s in self.settings]).expand(-1, -1, self.width).clone()
            if self.intercept:
                penalty[..., -1] = 0.0
            return {"penalty": penalty}
        if self.name == "kalman":
            noise = [1e-3 if s.process_noise is None else s.process_noise for s in self.settings]
            prior = [1 / s.penalty for s in self.settings]
            return {"process_noise": self._column(noise)[..., 0], "prior_variance": self._column(prior)[..., 0]}
        if self.name == "nadaraya_watson":
            width = math.sqrt(self.features)
            return {
                "bandwidth": self._column([width if s.bandwidth is None else s.bandwidth for s in self.settings])[
                    ..., 0
                ]
            }
        return {}

    def gates(self, rows: int) -> Gates:
        """Constant gates, [1, rows, H]."""
        lr = momentum = log_decay = None
        if self.name in ("deltanet", "longhorn", "titans_linear"):
            usual = {"deltanet": 0.5 / self.width, "longhorn": 1.0, "titans_linear": 0.05 / self.width}[self.name]
            lr = self._row([usual if s.lr is None else s.lr for s in self.settings], rows)
        if self.name == "titans_linear":
            momentum = self._row([0.9 if s.momentum is None else s.momentum for s in self.settings], rows)
        if any(s.forgetting < 1 for s in self.settings):
            log_decay = self._row([math.log(s.forgetting) for s in self.settings], rows)
        return Gates(lr=lr, log_decay=log_decay, momentum=momentum)

    def keys(self, X: np.ndarray) -> Tensor:
        """Rows [n, features] as keys of every head, [1, n, H, K]."""
        x = torch.from_numpy(np.array(X, dtype=np.float64, order="C"))
        if self.intercept:
            x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
        return x[None, :, None, :].expand(1, len(x), len(self.settings), self.width)

    def values(self, y: np.ndarray) -> Tensor:
        """Targets [n, outputs] as values of every head, [1, n, H, V]."""
        v = torch.from_numpy(np.array(y, dtype=np.float64, order="C"))
        return v[None, :, None, :].expand(1, len(v), len(self.settings), self.outputs)

    def predict(self, X: np.ndarray, state: State) -> np.ndarray:
        """Predictions of the state as it stands, [n, H, outputs]."""
        return read(self.memory, self.keys(X), state)[0].numpy()

    def predict_then_update(self, X: np.ndarray, y: np.ndarray, state: State | None) -> tuple[np.ndarray, State]:
        """Predictions made before each row was learned [n, H, outputs], and the state after the last row."""
        predictions: list[np.ndarray] = []
        if state is None and self.name == "kalman" and self.intercept and len(X):
            state = self._first_row(X[0], y[0])
            predictions.append(np.zeros((1, len(self.settings), self.outputs)))
            X, y = X[1:], y[1:]
        if state is None:
            state = init_state(
                self.memory,
                1,
                len(self.settings),
                self.width,
                self.outputs,
                initial=self.initial(),
                dtype=torch.float64,
            )
        step = max(1, BLOCK // len(self.settings))
        with torch.no_grad():
            for first in range(0, len(X), step):
                k, v = self.keys(X[first : first + step]), self.values(y[first : first + step])
                output, state, _ = chunked(self.memory, k, k, v, self.gates(k.shape[1]), state)
                predictions.append(output[0].numpy())
        if not predictions:
            return np.zeros((0, len(self.settings), self.outputs)), state
        return np.concatenate(predictions), state

    def _first_row(self, x: np.ndarray, y: np.ndarray) -> State:
        """The Kalman filter after its first row, in the limit of an infinite prior variance of the intercept.

        With weights w ~ N(0, p I) and level c free, y = w^T x + c + noise gives E w = 0, E c = y, and the covariance
        [[p I, -p x], [-p x^T, r + p x^T x]]: the limit exists, while no finite prior gives an unpenalised intercept.
        """
        start = self.initial()
        variance = (start["prior_variance"] + start["process_noise"])[
            ..., None, None
        ]  # one step of the walk came first
        column = torch.from_numpy(np.array(x, dtype=np.float64))[:, None]
        H, d = len(self.settings), self.features
        noise = self.memory.parameters["observation_noise"][0]
        covariance = torch.cat(
            [
                torch.cat([variance * torch.eye(d, dtype=torch.float64), -variance * column], -1),
                torch.cat([-variance * column.T, noise + variance * (column * column).sum()], -1),
            ],
            -2,
        )
        S = torch.zeros(1, H, self.width, self.outputs, dtype=torch.float64)
        S[:, :, -1] = torch.from_numpy(np.array(y, dtype=np.float64))
        given = {**start, "S": S, "covariance": covariance}
        return init_state(self.memory, 1, H, self.width, self.outputs, initial=given, dtype=torch.float64)

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor([float(x) for x in values], dtype=torch.float64)[None, :, None]

    def _row(self, values: Sequence[float], rows: int) -> Tensor:
        return torch.tensor([float(x) for x in values], dtype=torch.float64).expand(1, rows, len(values))


class Settled(NamedTuple):
    """predictions [S, n] of S settings, seconds of the scan, floats in one setting's state."""

    predictions: np.ndarray
    seconds: float
    state_floats: int


def run_settings(name: str, settings: Sequence[Mapping[str, Any]], X: np.ndarray, y: np.ndarray) -> Settled:
    """`StreamingRegressor(name, **options).predict_then_update(X, y)` of every setting, as heads of few scans.

    Args:
        name: one of `MEMORIES`.
        settings: options of each, as keyword arguments of `StreamingRegressor`.
        X: [n, d]; y: [n].

    Raises:
        ValueError: an unknown memory or option, or one out of range.
    """
    known = set(Setting.__dataclass_fields__)
    for options in settings:
        unknown = sorted(set(options) - known)
        if unknown:
            raise ValueError(f"{unknown[0]}={options[unknown[0]]!r} is no option: pass any of {sorted(known)}")
    made = [Setting(**options) for options in settings]
    predictions = np.empty((len(made), len(y)))
    seconds, floats = 0.0, 0
    for group in _groups(made):
        bank = Bank.of(name, [made[i] for i in group], X.shape[1], 1)
        bank.predict_then_update(X[:WARM_UP], y[:WARM_UP, None], None)  # first calls load code: not the memory's time
        began = time.perf_counter()
        out, state = bank.predict_then_update(X, y[:, None], None)
        seconds += time.perf_counter() - began
        predictions[group] = out[:, :, 0].T
        held = [t for g in (state.memory, state.buffers) for t in g.values() if t.is_floating_point()]
        floats = max(floats, sum(t.numel() for t in held) // len(group))
    return Settled(predictions, seconds, floats)


def _groups(settings: Sequence[Setting]) -> list[list[int]]:
    """Indices of the settings that can share a scan: numbers may differ, and forgetting 1 goes apart.

    Without forgetting the regression needs no solve per row, so such settings are not slowed by their neighbours
    (and give the digits that the regressor alone gives).
    """
    found: dict[tuple[Any, ...], list[int]] = {}
    for i, s in enumerate(settings):
        found.setdefault((s.forgetting_rule, s.fit_intercept, s.window, s.forgetting == 1), []).append(i)
    return list(found.values())
