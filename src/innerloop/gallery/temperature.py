"""A Gaussian kernel on keys of norm 1 is a softmax over scalar products.

    -w^2 |q - k_i|^2 / 2 = w^2 <q, k_i> - w^2 |k_i|^2 / 2 - w^2 |q|^2 / 2

The last term is the same for every i and leaves the softmax; so is the second where all keys have one norm. What stays
are logits w^2 <q, k_i>: `nadaraya_watson(bandwidth=1 / w)` is `softmax_attention` of the queries w^2 q. Where norms
differ, the second term is a bias of each key, which one more channel holds: [k, |k|^2] against w^2 [q, -1/2].

A read of unit vectors returns the attention weights themselves; they are compared, entry by entry.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

import innerloop as il

from ..look import Palette
from .bandwidth import SOURCE
from .experiment import Outcome, Picture, Row, Tick, below, claim, experiment

SHARPNESS = (0.5, 1.0, 2.0, 4.0, 8.0)


def weights(memory: il.Memory, queries: Tensor, keys: Tensor) -> Tensor:
    """Attention weights [queries, keys] of a memory that holds the keys [n, K]."""
    k, values = keys[None, :, None], torch.eye(len(keys), dtype=keys.dtype)[None, :, None]
    state = il.chunked(memory, k, k, values).state
    return il.read(memory, queries[None, :, None], state)[0, :, 0]


def gaussian(queries: Tensor, keys: Tensor, w: float) -> Tensor:
    """The weights of the Gaussian kernel of bandwidth 1 / w."""
    return weights(il.get("nadaraya_watson", bandwidth=1 / w), queries, keys)


def softmax(queries: Tensor, keys: Tensor, w: float) -> Tensor:
    """The weights of softmax attention under logits w^2 <q, k>."""
    return weights(il.get("softmax_attention"), w**2 * queries, keys)


@experiment("X4", "On unit keys the Gaussian kernel is a softmax", source=SOURCE + ", exercise")
def temperature(tick: Tick) -> Outcome:
    """Attention with normalised keys is kernel regression; the width of the kernel is the temperature."""
    generator = torch.Generator().manual_seed(0)
    free = torch.randn(50, 8, generator=generator, dtype=torch.float64)
    queries = torch.randn(30, 8, generator=generator, dtype=torch.float64)
    keys = normalize(free, dim=-1)
    rows: list[Row] = []
    for w in SHARPNESS:
        apart = (gaussian(normalize(queries, dim=-1), keys, w) - softmax(normalize(queries, dim=-1), keys, w)).abs()
        rows.append(
            below(f"largest difference of weights, unit queries and keys, w = {w:g}", apart.max().item(), 1e-12)
        )
    w = 2.0
    kernel = gaussian(queries, keys, w)
    by_bandwidth = weights(il.Memory(il.Exemplars("exp", 0, 1 / w), il.L2(), il.Keep(), il.Append()), queries, keys)
    rows.append(
        below(
            "the same, the exponential kernel's own bandwidth 1 / w", (kernel - by_bandwidth).abs().max().item(), 1e-12
        )
    )
    rows.append(below("the same, queries of any norm", (kernel - softmax(queries, keys, w)).abs().max().item(), 1e-12))
    tick("unit keys")

    kernel, plain = gaussian(queries, free, w), softmax(queries, free, w)
    apart = (kernel - plain).abs().max().item()
    rows.append(claim("the same, keys of different norms", apart, "not equal", apart > 0.1))
    lifted = torch.cat([free, free.square().sum(-1, keepdim=True)], -1)
    biased = softmax(torch.cat([queries, torch.full((len(queries), 1), -0.5).double()], -1), lifted, w)
    rows.append(below("the same, -w^2 |k|^2 / 2 added to the logits", (kernel - biased).abs().max().item(), 1e-12))
    tick("keys of any norm")
    notes = [
        "The source calls w^2 the temperature. In the usual words it is the inverse: logits are multiplied by w^2, "
        "so the temperature is 1 / w^2 = sigma^2, and a wide kernel is a hot softmax.",
        "Only the keys need one norm: a query's norm adds the same to all of its logits. Keys of different norms "
        "are told apart by plain softmax as by a weight exp(w^2 |k|^2 / 2), which the kernel does not have.",
    ]
    angles = torch.linspace(-torch.pi, torch.pi, 181, dtype=torch.float64)
    circle = torch.stack([angles.cos(), angles.sin()], -1)
    east = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    longer = circle * (1 + 0.5 * angles.sin())[:, None]

    def paint(figure: Any, palette: Palette) -> None:
        left, right = figure.subplots(1, 2)
        for w, colour in zip((1.0, 2.0, 4.0), palette.lines[:3], strict=True):
            line, dots = gaussian(east, circle, w)[0], softmax(east, circle, w)[0]
            left.plot(angles, line / line.max(), color=colour, label=f"w = {w:g}")
            left.plot(angles[::6], (dots / dots.max())[::6], "o", color=colour, markersize=4)
        left.set(title="unit keys: kernel (lines) and softmax (dots)", ylabel="weight, largest 1")
        for name, curve, colour in (("kernel", gaussian, 0), ("softmax", softmax, 4)):
            p = curve(east, longer, 2.0)[0]
            right.plot(angles, p / p.max(), color=palette.lines[colour], linewidth=2, label=name)
        right.set(title="keys with norms from 0.5 to 1.5, w = 2")
        for axes in (left, right):
            axes.set(xlabel="angle from query to key")
            axes.set_xticks([-torch.pi, 0, torch.pi], labels=["-180\N{DEGREE SIGN}", "0", "180\N{DEGREE SIGN}"])
            axes.legend(loc="upper left")

    return Outcome(rows, {"temperature": Picture(paint, (10, 4))}, notes)
