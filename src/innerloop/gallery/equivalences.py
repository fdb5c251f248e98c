"""Test-time training with one linear layer is the delta rule at one end of a dial and linear attention at the other.

    W_t = W_s - eta sum_{s<i<=t} grad |W^T k_i - v_i|^2 at W_s       s: where t's mini-batch (the segment) starts

With mini-batches of one token and eta = 1/2 this is S_t = S_{t-1} + k_t (v_t - S_{t-1}^T k_t)^T, the delta rule. With
one mini-batch for everything and W_0 = 0 every gradient is -2 k_i v_i^T: linear attention (theorem 1 of TTT). Sizes
between them are neither. The library's loss has a half in front, so that `lr` is 2 eta.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

import innerloop as il

from ..look import Palette
from .experiment import Outcome, Picture, Tick, below, claim, experiment
from .pairs import MODULE, stream, unit

TOKENS, D, ETA = 64, 16, 0.5
SEGMENTS = (1, 2, 4, 8, 16, 32, 64)


@cache
def pairs() -> tuple[Tensor, Tensor, Tensor]:
    """Queries, unit keys and values [64, 16], in float64."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(TOKENS, D, generator=g, dtype=torch.float64) for _ in range(3))
    return unit(q), unit(k), v


def linear_ttt(segment: int, *, start: Tensor | None = None) -> Tensor:
    """Answers [64, 16] of a linear model trained on the stream, from zero (or from `start` [16, 16])."""
    memory = il.Memory(il.MLP(depth=1), il.L2(), il.Keep(), il.GradientStep(), segment=segment)
    q, k, v = (stream(x) for x in pairs())
    first = torch.zeros(D, D, dtype=q.dtype) if start is None else start
    state = il.init_state(memory, 1, 1, D, D, initial={"weight_0": first[None, None]})
    lr = torch.full((1, TOKENS, 1), 2 * ETA, dtype=q.dtype)
    return il.chunked(memory, q, k, v, il.Gates(lr=lr), state).output[0, :, 0]


def answers(name: str, **options: Any) -> Tensor:
    """Answers [64, 16] of a registered memory."""
    q, k, v = (stream(x) for x in pairs())
    return il.chunked(il.get(name, **options), q, k, v).output[0, :, 0]


def distance(x: Tensor, y: Tensor) -> float:
    """|x - y| / |y|, over all tokens."""
    return float((x - y).norm() / y.norm())


@experiment("N1", "Linear TTT is the delta rule, and linear attention", source=MODULE)
def equivalences(tick: Tick) -> Outcome:
    """A linear model that takes gradient steps while it reads is two known layers, by how many tokens share a step.

    `deltanet` and `linear_attention` are run by other code than the network, and agree with it to rounding. Both
    equivalences end where TTT's own layer begins: with a starting memory that is not zero, and with the residual and
    layer norm that TTT-Linear has.
    """
    tick("segments")
    delta, attention = answers("deltanet"), answers("linear_attention")
    trained = {c: linear_ttt(c) for c in SEGMENTS}
    to_delta = [distance(trained[c], delta) for c in SEGMENTS]
    to_attention = [distance(trained[c], attention) for c in SEGMENTS]
    g = torch.Generator().manual_seed(1)
    start = torch.randn(D, D, generator=g, dtype=torch.float64) / D**0.5
    moved = linear_ttt(TOKENS, start=start)
    as_coded = answers("ttt_linear", segment=1, average=False)
    between = min(*to_delta[1:-1], *to_attention[1:-1])
    largest = float((trained[1] - delta).abs().max())
    rows = [
        below("one step per token, eta 1/2: from the delta rule, largest difference", largest, 1e-12),
        below(
            "one step for all tokens, from 0: from linear attention, largest difference",
            float((trained[TOKENS] - attention).abs().max()), 1e-12,
        ),
        claim("that from a starting memory that is not 0: distance", distance(moved, attention), "> 0.1",
              distance(moved, attention) > 0.1),
        claim("TTT-Linear itself (residual, layer norm), one token to a step: from the delta rule",
              distance(as_coded, delta), "> 0.1", distance(as_coded, delta) > 0.1),
        claim("2 to 32 tokens to a step: distance from the nearer one, at least", between, "> 0.1", between > 0.1),
    ]  # fmt: skip
    notes = [
        "Theorem 1 of TTT needs all of: a loss without the half at eta = 1/2 (with it, eta = 1), W_0 = 0, one "
        "mini-batch, and no layer norm or residual. The layer that TTT's code trains has a learned W_0, mini-batches "
        f"of 16 and both; it stands {distance(as_coded, delta):.1f} times the answers' norm from the delta rule.",
    ]

    def paint(figure: Any, palette: Palette) -> None:
        axes = figure.subplots()
        places = range(len(SEGMENTS))
        axes.plot(places, to_delta, "o-", color=palette.lines[0], label="from the delta rule")
        axes.plot(places, to_attention, "s-", color=palette.lines[4], label="from linear attention")
        axes.legend(loc="upper left")
        axes.set_xticks(places, [str(c) for c in SEGMENTS])
        axes.set_xlabel("tokens that share a step (segment)")
        axes.set_ylabel("distance / norm of the other's answers")
        axes.set_title(f"Linear TTT, {TOKENS} tokens, eta = 1/2, from zero")
        axes.set_ylim(0, 1.6)

    return Outcome(rows, {"segments": Picture(paint, (7.2, 4.0))}, notes)
