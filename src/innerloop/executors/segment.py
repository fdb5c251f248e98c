"""Every memory that descends gradients, tile by tile: the dual form where it exists, materialised tiles elsewhere.

    dual          linear in the gradient, Keep or Decay per head: no weight is held for a token (`dual.py`, `linear.py`)
    waiting       apply="segment": the segment's start answers, one step is taken at its end (`linear.py`)
    materialised  anything else, token by token within a tile (`materialised.py`)

A tile lies within a segment, so that its gradients are products with the weights of the segment's start. What goes from
tile to tile is the memory, the learner's buffers and that start: with `checkpoint` only these are kept for the backward
pass, at every few tiles, and the rest is computed again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.checks import Call
from ..core.clock import Tiles, tiles
from ..core.counting import K, V, formula
from ..core.learner import GradientLearner, GradientStep, LinearLearner, Momentum
from ..core.memory import Memory
from ..core.reference import Result, split
from ..core.retention import Decay, Keep
from ..core.state import State, all_parameters
from . import loop
from .coefficients import coefficients
from .dual import KNOWN
from .linear import dual_tile, waiting_tile
from .materialised import materialised_tile
from .recompute import Tree, recomputed
from .tile import Carry, Flag, Setting, Tile, start
from .window import halo

SUMMARY = "gradients at the segment's start, by products of its tokens"
CHUNKS = {"dual": 64, "waiting": 256, "materialised": 16}  # measured: benchmarks/deep.py
BLOCK = 32  # tiles whose coefficients are made at once
LIMIT = 2**29  # bytes of graph above which checkpointing is on unless it is asked for


def kind(memory: Memory) -> str:
    """How a tile is worked: "dual", "waiting" or "materialised"."""
    learner, retention = memory.learner, memory.retention
    if memory.segment > 1 and memory.apply == "segment":
        clipped = memory.window > 1 and getattr(learner, "max_norm", None) is not None
        channel = isinstance(retention, Decay) and retention.per == "channel"
        return "materialised" if clipped or channel else "waiting"
    plain = type(learner) in (GradientStep, Momentum) and isinstance(learner, LinearLearner)
    if not plain or type(retention) not in (Keep, Decay):
        return "materialised"
    if isinstance(retention, Decay) and retention.per == "channel":
        return "materialised"
    if memory.window > 1 and getattr(learner, "max_norm", None) is not None:
        return "materialised"  # the norm of a sum over the window: its coefficients would not be known beforehand
    if isinstance(learner, GradientStep):
        if learner.num_steps > 1:
            return "materialised"
        if learner.average and memory.order == "read-write":
            return "materialised"  # a tile's first read needs the scale of a token before the tile
    return "dual"


def why_not(memory: Memory, call: Call | None = None) -> list[str]:
    """Reasons why tiles do not give this memory exactly."""
    out: list[str] = []
    if not isinstance(memory.learner, GradientLearner):
        out.append(f"{type(memory.learner).__name__} descends no gradient")
    if type(memory.architecture.parametric) not in KNOWN:
        out.append(f"knows the backward pass of Matrix, MLP and SwiGLU, not of {type(memory.architecture).__name__}")
    if memory.rate_per == "channel" and memory.window > 1:
        out.append("a step size per value channel over a window weighs each pair anew at each token")
    return out


def flops(memory: Memory) -> str:
    """Useful floating-point work per token and head, tiles of c tokens."""
    network, learner, way = memory.architecture, memory.learner, kind(memory)
    shapes = [network.shapes(K, V)[w] for w, _ in network.layers]
    deeper = [(-2, shapes[0])]  # no gradient is taken of the keys themselves
    if way != "dual":
        step = "one step at the segment's end" if way == "waiting" else "the learner's own work at every token"
        return f"{formula([(8, s) for s in shapes] + deeper, network)}, and {step}"
    home = isinstance(memory.retention, Decay) and memory.retention.toward == "init"
    carried = isinstance(learner, Momentum) or (isinstance(learner, GradientStep) and learner.average)
    products = formula([(8 + 4 * carried + 2 * home, s) for s in shapes] + deeper, network)
    masked = formula([(2, (n,)) for s in shapes for n in s], network, "c")
    return f"{products} + {masked}"


def parallel(memory: Memory) -> str:
    """What is exact for many tokens at once."""
    if memory.segment == 1:
        return (
            "nothing: with segment 1 each gradient waits for the write before it, so that tokens follow one another, "
            "a forward and a backward pass of the memory at each"
        )
    size = min(CHUNKS[kind(memory)], memory.segment)
    if kind(memory) == "dual":
        return (
            f"gradients, and every read at its own token's weights, as masked products of {size} tokens; no weight is "
            "held for a token. Segments follow one another"
        )
    if kind(memory) == "waiting":
        name = "link, norm or prox" if memory.learner.linear else type(memory.learner).__name__  # pyright: ignore
        return (
            f"gradients and reads, both at the segment's start, of {size} tokens; one step ({name}) is taken at the "
            "segment's end, after its last token"
        )
    return (
        f"gradients, at the segment's start, and reads of {size} tokens, whose weights are held meanwhile; the "
        "writes follow one another token by token"
    )


def step(memory: Memory, call: Call) -> Result:
    """One token: a forward and a backward pass of the memory at its anchor."""
    return run(memory, call, 1)


def run(memory: Memory, call: Call, chunk_size: int | None) -> Result:
    """The whole call, tile by tile."""
    state, way = call.state, kind(memory)
    B, T, H = call.q.shape[:3]
    size = 1 if memory.segment == 1 else min(chunk_size or CHUNKS[way], memory.segment, T)
    cut = tiles(B, T, size, state.position, segment=memory.segment, mask=call.mask, reset=call.reset)
    if not cut.count:  # every token is masked
        return loop.run(memory, call, None)
    setting = _setting(memory, call, cut.size)
    tokens, window = _tokens(memory, call, cut)
    clock = _clock(memory, call, cut)
    carry = Carry(
        {n: _rows(x) for n, x in state.memory.items()},
        {n: _rows(x) for n, x in state.buffers.items()},
        {n: _rows(x) for n, x in state.anchor.items()},
    )
    learns = torch.is_grad_enabled() and any(
        x.requires_grad for x in (*carry.memory.values(), *setting.initial.values(), *tokens.values())
    )
    again = call.checkpoint
    if again is None:
        again = learns and _graph_bytes(memory, carry, tokens, cut) > LIMIT
    block = max(1, round(cut.count**0.5)) if again else BLOCK

    outputs: list[Tensor] = []
    told: dict[str, list[Tensor]] = {name: [] for name in call.info}
    # split and unbind, not slices: the gradient of a slice is as large as the whole
    blocks = {n: x.split(block) for n, x in tokens.items()}
    for number in range(len(blocks["q"])):
        several = {n: x[number] for n, x in blocks.items()}
        flags = clock.flags[number * block : (number + 1) * block]
        if again and learns:
            out, carry, notes = _again(setting, several, flags, carry, way)
        else:
            out, carry, notes = _block(setting, several, flags, carry, way)
        outputs.append(out)
        for name in call.info:
            told[name].append(notes[name])

    def scattered(x: list[Tensor]) -> Tensor:
        whole = torch.cat(x).unflatten(1, (B, H))  # [N, B, H, c, ...]
        return cut.scatter(whole.movedim(1, 0).movedim(3, 2))

    after = replace(
        state,
        memory={n: x.unflatten(0, (B, H)) for n, x in carry.memory.items()},
        buffers={n: x.unflatten(0, (B, H)) for n, x in carry.buffers.items()},
        anchor={n: x.unflatten(0, (B, H)) for n, x in carry.anchor.items()},
        window=window,
        position=cut.position,
    )
    info = {n: scattered(x) for n, x in told.items()}
    if "memory_norm" in info and call.mask is not None:
        info["memory_norm"] = _standing(memory, call, info["memory_norm"])
    return Result(scattered(outputs), after, info or None)


def _again(
    setting: Setting, tokens: dict[str, Tensor], flags: list[_Flags], carry: Carry, way: str
) -> tuple[Tensor, Carry, dict[str, Tensor]]:
    """`_block`, of which nothing but the arguments is kept for the backward pass."""

    def work(tree: Tree) -> Tree:
        here = replace(setting, initial=dict(tree["initial"]), scalars=dict(tree["scalars"]))
        carried = Carry(dict(tree["memory"]), dict(tree["buffers"]), dict(tree["anchor"]))
        out, after, notes = _block(here, dict(tree["tokens"]), flags, carried, way)
        return {"output": {"": out}, **after._asdict(), "notes": notes}

    given = {"initial": setting.initial, "scalars": setting.scalars, "tokens": tokens, **carry._asdict()}
    found = recomputed(work, given)
    after = Carry(*(dict(found.get(name, {})) for name in Carry._fields))
    return found["output"][""], after, dict(found.get("notes", {}))


def _block(
    setting: Setting, tokens: dict[str, Tensor], flags: list[_Flags], carry: Carry, way: str
) -> tuple[Tensor, Carry, dict[str, Tensor]]:
    """Some tiles in a row; tokens [n, G, ...]."""
    work = {"dual": dual_tile, "waiting": waiting_tile, "materialised": materialised_tile}[way]
    memory, real = setting.memory, tokens["real"]
    made = None
    if way == "dual" or (way == "waiting" and memory.learner.linear):  # pyright: ignore[reportAttributeAccessIssue]
        lr = tokens["gate.lr"]
        if memory.rate_per == "channel":
            rates = [real.to(lr.dtype)]
        else:
            rates = list(lr.unbind(-1)) if setting.network.rates else [lr]
        momentum = tokens.get("gate.momentum")
        if momentum is None and isinstance(memory.learner, Momentum):
            momentum = torch.full_like(rates[0], memory.learner.coefficient)
        made = coefficients(
            rates, tokens.get("gate.log_decay"), momentum, tokens.get("scale"), tokens.get("gamma"), real,
            read_first=memory.order == "read-write",
        )  # fmt: skip
    each = {n: x.unbind() for n, x in tokens.items() if n != "scale"}
    gates = {n.removeprefix("gate."): x for n, x in each.items() if n.startswith("gate.")}
    own = {n.removeprefix("own."): x for n, x in each.items() if n.startswith("own.")}
    fixed = {n: setting.scalars[n][:, 0] for n in memory.objective.parameters if n not in own}
    nothing: list[None] = [None] * len(flags)
    rows = [(None, None)] * len(flags) if made is None else made.rows()
    p, E = (nothing, nothing) if made is None else made.ends()
    scales = tokens["scale"][..., -1].unbind() if "scale" in tokens else nothing
    outputs: list[Tensor] = []
    told: dict[str, list[Tensor]] = {name: [] for name in setting.info}
    for i, flag in enumerate(flags):
        tile = Tile(
            each["q"][i], each["k"][i], each["v"][i], {n: x[i] for n, x in own.items()} | fixed,
            {n: x[i] for n, x in gates.items()}, each["gamma"][i] if "gamma" in each else None, *rows[i], p[i], E[i],
            scales[i], each["real"][i], each["position"][i], *flag,
        )  # fmt: skip
        out, carry, notes = work(setting, tile, start(setting, tile, carry))
        outputs.append(out)
        for name in setting.info:
            told[name].append(notes[name])
    return torch.stack(outputs), carry, {n: torch.stack(x) for n, x in told.items()}


class _Flags(NamedTuple):
    restart: Flag
    begins: Flag
    ends: Flag
    some: Flag


class _Clock(NamedTuple):
    flags: list[_Flags]


def _clock(memory: Memory, call: Call, cut: Tiles) -> _Clock:
    """What happens before and in each tile, as cheaply as it can be said."""
    heads, real = call.q.shape[2], cut.real
    some = None if real is None else real.any(-1)
    begins, ends = (some, some) if memory.segment == 1 else (cut.begins, cut.ends)
    marks = ((cut.restart, False), (begins, True), (ends, True), (some, True))
    parts = [_flag(x, heads, cut.count, default) for x, default in marks]
    return _Clock([_Flags(*four) for four in zip(*parts, strict=True)])


def _flag(x: Tensor | None, heads: int, count: int, default: bool) -> list[Flag]:
    if x is None:
        return [default] * count
    some, every = x.any(0).tolist(), x.all(0).tolist()
    rows = x.T.repeat_interleave(heads, 1)
    return [True if e else rows[i] if s else False for i, (s, e) in enumerate(zip(some, every, strict=True))]


def _setting(memory: Memory, call: Call, size: int) -> Setting:
    state = call.state
    B, _, H = call.q.shape[:3]
    scalars = all_parameters(memory, state.parameters, call.q.dtype, call.q.device)
    _, constants = split(memory, state.memory)
    return Setting(
        memory,
        {n: _rows(x) for n, x in state.initial.items()},
        {n: x.expand(B, H, x.shape[-1]).reshape(B * H, 1, x.shape[-1]) for n, x in scalars.items()},
        frozenset(constants),
        call.info,
        size,
    )


def _tokens(memory: Memory, call: Call, cut: Tiles) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Everything of the tokens, [N, G, c, ...] by name, and the window after the call."""
    B, T, H = call.q.shape[:3]
    c, dtype, device = cut.size, call.q.dtype, call.q.device

    def gathered(x: Tensor) -> Tensor:
        return cut.gather(x).movedim(1, 0).movedim(3, 2).flatten(1, 2)

    out = {"q": gathered(call.q), "k": gathered(call.k), "v": gathered(call.v)}
    real = cut.real
    if real is None:
        real = torch.ones(1, 1, 1, dtype=torch.bool, device=device).expand(B, cut.count, c)
    out["real"] = real.movedim(1, 0).repeat_interleave(H, 1)
    slots = torch.arange(c, device=device)
    offset = torch.zeros(B, cut.count, dtype=torch.int64, device=device) if cut.offset is None else cut.offset
    out["position"] = (offset.T[..., None] + slots).repeat_interleave(H, 1)
    for name, gate in call.gates._asdict().items():
        if gate is not None and name != "window" and name not in memory.objective.gates:
            out[f"gate.{name}"] = gathered(gate)
    if "gate.lr" not in out:
        shape: list[int] = [B, T, H]
        if memory.architecture.rates:
            shape.append(len(memory.architecture.rates))
        elif memory.rate_per == "channel":
            shape.append(call.v.shape[-1])
        out["gate.lr"] = gathered(torch.ones(shape, dtype=dtype, device=device))
    if isinstance(memory.learner, GradientStep) and memory.learner.average:
        out["scale"] = _scale(out)
    scalars = all_parameters(memory, call.state.parameters, dtype, device)
    own: dict[str, Tensor] = {}
    for name in memory.objective.gates:
        given = getattr(call.gates, name)
        own[name] = scalars[name][..., 0][:, None].expand(B, T, H) if given is None else given
    window = dict(call.state.window)
    if memory.window > 1:
        ahead = halo(cut, call, memory.window, {"keys": call.k, "values": call.v, **own})
        window = ahead.after
        before = {n: x.flatten(1, 2) for n, x in ahead.before.items()}
        out["k"] = torch.cat([before["keys"], out["k"]], 2)
        out["v"] = torch.cat([before["values"], out["v"]], 2)
        out["gamma"] = ahead.gamma.flatten(1, 2)
        out |= {f"own.{n}": torch.cat([before[n], gathered(x)], 2) for n, x in own.items()}
    else:
        out |= {f"own.{n}": gathered(x) for n, x in own.items()}
    return out, window


def _scale(tokens: dict[str, Tensor]) -> Tensor:
    """The running mean's scale; padding has that of the token before it."""
    slots = torch.arange(tokens["real"].shape[-1], device=tokens["real"].device)
    last = torch.where(tokens["real"], slots, 0).cummax(-1).values
    given = tokens.get("gate.scale")
    if given is not None:
        return given.gather(-1, last)
    return 1 / (tokens["position"].gather(-1, last) + 1).to(tokens["q"].dtype)


def _graph_bytes(memory: Memory, carry: Carry, tokens: dict[str, Tensor], cut: Tiles) -> int:
    """About what autograd would keep of all tiles."""
    weights = sum(x[0].numel() for x in carry.memory.values())
    G, c = tokens["q"].shape[1:3]
    copies = c if kind(memory) == "materialised" else 1
    widths = sum(sum(carry.memory[w].shape[-2:]) for w, _ in memory.architecture.layers)
    return cut.count * G * (4 * copies * weights + 6 * c * widths + 10 * c * c) * tokens["q"].element_size()


def _standing(memory: Memory, call: Call, norms: Tensor) -> Tensor:
    """The memory's norm at masked tokens too: that of the last token that wrote, or of the memory at rest."""
    from ..core.reference import read_weights

    def at_rest(state: State) -> Tensor:
        parameters = all_parameters(memory, state.parameters, call.q.dtype, call.q.device)
        weights = split(memory, read_weights(memory, state, parameters))[0]
        return torch.stack([w.flatten(2).square().sum(-1) for w in weights.values()]).sum(0).sqrt()[:, None]

    assert call.mask is not None
    state = call.state
    fresh = replace(
        state, memory=state.initial, anchor={n: state.initial[n] for n in state.anchor},
        position=torch.zeros_like(state.position),
    )  # fmt: skip
    T = norms.shape[1]
    begin = torch.zeros_like(call.mask) if call.reset is None else call.reset
    time = torch.arange(1, T + 1, device=norms.device)
    table = torch.cat([at_rest(state), norms, at_rest(fresh)], 1)  # 0: the start; t: after token t; T + 1: restored
    event = torch.where(call.mask | begin, time, 0).cummax(1).values
    restored = (begin & ~call.mask).gather(1, (event - 1).clamp(min=0)) & (event > 0)
    index = torch.where(restored, T + 1, event)
    return table.gather(1, index[..., None].expand(-1, -1, norms.shape[2]))


def _rows(x: Tensor) -> Tensor:
    return x.flatten(0, 1)
