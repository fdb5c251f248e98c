"""The solver spectrum: one regression, solved by a local average, by steps, at once, and recursively.

    minimise  1/2 sum_i (<phi(x_i), S> - y_i)^2 + penalty / 2 |S|^2           phi: 128 random Fourier features

    Nadaraya-Watson     no fit at all: an average of the values near the query
    online step         S <- (1 - rate penalty / n) S - rate phi (<phi, S> - y), row after row, pass after pass
    recursive LS        A <- A + phi phi^T, b <- b + phi y, S = A^-1 b, A_0 = penalty I: one pass
    batch ridge         S = (sum phi phi^T + penalty I)^-1 sum phi y

The online step is the delta rule with the penalty's decay inside the step: the decay is not applied to the prediction,
so the memory's anchor is the "previous" state. Both it and recursive least squares are memories of the library, run by
`chunked`; batch ridge is one dense solve.

The twin in JAX draws other numbers: test errors 0.023, 0.151, 0.022, 0.008, 0.010 down D3's table, objectives 9.372,
5.108, 4.542, 4.487, distances 0.114, 0.372, 0.128, 0.031, 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import innerloop as il

from ..look import Palette
from .bandwidth import SOURCE
from .experiment import Outcome, Picture, Row, Tick, below, claim, digits, experiment

FEATURES, PENALTY, RATE, SIGMA = 128, 0.01, 0.06, 0.12
ONLINE = il.Memory(il.Matrix(), il.L2(), il.Decay("head"), il.GradientStep(), anchor="previous")
LEAST_SQUARES = il.get("rls", penalty=PENALTY)


@dataclass(frozen=True)
class Problem:
    """Eighty rows x, y with features keys [n, 128], and a grid with its features and the truth."""

    x: Tensor
    y: Tensor
    keys: Tensor
    grid: Tensor
    queries: Tensor
    truth: Tensor

    def ridge(self) -> Tensor:
        """The batch fit [128]."""
        gram = self.keys.T @ self.keys + PENALTY * torch.eye(FEATURES, dtype=self.y.dtype)
        return torch.linalg.solve(gram, self.keys.T @ self.y)

    def objective(self, S: Tensor) -> float:
        """Half the sum of squared errors and half the penalty times |S|^2."""
        return ((self.keys @ S - self.y).square().sum() + PENALTY * S.square().sum()).item() / 2

    def error(self, fit: Tensor) -> float:
        """Mean squared error of a fit on the grid against the truth."""
        return (fit - self.truth).square().mean().item()

    def distance(self, fit: Tensor, other: Tensor | None = None) -> float:
        """Root mean square difference of two fits on the grid (default: to the batch fit)."""
        other = self.queries @ self.ridge() if other is None else other
        return (fit - other).square().mean().sqrt().item()


def problem(dtype: torch.dtype = torch.float32) -> Problem:
    """The source's draws, in float32; what is computed from them is in `dtype`."""
    g = torch.Generator().manual_seed(1)
    x = torch.rand(80, generator=g) * 6 - 3
    y = torch.sin(1.5 * x) + 0.3 * x + 0.35 * torch.randn(80, generator=g)
    w, b = torch.randn(FEATURES, generator=g), torch.rand(FEATURES, generator=g) * 2 * math.pi
    x, y, w, b, grid = (t.to(dtype) for t in (x, y, w, b, torch.linspace(-3, 3, 400)))

    def features(x: Tensor) -> Tensor:
        return torch.cos(x[:, None] * w + b) * math.sqrt(2 / FEATURES)

    return Problem(x, y, features(x), grid, features(grid), torch.sin(1.5 * grid) + 0.3 * grid)


def online_pass(
    keys: Tensor, values: Tensor, state: il.State | None = None, *, rate: float = RATE, penalty: float = PENALTY
) -> il.State:
    """One pass of online steps over keys [n, K], values [n, V]: the state after it."""
    n = len(keys)
    k, v = keys[None, :, None], values[None, :, None]
    lr = torch.full((1, n, 1), rate, dtype=keys.dtype)
    log_decay = torch.full_like(lr, math.log1p(-rate * penalty / n))
    return il.chunked(ONLINE, k, k, v, il.Gates(lr=lr, log_decay=log_decay), state).state


def answers(memory: il.Memory, state: il.State, queries: Tensor) -> Tensor:
    """What a memory of one output answers to queries [m, K]: [m]."""
    return il.read(memory, queries[None, :, None], state).flatten()


@experiment("D3", "The solver spectrum", source=SOURCE)
def spectrum(tick: Tick) -> Outcome:
    """One least-squares problem, from no solver to the exact one: more work per row, and closer to the batch fit."""
    p = problem()
    ridge = p.ridge()
    smoother = il.get("nadaraya_watson", bandwidth=SIGMA)
    x, values = p.x.reshape(1, -1, 1, 1), p.y.reshape(1, -1, 1, 1)
    local = answers(smoother, il.chunked(smoother, x, x, values).state, p.grid[:, None])

    states: list[il.State] = []
    for _ in range(30):
        states.append(online_pass(p.keys, p.y[:, None], states[-1] if states else None))
    tick("thirty passes")
    fits = [answers(ONLINE, state, p.queries) for state in states]
    far = [p.distance(fit) for fit in fits]

    name = f"Nadaraya-Watson, sigma {SIGMA:g}"
    rows = [digits(f"{name}: test error", p.error(local), "0.027")]
    rows.append(digits(f"{name}: distance to the batch fit", p.distance(local), "0.135"))
    printed = {1: ("0.070", "8.916", "0.277"), 5: ("0.027", "6.238", "0.100"), 30: ("0.022", "6.134", "0.077")}
    for passes, texts in printed.items():
        name = f"online, {passes} pass" + "es" * (passes > 1)
        S = states[passes - 1].memory["S"].flatten()
        found = (p.error(fits[passes - 1]), p.objective(S), far[passes - 1])
        rows += _line(name, found, texts)
    exact = p.queries @ ridge
    rows += _line("batch ridge", (p.error(exact), p.objective(ridge), p.distance(exact)), ("0.010", "5.860", "0"))

    def paint(figure: Any, palette: Palette) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(1.4, 1))
        left.plot(p.x, p.y, "o", color=palette.soft, markersize=4, alpha=0.7)
        left.plot(p.grid, p.truth, color=palette.ink, linestyle=(0, (5, 3)), linewidth=1.2, label="truth")
        shown = (("Nadaraya-Watson", local, 3), ("online, 1 pass", fits[0], 1), ("online, 30", fits[-1], 2),
                 ("batch ridge", exact, 0))  # fmt: skip
        for label, fit, colour in shown:
            left.plot(p.grid, fit, color=palette.lines[colour], label=label)
        left.set(title="fits", xlabel="x", ylabel="y")
        left.legend(loc="upper left")
        right.plot(range(1, 31), far, "o-", color=palette.lines[2], markersize=4)
        right.axhline(p.distance(local), color=palette.lines[3])
        right.text(30, p.distance(local) + 0.006, "Nadaraya-Watson", color=palette.lines[3], ha="right")
        right.text(30, far[-1] - 0.02, "online", color=palette.lines[2], ha="right")
        right.text(30, 0.008, "batch ridge", color=palette.lines[0], ha="right")
        right.axhline(0, color=palette.lines[0])
        right.set(title="distance to the batch fit", xlabel="passes", ylim=(-0.01, None))

    return Outcome(rows, {"spectrum": Picture(paint, (10, 4.4))})


@experiment("X1", "Recursive least squares joins the table", source=SOURCE + ", exercise")
def recursive(tick: Tick) -> Outcome:
    """One pass of recursive least squares is the batch fit, at every row; it pays with a state of K^2 numbers."""
    p = problem(torch.float64)
    k, v = p.keys[None, :, None], p.y.reshape(1, -1, 1, 1)
    state = il.chunked(LEAST_SQUARES, k, k, v).state
    exact = p.queries @ p.ridge()
    weights = answers(LEAST_SQUARES, state, torch.eye(FEATURES, dtype=torch.float64))
    model = il.StreamingRegressor("rls", penalty=PENALTY, fit_intercept=False)
    model.partial_fit(p.keys.numpy(), p.y.numpy())
    estimator = torch.from_numpy(model.predict(p.queries.numpy()))
    fit = answers(LEAST_SQUARES, state, p.queries)
    rows = [
        below("largest difference of fits, one pass and batch", (fit - exact).abs().max().item(), 1e-9),
        below("largest difference of weights", (weights - p.ridge()).abs().max().item(), 1e-9),
        below("the same of fits, StreamingRegressor", (estimator - exact).abs().max().item(), 1e-9),
    ]
    tick("one pass")

    # after each row, the distance on the grid to the batch fit of the rows so far
    near: dict[str, list[float]] = {"online step": [], "recursive least squares": []}
    first = il.Gates(torch.full((1, 1), RATE).double(), torch.full((1, 1), math.log1p(-RATE * PENALTY / 80)).double())
    online = squares = None
    for t in range(len(p.y)):
        online = il.step(ONLINE, k[:, t], k[:, t], v[:, t], first, online).state
        squares = il.step(LEAST_SQUARES, k[:, t], k[:, t], v[:, t], None, squares).state
        seen = Problem(p.x[: t + 1], p.y[: t + 1], p.keys[: t + 1], p.grid, p.queries, p.truth)
        batch = p.queries @ seen.ridge()
        near["online step"].append(p.distance(answers(ONLINE, online, p.queries), batch))
        near["recursive least squares"].append(p.distance(answers(LEAST_SQUARES, squares, p.queries), batch))
    worst, best = max(near["recursive least squares"]), min(near["online step"])
    rows.append(below("largest distance to the batch fit of the rows so far", worst, 1e-9))
    rows.append(claim("smallest distance of the online step, likewise", best, "stays away", best > 0.1))
    tick("row by row")

    n, K = p.keys.shape
    smoother = il.get("nadaraya_watson", bandwidth=SIGMA)
    x = p.x.reshape(1, -1, 1, 1)
    held = {
        "online step": (ONLINE, online_pass(p.keys, p.y[:, None]), K),
        "Nadaraya-Watson": (smoother, il.chunked(smoother, x, x, v).state, 2 * n),
        "recursive least squares": (LEAST_SQUARES, state, K * K + K),
    }
    sizes: dict[str, int] = {}
    for name, (memory, after, numbers) in held.items():
        sizes[name] = sum(t.numel() for t in after.memory.values() if t.is_floating_point())
        said = il.explain(memory)
        rows.append(Row(f"state, {name}", f"{said.state_floats} = {sizes[name]:,}", None, sizes[name] == numbers))
        rows.append(Row(f"FLOPs per row, {name}", said.flops, None, ("K^2" in said.flops) == (memory is LEAST_SQUARES)))
    sizes["batch ridge"] = p.keys.numel() + p.y.numel()
    rows.append(
        Row(
            "rows kept, batch ridge", f"T (K + V) = {sizes['batch ridge']:,}", None, sizes["batch ridge"] == n * (K + 1)
        )
    )
    notes = [
        "K is the number of channels that a memory sees, 128 features (1 for Nadaraya-Watson, which sees x), V = 1, "
        "T = 80 rows, n of them visible, c the rows of a tile: one row at a time is c = 1."
    ]

    def paint(figure: Any, palette: Palette) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
        colours = {"online step": 1, "Nadaraya-Watson": 3, "recursive least squares": 4, "batch ridge": 0}
        for name, curve in near.items():
            left.plot(range(1, n + 1), curve, color=palette.lines[colours[name]], linewidth=2)
        left.text(n, 2e-2, "online step", color=palette.lines[1], ha="right")
        left.text(n, 1e-13, "recursive least squares", color=palette.lines[4], ha="right")
        left.set(yscale="log", ylim=(1e-17, 10), xlabel="row", title="distance to the batch fit of the rows so far")
        left.set_yticks([1, 1e-5, 1e-10, 1e-15], labels=["1", "1e-5", "1e-10", "1e-15"])
        for place, (name, size) in enumerate(sorted(sizes.items(), key=lambda item: -item[1])):
            right.barh(place, size, color=palette.lines[colours[name]], height=0.32)
            right.text(0, place + 0.26, f"{name}: {size:,}", va="bottom", fontsize=10)
        right.set(ylim=(-0.4, 3.7), yticks=[], title="numbers held after 80 rows")
        right.set_xticks([0, 5000, 10000, 15000], labels=["0", "5,000", "10,000", "15,000"])
        right.grid(False)

    return Outcome(rows, {"recursive": Picture(paint, (10, 4))}, notes)


def _line(name: str, found: tuple[float, float, float], texts: tuple[str, str, str]) -> list[Row]:
    columns = ("test error", "objective", "distance to the batch fit")
    return [digits(f"{name}: {column}", x, text) for column, x, text in zip(columns, found, texts, strict=True)]
