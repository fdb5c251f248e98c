"""Settings of one streaming memory, side by side: each is a head of one scan.

    row t:   x_t - c (and a 1, when there is an intercept) is key and query, y_t the value; order "read-write"

so a call of `chunked` gives the predictions made before each row was learned. The scalars that differ between settings
(forgetting, penalty, process noise, step size, bandwidth) enter as gates or as overrides of the initial state, [1, H].

c is the first row learned, where an unpenalised intercept makes up for it (rls, kalman): columns may then lie as far
from 0 as a time stamp does. nadaraya_watson has the values (l y, l) of rows of weight l, and divides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.architecture import Exemplars
from ..core.dispatch import chunked, read
from ..core.linalg import quadratic
from ..core.memory import Gates, Memory
from ..core.solvers import Kalman, Ridge
from ..core.state import State, init_state
from . import settings as choices
from .settings import MEMORIES, Setting, check_setting

__all__ = ["MEMORIES", "Bank", "Run", "Setting", "groups_of"]

BLOCK = 32768  # rows times heads handed over at once: bounds the memory of a long call, changes no number
FADE = math.log(1e-12)
"""The most that one row's decay takes off: beyond it an unpenalised intercept would be forgotten to the last digit."""
_STILL = ("rls", "kalman", "deltanet", "longhorn")  # a row of weight 0 that fades nothing leaves these as they are


class Run(NamedTuple):
    """What a call gives: predictions [n, H, V] made before each row was learned, their variance [n, H] in units of the
    noise variance (rls, kalman; else None), the state after the last row and the centre c."""

    predictions: np.ndarray
    variance: np.ndarray | None
    state: State | None
    center: np.ndarray | None


@dataclass(frozen=True)
class Bank:
    """Settings of one memory for tables of `features` columns and `outputs` targets."""

    name: str | Memory
    settings: tuple[Setting, ...]
    features: int
    outputs: int

    @staticmethod
    def of(name: str | Memory, settings: Sequence[Setting], features: int, outputs: int) -> Bank:
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
    def heads(self) -> int:
        """H."""
        return len(self.settings)

    @cached_property
    def forgets(self) -> bool:
        """Whether any setting does."""
        return any(s.forgetting < 1 for s in self.settings)

    @cached_property
    def memory(self) -> Memory:
        """The memory value that every head runs, order "read-write"."""
        return choices.value(self.name, self.settings[0], forgets=self.forgets)

    @property
    def kernel(self) -> bool:
        """Whether it keeps rows as they are."""
        return isinstance(self.memory.architecture, Exemplars)

    @property
    def uncertain(self) -> bool:
        """Whether it knows the variance of its predictions."""
        return isinstance(self.memory.learner, Ridge | Kalman)

    @property
    def intercept(self) -> bool:
        """Whether a column of ones is appended; a local average has its level anyway."""
        return bool(self.settings[0].fit_intercept) and not self.kernel

    @property
    def centred(self) -> bool:
        """Whether columns are counted from the first row."""
        return self.intercept and self.name in ("rls", "kalman")

    @property
    def width(self) -> int:
        """Key dimension K."""
        return self.features + self.intercept

    @cached_property
    def log_fade(self) -> np.ndarray:
        """Natural log of what each setting keeps of the evidence per row, [H]."""
        return np.log([s.forgetting for s in self.settings])

    def step_sizes(self) -> np.ndarray | None:
        """lr of every setting [H]; None of memories that take none."""
        if "lr" not in choices.reads(self.name):
            return None
        usual = choices.usual_lr(self.name, self.width)
        return np.array([usual if s.lr is None else float(s.lr) for s in self.settings])

    def initial(self) -> dict[str, Tensor]:
        """Overrides of the initial state, [1, H, ...]."""
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
            sizes = [width if s.bandwidth is None else s.bandwidth for s in self.settings]
            return {"bandwidth": self._column(sizes)[..., 0]}
        if self.kernel:
            return {}
        # every setting starts alike, however many there are: default weights of an MLP differ from head to head
        one = init_state(self.memory, 1, 1, self.width, self.outputs, dtype=torch.float64)
        return {name: t.expand(1, self.heads, *t.shape[2:]) for name, t in one.initial.items()}

    def gates(self, weight: np.ndarray | None, elapsed: np.ndarray | None, rows: int) -> Gates:
        """Gates [1, rows, H] of rows of these weights, so long after the rows before them."""
        H, reads = self.heads, self.memory.reads
        here = None if weight is None else torch.from_numpy((weight > 0).astype(np.float64))[None, :, None]
        time = None if elapsed is None else torch.from_numpy(elapsed)[None, :, None]
        lr = self.step_sizes()
        made: dict[str, Tensor] = {}
        if lr is not None:
            made["lr"] = torch.from_numpy(lr).expand(1, rows, H)
        if weight is not None and "lr" in reads:
            base = made.get("lr", torch.ones(1, rows, H, dtype=torch.float64))
            made["lr"] = base * torch.from_numpy(weight)[None, :, None]
        if "lr" in made and self.memory.architecture.rates:
            made["lr"] = made["lr"][..., None].expand(*made["lr"].shape, len(self.memory.architecture.rates))
        if "momentum" in reads and any(s.momentum is not None for s in self.settings):
            made["momentum"] = self._row([0.9 if s.momentum is None else s.momentum for s in self.settings], rows)
        if self.forgets:
            fade = torch.from_numpy(self.log_fade).expand(1, rows, H)
            fade = fade if time is None else fade * time
            made["log_decay"] = (fade if here is None else fade * here).clamp(min=FADE) + 0.0
        if "scale" in reads and isinstance(self.memory.learner, Kalman) and (time is not None or here is not None):
            scale = torch.ones(1, rows, 1, dtype=torch.float64) if time is None else time
            made["scale"] = (scale if here is None else scale * here).expand(1, rows, H)
        return Gates(**made)

    def fades(self, weight: np.ndarray | None, elapsed: np.ndarray | None, rows: int) -> np.ndarray:
        """log of what is kept of the noise's evidence at each row, [rows, H]."""
        out = np.broadcast_to(self.log_fade, (rows, self.heads))
        if elapsed is not None:
            out = np.maximum(out * elapsed[:, None], FADE)
        return out if weight is None else out * (weight > 0)[:, None]

    def keys(self, X: np.ndarray, center: np.ndarray | None) -> Tensor:
        """Rows [n, features] as keys of every head, [1, n, H, K]."""
        x = torch.from_numpy(np.array(X, dtype=np.float64, order="C") if center is None else X - center)
        if self.intercept:
            x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
        return x[None, :, None, :].expand(1, len(x), self.heads, self.width)

    def values(self, y: np.ndarray, weight: np.ndarray | None) -> Tensor:
        """Targets [n, outputs] as values of every head, [1, n, H, V] (with the weights, of a kernel memory)."""
        v = torch.from_numpy(np.array(y, dtype=np.float64, order="C"))
        if self.kernel:
            l = torch.ones(len(v), 1, dtype=v.dtype) if weight is None else torch.from_numpy(weight)[:, None]
            v = torch.cat([l * v, l], 1)
        return v[None, :, None, :].expand(1, len(v), self.heads, v.shape[1])

    def answers(self, output: Tensor) -> np.ndarray:
        """Predictions [n, H, outputs] of what the memory reads, [1, n, H, V]."""
        if not self.kernel:
            return output[0].numpy()
        total = output[0, ..., -1:]
        return (output[0, ..., :-1] / torch.where(total > 0, total, torch.ones_like(total))).numpy()

    def predict(self, X: np.ndarray, state: State, center: np.ndarray | None = None) -> np.ndarray:
        """Predictions of the state as it stands, [n, H, outputs]."""
        with torch.no_grad():
            return self.answers(read(self.memory, self.keys(X, center), state))

    def variance(self, X: np.ndarray, state: State, center: np.ndarray | None) -> np.ndarray:
        """`x^T P x` of the state as it stands [n, H]; infinite in directions of which nothing is known."""
        x = self.keys(X, center)[0].transpose(0, 1)  # [H, n, K]
        learner = self.memory.learner
        if isinstance(learner, Kalman):
            P = state.memory["covariance"][0]
            return ((x @ P) * x).sum(-1).T.numpy()
        A = state.memory["gram"][0]
        if isinstance(learner, Ridge) and learner.rule == "static":
            A = A + torch.diag_embed(state.parameters["penalty"][0].expand(self.heads, self.width))
        return quadratic(A[:, None].expand(-1, x.shape[1], -1, -1), x).T.numpy()

    def linear(self, state: State, center: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients [H, d, V] and intercepts [H, V]; only of linear memories."""
        eye = torch.eye(self.width, dtype=torch.float64)[None, :, None].expand(1, self.width, self.heads, self.width)
        with torch.no_grad():
            w = read(self.memory, eye, state)[0].transpose(0, 1).numpy()  # [H, K, V]
        coef = w[:, : self.features]
        level = w[:, self.features] if self.intercept else np.zeros_like(w[:, 0])
        return coef, level if center is None else level - np.einsum("d,hdv->hv", center, coef)

    def run(
        self, X: np.ndarray, y: np.ndarray, state: State | None, center: np.ndarray | None = None, *,
        query: np.ndarray | None = None, weight: np.ndarray | None = None, elapsed: np.ndarray | None = None,
    ) -> Run:  # fmt: skip
        """Learn rows X [n, d], y [n, V] in order, predicting each before it is learned.

        query: rows [n, d] to predict in their places. weight: [n], 0: the row is predicted, and absent otherwise.
        elapsed: [n], time since the row before. A state of None is a fresh one: it predicts 0.
        """
        n = len(X)
        asked = X if query is None else query
        predictions = np.zeros((n, self.heads, self.outputs))
        variance = np.full((n, self.heads), np.inf) if self.uncertain else None
        first = silent = 0
        if state is None:
            learned = np.flatnonzero(weight > 0) if weight is not None else np.arange(min(n, 1))
            if not len(learned):  # nothing to learn from: as fresh as before
                return Run(predictions, variance, None, center)
            first = int(learned[0])
            silent = first + 1  # an untrained network would answer something
            center = X[first].copy() if self.centred else None
            if self.name == "kalman" and self.intercept:
                state = self._first_row(y[first], 1.0 if weight is None else float(weight[first]))
                first += 1
            else:
                state = self._fresh()
        step = max(1, BLOCK // self.heads)
        with torch.no_grad():
            for start, stop in self._cuts(first, n, weight, step):
                here = slice(start, stop)
                w = None if weight is None else weight[here]
                keys = self.keys(X[here], center)
                queries = keys if query is None else self.keys(asked[here], center)
                if w is not None and self.name not in _STILL and not w.any():
                    predictions[here] = self.answers(read(self.memory, queries, state))
                    continue
                result = chunked(
                    self.memory, queries, keys, self.values(y[here], w),
                    self.gates(w, None if elapsed is None else elapsed[here], stop - start), state,
                    info=("variance",) if self.uncertain and query is None else (),
                )  # fmt: skip
                state = result.state
                predictions[here] = self.answers(result.output)
                if variance is not None and result.info is not None:
                    variance[here] = result.info["variance"][0].numpy()
        predictions[:silent] = 0.0
        return Run(predictions, variance, state, center)

    def _cuts(self, first: int, last: int, weight: np.ndarray | None, step: int) -> list[tuple[int, int]]:
        """Blocks of rows; where rows of weight 0 would move the memory, apart from the others."""
        edges = [first, last]
        if weight is not None and self.name not in _STILL:
            counts = weight[first:last] > 0
            edges = [first, *(first + 1 + np.flatnonzero(counts[1:] != counts[:-1])).tolist(), last]
        return [(start, min(start + step, stop)) for low, stop in pairwise(edges) for start in range(low, stop, step)]

    def _fresh(self) -> State:
        V = self.outputs + self.kernel
        return init_state(self.memory, 1, self.heads, self.width, V, initial=self.initial(), dtype=torch.float64)

    def _first_row(self, y: np.ndarray, weight: float) -> State:
        """The Kalman filter after its first row, in the limit of an infinite prior variance of the intercept.

        Columns are counted from this row: of y = level + noise it says the level, with the noise's variance, and
        nothing of the weights, which have walked one step from their prior. No finite prior gives that.
        """
        start = self.initial()
        walked = (start["prior_variance"] + start["process_noise"])[..., None].expand(1, self.heads, self.width).clone()
        walked[..., -1] = self.memory.parameters["observation_noise"][0] / weight
        S = torch.zeros(1, self.heads, self.width, self.outputs, dtype=torch.float64)
        S[:, :, -1] = torch.from_numpy(np.array(y, dtype=np.float64))
        given = {**start, "S": S, "covariance": torch.diag_embed(walked)}
        return init_state(self.memory, 1, self.heads, self.width, self.outputs, initial=given, dtype=torch.float64)

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor([float(x) for x in values], dtype=torch.float64)[None, :, None]

    def _row(self, values: Sequence[float], rows: int) -> Tensor:
        return torch.tensor([float(x) for x in values], dtype=torch.float64).expand(1, rows, len(values))


def groups_of(settings: Sequence[Setting]) -> list[list[int]]:
    """Indices of the settings that can share a scan: numbers may differ, and forgetting 1 goes apart.

    Without forgetting the regression needs no solve per row, so such settings are not slowed by their neighbours
    (and give the digits that the regressor alone gives).
    """
    found: dict[tuple[Any, ...], list[int]] = {}
    for i, s in enumerate(settings):
        found.setdefault((s.forgetting_rule, s.fit_intercept, s.window, s.forgetting == 1), []).append(i)
    return list(found.values())
