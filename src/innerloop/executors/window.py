"""The omega rule's window in tiles: every tile's keys are preceded by a halo of the last window - 1 pairs.

    g_t = sum_i Gamma[t, i] grad_i        Gamma[t, i] = gamma of token t for the pair i, 0 outside of its window

Pairs count since the last reset, masked tokens do not count, and the halo's pairs are evaluated at the tile's own
anchor.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..core.checks import Call
from ..core.clock import Tiles


class Halo(NamedTuple):
    """before: for each tile, the window - 1 pairs before it, `[N, B, H, W - 1, ...]` by name (right-aligned, 0 where
    there is none). gamma: [N, B, H, c, W - 1 + c]. after: the window of the state after the call."""

    before: dict[str, Tensor]
    gamma: Tensor
    after: dict[str, Tensor]


def halo(cut: Tiles, call: Call, window: int, tokens: dict[str, Tensor]) -> Halo:
    """`tokens`: what a pair consists of, [B, T, H, ...] by its name in `state.window`."""
    past, device = call.state.window, call.q.device
    B, T, H = call.q.shape[:3]
    W, c = window - 1, cut.size
    here = torch.ones(B, T, dtype=torch.bool, device=device) if call.mask is None else call.mask
    begin = torch.zeros(B, T, dtype=torch.bool, device=device) if call.reset is None else call.reset
    document = begin.cumsum(1)
    sizes = torch.zeros(B, T + 1, dtype=torch.int64, device=device).scatter_add_(1, document, here.to(torch.int64))
    opened = sizes.cumsum(1) - sizes  # tokens before each document
    carried = past["valid"].sum(1)  # pairs that the first document finds
    rank = here.cumsum(1) - here.to(torch.int64)  # tokens before each token

    # all pairs of a row in order, those of the state first: pair r of the call stands at W + r
    order = torch.argsort(~here, dim=1, stable=True)
    pairs = {n: torch.cat([past[n], _rows(x, order).movedim(2, 1)], 2) for n, x in tokens.items()}

    index = cut.index if cut.index is not None else _view(cut, device)
    first = index.unflatten(1, (cut.count, c)).amin(2).clamp(max=T - 1)  # each tile's first token
    start = rank.gather(1, first)
    doc = document.gather(1, first)
    valid = (start - opened.gather(1, doc) + torch.where(doc == 0, carried[:, None], 0)).clamp(max=W)
    slots = torch.arange(W, device=device)
    there = slots >= W - valid[..., None]  # [B, N, W]
    at = start[..., None] + slots
    before = {n: _masked(_pick(x, at), there.movedim(0, 1)[:, :, None]) for n, x in pairs.items()}

    # ages of pairs as each token sees them
    real = cut.real
    real = torch.ones(B, cut.count, c, dtype=torch.bool, device=device) if real is None else real
    place = torch.cat([(slots - W).expand(B, cut.count, W), real.cumsum(2) - 1], 2)
    counts = torch.cat([there, real], 2)
    age = place[:, :, W:, None] - place[:, :, None, :]
    inside = (age >= 0) & (age < window) & counts[:, :, None, :] & real[..., None]
    inside, age = (x.movedim(0, 1)[:, :, None] for x in (inside, age))  # [N, B, 1, c, n]
    weights = call.gates.window
    if weights is None:
        gamma = inside.to(call.q.dtype).expand(-1, -1, H, -1, -1)
    else:
        tiled = cut.gather(weights).movedim(1, 0).movedim(3, 2)  # [N, B, H, c, W]
        gamma = tiled.gather(-1, age.clamp(0, W).expand(*tiled.shape[:-1], age.shape[-1]))
        gamma = torch.where(inside, gamma, torch.zeros_like(gamma))

    last = document[:, -1:]
    count = (sizes.gather(1, last) + torch.where(last == 0, carried[:, None], 0)).clamp(max=W)[:, 0]
    stands = slots >= W - count[:, None]
    end = here.sum(1)[:, None] + slots
    after = {n: _masked(_pick(x, end[:, None])[0], stands[:, None]) for n, x in pairs.items()}
    return Halo(before, gamma, after | {"valid": stands})


def _view(cut: Tiles, device: torch.device) -> Tensor:
    return torch.arange(cut.count * cut.size, device=device).clamp(max=cut.tokens).expand(cut.batch, -1)


def _rows(x: Tensor, order: Tensor) -> Tensor:
    """x [B, T, ...] in another order of the tokens."""
    return x[torch.arange(x.shape[0], device=x.device)[:, None], order]


def _pick(pairs: Tensor, at: Tensor) -> Tensor:
    """pairs [B, H, n, ...] at [B, N, W]: [N, B, H, W, ...]."""
    row = torch.arange(pairs.shape[0], device=pairs.device)[:, None, None]
    return pairs.movedim(1, 2)[row, at].movedim(1, 0).movedim(3, 2)


def _masked(x: Tensor, there: Tensor) -> Tensor:
    there = there.reshape(*there.shape, *(1,) * (x.ndim - there.ndim))
    return torch.where(there, x, torch.zeros_like(x))
