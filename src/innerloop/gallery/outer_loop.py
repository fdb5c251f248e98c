"""The outer loop teaches the inner loop what to remember.

    inner, while it reads x_1, ..., x_T:   W_t = W_{t-1} - lr grad 1/2 |W^T Th_K x_t - Th_V x_t|^2       (no labels)
    outer, over many sequences:            Th <- Th - grad_Th |W_T^T Th_Q [a_i, 0] - b_i|^2              (through W_T)

A token x_i = [a_i, b_i] shows a name and its content side by side; later the name alone is given, and its content asked
for. The inner loss knows nothing of names and contents: it makes Th_V x predictable from Th_K x, whatever these are.
Random projections make that useless. The outer gradient, which passes through every inner update, turns Th_K towards
names and Th_V towards contents. The memory is `deltanet` (a linear TTT layer, one token to a step) or, for comparison,
`rls`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

import innerloop as il

from ..look import Palette
from .experiment import Outcome, Picture, Tick, below, claim, experiment, near
from .pairs import MODULE, unit

D, PAIRS, BATCH, HELD_OUT, STEPS, RATE = 16, 8, 64, 500, 300, 0.01
Projections = dict[str, Tensor]


def sequences(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Unit names and contents [count, 8, 16]."""
    return tuple(unit(torch.randn(count, PAIRS, D, generator=g)) for _ in range(2))  # type: ignore[return-value]


def drawn(g: torch.Generator) -> Projections:
    """Th_K, Th_V, Th_Q: [32, 16], random; the logarithm of the inner step size, 0."""
    made: Projections = {n: torch.randn(2 * D, D, generator=g) / (2 * D) ** 0.5 for n in ("key", "value", "query")}
    return made | {"log_lr": torch.zeros(())}


def error(memory: il.Memory, outer: Projections, names: Tensor, contents: Tensor, *, learns: bool = True) -> Tensor:
    """Mean of |answer - content|^2 (of |content|^2 = 1), after the sequence has been read; differentiable."""
    tokens, asked = torch.cat([names, contents], -1), torch.cat([names, torch.zeros_like(contents)], -1)
    k, v, q = unit(tokens @ outer["key"]), tokens @ outer["value"], unit(asked @ outer["query"])
    k, v, q = (x[:, :, None] for x in (k, v, q))
    lr = (outer["log_lr"].exp() * float(learns)).expand(k.shape[:3])
    state = il.chunked(memory, k, k, v, il.Gates(lr=lr)).state
    return (il.read(memory, q, state)[:, :, 0] - contents).square().sum(-1).mean()


@cache
def trained(name: str) -> tuple[Projections, tuple[float, ...]]:
    """The projections after the outer loop, and the held-out error before and along it."""
    g = torch.Generator().manual_seed(0)
    memory, outer = il.get(name), drawn(g)
    held_out = sequences(HELD_OUT, torch.Generator().manual_seed(1))
    outer = {n: p.requires_grad_() for n, p in outer.items()}
    solver = torch.optim.Adam(outer.values(), lr=RATE)
    curve: list[float] = []
    for step in range(STEPS + 1):
        if step % 20 == 0:
            with torch.no_grad():
                curve.append(float(error(memory, outer, *held_out)))
        with torch.enable_grad():
            solver.zero_grad()
            error(memory, outer, *sequences(BATCH, g)).backward()
        solver.step()
    return {n: p.detach() for n, p in outer.items()}, tuple(curve)


def share_of_names(projection: Tensor) -> float:
    """How much of a projection [32, 16] looks at the first half of its input: part of its squared norm."""
    return float(projection[:D].square().sum() / projection.square().sum())


@experiment("A1", "The outer loop trains the inner loop", source=MODULE)
def outer_loop(tick: Tick) -> Outcome:
    """With random projections the memory's answers are worse than none; trained through the inner updates, they recall.

    Nobody tells the inner loop what is a name: the outer loss shapes the projections until its own loss makes it so.
    Which solver runs inside is the other half: exact least squares on the same sequences comes close to zero.
    """
    tick("outer loop around deltanet")
    delta, curve = trained("deltanet")
    tick("outer loop around rls")
    _, exact = trained("rls")
    with torch.no_grad():
        held_out = sequences(HELD_OUT, torch.Generator().manual_seed(1))
        silent = float(error(il.get("deltanet"), delta, *held_out, learns=False))
    key, value = share_of_names(delta["key"]), share_of_names(delta["value"])
    rows = [
        near("random projections: recall error", curve[0], 1.2, 0.25),
        near(f"after {STEPS} outer steps: recall error", curve[-1], 0.23, 0.03),
        near("the trained projections without inner steps", silent, 1, 1e-6),
        claim("part of Th_K that looks at names", key, "> 0.9", key > 0.9),
        claim("part of Th_V that looks at names", value, "< 0.1", value < 0.1),
        below("exact least squares inside, trained likewise: recall error", exact[-1], 0.05),
    ]
    notes = [
        "The source gives no recipe, only the two numbers. Here the error is the mean of |answer - content|^2 with "
        f"|content| = 1, for {PAIRS} pairs in {D} dimensions, on {HELD_OUT} sequences that were not trained on.",
        f"What is left at {curve[-1]:.2f} is the delta rule's own: names of one sequence overlap, and each write "
        f"disturbs the ones before; longer outer training leaves it there. With `rls` inside it is {exact[-1]:.3f}.",
    ]

    def paint(figure: Any, palette: Palette) -> None:
        axes, maps = figure.subplots(1, 2, width_ratios=(1.5, 1))
        at = range(0, STEPS + 1, 20)
        axes.plot(at, curve, "o-", ms=4, color=palette.lines[0], label="delta rule inside")
        axes.plot(at, exact, "s-", ms=4, color=palette.lines[2], label="least squares inside")
        axes.axhline(1, color=palette.soft, lw=1, ls="--")
        axes.annotate("no inner steps", (STEPS, 1), (0, 5), textcoords="offset points", ha="right", color=palette.soft)
        axes.set_xlabel("outer steps")
        axes.set_ylabel("recall error")
        axes.set_ylim(bottom=0)
        axes.set_title("Held-out sequences")
        axes.legend(loc="upper right", bbox_to_anchor=(1, 0.62))
        norms = torch.stack([delta[n].square().sum(-1).sqrt() for n in ("key", "value")])
        maps.imshow(norms.numpy(), aspect="auto", cmap=palette.heat, vmin=0)
        maps.axvline(D - 0.5, color=palette.soft, lw=1)
        maps.set_yticks(range(2), ["key", "value"])
        maps.set_xticks([D / 2 - 0.5, 1.5 * D - 0.5], ["name", "content"])
        maps.tick_params(length=0)
        maps.grid(visible=False)
        maps.set_title("What the projections look at")

    return Outcome(rows, {"outer-loop": Picture(paint, (9.0, 3.8))}, notes)
