"""One tile of a memory that is linear in its gradients: the dual form, no per-token weight.

GradientStep, Momentum under Keep or Decay per head: reads at every token's own weights (`dual.py`).
The same under a link, norm or prox with apply="segment", and every other learner with it: reads at the segment's
start; what is not linear acts once, at the segment's last token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.descent import PENDING, pooled_step
from ..core.learner import GradientLearner, GradientStep
from ..core.memory import Gates
from ..core.retention import Decay
from .coefficients import Rows
from .dual import Pass, added, errors, gradient_norms, key_pass, memory_norms, reader
from .tile import Carry, Setting, Tile, Weights, choose, lifted, lowered, norm, surprise


def dual_tile(setting: Setting, tile: Tile, carry: Carry) -> tuple[Tensor, Carry, dict[str, Tensor]]:
    """Outputs [G, c, V], the carry after the tile, the asked info [G, c]."""
    memory = setting.memory
    assert tile.before is not None
    assert tile.after is not None
    constants, W = setting.constants(carry.memory), setting.written(carry.memory)
    averaged = isinstance(memory.learner, GradientStep) and memory.learner.average
    U: Weights | None = carry.buffers if tile.before.m is not None else None
    if averaged and tile.begins is not False:  # the sum starts anew
        zeros = {} if tile.begins is True else {n: torch.zeros_like(u) for n, u in carry.buffers.items()}
        U = choose(tile.begins, zeros, carry.buffers) if zeros else None
    at = carry.anchor or W
    if memory.anchor == "retained" and memory.segment == 1:
        at = memory.retention.keep(W, _first(tile, "log_decay"), setting.initial)
    home = setting.initial if isinstance(memory.retention, Decay) and memory.retention.toward == "init" else None
    base = at if averaged else W
    seen, notes, factor = _seen(setting, tile, constants, at, carry.anchor or W)
    before, after, E = tile.before, tile.after, tile.E
    if factor is not None:
        before, after = (rows._replace(C=[C * factor[:, None] for C in rows.C]) for rows in (before, after))
        E = None if E is None else [e * factor for e in E]
    x = memory.architecture.embed(constants, tile.q)
    output = setting.network.apply(constants, x, reader(before, seen, setting.rate, base, U, home))
    if "memory_norm" in setting.info:
        layers = setting.network.layers
        notes["memory_norm"] = memory_norms(layers, after, seen, setting.rate, base, U, home)
    if averaged:
        assert E is not None
        assert tile.scale is not None
        written, buffers = _mean_end(setting, seen, tile.scale, E, base, U)
        if tile.some is not True:  # a tile without a token leaves even the stale sum of a finished segment alone
            written, buffers = choose(tile.some, written, W), choose(tile.some, buffers, carry.buffers)
    else:
        written, buffers = _end(setting, seen, after, tile.p, E, base, U, home)
    return output, Carry(constants | written, buffers, carry.anchor), notes


def waiting_tile(setting: Setting, tile: Tile, carry: Carry) -> tuple[Tensor, Carry, dict[str, Tensor]]:
    """The same with apply="segment"."""
    memory, learner = setting.memory, setting.memory.learner
    assert isinstance(learner, GradientLearner)
    constants, W = setting.constants(carry.memory), setting.written(carry.memory)
    seen, notes, factor = _seen(setting, tile, constants, carry.anchor, carry.anchor)
    now = setting.link(carry.anchor)
    output = memory.architecture.apply({**constants, **now}, tile.q)
    total = _sums(setting, tile, seen, carry.buffers)
    if learner.linear:
        assert tile.after is not None
        E = tile.E
        after = tile.after
        if factor is not None:
            after = after._replace(C=[C * factor[:, None] for C in after.C])
            E = None if E is None else [e * factor for e in E]
        own = {n: b for n, b in carry.buffers.items() if not n.startswith(PENDING)}
        W, own = _end(setting, seen, after, tile.p, E, W, own or None, None)
        pending = {n: b for n, b in total.items() if n.startswith(PENDING)}
    else:
        own = {n: b for n, b in total.items() if not n.startswith(PENDING)}
        pending = {n: b for n, b in total.items() if n.startswith(PENDING)}
    if tile.ends is not False:
        if learner.linear:
            settled, moved = _settled(setting, W, pending), own
        else:
            settled, moved = pooled_step(learner, _problem(setting, W), lifted(W), lifted(own), lifted(pending))
            settled, moved = lowered(settled), lowered(moved)
        W, own = choose(tile.ends, settled, W), choose(tile.ends, moved, own)
        pending = choose(tile.ends, {n: torch.zeros_like(b) for n, b in pending.items()}, pending)
        last = (memory.segment - 1) % setting.size
        if memory.order == "write-read":  # the segment's last token reads what it wrote
            again = memory.architecture.apply({**constants, **setting.link(W)}, tile.q[:, last : last + 1])
            output = _placed(output, last, choose(tile.ends, {"": again[:, 0]}, {"": output[:, last]})[""])
        if "memory_norm" in setting.info:
            told = norm(now)[:, None].expand(tile.real.shape)
            latest = choose(tile.ends, {"": norm(setting.link(W))}, {"": told[:, last]})[""]
            notes["memory_norm"] = _placed(told, last, latest)
    elif "memory_norm" in setting.info:
        notes["memory_norm"] = norm(now)[:, None].expand(tile.real.shape)
    return output, Carry(constants | W, own | pending, carry.anchor), notes


def _seen(
    setting: Setting, tile: Tile, constants: Weights, at: Weights, before: Weights
) -> tuple[Pass, dict[str, Tensor], Tensor | None]:
    """The keys' pass at the anchor; the surprise before the write, if asked; what clipping leaves of each gradient."""
    memory = setting.memory
    channel = tile.gates["lr"] if memory.rate_per == "channel" else None
    error = errors(memory.objective, tile.v, tile.own, channel)
    keys = memory.architecture.embed(constants, tile.k)
    seen = key_pass(setting.network, {**constants, **setting.link(at)}, keys, error)
    notes: dict[str, Tensor] = {}
    if "surprise" in setting.info:
        notes["surprise"] = surprise(setting, tile, constants, keys, before)
    limit: float | None = getattr(memory.learner, "max_norm", None)
    factor = None
    if limit is not None:
        factor = limit / gradient_norms(setting.network.layers, seen, None).clamp(min=limit)
    return seen, notes, factor


def _end(
    setting: Setting, seen: Pass, after: Rows, p: Tensor | None, E: list[Tensor] | None, W: Weights,
    U: Weights | None, home: Weights | None,
) -> tuple[Weights, Weights]:  # fmt: skip
    """The memory and the carried sum after the tile's last token."""
    A = None if after.A is None else after.A[:, -1]
    m = None if after.m is None else after.m[:, -1]
    written: Weights = {}
    buffers: Weights = {}
    for layer in setting.network.layers:
        rate = setting.rate[layer[0]]
        late = {} if E is None else added(layer, seen, -E[rate])
        for name, w in added(layer, seen, -after.C[rate][:, -1]).items():  # what is ours is added to in place
            w = w.add_(W[name]) if A is None else w.addcmul_(_column(A, w), W[name])
            if m is not None and U is not None:
                w.addcmul_(_column(m, w), U[name])
            if home is not None and A is not None:
                w.addcmul_(_column(1 - A, w), home[name])
            written[name] = w
            if late and U is not None and p is not None:
                buffers[name] = late[name].addcmul_(_column(p, w), U[name])
    return written, buffers


def _mean_end(
    setting: Setting, seen: Pass, scale: Tensor, E: list[Tensor], anchor: Weights, past: Weights | None
) -> tuple[Weights, Weights]:
    """The same of a running mean: the sum, and what it leaves of the segment's start."""
    written: Weights = {}
    total: Weights = {}
    for layer in setting.network.layers:
        for name, more in added(layer, seen, -E[setting.rate[layer[0]]]).items():
            total[name] = more if past is None else past[name] + more
            written[name] = torch.addcmul(anchor[name], _column(scale, more), total[name], value=-1)
    return written, total


def _sums(setting: Setting, tile: Tile, seen: Pass, buffers: Weights) -> Weights:
    """The buffers with the tile's sums in those of the segment."""
    memory, learner = setting.memory, setting.memory.learner
    assert isinstance(learner, GradientLearner)
    total, real = dict(buffers), tile.real.to(tile.q.dtype)
    lr = tile.gates["lr"]
    if PENDING + "lr" in total:
        total[PENDING + "lr"] = total[PENDING + "lr"] + (real if memory.rate_per == "channel" else lr).sum(1)
    if learner.linear:
        return total
    for layer in setting.network.layers:
        weights = real
        if learner.weighs_inside:
            weights = lr[..., setting.rate[layer[0]]] if setting.network.rates else lr
        if tile.gamma is not None:
            weights = (weights[:, None] @ tile.gamma)[:, 0]
        for name, step in added(layer, seen, weights).items():
            total[PENDING + name] = total[PENDING + name] + step
    if PENDING + "momentum" in total:
        momentum = tile.gates.get("momentum")
        more = getattr(learner, "coefficient", 0.0) * real if momentum is None else momentum * real
        total[PENDING + "momentum"] = total[PENDING + "momentum"] + more.sum(1)
    if PENDING + "log_decay" in total and "log_decay" in tile.gates:
        total[PENDING + "log_decay"] = total[PENDING + "log_decay"] + tile.gates["log_decay"].sum(1)
    return total


def _settled(setting: Setting, W: Weights, pending: Weights) -> Weights:
    rates = None
    if PENDING + "lr" in pending:
        lr = pending[PENDING + "lr"][:, None]
        rates = {n: lr[..., i] if setting.network.rates else lr for n, i in _all_rates(setting).items()}
    return lowered(setting.memory.retention.settle(lifted(W), lifted(setting.initial), rates, setting.scalars))


def _all_rates(setting: Setting) -> dict[str, int]:
    """As `rate`, biases too."""
    out: dict[str, int] = {}
    for weight, bias in setting.network.layers:
        out[weight] = setting.rate[weight]
        if bias is not None:
            out[bias] = setting.rate[weight]
    return out


@dataclass(frozen=True)
class _Segment:
    """What a learner and a retention ask of a problem at the segment's end (see `learner.Problem`), rows [G, 1]."""

    setting: Setting
    key: Tensor
    initial: Weights
    gates: Gates

    @property
    def architecture(self) -> Any:
        return self.setting.network

    @property
    def retention(self) -> Any:
        return self.setting.memory.retention

    @property
    def segment(self) -> int:
        return self.setting.memory.segment

    @property
    def scalars(self) -> dict[str, Tensor]:
        return self.setting.scalars

    def parameter(self, name: str) -> Tensor:
        return self.setting.scalars[name]

    def power(self, matrix: Tensor, exponent: float) -> Tensor:
        from ..core.linalg import power

        return power(matrix, exponent)

    def with_gates(self, **gates: Any) -> _Segment:
        return replace(self, gates=self.gates._replace(**gates))


def _problem(setting: Setting, W: Weights) -> Any:
    one = next(iter(W.values())).flatten(1)[:, None, :1]
    return _Segment(setting, one, lifted(setting.initial), Gates())


def _first(tile: Tile, name: str) -> Tensor | None:
    gate = tile.gates.get(name)
    return None if gate is None else gate[:, 0]


def _placed(x: Tensor, at: int, row: Tensor) -> Tensor:
    """x [G, c, ...] with another row at one place."""
    return torch.cat([x[:, :at], row[:, None], x[:, at + 1 :]], 1)


def _column(factor: Tensor, like: Tensor) -> Tensor:
    return factor.reshape(-1, *(1,) * (like.ndim - 1))
