"""Faded sums of tiles: what stands before each tile, without a step per tile."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.linalg import segment_sums

SCAN = 32  # tiles whose sums are made by one product


def tile_starts(
    new: Tensor, total: Tensor | None, body: Tensor, restart: Tensor | None, fresh: Tensor
) -> tuple[Tensor, Tensor]:
    """`body <- exp(total_n) body + new_n` over tiles n: the body before each tile [R, N, K, .], and after the last.

    new: [R, N, K, .]; total: [R, N], or None where nothing fades; restart: [R, N], tiles before which the body becomes
    `fresh`, or None.
    """
    starts: list[Tensor] = []
    if restart is None:
        for first in range(0, new.shape[1], SCAN):
            here = slice(first, first + SCAN)
            before, body = _scan(new[:, here], None if total is None else total[:, here], body)
            starts.append(before)
        return (torch.cat(starts, 1) if starts else new), body
    keep = torch.ones_like(new[:, :, 0, 0]) if total is None else total.exp()
    for n in range(new.shape[1]):
        body = torch.where(restart[:, n, None, None], fresh, body)
        starts.append(body)
        body = torch.addcmul(new[:, n], keep[:, n, None, None], body)
    return (torch.stack(starts, 1) if starts else new), body


def _scan(new: Tensor, total: Tensor | None, body: Tensor) -> tuple[Tensor, Tensor]:
    terms = torch.cat([body[:, None], new], 1)
    if total is None:
        sums = terms.cumsum(1)
    else:
        fades = segment_sums(torch.nn.functional.pad(total, (1, 0))).exp()  # [R, N + 1, N + 1]
        sums = (fades @ terms.flatten(2)).unflatten(2, terms.shape[2:])
    return sums[:, :-1], sums[:, -1]
