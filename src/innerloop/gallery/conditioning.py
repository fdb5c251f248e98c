"""Momentum on ill-conditioned keys: what plain descent leaves lying, momentum carries home.

    W <- W + U,    U <- eta U - theta grad (1/20) sum_i |W^T k_i - v_i|^2,       K = U diag(1, ..., .15) V^T

Along the singular vector with value s, plain descent keeps 1 - 2 theta s^2 / 20 of the error at each step: along the
weakest, s = .15, that is .9993. Momentum eta acts like a step 1 / (1 - eta) times as long, without the instability.

All pairs at every step is a window over all of them: the stream is the pairs in a circle, and the first 19 tokens only
fill the window (their step size is 0). Heads differ in momentum; row i of the batch asks for pair i after every step.
The library's loss is half the sum, so that `lr` is 2 theta / 20.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

import innerloop as il

from ..look import Palette
from .experiment import Outcome, Picture, Tick, claim, digits, experiment
from .pairs import MODULE, unit

PAIRS, D, THETA, STEPS = 20, 16, 0.3, 80
SINGULAR = torch.linspace(1, 0.15, D)
MOMENTA = (0.0, 0.5, 0.9)


@cache
def pairs() -> tuple[Tensor, Tensor, Tensor]:
    """Keys [20, 16] with the wanted singular values, values [20, 16], right singular vectors [16, 16]."""
    draws = torch.randn(PAIRS, D, generator=torch.Generator().manual_seed(1))
    left, _, right = torch.linalg.svd(unit(draws), full_matrices=False)
    keys = left @ torch.diag(SINGULAR) @ right
    truth = torch.randn(D, D, generator=torch.Generator().manual_seed(0))
    return keys, keys @ truth.T, right


def descended(steps: int, momenta: tuple[float, ...] = MOMENTA) -> tuple[Tensor, Tensor]:
    """Answers [steps, heads, 20, 16] to every key after every step, and the memories [heads, 16, 16] at the end."""
    keys, values, _ = pairs()
    memory = il.Memory(il.Matrix(), il.L2(), il.Keep(), il.Momentum(), window=PAIRS)
    tokens, heads = PAIRS - 1 + steps, len(momenta)
    circle = torch.arange(tokens) % PAIRS
    shape = (PAIRS, tokens, heads, D)
    k, v = (x[circle][None, :, None].expand(shape) for x in (keys, values))
    lr = torch.full((PAIRS, tokens, heads), 2 * THETA / PAIRS)
    lr[:, : PAIRS - 1] = 0
    gates = il.Gates(lr=lr, momentum=torch.tensor(momenta).expand(PAIRS, tokens, heads))
    output, state, _ = il.chunked(memory, keys[:, None, None].expand(shape), k, v, gates)
    return output[:, PAIRS - 1 :].permute(1, 2, 0, 3), state.memory["S"][0]


def errors(answers: Tensor) -> Tensor:
    """|answers - values| / |values| over all pairs, [steps, heads]; its square is the loss relative to the first."""
    values = pairs()[1]
    return (answers - values).flatten(2).norm(dim=-1) / values.norm()


def first_below(curve: Tensor, limit: float) -> int | None:
    """Index of the first entry below a limit, from 0; None: there is none."""
    hits = (curve < limit).nonzero()
    return int(hits[0]) if len(hits) else None


@experiment("N3", "Momentum on ill-conditioned keys", source=MODULE)
def conditioning(tick: Tick) -> Outcome:
    """With keys of singular values from 1 to .15, momentum .9 reaches a tenth of the error; plain descent does not.

    The gain is in the weak directions: after 80 steps plain descent has hardly begun on them.
    """
    tick("descent with momentum 0, .5, .9")
    answers, memories = descended(STEPS)
    error = errors(answers)
    plain, heavy = error[:, 0], error[:, MOMENTA.index(0.9)]
    arrived = first_below(heavy, 0.1)
    tick("plain descent, until it arrives")
    long = errors(descended(400, (0.0,))[0])[:, 0]
    late = first_below(long, 0.1)
    keys, values, right = pairs()
    truth = torch.linalg.lstsq(keys, values).solution
    left = (right @ (memories - truth)).norm(dim=-1) / (right @ truth).norm(dim=-1)  # [heads, 16], by direction
    shrinks = (1 - 2 * THETA / PAIRS * SINGULAR.square()) ** STEPS
    rows = [
        digits("momentum .9: index of the step, from 0, with error < .1", float(arrived or -1), "46"),
        claim("plain: error after 80 steps", float(plain[-1]), "> 80 steps to .1", first_below(plain, 0.1) is None),
        claim("plain: index of the step with error < .1", float(late or -1), "> 80", late is not None and late > 80),
        claim("momentum .9: error after 80 steps", float(heavy[-1]), "< .1", bool(heavy[-1] < 0.1)),
        claim("plain: part left along each direction, against (1 - 2 theta s^2 / 20)^80",
              float((left[0] - shrinks).abs().max()), "<= 0.001", bool((left[0] - shrinks).abs().max() <= 1e-3)),
    ]  # fmt: skip
    notes = [
        "The source counts to 'relative loss < .1'. Its 46 is the index, from 0, of the first step after which the "
        "relative *error* |K W - V| / |V| is below .1 (the 47th step); the loss itself, its square, is there after "
        f"{_count(first_below(heavy.square(), 0.1))} steps with momentum .9, and after "
        f"{_count(first_below(long.square(), 0.1))} by plain descent.",
        "'More than 80' is where the source stopped: plain descent takes "
        f"{_count(late)} steps to that error, seven times as many.",
    ]

    def paint(figure: Any, palette: Palette) -> None:
        curves, bars = figure.subplots(1, 2, width_ratios=(1.15, 1))
        for h, momentum in enumerate(MOMENTA):
            label = f"momentum {momentum:g}" if momentum else "plain"
            curves.plot(range(1, STEPS + 1), error[:, h], color=palette.lines[h], label=label)
            bars.plot(SINGULAR, left[h], "o-", ms=4, color=palette.lines[h])
        curves.axhline(0.1, color=palette.soft, lw=1, ls="--")
        curves.set_yscale("log")
        curves.set_yticks((0.05, 0.1, 0.2, 0.5, 1), ("0.05", "0.1", "0.2", "0.5", "1"))
        curves.minorticks_off()
        curves.set_xlabel("steps on all pairs")
        curves.set_ylabel("relative error")
        curves.set_title("Recall while it descends")
        curves.legend(loc="lower left")
        bars.set_xlabel("singular value of the keys")
        bars.set_ylabel("part of the truth still missing")
        bars.set_title(f"By direction, after {STEPS} steps")
        bars.invert_xaxis()

    return Outcome(rows, {"momentum": Picture(paint, (9.0, 4.2))}, notes)


def _count(index: int | None) -> str:
    """Steps until then, in words."""
    return "no" if index is None else str(index + 1)
