"""Longhorn's step is the minimum of a proximal problem, in closed form.

    S_t = argmin over S of  1/2 |S - S_{t-1}|^2 + beta/2 |S^T k - v|^2
        = S_{t-1} + eps k (v - S_{t-1}^T k)^T,     eps = beta / (1 + beta |k|^2)

D4 holds the closed form against a linear solve and against gradient descent on the problem itself. X2 takes beta to its
limits: for beta -> 0 it is the explicit step of the delta rule, for beta -> infinity it answers k with v exactly.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

import innerloop as il

from ..look import Palette
from .experiment import Outcome, Picture, Row, Tick, below, claim, experiment, near

SOURCE = "Dive into Deep Learning 2e, section 12.6"


class Instance(NamedTuple):
    """One write: previous state [d], key [d], value [], beta []."""

    state: Tensor
    key: Tensor
    value: Tensor
    beta: Tensor


def instances(count: int = 200) -> list[Instance]:
    """The source's random instances, d from 2 to 15."""
    generator = torch.Generator().manual_seed(0)
    made: list[Instance] = []
    for _ in range(count):
        d = int(torch.randint(2, 16, (1,), generator=generator))
        state, key = torch.randn(d, generator=generator), torch.randn(d, generator=generator)
        value = torch.randn((), generator=generator)
        made.append(Instance(state, key, value, torch.rand((), generator=generator) * 5 + 0.1))
    return made


def written(verb: Any, memory: il.Memory, instance: Instance) -> Tensor:
    """The state [d] after the write; `verb` is `il.scan` or `il.chunked`."""
    start, key, value, beta = instance
    d = len(key)
    state = il.init_state(memory, 1, 1, d, 1, initial={"S": start.view(1, 1, d, 1)})
    k = key.view(1, 1, 1, d)
    return verb(memory, k, k, value.view(1, 1, 1, 1), il.Gates(lr=beta.view(1, 1, 1)), state).state.memory["S"].view(d)


def descended(instance: Instance, steps: int = 2000, keep: list[Tensor] | None = None) -> Tensor:
    """Gradient descent on the proximal problem from zero, at the fastest rate for curvatures 1 and 1 + beta |k|^2."""
    start, key, value, beta = instance
    rate = 2 / (2 + beta * key.square().sum())
    x = torch.zeros_like(start)
    for _ in range(steps):
        if keep is not None:
            keep.append(x)
        x = x - rate * (x - start + beta * (key @ x - value) * key)
    return x


def double(instance: Instance) -> Instance:
    """The same numbers in float64."""
    return Instance(*(t.double() for t in instance))


@experiment("D4", "Longhorn's step in closed form", source=SOURCE)
def closed_form(tick: Tick) -> Outcome:
    """Longhorn's implicit step is the exact minimum of a proximal problem: closed form, linear solve, descent agree."""
    memory = il.get("longhorn")
    drawn = instances()
    apart: dict[str, float] = {}
    for name, cases in (("float32", drawn), ("float64", [double(i) for i in drawn])):
        tick(f"200 instances in {name}")
        # `chunked` writes by the closed form, `scan` solves (I + beta k k^T) S = S_{t-1} + beta k v^T densely
        gaps = [written(il.chunked, memory, i) - written(il.scan, memory, i) for i in cases]
        apart[name] = max(float(gap.abs().max()) for gap in gaps)
    tick("gradient descent")
    slow = max(
        float((descended(double(i)) - written(il.chunked, memory, double(i))).abs().max()) for i in drawn[:5]
    )  # fmt: skip
    rows = [
        claim(
            "closed form against solve, float32", apart["float32"], "3.99e-06 (order of magnitude)",
            3.99e-7 < apart["float32"] < 3.99e-5,
        ),
        below("closed form against solve, float64", apart["float64"], 1e-12),
        below("closed form against 2,000 steps of descent", slow, 1e-10),
    ]  # fmt: skip
    notes = [
        "The digits of the float32 difference are rounding: they depend on the order of sums, their size does not.",
        "In the theorem beta is a vector over value channels; here, as in the library's row, it is a number. The layer "
        "that Longhorn's authors ship keeps only the diagonal of k k^T, which is another rule.",
    ]
    return Outcome(rows, {"bowl": Picture(paint_bowl, (8.6, 4.2))}, notes)


def paint_bowl(figure: Any, palette: Palette) -> None:
    """The proximal problem in two dimensions, its minimum, and a slow descent into it."""
    case = double(Instance(*map(torch.tensor, ([-0.6, 1.5], [1.0, 0.7], 1.6, 3.0))))
    end = written(il.chunked, il.get("longhorn"), case)
    path: list[Tensor] = []
    descended(case, 40, path)
    trail = torch.stack(path)
    x, y = torch.meshgrid(torch.linspace(-1.4, 2.4, 200), torch.linspace(-0.8, 2.4, 200), indexing="xy")
    grid = torch.stack([x, y], -1).double()
    loss = (grid - case.state).square().sum(-1) / 2 + case.beta / 2 * (grid @ case.key - case.value).square()

    axes = figure.subplots()
    levels = float(loss.min()) + torch.linspace(0.05, 3.3, 12).square()
    axes.contour(x, y, loss, levels=levels.tolist(), colors=palette.soft, linewidths=0.7, alpha=0.7)
    line = torch.linspace(-1.4, 2.4, 2, dtype=torch.float64)
    axes.plot(line, (case.value - case.key[0] * line) / case.key[1], color=palette.ink, lw=1.2, ls="--")
    axes.text(1.75, -0.4, "answers k with v", ha="right")
    axes.plot(*trail.T, color=palette.lines[1], marker="o", ms=3.5, label="gradient descent from zero")
    axes.plot(*case.state, "s", color=palette.lines[2], ms=8, label="the memory before", zorder=3)
    axes.annotate(
        "", tuple(end.tolist()), tuple(case.state.tolist()), zorder=2,
        arrowprops={"arrowstyle": "->", "color": palette.lines[0], "lw": 1.8, "shrinkA": 5, "shrinkB": 6},
    )  # fmt: skip
    axes.plot(*end, "*", color=palette.lines[0], ms=16, label="Longhorn's step, in closed form", zorder=4)
    axes.set(xlim=(-1.4, 2.4), ylim=(-0.8, 2.4), xlabel="first weight", ylabel="second weight")
    axes.grid(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def answered(memory: il.Memory, betas: Tensor, d: int = 8) -> Tensor:
    """What each memory, empty before, answers to a unit key after the value 1 was written at these betas: [n]."""
    key = torch.nn.functional.normalize(torch.arange(1.0, d + 1, dtype=torch.float64), dim=0)
    n = len(betas)
    k = key.expand(1, 1, n, d)
    one = torch.ones(1, 1, n, 1, dtype=torch.float64)  # every beta is a head
    return il.chunked(memory, k, k, one, il.Gates(lr=betas.view(1, 1, n))).output.view(n)


def slope(x: Tensor, y: Tensor) -> float:
    """The exponent p of y ~ x^p, by least squares in logarithms."""
    x, y = x.log(), y.log()
    x = x - x.mean()
    return float((x @ y) / (x @ x))


@experiment("X2", "Longhorn's step at its limits", source=f"{SOURCE}, exercises")
def limits(tick: Tick) -> Outcome:
    """As beta -> 0 the implicit step is the explicit one, as beta -> infinity it interpolates; it never overshoots."""
    tick("limits")
    small, large = torch.logspace(-6, -3, 13, dtype=torch.float64), torch.logspace(3, 9, 13, dtype=torch.float64)
    implicit, explicit = answered(il.get("longhorn"), small), answered(il.get("deltanet"), small)
    missing = 1 - answered(il.get("longhorn"), large)
    sweep = torch.logspace(-6, 6, 49, dtype=torch.float64)
    effective = answered(il.get("longhorn"), sweep)
    law = float((effective - sweep / (1 + sweep)).abs().max())
    rows: list[Row] = [
        near("beta -> 0: order of the gap to the explicit step", slope(small, explicit - implicit), 2.0, 0.01),
        near("beta -> infinity: order of what the answer misses", slope(large, missing), -1.0, 0.01),
        below("what the answer misses at beta 1e9", float(missing[-1]), 1e-8),
        claim("smallest effective step, unit keys", float(effective.min()), "> 0", float(effective.min()) > 0),
        claim("largest effective step, unit keys", float(effective.max()), "< 1", float(effective.max()) < 1),
        below("effective step against beta / (1 + beta)", law, 1e-12),
    ]
    notes = [
        "On unit keys the effective step is in (0, 1): the error along the key shrinks and keeps its sign. The "
        "explicit step at the same beta overshoots past 1 and grows the error past 2.",
        "The exact gradient flow (EFLA) lies between the two: 1 - exp(-beta).",
    ]
    return Outcome(rows, {"effective-step": Picture(paint_limits, (9.0, 4.0))}, notes)


def paint_limits(figure: Any, palette: Palette) -> None:
    """The effective step of three solvers; orders of the two limits."""
    left, right = figure.subplots(1, 2)
    betas = torch.logspace(-2, 2, 101, dtype=torch.float64)
    for name, label, spot, colour in (
        ("deltanet", "explicit (DeltaNet)", (2.0, 1.6), palette.lines[4]),
        ("efla", "exact flow (EFLA)", (4.0, 1.06), palette.lines[2]),
        ("longhorn", "implicit (Longhorn)", (3.0, 0.6), palette.lines[0]),
    ):
        left.plot(betas, answered(il.get(name), betas), color=colour)
        left.text(*spot, label, color=colour)
    left.axhspan(2, 2.6, color=palette.lines[4], alpha=0.15, lw=0)
    left.text(0.012, 2.28, "the error grows", va="center", color=palette.soft)
    left.axhline(1, color=palette.soft, lw=0.9, ls="--")
    left.text(0.012, 1.04, "answers exactly", va="bottom", color=palette.soft)
    left.set(xscale="log", ylim=(0, 2.6), xlim=(0.01, 100), xlabel="beta (unit keys)", title="effective step")
    small, large = torch.logspace(-6, -1, 30, dtype=torch.float64), torch.logspace(1, 6, 30, dtype=torch.float64)
    gap = answered(il.get("deltanet"), small) - answered(il.get("longhorn"), small)
    right.plot(small, gap, color=palette.lines[0])
    right.text(1.5e-3, 1e-9, "gap to the\nexplicit step:\norder 2", color=palette.lines[0])
    right.plot(large, 1 - answered(il.get("longhorn"), large), color=palette.lines[1])
    right.text(2.5e3, 2e-2, "what is\nmissed:\norder -1", color=palette.lines[1], va="center")
    right.set(xscale="log", yscale="log", xlabel="beta", title="the two limits")
    right.set_xticks([1e-6, 1e-3, 1, 1e3, 1e6])
    for axis in (left.xaxis, right.xaxis, right.yaxis):
        axis.set_major_formatter("{x:g}")
