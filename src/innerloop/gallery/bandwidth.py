"""Kernel regression is attention: how wide the kernel is decides what is attended to, and the data can say.

    f(q) = sum_i p_i(q) y_i,   p(q) = softmax over i of -w^2 (q - x_i)^2 / 2,   w = 1 / sigma

Shown with the memory `nadaraya_watson`. A sweep of sigma goes from a jagged fit to a flat one; gradient descent on w
finds a good one, provided that no point votes on itself. Leaving one out is a mask: row i of a batch reads every pair
but the i-th, and answers at x_i. The gradient passes through the read to the memory's own scalar `bandwidth`.

The twin in JAX draws other numbers: 0.875, 0.480, 1.155 in the sweep, 1.849 to 1.387 and 1 / w = 0.469 in the descent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import innerloop as il

from ..look import Palette
from .experiment import Outcome, Picture, Row, Tick, claim, digits, experiment

SOURCE = "Dive into Deep Learning, 2nd edition, section 12.6"
MEMORY = il.get("nadaraya_watson")
RATE = 0.5


@dataclass(frozen=True)
class Table:
    """Forty noisy points of 2 sin x + x on [0, 5], and fifty places at which the truth is known."""

    x: Tensor
    y: Tensor
    queries: Tensor
    truth: Tensor


def table() -> Table:
    """The source's draws."""
    generator = torch.Generator().manual_seed(0)
    x = torch.sort(torch.rand(40, generator=generator) * 5).values
    y = 2 * torch.sin(x) + x + torch.randn(40, generator=generator)
    queries = torch.arange(0, 5, 0.1)
    return Table(x, y, queries, 2 * torch.sin(queries) + queries)


def remembered(x: Tensor, values: Tensor, w: Tensor, *, leave_one_out: bool = False) -> il.State:
    """Memories of the pairs x [n], values [n, V], a head for each w [H]; leave_one_out: n of them, i without pair i."""
    n, V, heads = *values.shape, len(w)
    batch = n if leave_one_out else 1
    state = il.init_state(MEMORY, batch, heads, 1, V, initial={"bandwidth": 1 / w[None]}, dtype=x.dtype)
    k = x.reshape(1, n, 1, 1).expand(batch, n, heads, 1)
    v = values.reshape(1, n, 1, V).expand(batch, n, heads, V)
    mask = ~torch.eye(n, dtype=torch.bool) if leave_one_out else None
    return il.chunked(MEMORY, k, k, v, None, state, mask=mask).state


def predictions(data: Table, w: Tensor, queries: Tensor | None = None) -> Tensor:
    """The fits of all points under each w [H], at queries [m] (default: the table's): [H, m]."""
    q = data.queries if queries is None else queries
    state = remembered(data.x, data.y[:, None], w)
    return il.read(MEMORY, q.reshape(1, -1, 1, 1).expand(-1, -1, len(w), -1), state)[0, :, :, 0].T


def attention(data: Table, w: float) -> Tensor:
    """The weights [queries, points]: with unit vectors for values, a read returns them."""
    state = remembered(data.x, torch.eye(len(data.x)), torch.tensor([w]))
    return il.read(MEMORY, data.queries.reshape(1, -1, 1, 1), state)[0, :, 0]


def training_error(data: Table, w: Tensor, *, leave_one_out: bool) -> Tensor:
    """Mean squared error [H] at the points themselves, each with or without its own vote."""
    state = remembered(data.x, data.y[:, None], w, leave_one_out=leave_one_out)
    q = data.x.reshape(-1, 1, 1, 1) if leave_one_out else data.x.reshape(1, -1, 1, 1)
    fit = il.read(MEMORY, q.expand(-1, -1, len(w), -1), state)[..., 0].reshape(len(data.x), len(w))
    return (fit - data.y[:, None]).square().mean(0)


def true_error(data: Table, w: Tensor) -> Tensor:
    """Mean squared error [H] against the truth, at the queries."""
    return (predictions(data, w) - data.truth).square().mean(1)


def descend(data: Table, steps: int, *, leave_one_out: bool, rate: float = RATE) -> list[tuple[float, float]]:
    """Gradient descent on w from 1: (error before the step, w after it), step by step."""
    w, path = torch.ones(1, dtype=data.x.dtype), []
    for _ in range(steps):
        w.requires_grad_()
        error = training_error(data, w, leave_one_out=leave_one_out)
        (gradient,) = torch.autograd.grad(error, w)
        w = (w - rate * gradient).detach()
        path.append((error.item(), w.item()))
    return path


@experiment("D1", "How wide should the kernel be?", source=SOURCE)
def sweep(tick: Tick) -> Outcome:
    """A narrow kernel copies the noise, a wide one flattens the curve; a width between them follows the truth."""
    data = table()
    printed = {0.1: "0.350", 0.5: "0.136", 2.0: "0.741"}
    widths = 1 / torch.tensor(list(printed))
    errors = dict(zip(printed, true_error(data, widths).tolist(), strict=True))
    rows = [digits(f"MSE against the truth, sigma {s:g}", errors[s], text) for s, text in printed.items()]
    tick("three widths")

    def paint(figure: Any, palette: Palette) -> None:
        fine = torch.linspace(0, 5, 500)
        panels = figure.subplots(1, 3, sharex=True, sharey=True)
        for axes, sigma, fit in zip(panels, printed, predictions(data, widths, fine), strict=True):
            draw_table(axes, palette, data)
            axes.plot(fine, fit, color=palette.lines[0], linewidth=2, label="fit")
            axes.set(title=f"sigma {sigma:g}: error {errors[sigma]:.3f}", xlabel="x")
        panels[0].set_ylabel("y")
        panels[0].legend(loc="upper left")

    return Outcome(rows, {"sweep": Picture(paint, (10, 3.6))})


@experiment("D2", "The data choose the width", source=SOURCE)
def learned(tick: Tick) -> Outcome:
    """Descent on w = 1 / sigma under the leave-one-out error sharpens the attention and brings the fit to the truth."""
    data = table()
    printed = [("1.259", "1.268"), ("1.146", "1.428"), ("1.102", "1.545"), ("1.078", "1.637"), ("1.062", "1.716")]
    path = descend(data, len(printed), leave_one_out=True)
    tick("five steps")
    rows: list[Row] = []
    for i, ((error, w), (source_error, source_w)) in enumerate(zip(path, printed, strict=True), 1):
        rows.append(digits(f"leave-one-out error before step {i}", error, source_error))
        rows.append(digits(f"w after step {i}", w, source_w))
    after = path[-1][1]
    rows.append(digits("sigma after five steps", 1 / after, "0.583"))

    model = il.NadarayaWatsonRegressor().fit(data.x.double().numpy()[:, None], data.y.double().numpy())
    best = float(1 / model.bandwidth_[0])
    errors = {w: true_error(data, torch.tensor([w])).item() for w in (1.0, after, best)}
    fell = errors[best] < errors[after] < errors[1.0]
    rows.append(claim("MSE against the truth, w = 1", errors[1.0], "falls", fell))
    rows.append(claim("MSE against the truth, after five steps", errors[after], "falls", fell))
    rows.append(Row("w of the least leave-one-out error", best, None, best > after))
    rows.append(Row("MSE against the truth there", errors[best], None, fell))
    tick("the minimum")
    notes = [
        f"Five steps stop on the way: the leave-one-out error is least at w = {best:.3f}, sigma = {1 / best:.3f} "
        f"(NadarayaWatsonRegressor), where the error against the truth is {errors[best]:.3f} instead of "
        f"{errors[after]:.3f}. Each printed error is that before its step, each w that after it.",
    ]
    widths, steps = torch.logspace(-0.3, 1, 60), torch.tensor([1.0, *(w for _, w in path)])
    curve, heights = (training_error(data, w, leave_one_out=True) for w in (widths, steps))

    def fits(figure: Any, palette: Palette) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        fine = torch.linspace(0, 5, 500)
        draw_table(left, palette, data)
        for w, colour, when in ((1.0, 1, "before"), (after, 0, "after 5 steps")):
            label = f"{when}: w = {w:.2f}"
            left.plot(
                fine,
                predictions(data, torch.tensor([w]), fine)[0],
                color=palette.lines[colour],
                linewidth=2,
                label=label,
            )
        left.set(title="fit", xlabel="x", ylabel="y")
        left.legend(loc="lower center")
        right.plot(widths, curve, color=palette.soft)
        right.plot(steps, heights, "o-", color=palette.lines[0], markersize=5, label="five steps")
        right.plot(best, model.loo_error_, "o", color=palette.lines[4], label=f"least, w = {best:.2f}")
        right.set(title="leave-one-out error", xlabel="w = 1 / sigma", xscale="log")
        right.set_xticks([0.5, 1, 2, 5, 10], labels=["0.5", "1", "2", "5", "10"])
        right.minorticks_off()
        right.legend(loc="upper right")

    def heat(figure: Any, palette: Palette) -> None:
        weights = [attention(data, w) for w in (1.0, after)]
        top = max(float(p.max()) for p in weights)
        panels = figure.subplots(1, 2, sharey=True)
        mesh = None
        for axes, p, title in zip(panels, weights, ("before: w = 1", f"after 5 steps: w = {after:.2f}"), strict=True):
            axes.grid(False)
            mesh = axes.imshow(p.numpy(), cmap=palette.heat, vmin=0, vmax=top, aspect="auto", origin="lower")
            axes.set(title=title, xlabel="point, by x")
        panels[0].set_yticks([0, 10, 20, 30, 40], labels=["0", "1", "2", "3", "4"])
        panels[0].set_ylabel("query")
        bar = figure.colorbar(mesh, ax=panels, pad=0.02)
        bar.set_label("attention")
        bar.outline.set_visible(False)

    return Outcome(rows, {"fit": Picture(fits, (10, 4)), "attention": Picture(heat, (9, 4))}, notes)


def draw_table(axes: Any, palette: Palette, data: Table) -> None:
    """Points and truth."""
    axes.plot(data.queries, data.truth, color=palette.ink, linestyle=(0, (5, 3)), linewidth=1.2, label="truth")
    axes.plot(data.x, data.y, "o", color=palette.soft, markersize=4, alpha=0.8, label="data")
