"""Wrong arguments raise ValueError or TypeError that name the argument, and nothing changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..core import dispatch
from ..core.architecture import Exemplars, Matrix
from ..core.learner import GradientLearner
from ..core.memory import Gates, Memory
from ..core.objective import L2
from ..core.preconditioned import Diagonal
from ..core.retention import Decay, Keep
from ..core.solvers import Append, Kalman
from ..core.state import init_state
from .check import check, refused
from .inputs import Draw, Inputs

OUTSIDE = {
    "lr": (-0.1, float("inf")), "log_decay": (0.1,), "momentum": (-0.1, 1.1), "window": (-1.0, float("inf")),
    "scale": (-0.1, float("inf")), "delta": (-0.1, float("inf")), "precond_lr": (-0.1, float("inf")),
    "precond_log_decay": (0.1,),
}  # fmt: skip
"""Values that each gate refuses."""

Bad = tuple[str, dict[str, Any]]


def _calls(memory: Memory, x: Inputs) -> list[Bad]:
    """What the message must name, and the arguments that are wrong."""
    q, k, v = x.q, x.k, x.v
    B, T, H, K, V = x.sizes
    foreign = Memory(Matrix(), L2(), Keep(), Kalman(process_noise=0.123))
    if isinstance(memory.architecture, Matrix):
        foreign = Memory(Exemplars(), L2(), Keep(), Append())
    ints = torch.zeros(B, T)
    bad: list[Bad] = [
        ("q", {"q": q[..., :-1]}),
        ("q", {"q": q[:, :-1]}),
        ("q", {"q": q[0]}),
        ("q", {"q": q.to(torch.int64)}),
        ("q", {"q": q.tolist()}),
        ("k", {"k": k[:, :, 0]}),
        ("k", {"k": k.to(torch.int32)}),
        ("k", {"k": k.to(torch.float32)}),
        ("k", {"k": None}),
        ("v", {"v": v[:, :-1]}),
        ("v", {"v": v.transpose(1, 2)}),
        ("v", {"v": v[..., :0]}),
        ("v", {"v": v.to(torch.float16)}),
        ("v", {"v": v[..., 0]}),
        ("gates", {"gates": {"lr": 1.0}}),
        ("gates", {"gates": 0.5}),
        ("state", {"state": x.state(memory).memory}),
        ("state", {"state": init_state(foreign, B, H, K, V, dtype=torch.float64)}),
        ("state", {"state": init_state(memory, B + 1, H, K, V, dtype=torch.float64)}),
        ("state", {"state": init_state(memory, B, H, K + 1, V, dtype=torch.float64)}),
        ("state", {"state": init_state(memory, B, H, K, V + 1, dtype=torch.float64)}),
        ("mask", {"mask": ints}),
        ("mask", {"mask": torch.ones(B, T + 1, dtype=torch.bool)}),
        ("mask", {"mask": torch.ones(T, dtype=torch.bool)}),
        ("mask", {"mask": [[True] * T] * B}),
        ("reset", {"reset": ints.to(torch.int64)}),
        ("reset", {"reset": torch.ones(B, T, H, dtype=torch.bool)}),
        ("info", {"info": ("nonsense",)}),
        ("memory", {"memory": "deltanet"}),
        ("chunk_size", {"chunk_size": 0}),
        ("chunk_size", {"chunk_size": -3}),
        ("chunk_size", {"chunk_size": 2.5}),
        ("chunk_size", {"chunk_size": True}),
        ("executor", {"executor": "nonsense"}),
    ]
    for name in Gates._fields:
        if name not in memory.reads:
            unread = torch.zeros(B, T, H, dtype=q.dtype)
            bad.append((f"gates.{name}", {"gates": x.gates._replace(**{name: unread})}))
            continue
        gate = getattr(x.gates, name)
        wrong: list[Any] = [
            gate[:, :-1],
            gate[..., 0],
            gate[..., None],
            gate.to(torch.int64),
            0.5,
            torch.full_like(gate, float("nan")),
        ]
        spoiled = gate.clone()
        spoiled[1, T - 1] = float("nan")
        wrong.append(spoiled)
        for value in OUTSIDE[name]:
            spoiled = gate.clone()
            spoiled[0, 1] = value
            wrong.append(spoiled)
        bad += [(f"gates.{name}", {"gates": x.gates._replace(**{name: value})}) for value in wrong]
    return bad


@check
def wrong_arguments_are_named(memory: Memory, draw: Draw) -> None:
    """Shapes, dtypes, ranges, states of other memories, chunk sizes: by scan, chunked, step and read."""
    x = draw(memory, 5, start="memory")
    state = x.state(memory)
    good: dict[str, Any] = {"memory": memory, "q": x.q, "k": x.k, "v": x.v, "gates": x.gates, "state": state}
    before = {n: t.clone() for n, t in {**x.tensors(), **state.tensors()}.items()}
    for name, wrong in _calls(memory, x):
        if set(wrong) & {"chunk_size", "executor"}:
            refused(dispatch.chunked, name, {**good, **wrong})
        else:
            refused(dispatch.scan, name, {**good, **wrong})
            refused(dispatch.chunked, name, {**good, **wrong})
    one = {"memory": memory, "q": x.q[:, 0], "k": x.k[:, 0], "v": x.v[:, 0]}
    flags = torch.ones(2, 1, dtype=torch.bool)
    for name, wrong in (
        ("q", x.q), ("k", x.k), ("v", x.v), ("q", [1.0]), ("k", None), ("v", x.v[:, 0, :1]), ("q", x.q[:, 0].long()),
        ("gates", 3.0), ("mask", flags), ("reset", torch.ones(2)), ("state", "no state"), ("memory", "rls"),
    ):  # fmt: skip
        refused(dispatch.step, name, {**one, name: wrong})
    asked: dict[str, Any] = {"memory": memory, "q": x.q, "state": state}
    for name, wrong in (("q", x.q[0]), ("q", None), ("q", x.q.long()), ("state", None), ("memory", "rls")):
        refused(dispatch.read, name, {**asked, name: wrong})
    refused(dispatch.read, {"q", "state"}, {**asked, "q": x.q[..., :-1]})  # either may be the wrong one
    for t, kept in zip({**x.tensors(), **state.tensors()}.values(), before.values(), strict=True):
        assert torch.equal(t, kept), "a refused call changed its arguments"


@check
def wrong_initial_states_are_named(memory: Memory, draw: Draw) -> None:
    """`init_state`: unknown entries, wrong shapes, sizes below one."""
    B, H, K, V = draw.batch, draw.heads, draw.key_dim, draw.channels(memory)
    sizes: dict[str, Any] = {"memory": memory, "batch": B, "heads": H, "key_dim": K, "value_dim": V}
    refused(init_state, "nonsense", {**sizes, "initial": {"nonsense": torch.zeros(B, H, K, V)}})
    for name in ("batch", "heads", "key_dim", "value_dim"):
        refused(init_state, name, {**sizes, name: -1})
    refused(init_state, "memory", {**sizes, "memory": "rls"})
    refused(init_state, "heads", {**sizes, "heads": 0})
    for name, shape in memory.shapes(K, V).items():
        refused(init_state, name, {**sizes, "initial": {name: torch.zeros(B, H, *shape, 1)}})
        refused(init_state, name, {**sizes, "initial": {name: torch.zeros(B + 1, H, *shape)}})
    for name in memory.parameters:
        refused(init_state, name, {**sizes, "initial": {name: torch.ones(B, H, memory.architecture.inputs(K) + 1)}})
        refused(init_state, name, {**sizes, "initial": {name: torch.ones(H)}})


@check
def meaningless_memories_are_refused(memory: Memory, draw: Draw) -> None:
    """Words and sizes out of range raise when the value is made; so does a wait for what does not wait."""
    wrongs: list[dict[str, Any]] = [
        {"order": "sideways"}, {"anchor": "future"}, {"apply": "never"}, {"window": 0}, {"segment": -1},
        {"window": 1.5}, {"segment": True}, {"objective": "L2"}, {"retention": None}, {"learner": 3},
        {"architecture": Matrix},
    ]  # fmt: skip
    # only what is not linear in the gradient has something to do at the segment's end
    learner = memory.learner
    waits = isinstance(learner, GradientLearner) and not learner.linear and not isinstance(learner, Diagonal)
    waits = waits or not isinstance(memory.retention, Keep | Decay)
    if waits:
        assert replace(memory, apply="segment").apply == "segment"
    else:
        wrongs.append({"apply": "segment"})
    if isinstance(memory.learner, GradientLearner):
        wrongs += [{"anchor": "retained", "segment": 2}, {"learner": Append()}, {"architecture": Exemplars()}]
    for wrong in wrongs:
        name = next(iter(wrong))
        refused(replace, {name, *NAMED.get(name, ())}, {**wrong}, positional=(memory,))


NAMED = {"learner": ("Append",), "architecture": ("Exemplars",)}
"""What a refused value is called in the message, where that is not the argument's name."""
