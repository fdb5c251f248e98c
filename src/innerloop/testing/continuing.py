"""A state is complete: any split equals one pass; nothing is updated in place."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..core import dispatch
from ..core.architecture import Exemplars
from ..core.dispatch import read
from ..core.memory import Memory
from ..core.solvers import Kalman, Ridge
from .check import assert_same, body, both_orders, check, chunks, outcome, pieces, refused, scan, steps
from .inputs import Draw
from .tolerance import assert_close

# of 23 tokens in chunks of 8: prefixes with remainder 0, 1, >= 2, of one token, of none; several pieces
SPLITS = ((8, 15), (9, 14), (11, 12), (1, 22), (16, 7), (0, 23), (23, 0), (3, 5, 1, 0, 10, 4))


@check
def split_equals_one_pass(memory: Memory, draw: Draw) -> None:
    """Split anywhere: outputs, state, and the gradients that flow through the state."""
    x = draw(memory, 23, start="memory")
    wanted = outcome(scan, memory, x)
    for lengths in SPLITS:
        assert_same(outcome(pieces(chunks(8), lengths), memory, x), wanted, f"pieces {lengths}")
    assert_same(outcome(pieces(scan, (11, 12)), memory, x), wanted, "pieces (11, 12) of scan")
    x = draw(memory, 23, start="parameters")
    wanted = outcome(scan, memory, x)
    for lengths in ((9, 14), (5, 1, 17)):
        assert_same(outcome(pieces(chunks(8), lengths), memory, x), wanted, f"pieces {lengths}, scalars overridden")


@check
def forms_may_alternate(memory: Memory, draw: Draw) -> None:
    """A state goes from any form to any other."""
    x = draw(memory, 20, start="memory")
    for member in both_orders(memory):
        wanted = outcome(scan, member, x, gradients=False)
        state = x.state(member)
        outputs = []
        for run, first, last in (
            (steps, 0, 3),
            (chunks(4), 3, 10),
            (scan, 10, 12),
            (chunks(None), 12, 17),
            (steps, 17, 20),
        ):
            output, state, _ = run(member, x.tokens(first, last), state)
            outputs.append(output)
        got = wanted._replace(output=torch.cat(outputs, 1), state=state)
        assert_same(got, wanted, f"step, chunked, scan, chunked, step, {member.order}")


@check
def nothing_is_mutated(memory: Memory, draw: Draw) -> None:
    """Inputs and the state that came in are as they were, and no output shares memory with them."""
    x = draw(memory, 18, start="memory")
    mask = torch.ones(2, 18, dtype=torch.bool)
    mask[0, :3], mask[1, 9] = False, False
    reset = torch.zeros(2, 18, dtype=torch.bool)
    reset[1, 11] = True
    x = replace(x, mask=mask, reset=reset)
    for run in (scan, chunks(8), chunks(None), steps):
        state = run(memory, x, x.state(memory)).state
        given = {**x.tensors(), **state.tensors(), "mask": mask, "reset": reset}
        before = {name: (t.clone(), t._version) for name, t in given.items()}
        result = run(memory, x, state)
        read(memory, x.q, state)
        for name, t in given.items():
            kept, version = before[name]
            assert t._version == version, f"{name} was written in place"
            assert torch.equal(t, kept), f"{name} was changed"
        result.output.fill_(float("nan"))
        for name, t in {**given, **body(result.state)}.items():
            assert not (t.is_floating_point() and t.isnan().any()), f"the output shares memory with {name}"


@check
def read_is_the_last_answer(memory: Memory, draw: Draw) -> None:
    """`read` of the state gives the last token's write-read answer, to many queries at once, and changes nothing."""
    memory = replace(memory, order="write-read")
    x = draw(memory, 12, start="memory")
    output, state, _ = scan(memory, x, x.state(memory))
    before = state.clone()
    got = read(memory, x.q, state)
    assert_close(got[:, -1], output[:, -1], "read against the last answer")
    assert_close(read(memory, x.q[:, 3:5], state), got[:, 3:5], "two queries out of twelve")
    assert read(memory, x.q[:, :0], state).shape == (*x.q.shape[:1], 0, *output.shape[2:]), "no queries, no answers"
    assert state == before, "read changed the state"


@check
def info_is_reported(memory: Memory, draw: Draw) -> None:
    """Asked `info` comes with the same answers, by scan and chunked alike; exemplars have none to give."""
    x = draw(memory, 6, start="memory")
    names: tuple[str, ...] = ("surprise", "memory_norm")
    if isinstance(memory.architecture, Exemplars):
        call = {"memory": memory, "q": x.q, "k": x.k, "v": x.v, "info": names}
        refused(dispatch.scan, "info", call)
        refused(dispatch.chunked, "info", call)
        return
    if isinstance(memory.learner, Ridge | Kalman):
        names = (*names, "variance")
    plain = outcome(scan, memory, x, gradients=False)
    told = []
    for verb in (dispatch.scan, dispatch.chunked):
        result = verb(memory, x.q, x.k, x.v, x.gates, x.state(memory), info=names)
        assert_close(result.output, plain.output, f"{verb.__name__} with info")
        assert result.info is not None
        assert tuple(result.info) == names, f"info holds {tuple(result.info)}"
        told.append(result.info)
    for name in names:
        assert told[0][name].shape == x.q.shape[:3], f"info {name} is [B, T, H]"
        assert_close(told[1][name], told[0][name], f"info {name}")
