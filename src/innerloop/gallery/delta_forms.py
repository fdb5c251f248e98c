"""Three forms of the delta rule are one function: the loop, the recurrence, and chunks.

    S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T

W1 holds the recurrence against the loop that knows only the loss. W4 cuts the tokens into chunks of any size: within a
chunk the product of the transitions is compact (WY form),

    (I - beta_c k_c k_c^T) ... (I - beta_1 k_1 k_1^T) = I - K^T W,   W = T K,
    T = (I + diag(beta) stril(K K^T))^-1 diag(beta)
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

import innerloop as il

from ..look import Palette
from .experiment import Outcome, Picture, Row, Tick, below, experiment

SOURCE = "A course notebook on DeltaNet and Longhorn"
B, L, K, V = 2, 16, 4, 5
CHUNKS = (1, 2, 4, 8, 16)
UNEVEN = (3, 5, 7, 100)


class Tokens(NamedTuple):
    """q, k [B, L, 1, 4] with unit keys, v [B, L, 1, 5], beta [B, L, 1] in (0, 1)."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor

    def to(self, dtype: torch.dtype) -> Tokens:
        """The same numbers in another precision."""
        return Tokens(*(x.to(dtype) for x in self))


def draw(seed: int = 0) -> Tokens:
    """Random tokens in float64 (the source gives no seed)."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(B, L, 1, n, generator=generator, dtype=torch.float64) for n in (K, K, V))
    beta = torch.rand(B, L, 1, generator=generator, dtype=torch.float64)
    return Tokens(q, torch.nn.functional.normalize(k, dim=-1), v, beta)


def recurrent(memory: il.Memory, x: Tokens) -> il.Result:
    """`step`, token by token."""
    state, outputs = il.init_state(memory, B, 1, K, V, dtype=x.q.dtype), []
    for t in range(L):
        out, state, _ = il.step(memory, x.q[:, t], x.k[:, t], x.v[:, t], il.Gates(lr=x.beta[:, t]), state)
        outputs.append(out)
    return il.Result(torch.stack(outputs, 1), state)


def naive(memory: il.Memory, x: Tokens) -> il.Result:
    """`scan`: the gradient of the loss by automatic differentiation, token by token."""
    return il.scan(memory, x.q, x.k, x.v, il.Gates(lr=x.beta))


def chunkwise(memory: il.Memory, x: Tokens, size: int) -> il.Result:
    """`chunked`: matrix products and one triangular solve per chunk."""
    return il.chunked(memory, x.q, x.k, x.v, il.Gates(lr=x.beta), chunk_size=size)


def apart(a: il.Result, b: il.Result) -> float:
    """The largest difference between outputs and final memories."""
    states = float((a.state.memory["S"] - b.state.memory["S"]).abs().max())
    return max(states, float((a.output - b.output).abs().max()))


@experiment("W1", "The recurrence is the loop", source=SOURCE)
def recurrence(tick: Tick) -> Outcome:
    """One step in closed form per token equals a gradient step on the loss, found by automatic differentiation."""
    memory, x = il.get("deltanet"), draw()
    tick("loop and recurrence")
    rows: list[Row] = []
    for name, dtype, limit in (("float32", torch.float32, 1e-4), ("float64", torch.float64, 1e-12)):
        here = x.to(dtype)
        gap = apart(recurrent(memory, here), naive(memory, here))
        rows.append(below(f"recurrence against loop, {name}", gap, limit))
    return Outcome(rows, {"rounding": Picture(paint_rounding)})


def paint_rounding(figure: Any, palette: Palette) -> None:
    """Largest difference of the outputs at each token, in both precisions."""
    axes, memory, x = figure.subplots(), il.get("deltanet"), draw()
    best = naive(memory, x).output
    for dtype, colour in ((torch.float32, palette.lines[1]), (torch.float64, palette.lines[0])):
        gap = (recurrent(memory, x.to(dtype)).output - best).abs().amax((0, 2, 3))
        axes.plot(
            range(1, L + 1), gap.clamp(min=1e-17), "o-", color=colour, ms=4, label=str(dtype).removeprefix("torch.")
        )
    axes.set(yscale="log", ylim=(1e-17, 1e-5), xlabel="token", ylabel="difference to the loop in float64")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(loc="center right")


@cache
def sizes() -> dict[int, float]:
    """How far chunks of each size are from the recurrence, in float64."""
    memory, x = il.get("deltanet"), draw()
    held = recurrent(memory, x)
    return {size: apart(chunkwise(memory, x, size), held) for size in sorted({*CHUNKS, *UNEVEN})}


def solved(x: Tokens) -> Tensor:
    """T of the WY form of all L tokens, [B, L, L]."""
    k, beta = x.k[:, :, 0], x.beta[:, :, 0]
    inner = torch.eye(L, dtype=k.dtype) + beta[..., None] * (k @ k.mT).tril(-1)
    return torch.linalg.solve_triangular(inner, torch.diag_embed(beta), upper=False)


def transition(memory: il.Memory, x: Tokens, size: int) -> Tensor:
    """The product of the transitions [B, 4, 4]: what becomes of the identity when values are 0."""
    start = il.init_state(memory, B, 1, K, K, initial={"S": torch.eye(K, dtype=x.k.dtype)[None, None]})
    done = il.chunked(memory, x.q, x.k, torch.zeros_like(x.k), il.Gates(lr=x.beta), start, chunk_size=size)
    return done.state.memory["S"][:, 0]


@experiment("W4", "Chunks of any size", source=SOURCE)
def chunks(tick: Tick) -> Outcome:
    """The delta rule in chunks equals its recurrence at every chunk size, those that do not divide the length too."""
    tick("chunk sizes")
    memory, x = il.get("deltanet"), draw()
    rows: list[Row] = [below(f"chunks of {size} against the recurrence", gap, 1e-12) for size, gap in sizes().items()]
    tick("WY form")
    k = x.k[:, :, 0]
    wy = torch.eye(K, dtype=k.dtype) - k.mT @ (solved(x) @ k)
    for size in (1, L):
        name = "one by one" if size == 1 else "in one chunk"
        gap = float((wy - transition(memory, x, size)).abs().max())
        rows.append(below(f"I - K^T W against the transitions, {name}", gap, 1e-12))
    notes = [
        "The source's I - W^T Y is this with Y = K and W = T K, transposed: its states are [value, key], the library's "
        "[key, value]. Its chunk sizes must divide the length; here the last chunk may be shorter.",
    ]
    return Outcome(rows, {"chunks": Picture(paint_chunks, (9.0, 3.8))}, notes)


def paint_chunks(figure: Any, palette: Palette) -> None:
    """Differences by chunk size; the triangular matrix that a chunk solves for."""
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    found = sizes()
    shown = [max(gap, 1e-17) for gap in found.values()]
    colours = [palette.lines[0] if size in CHUNKS else palette.lines[1] for size in found]
    left.bar([str(size) for size in found], shown, color=colours, width=0.6)
    left.axhline(1e-12, color=palette.soft, lw=0.9, ls="--")
    left.text(-0.4, 1.3e-12, "claimed", color=palette.soft, va="bottom")
    left.set(yscale="log", ylim=(1e-17, 1e-11), xlabel="chunk size, 16 tokens (orange: does not divide)")
    left.set_title("largest difference to the recurrence")
    left.yaxis.set_major_formatter("{x:g}")
    left.grid(axis="x", visible=False)
    T = solved(draw())[0]
    image = right.imshow(T.abs(), cmap=palette.heat, vmin=0)
    figure.colorbar(image, ax=right, shrink=0.8)
    right.grid(False)
    right.set(xlabel="token written", ylabel="token", title="|T| of the WY form")
