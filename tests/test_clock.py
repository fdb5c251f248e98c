"""Tiles against a brute-force cut in plain Python, for random masks, resets, segments, positions and fades."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from innerloop.core.clock import Tiles, tiles


@dataclass
class Tile:
    """What brute force says of one tile: does it begin a document, which token stands in which slot, and how far in the
    segment (`at`, tokens before it) each of them is."""

    restart: bool
    places: dict[int, int] = field(default_factory=dict[int, int])
    at: dict[int, int] = field(default_factory=dict[int, int])

    def in_segment(self, segment: int) -> tuple[int, bool, bool]:
        """offset, begins, ends: of slot 0, which a token need not fill; an empty tile has none of them."""
        (offset,) = {at - slot for slot, at in self.at.items()} or {0}
        return offset, 0 in self.at.values(), segment - 1 in self.at.values()


def brute_force(mask: list[bool], reset: list[bool], chunk: int, segment: int, position: int) -> tuple[list[Tile], int]:
    """One batch row, token by token: the clock as it is told in words."""
    size = chunk if segment == 1 else min(chunk, segment)
    done: list[Tile] = []
    current: Tile | None = None
    at = position % segment  # tokens since the segment's start
    slot = at % size if segment > 1 else 0
    pending = False  # a reset that no token has followed yet
    for t, (here, fresh) in enumerate(zip(mask, reset, strict=True)):
        if fresh:
            pending, at, slot, current = True, 0, 0, None
        if not here:
            continue
        if current is None or slot == size or (segment > 1 and at == 0):
            if segment > 1 and at % size == 0:
                slot = 0
            if segment == 1 and slot == size:
                slot = 0
            current = Tile(pending)
            done.append(current)
            pending = False
        current.places[slot] = t
        current.at[slot] = at
        slot += 1
        at = (at + 1) % segment
        if segment > 1 and at == 0:
            slot, current = 0, None
    if pending:
        done.append(Tile(True))
    return done, at


def compare(cut: Tiles, mask: list[list[bool]], segment: int, expected: list[tuple[list[Tile], int]]) -> None:
    B, T = len(mask), len(mask[0])
    tokens = torch.arange(1, T + 1, dtype=torch.float64).expand(B, T)
    gathered = cut.gather(tokens)
    assert gathered.shape == (B, cut.count, cut.size)
    for b, (wanted, position) in enumerate(expected):
        assert int(cut.position[b]) == position
        for n in range(cut.count):
            row = [0.0] * cut.size
            restart = False
            if n < len(wanted):
                restart = wanted[n].restart
                for slot, t in wanted[n].places.items():
                    row[slot] = t + 1
            assert gathered[b, n].tolist() == row, f"row {b}, tile {n}"
            if cut.restart is not None:
                assert bool(cut.restart[b, n]) == restart, f"row {b}, tile {n}: restart"
            else:
                assert not restart
            clock = [x if x is None else x[b, n].item() for x in (cut.offset, cut.begins, cut.ends)]
            if segment == 1:
                assert clock == [None, None, None], "without segments there is nothing to say"
            else:
                told = wanted[n].in_segment(segment) if n < len(wanted) else (0, False, False)
                assert clock == list(told), f"row {b}, tile {n}: offset, begins, ends"
        assert len(wanted) <= cut.count
    back = cut.scatter(gathered[..., None])[..., 0]
    assert torch.equal(back, torch.where(torch.tensor(mask), tokens, torch.zeros_like(tokens)))
    real = cut.real
    assert torch.equal(gathered != 0, torch.ones_like(gathered, dtype=torch.bool) if real is None else real)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_tiles_are_those_of_brute_force(data: st.DataObject) -> None:
    B, T = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 12))
    chunk, segment = data.draw(st.integers(1, 6)), data.draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    bits = st.lists(st.lists(st.booleans(), min_size=T, max_size=T), min_size=B, max_size=B)
    mask, reset = data.draw(bits), data.draw(bits)
    position = [data.draw(st.integers(0, segment - 1)) for _ in range(B)]
    use_mask, use_reset = data.draw(st.booleans()), data.draw(st.booleans())
    if not use_mask:
        mask = [[True] * T for _ in range(B)]
    if not use_reset:
        reset = [[False] * T for _ in range(B)]
    cut = tiles(
        B, T, chunk, torch.tensor(position), segment=segment,
        mask=torch.tensor(mask) if use_mask else None, reset=torch.tensor(reset) if use_reset else None,
    )  # fmt: skip
    size = min(chunk, T) if segment == 1 else chunk  # a chunk longer than the call is the call
    rows = [brute_force(m, r, size, segment, p) for m, r, p in zip(mask, reset, position, strict=True)]
    compare(cut, mask, segment, rows)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_tiles_are_cut_where_the_past_fades(data: st.DataObject) -> None:
    """Every token in order, once; no tile of several tokens gathers more than limit + 1; the past alone decides."""
    T, chunk, limit = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 8)), 3.0
    values = st.sampled_from([0.0, 0.1, 0.7, 1.0, 1.5, 5.0, 1e30])
    fade = torch.tensor([data.draw(st.lists(values, min_size=T, max_size=T))], dtype=torch.float64)
    mask = (
        torch.tensor([data.draw(st.lists(st.booleans(), min_size=T, max_size=T))]) if data.draw(st.booleans()) else None
    )
    zero = torch.zeros(1, dtype=torch.int64)
    cut = tiles(1, T, chunk, zero, mask=mask, fade=fade, limit=limit)

    def members(cut: Tiles) -> list[list[int]]:
        return [[int(t) - 1 for t in row if t] for row in cut.gather(torch.arange(1.0, T + 1)[None])[0]]

    found = members(cut)
    assert [t for tile in found for t in tile] == [t for t in range(T) if mask is None or mask[0, t]]
    for tile in found:
        assert len(tile) == 1 or (fade[0, tile] <= 1).all(), "a token that forgets much stands alone"
        assert len(tile) == 1 or float(fade[0, tile].sum()) <= limit + 1
    kept = data.draw(st.integers(0, T))
    edited = fade.clone()
    edited[:, kept:] = 5.0
    other = members(tiles(1, T, chunk, zero, mask=mask, fade=edited, limit=limit))

    def before(tiles: list[list[int]]) -> list[list[int]]:
        return [early for tile in tiles if (early := [t for t in tile if t < kept])]

    assert before(other) == before(found)


@pytest.mark.parametrize("segment", [1, 4])
def test_no_tokens(segment: int) -> None:
    cut = tiles(2, 0, 8, torch.tensor([0, 0]), segment=segment)
    assert cut.count == 0
    assert cut.position.tolist() == [0, 0]
    empty = tiles(2, 0, 8, torch.tensor([0, 0]), segment=segment, mask=torch.ones(2, 0, dtype=torch.bool))
    assert empty.count == 0


def test_a_trailing_reset_leaves_an_empty_tile() -> None:
    mask, reset = torch.tensor([[True, True, False]]), torch.tensor([[False, False, True]])
    cut = tiles(1, 3, 4, torch.tensor([0]), mask=mask, reset=reset)
    assert cut.restart is not None
    assert cut.restart.tolist() == [[False, True]]
    assert cut.gather(torch.ones(1, 3))[0, 1].tolist() == [0] * cut.size


def test_aligned_calls_are_views() -> None:
    """No mask, no reset, no segment: nothing is gathered."""
    cut = tiles(2, 12, 4, torch.tensor([0, 0]))
    x = torch.randn(2, 12, 3)
    assert cut.index is None
    assert cut.gather(x).data_ptr() == x.data_ptr()
    assert tiles(2, 8, 4, torch.tensor([0, 4]), segment=8).index is None
    assert tiles(2, 8, 4, torch.tensor([0, 3]), segment=8).index is not None
