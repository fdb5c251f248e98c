"""A deep memory learns associations while it reads: Titans' rule on a network.

    U_t = eta U_{t-1} - theta grad |f(k_t; W_{t-1}) - v_t|^2,  W_t = W_{t-1} + U_t,  f(x) = gelu(x W_0 + b_0) W_1 + b_1

Sixteen pairs of unit vectors pass four times in random order. The network is exact token by token (`segment=1`); with
longer segments, as the paper trains, the gradients of a segment are all taken where it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import innerloop as il

from ..look import Palette
from .experiment import Outcome, Picture, Row, Tick, below, claim, digits, experiment

PAIRS, D, HIDDEN, TOKENS = 16, 32, 128, 64
THETA, MOMENTUM = 0.005, 0.5
SEGMENTS = (1, 4, 64)


class Task(NamedTuple):
    """Keys and values [16, 32], which pair passes when [64], the network's initial weights by name."""

    keys: Tensor
    values: Tensor
    order: Tensor
    initial: dict[str, Tensor]


@cache
def task() -> Task:
    """The source's draws, in its order; the program's own random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        keys, values = (F.normalize(torch.randn(PAIRS, D), dim=-1) for _ in range(2))
        order = torch.randperm(TOKENS) % PAIRS
        for sizes in ((D, HIDDEN), (HIDDEN, D)):  # the source's layers draw weights of their own, which it replaces
            nn.Linear(*sizes)
        first = torch.randn(HIDDEN, D)
    initial = {
        "weight_0": first.T, "bias_0": torch.zeros(HIDDEN), "weight_1": torch.zeros(HIDDEN, D), "bias_1": torch.zeros(D)
    }  # fmt: skip
    return Task(keys, values, order, initial)


def retrieval(memory: il.Memory, state: il.State) -> float:
    """Mean squared error over all pairs."""
    keys, values, *_ = task()
    return float((il.read(memory, keys.view(1, PAIRS, 1, D), state).view(PAIRS, D) - values).square().mean())


def learned(
    memory: il.Memory, verb: Any, initial: Mapping[str, Tensor] | None = None, theta: float = THETA
) -> tuple[il.State, il.State]:
    """The state before and after all tokens; lr goes with half the loss, so it is 2 theta."""
    keys, values, order, _ = task()
    start = il.init_state(memory, 1, 1, D, D, initial={n: w[None, None] for n, w in (initial or {}).items()})
    k, v = keys[order].view(1, TOKENS, 1, D), values[order].view(1, TOKENS, 1, D)
    lr, momentum = torch.full((1, TOKENS, 1), 2 * theta), torch.full((1, TOKENS, 1), MOMENTUM)
    return start, verb(memory, k, k, v, il.Gates(lr=lr, momentum=momentum), start).state


def curve(memory: il.Memory, initial: Mapping[str, Tensor] | None = None) -> list[float]:
    """Retrieval error after 0, 1, ..., 64 tokens."""
    keys, values, order, _ = task()
    state = il.init_state(memory, 1, 1, D, D, initial={n: w[None, None] for n, w in (initial or {}).items()})
    gates = il.Gates(lr=torch.full((1, 1), 2 * THETA), momentum=torch.full((1, 1), MOMENTUM))
    out = [retrieval(memory, state)]
    for pair in order.tolist():
        k, v = keys[pair].view(1, 1, D), values[pair].view(1, 1, D)
        state = il.step(memory, k, k, v, gates, state).state
        out.append(retrieval(memory, state))
    return out


def network(segment: int) -> il.Memory:
    """Titans' network with biases."""
    return il.get("titans", segment=segment, bias=True)


@experiment("D6", "A deep memory", source="Dive into Deep Learning 2e, section 12.6")
def deep_memory(tick: Tick) -> Outcome:
    """A network of two layers, trained by Titans' rule while it reads, retrieves sixteen pairs after four passes.

    The source's JAX twin draws other numbers: .0313 to .0013.
    """
    tick("the network, token by token")
    initial = task().initial
    before, after = learned(network(1), il.scan, initial)
    start, end = retrieval(network(1), before), retrieval(network(1), after)
    rows: list[Row] = [
        digits("retrieval MSE before", start, ".0312"),
        below("MSE before against 1/32, that of answering zero", abs(start - 1 / D), 1e-7),
        digits("retrieval MSE after 64 tokens", end, ".0023"),
    ]
    last = learned(network(1), il.chunked, initial)[1]
    rows.append(below("chunked against scan, MSE", abs(retrieval(network(1), last) - end), 1e-7))

    def after_all(memory: il.Memory, theta: float, initial: Mapping[str, Tensor] | None = None) -> float:
        return retrieval(memory, learned(memory, il.chunked, initial, theta)[1])

    tick("longer segments")
    four, whole = (after_all(network(segment), THETA, initial) for segment in SEGMENTS[1:])
    short, long = (after_all(network(segment), THETA / 10, initial) for segment in (1, SEGMENTS[-1]))
    tick("a matrix memory")
    matrix = il.get("titans_linear")
    linear, scaled = after_all(matrix, THETA), after_all(matrix, THETA * gain())
    rows += [
        claim("MSE after, segment 4", four, "learns, less well", end < four < start / 4),
        claim("MSE after, segment 64 (one anchor)", whole, "worse than before it read", whole > start),
        claim("the same at theta / 10", long, f"{short:.4f}, that of segment 1", abs(long - short) < 0.05 * short),
        claim("MSE after, a matrix at the same theta", linear, "hardly learns", start / 2 < linear < start),
        claim("MSE after, a matrix at a step as strong", scaled, "as well as the network", abs(scaled - end) < end / 2),
    ]
    notes = [
        f"The hidden layer multiplies a step: |gelu(W_0 k)|^2 + 1 is {gain():.0f}, where a matrix has |k|^2 = 1. So "
        f"the same theta teaches the network much faster; a matrix at {gain():.0f} theta retrieves these sixteen pairs "
        "in 32 dimensions as well.",
        "The segment is part of the model: 64 gradients at one anchor, carried on by momentum, overshoot. At "
        "theta / 10 the anchor hardly matters.",
    ]
    return Outcome(rows, {"retrieval": Picture(paint)}, notes)


def gain() -> float:
    """Mean of |hidden|^2 + 1 over the keys: a network's change of its answer per unit step, when W_1 = 0."""
    keys, _, _, initial = task()
    return float((F.gelu(keys @ initial["weight_0"]).square().sum(-1) + 1).mean())


def paint(figure: Any, palette: Palette) -> None:
    """Retrieval error along the stream."""
    axes = figure.subplots()
    initial = task().initial
    for segment, colour in zip(SEGMENTS, palette.lines, strict=False):
        label = "network, exact" if segment == 1 else f"network, segment {segment}"
        axes.plot(curve(network(segment), initial), color=colour, label=label)
    axes.plot(curve(il.get("titans_linear")), color=palette.lines[3], label="matrix, exact")
    axes.axhline(1 / D, color=palette.soft, lw=0.9, ls="--")
    axes.set(yscale="log", xlabel="tokens read", ylabel="mean squared error over all pairs", xlim=(0, TOKENS))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(loc="lower left")
