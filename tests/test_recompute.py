"""What `checkpoint` recomputes, and what `info` tells, under masks and resets; both against the oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import innerloop as il
from innerloop.core import dispatch, registry
from innerloop.core.dispatch import choose
from innerloop.testing.check import assert_close, assert_same, outcome, scan
from innerloop.testing.inputs import Draw, Inputs

CASES = [(name, dict(case)) for name in il.names() for case in registry.entry(name).cases]
SEGMENTED = [(name, case) for name, case in CASES if choose(il.get(name, **case))[0] == "segment"]
DECAY_MOMENTUM = il.Memory(
    il.MLP(1, bias=True, norm=True, residual=True), il.L2(), il.Decay("head", toward="init"), il.Momentum(), segment=5
)


def holed(memory: il.Memory, tokens: int) -> Inputs:
    """A call with padding, a segment broken by a reset, and a reset of a masked token."""
    x = Draw(heads=1)(memory, tokens, start="memory")
    mask = torch.ones(x.q.shape[:2], dtype=torch.bool)
    mask[0, :2] = mask[1, 7] = mask[1, 13] = False
    reset = torch.zeros_like(mask)
    reset[0, 6] = reset[1, 13] = True
    return replace(x, mask=mask, reset=reset)


@pytest.mark.parametrize(("name", "case"), SEGMENTED, ids=str)
def test_recomputing_changes_nothing(name: str, case: dict[str, Any]) -> None:
    """Outputs, states and gradients, with fewer kept starts than tiles."""
    memory = il.get(name, **case)
    x = holed(memory, 23)

    def again(memory: il.Memory, x: Inputs, state: il.State) -> Any:
        flags: dict[str, Any] = {"mask": x.mask, "reset": x.reset}
        return il.chunked(memory, x.q, x.k, x.v, x.gates, state, **flags, chunk_size=3, checkpoint=True)

    assert_same(outcome(again, memory, x), outcome(scan, memory, x), "recomputed")


@pytest.mark.parametrize("checkpoint", [None, True])
def test_little_is_kept(checkpoint: bool | None) -> None:
    """Autograd holds a few starts and not every tile; below the size it decides for itself to keep all."""
    kept: list[torch.Tensor] = []
    x = Draw()(DECAY_MOMENTUM, 400)
    leaves = [t.requires_grad_() for t in (x.q, x.k, x.v)]

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        il.chunked(DECAY_MOMENTUM, *leaves, x.gates, x.state(DECAY_MOMENTUM), checkpoint=checkpoint)
    held = len({t.data_ptr() for t in kept})
    assert held < 400 if checkpoint else held > 1000


@pytest.mark.parametrize(("name", "case"), [*SEGMENTED, ("gated_deltanet", {}), ("ttt_linear", {})], ids=str)
def test_info_under_masks_and_resets(name: str, case: dict[str, Any]) -> None:
    memory = il.get(name, **case)
    x = holed(memory, 17)
    names = ("surprise", "memory_norm")
    told = []
    for verb in (dispatch.scan, dispatch.chunked):
        state = x.state(memory)
        result = verb(memory, x.q, x.k, x.v, x.gates, state, mask=x.mask, reset=x.reset, info=names)
        assert result.info is not None
        told.append(result.info)
    for which in names:
        assert_close(told[1][which], told[0][which], which)
