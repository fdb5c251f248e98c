"""The clock: masks, resets and segments become tiles, so that no executor ever meets them.

Each batch row's unmasked tokens are gathered into tiles [B, N, c] that never cross a reset or a segment's border,
padded with identity tokens; outputs are scattered back. Without masks, resets and segments this is a padded view.

    B batch, T tokens, N tiles, c tokens in a tile
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Tiles:
    """Where the tokens went.

    size, count: c and N.
    index: [B, N * c], the token of each place (T = none, padding), or None when tiles are a padded view.
    place: [B, T], the place of each token (N * c = none, masked), or None likewise.
    restart: [B, N]: the memory restarts from its initial state before this tile; None: never.
    position: [B], tokens since the segment's start after the call.
    offset, begins, ends: [B, N] of each tile's first place, how far in the segment it stands; whether the tile holds a
        segment's first token, and its last. None when segment == 1.
    """

    batch: int
    tokens: int
    size: int
    count: int
    index: Tensor | None
    place: Tensor | None
    restart: Tensor | None
    position: Tensor
    offset: Tensor | None = None
    begins: Tensor | None = None
    ends: Tensor | None = None

    @property
    def real(self) -> Tensor | None:
        """[B, N, c]: which places hold a token; None: all do."""
        if self.index is not None:
            return (self.index < self.tokens).unflatten(1, (self.count, self.size))
        padding = self.count * self.size - self.tokens
        if not padding:
            return None
        places = torch.arange(self.count * self.size, device=self.position.device) < self.tokens
        return places.unflatten(0, (self.count, self.size)).expand(self.batch, -1, -1)

    def gather(self, x: Tensor) -> Tensor:
        """Tokens [B, T, ...] to tiles [B, N, c, ...]; padding is zero."""
        padding = self.count * self.size - self.tokens
        if self.index is None:
            if padding:
                x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, padding))
        else:
            x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, 1))
            x = x[torch.arange(self.batch, device=x.device)[:, None], self.index]
        return x.unflatten(1, (self.count, self.size))

    def scatter(self, x: Tensor) -> Tensor:
        """Tiles [B, N, c, ...] back to tokens [B, T, ...]; masked tokens get zero."""
        x = x.flatten(1, 2)
        if self.place is None:
            return x[:, : self.tokens]
        x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, 1))
        return x[torch.arange(self.batch, device=x.device)[:, None], self.place]


def tiles(
    batch: int,
    tokens: int,
    chunk: int,
    position: Tensor,
    *,
    segment: int = 1,
    mask: Tensor | None = None,
    reset: Tensor | None = None,
    fade: Tensor | None = None,
    limit: float = float("inf"),
) -> Tiles:
    """Cut a call into tiles of at most `min(chunk, segment)` tokens (`chunk` when segment == 1).

    position: [B], tokens since the segment's start. mask, reset: [B, T] bool or None.
    fade, limit: [B, T], what each token takes off the logarithm of the past, and how much of it a tile may gather
    (exceeded by less than 1): longer tiles are cut, and a token that takes more than 1 stands alone. Where a tile is
    cut depends on the tokens before the cut only.
    """
    size = chunk if segment == 1 else min(chunk, segment)
    if tokens == 0:
        return Tiles(batch, 0, size, 0, None, None, None, position % segment)
    if mask is None and reset is None:
        if segment == 1 and not _fades(fade, max(1, min(size, tokens)), limit):
            size = max(1, min(size, tokens))
            return Tiles(batch, tokens, size, -(-tokens // size), None, None, None, position)
        if segment > 1 and segment % size == 0 and not bool((position % size).any()):
            count = -(-tokens // size)
            offset = (position[:, None] + size * torch.arange(count, device=position.device)) % segment
            ends = offset + size == segment
            if tokens % size:
                ends[:, -1] = False
            after = (position + tokens) % segment
            return Tiles(batch, tokens, size, count, None, None, None, after, offset, offset == 0, ends)
    if segment == 1:
        size = max(1, min(size, tokens))
    return _ragged(batch, tokens, size, segment, position, mask, reset, fade, limit)


def _fades(fade: Tensor | None, size: int, limit: float) -> bool:
    """Whether some tile of an even cut gathers more than it may."""
    if fade is None or not fade.numel():
        return False
    padded = F.pad(fade.detach(), (0, -fade.shape[1] % size)).unflatten(1, (-1, size))
    return bool(padded.max() > 1) or bool(padded.sum(-1).max() >= limit)


def _ragged(
    batch: int, tokens: int, size: int, segment: int, position: Tensor, mask: Tensor | None, reset: Tensor | None,
    fade: Tensor | None, limit: float,
) -> Tiles:  # fmt: skip
    device = position.device
    B, T, c = batch, tokens, size
    here = torch.ones(B, T, dtype=torch.bool, device=device) if mask is None else mask
    begin = torch.zeros(B, T, dtype=torch.bool, device=device) if reset is None else reset

    # document 0 continues the state; each reset opens the next one
    document = begin.cumsum(1)
    sizes = torch.zeros(B, T + 1, dtype=torch.int64, device=device).scatter_add_(1, document, here.to(torch.int64))
    before = sizes.cumsum(1) - sizes  # unmasked tokens in earlier documents
    rank = here.cumsum(1) - 1 - before.gather(1, document)  # rank within the document (unmasked tokens only)
    start = position[:, None] * (document == 0)
    clock = rank + start if segment > 1 else rank
    within = clock % segment if segment > 1 else clock
    key = (clock // segment) * (-(-segment // c)) + within // c if segment > 1 else clock // c
    slot = within % c

    # a tile opens at an unmasked token whose (document, key) differs from the unmasked token before it
    time = torch.arange(T, device=device).expand(B, T)
    last = torch.where(here, time, -1).cummax(1).values
    previous = F.pad(last, (1, 0), value=-1)[:, :-1]
    first = previous < 0
    safe = previous.clamp(min=0)
    new_document = document != torch.where(first, 0, document.gather(1, safe))
    opens = here & (first | new_document | (key != key.gather(1, safe)))
    if fade is not None:
        fade = torch.where(here, fade.detach().clamp(max=100.0), 0.0)  # beyond, nothing is left: sums stay exact enough
        gathered = fade.cumsum(1)
        begun = torch.where(opens, time, 0).cummax(1).values
        gathered = gathered - (gathered - fade).gather(1, begun)  # since the tile's start, own token included
        heavy = (fade > 1).to(torch.int64)
        part = (gathered / limit).floor().to(torch.int64) + 2 * heavy.cumsum(1) - heavy
        opens = opens | (here & (part != part.gather(1, safe)))
    tile = opens.cumsum(1) - 1
    used = opens.sum(1)

    # a reset after the last unmasked token leaves an empty tile, so that the final state is the restored one
    final = torch.where(last[:, -1] >= 0, document.gather(1, last[:, -1:].clamp(min=0))[:, 0], 0)
    trailing = document[:, -1] > final
    needed = used + trailing
    N = int(needed.max()) if B else 0

    place = torch.where(here, tile * c + slot, N * c)
    index = torch.full((B, N * c + 1), T, dtype=torch.int64, device=device).scatter_(1, place, time)[:, :-1]
    restart = torch.zeros(B, N + 1, dtype=torch.bool, device=device)
    restart.scatter_(1, torch.where(opens & new_document, tile, N), True)
    restart.scatter_(1, torch.where(trailing, used, N)[:, None], True)
    restart = restart[:, :-1] if reset is not None else None

    ended = sizes.gather(1, document[:, -1:])[:, 0] + torch.where(document[:, -1] == 0, position, 0)
    if segment == 1:
        return Tiles(B, T, c, N, index, place, restart, ended % segment)

    def mark(of_tokens: Tensor, values: Tensor) -> Tensor:
        """[B, N]: the value that some token gives its tile; zero where none does."""
        marks = torch.zeros(B, N + 1, dtype=values.dtype, device=device)
        return marks.scatter_(1, torch.where(of_tokens, tile, N), values)[:, :-1]

    offset = mark(here, within - slot)
    begins, ends = (mark(here & (within == at), torch.ones_like(here)) for at in (0, segment - 1))
    return Tiles(B, T, c, N, index, place, restart, ended % segment, offset, begins, ends)
