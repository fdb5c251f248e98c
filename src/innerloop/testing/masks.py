"""Masked tokens are the identity and resets start anew: every row equals its documents, run alone."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..core.memory import Memory
from ..core.state import State
from .check import Run, assert_same, body, both_orders, check, chunks, outcome, scan, steps
from .inputs import Draw, Inputs
from .tolerance import assert_close

# one row of the batch each, 14 tokens: "x" is a token, "." is masked, "R" resets, "r" is masked and resets
PATTERNS = {
    "masks left, right": ("....xxxxxxxxxx", "xxxxxxxxxx...."),
    "masks inside, everywhere": ("xx.x..xxx.xxxx", ".............."),
    "resets first, inside": ("Rxxxxxxxxxxxxx", "xxxxxRxxxxxRxx"),
    "resets in a row, at the end": ("xxxRRRxxxxxRxx", "xxxxxxxxxxxxxR"),
    "resets on masked tokens": ("xxxrxxxxxr.xxx", "r....xxxxxxxrr"),
    "trailing masked reset": ("xxxxxxxxxxx.r.", "xxxx.Rxx.xxxx."),
}


def flags(pattern: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """mask and reset [B, T] of a pattern."""
    mask, reset = (torch.tensor([[c in wanted for c in row] for row in pattern]) for wanted in ("xR", "Rr"))
    return mask, reset


def alone(memory: Memory, x: Inputs, state: State) -> tuple[Tensor, list[State]]:
    """Each row's documents by `scan`, one after the other, without masks or resets; one state per row."""
    assert x.mask is not None
    assert x.reset is not None
    output = torch.zeros_like(x.v)
    ends: list[State] = []
    for b in range(x.q.shape[0]):
        row = replace(x.rows(slice(b, b + 1)), mask=None, reset=None)
        at, fresh = state.select(torch.tensor([b])), row.state(memory)
        for t in range(x.q.shape[1]):
            if x.reset[b, t]:
                at = fresh
            if x.mask[b, t]:
                answer, at, _ = scan(memory, row.tokens(t, t + 1), at)
                output[b, t] = answer[0, 0]
        ends.append(at)
    return output, ends


def assert_rows(memory: Memory, x: Inputs, state: State, run: Run, what: str) -> None:
    """The call, row by row, against its documents run alone."""
    wanted, ends = alone(memory, x, state)
    output, after, _ = run(memory, x, state)
    assert x.mask is not None
    assert bool((output[~x.mask] == 0).all()), f"{what}: masked tokens read {output[~x.mask].abs().max()}, wanted 0"
    assert_close(output, wanted, f"{what}: output")
    for b, end in enumerate(ends):
        mine, theirs = packed(after.select(torch.tensor([b]))), packed(end)
        for name, tensor in theirs.items():
            if tensor.is_floating_point():
                assert_close(mine[name], tensor, f"{what}: row {b}, state {name}")
            else:
                assert torch.equal(mine[name], tensor), f"{what}: row {b}, state {name}: {mine[name]}, wanted {tensor}"


def packed(state: State) -> dict[str, Tensor]:
    """The tensors of one row's state, exemplars without the empty places that a longer row beside it left."""
    tensors = body(state)
    if "memory/valid" in tensors:
        valid = tensors["memory/valid"][0]
        for name in ("keys", "values"):
            tensors[f"memory/{name}"] = tensors[f"memory/{name}"][:, :, valid]
        tensors["memory/valid"] = valid[valid]
    return tensors


@check
def masks_and_resets_run_alone(memory: Memory, draw: Draw) -> None:
    """Left, right, inner, full masks; first, inner, consecutive, masked and trailing resets; in every form."""
    runs = (("scan", scan), ("chunked 4", chunks(4)), ("chunked", chunks(None)), ("step", steps))
    for number, (what, pattern) in enumerate(PATTERNS.items()):
        member = both_orders(memory)[number % 2]
        mask, reset = flags(pattern)
        x = replace(draw(member, 14, start="memory"), mask=mask, reset=reset)
        for name, run in runs:
            assert_rows(member, x, x.state(member), run, f"{what}, {name}, {member.order}")


@check
def masks_and_resets_on_a_continued_call(memory: Memory, draw: Draw) -> None:
    """The state comes from an earlier call; a reset goes back to the initial memory, not to that state."""
    for what in (
        "masks inside, everywhere",
        "resets first, inside",
        "resets on masked tokens",
        "trailing masked reset",
    ):
        mask, reset = flags(PATTERNS[what])
        x = replace(draw(memory, 14, start="memory"), mask=mask, reset=reset)
        for tokens in (3, 9):
            state = scan(memory, draw(memory, tokens, start="memory"), x.state(memory)).state
            for name, run in (("scan", scan), ("chunked 4", chunks(4)), ("chunked", chunks(None)), ("step", steps)):
                assert_rows(memory, x, state, run, f"{what}, after {tokens} tokens, {name}")


@check
def gradients_pass_masks_and_resets(memory: Memory, draw: Draw) -> None:
    """Chunked gives scan's gradients, and masked tokens have none."""
    for what in ("masks inside, everywhere", "resets on masked tokens", "resets in a row, at the end"):
        mask, reset = flags(PATTERNS[what])
        x = replace(draw(memory, 14, start="parameters"), mask=mask, reset=reset)
        wanted = outcome(scan, memory, x)
        for size in (4, None):
            got = outcome(chunks(size), memory, x)
            assert_same(got, wanted, f"{what}, chunk_size={size}")
            for name, gradient in got.gradients.items():
                if not name.startswith("start."):
                    assert bool((gradient[~mask] == 0).all()), f"{what}: masked tokens have a gradient of {name}"


@check
def masked_places_may_hold_anything(memory: Memory, draw: Draw) -> None:
    """NaN and infinity in masked q, k, v and extreme gates there change nothing, nor any gradient."""
    mask, reset = flags(("xx.x..xxx.xxxx", "r...xxxxxx.xx."))
    clean = replace(draw(memory, 14, start="memory"), mask=mask, reset=reset)
    extreme = {f"gates.{n}": 1e30 for n in ("lr", "window", "scale", "delta", "precond_lr")}
    extreme |= {"gates.momentum": 1.0, "gates.log_decay": float("-inf"), "gates.precond_log_decay": float("-inf")}
    dirty = {}
    for name, t in clean.tensors().items():
        if name in "qkv":
            dirty[name] = torch.where(mask.reshape(2, 14, 1, 1), t, float("inf") if name == "v" else float("nan"))
        elif name in extreme:
            dirty[name] = torch.where(mask.reshape(2, 14, *(1,) * (t.ndim - 2)), t, extreme[name])
    wanted = outcome(scan, memory, clean)
    for name, run in (("scan", scan), ("chunked 4", chunks(4)), ("step", steps)):
        assert_same(outcome(run, memory, clean.with_tensors(dirty)), wanted, f"{name} with NaN in masked places")
