"""Values and states survive JSON, files, copies and beam search."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from ..core.memory import Memory
from ..core.state import State
from .check import both_orders, check, chunks, outcome, refused, scan
from .inputs import Draw
from .tolerance import assert_close


@check
def json_round_trip(memory: Memory, draw: Draw) -> None:
    """A memory is a value: equal and hashed alike after JSON; nonsense raises ValueError."""
    text = memory.to_json()
    for member in both_orders(memory):
        text = member.to_json()
        again = Memory.from_json(text)
        assert again == member, f"{text} came back as {again}"
        assert hash(again) == hash(member)
        assert type(member).__name__ in repr(member)
    named = f'"{type(memory.architecture).__name__}"'
    assert named in text, f"{text} does not name {named}"
    broken = ("", "[]", "{}", '{"architecture": 1}', text.replace(named, '"Nonsense"'))
    for nonsense in (*broken, text.replace('"order"', '"ordr"')):
        try:
            Memory.from_json(nonsense)
        except (ValueError, TypeError):
            continue
        raise AssertionError(f"from_json({nonsense!r}) must raise")


@check
def state_round_trip(memory: Memory, draw: Draw) -> None:
    """Saved, loaded, and gone on with: bit-identical; a file of something else raises ValueError."""
    x = draw(memory, 20, start="parameters")
    state = scan(memory, x.tokens(0, 9), x.state(memory)).state
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        state.save(path)
        again = State.load(path)
        assert again == state, "a loaded state differs from the saved one"
        x.state(memory).save(path)  # one that has read nothing, over the other
        assert State.load(path) == x.state(memory), "a fresh state differs from the saved one"
        assert again == state, "writing over the file changed the state that was loaded from it"
        assert [f.name for f in Path(folder).iterdir()] == [path.name], "save left a temporary file"
        path.write_bytes(path.read_bytes()[:40])
        other = Path(folder) / "garbage"
        other.write_bytes(b"not a state at all" * 10)
        empty = Path(folder) / "empty"
        empty.write_bytes(b"")
        for bad in (path, other, empty):
            refused(State.load, bad.name, {"path": bad})
    late = x.tokens(9, 20)
    first, second = (chunks(4)(memory, late, s).output for s in (state, again))
    assert torch.equal(first, second), "going on from a loaded state differs"


@check
def states_copy_and_select(memory: Memory, draw: Draw) -> None:
    """clone, detach, to, select, nbytes and repr of a state."""
    x = draw(memory, 12, start="memory")
    leaves = x.with_tensors({n: t.clone().requires_grad_() for n, t in x.tensors().items()})
    live = chunks(4)(memory, leaves.tokens(0, 7), leaves.state(memory)).state
    tensors = live.tensors()
    assert any(t.requires_grad for t in tensors.values()), "the state is cut from the graph"
    state = live.detach()
    assert not any(t.requires_grad for t in state.tensors().values())
    copy = state.clone()
    assert copy == state
    for name, t in state.tensors().items():
        assert not t.numel() or copy.tensors()[name].data_ptr() != t.data_ptr(), f"clone shares {name}"
    assert state.nbytes == sum(t.numel() * t.element_size() for t in tensors.values())
    assert state.to(torch.float32).tensors()["position"].dtype == torch.int64
    assert all(t.dtype != torch.float64 for t in state.to(torch.float32).tensors().values())
    assert "State(" in repr(state)
    for name in state.memory:
        assert name in repr(state), f"repr does not show {name}"
    assert state != replace(state, position=state.position + 1)

    beams = torch.tensor([1, 1, 0])
    chosen = state.select(beams)
    late = x.tokens(7, 12)
    late = replace(late.rows(beams), start=late.start)
    got = chunks(4)(memory, late, chosen)
    plain = outcome(scan, memory, x, gradients=False)
    assert_close(got.output, plain.output[beams, 7:], "beams chosen by select")
    for name, t in chosen.tensors().items():
        if t.numel() and t.shape[0] == 3:
            assert t[0].numel() == 0 or t[0].data_ptr() != t[1].data_ptr(), f"two beams share {name}"
    refused(state.select, "index", {"index": torch.tensor([0.0])})
