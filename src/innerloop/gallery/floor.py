"""The floor: what is left between online passes and the batch fit, and what it takes to remove it.

    one pass:  S <- A S + b,    A = product over the rows of ((1 - rate penalty / n) I - rate phi phi^T)

A pass of online steps is an affine map, so passes without end come to rest at S* = (I - A)^-1 b. That is not the batch
fit: each row pulls S toward itself after the others, and the distance that is left, the floor, is of the order of the
rate. It goes to 0 as the rate does, while passes are added so that rate x passes still grows. Without the decay the
passes rest elsewhere: from S = 0, where S stays in the span of the keys, at the interpolator of least norm, whose
distance to the ridge fit no rate removes.

A and b are read off the memory itself: its pass from the columns of the identity, with values 0, ends at A; from 0,
with the values y, at b. Doubling, (A, S) <- (A^2, A S + S), then runs millions of passes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

import innerloop as il

from ..look import Palette
from .bandwidth import SOURCE
from .experiment import Outcome, Picture, Row, Tick, below, claim, digits, experiment
from .spectrum import FEATURES, ONLINE, PENALTY, RATE, Problem, online_pass, problem


def pass_map(p: Problem, rate: float, penalty: float = PENALTY) -> tuple[Tensor, Tensor]:
    """A [K, K] and b [K] of one pass, as the memory has them."""
    eye, zero = torch.eye(FEATURES, dtype=p.y.dtype), torch.zeros(len(p.y), FEATURES, dtype=p.y.dtype)
    start = torch.cat([eye, eye.new_zeros(FEATURES, 1)], 1)[None, None]
    state = il.init_state(ONLINE, 1, 1, FEATURES, FEATURES + 1, initial={"S": start})
    S = online_pass(p.keys, torch.cat([zero, p.y[:, None]], 1), state, rate=rate, penalty=penalty).memory["S"][0, 0]
    return S[:, :-1], S[:, -1]


def after(p: Problem, rate: float, doublings: int, penalty: float = PENALTY, passes: int = 1) -> list[Tensor]:
    """S [K] after passes, 2 passes, 4 passes, ... from zero."""
    A, b = pass_map(p, rate, penalty)
    S = b
    for _ in range(passes - 1):
        S = A @ S + b
    A, found = torch.linalg.matrix_power(A, passes), [S]
    for _ in range(doublings):
        A, S = A @ A, A @ S + S
        found.append(S)
    return found


def at_rest(p: Problem, rate: float) -> Tensor:
    """S* [K], where passes with the decay end."""
    A, b = pass_map(p, rate)
    return torch.linalg.solve(torch.eye(FEATURES, dtype=b.dtype) - A, b)


@experiment("X6", "The floor of online passes", source=SOURCE + ", exercise")
def floor(tick: Tick) -> Outcome:
    """Passes of a fixed rate end near the batch fit, not at it; a falling rate gets there; without decay none does."""
    p = problem(torch.float64)
    thirty = after(p, RATE, 0, passes=30)[0]
    rows: list[Row] = [digits(f"distance after 30 passes, rate {RATE:g}", p.distance(p.queries @ thirty), "0.077")]

    rates = [RATE / 4**j for j in range(5)]
    floors = [p.distance(p.queries @ at_rest(p, rate)) for rate in rates]
    ratios = [a / b for a, b in pairwise(floors)]
    linear = all(abs(ratio - 4) < 0.3 for ratio in ratios)
    for rate, value in zip(rates, floors, strict=True):
        rows.append(
            claim(f"the floor: distance after passes without end, rate {rate:g}", value, "falls with the rate", linear)
        )
    tick("floors")

    steps = range(2, 11, 2)
    falling = [after(p, RATE / 2**j, 2 * j, passes=30)[-1] for j in steps]
    distances = [p.distance(p.queries @ S) for S in falling]
    goes = all(b < a for a, b in pairwise(distances)) and distances[-1] < 1e-4
    for j, value in zip(steps, distances, strict=True):
        rows.append(claim(f"rate {RATE / 2**j:.2g}, {30 * 4**j:,} passes", value, "goes to 0", goes))
    tick("falling rates")

    free = after(p, RATE, 26, penalty=0.0)
    wandering = [p.distance(p.queries @ S) for S in free]
    bare = p.distance(p.queries @ after(p, RATE, 0, penalty=0.0, passes=30)[0])
    nearest, last = min(wandering), wandering[-1]
    rows.append(Row("no decay: distance after 30 passes", bare, None, bare > nearest))
    rows.append(claim("no decay: the nearest it comes to the batch fit", nearest, "stays away", nearest > 0.05))
    rows.append(claim(f"no decay: distance after {2**26:,} passes", last, "drifts off", last > 2 * nearest))
    grows = all(a < b for a, b in pairwise(S.norm().item() for S in free[4:]))
    rows.append(claim("no decay: |S| by then", free[-1].norm().item(), "grows", grows))
    tick("no decay")

    order = p.x.argsort()[5::10]
    few = replace(p, x=p.x[order], y=p.y[order], keys=p.keys[order])
    least = torch.linalg.pinv(few.keys) @ few.y
    tends = after(few, RATE, 21, penalty=0.0)[-1]
    residual = (few.keys @ tends - few.y).abs().max().item()
    ridge_gap = few.distance(few.queries @ least)
    rows.append(below("eight rows, no decay: largest residual in the end", residual, 1e-9))
    gap = few.distance(few.queries @ tends, few.queries @ least)
    rows.append(below("eight rows, no decay: distance to the least-norm interpolator", gap, 1e-9))
    rows.append(claim("eight rows: distance of that to the ridge fit", ridge_gap, "is left", ridge_gap > 0.01))
    tick("eight rows")

    eigenvalue = torch.linalg.eigvalsh(p.keys @ p.keys.T).flip(0)[10].item()
    slowest = 1 / (RATE * PENALTY)
    notes = [
        f"Thirty passes leave two distances in one: the floor of their rate, {floors[0]:.3f}, and what is left because "
        f"they have not come to rest, since the slowest directions take 1 / (rate x penalty) = {slowest:,.0f} passes. "
        f"The decay has no part in it yet: without it the distance after thirty passes is {bare:.4f}.",
        f"On all 80 rows the least-norm interpolator is out of reach: a direction of eigenvalue e takes 1 / (rate x e) "
        f"passes, the eleventh of the 80 is {eigenvalue:.1e} already, and most lie below float64's rounding error. The "
        f"passes drift towards it (|S| grows without rest); on every tenth row, by x, they arrive.",
    ]
    shown = {rate: [p.distance(p.queries @ S) for S in after(p, rate, 22)] for rate in rates[:4]}

    def paint(figure: Any, palette: Palette) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
        for (rate, curve), level, colour in zip(shown.items(), floors, (4, 1, 2, 0), strict=False):
            left.plot([2.0**i for i in range(len(curve))], curve, color=palette.lines[colour], label=f"rate {rate:.2g}")
            left.axhline(level, 0.42, color=palette.lines[colour], linestyle=":", linewidth=1)
        passes = [2.0**i for i in range(23)]
        left.plot(passes, wandering[:23], color=palette.ink, linestyle="--", label="rate 0.06, no decay")
        left.set(xscale="log", yscale="log", xlim=(1, passes[-1]), ylim=(5e-4, 1.2), xlabel="passes")
        left.set_title("distance to the batch fit (dotted: floors)")
        left.set_xticks([1, 1e2, 1e4, 1e6], labels=["1", "100", "10,000", "1,000,000"])
        left.set_yticks([1e-3, 1e-2, 1e-1, 1], labels=["0.001", "0.01", "0.1", "1"])
        left.minorticks_off()
        left.legend(loc="lower left")
        right.plot(few.x, few.y, "o", color=palette.ink, markersize=6, label="eight rows")
        right.plot(p.grid, p.queries @ few.ridge(), color=palette.lines[0], label="batch ridge")
        right.plot(p.grid, p.queries @ least, color=palette.lines[4], label="least-norm interpolator")
        dots = (p.queries @ tends)[::16]
        right.plot(p.grid[::16], dots, "o", color=palette.lines[4], markersize=3.5, label="online, no decay")
        right.set(title="eight rows, two million passes", xlabel="x")
        right.legend(loc="upper left")

    return Outcome(rows, {"floor": Picture(paint, (10.5, 4.4))}, notes)
