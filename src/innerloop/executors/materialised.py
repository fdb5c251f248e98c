"""One tile of a memory whose write is not linear in its gradients and acts at every token (per-token Muon, links).

In a segment all gradients are taken at its start, so they come from one pass over the tile's keys; each token's write
is then the learner's own (`descent.py`), and the c memories that result answer their queries together. With
segment == 1 a tile is one token, and this is the true per-token rule: a forward and a backward of the memory at each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.axis import Weights
from ..core.learner import Learner
from ..core.linalg import power, solve_psd
from ..core.memory import Gates
from .dual import Pass, errors, key_pass
from .tile import Carry, Setting, Tile, choose, lifted, lowered, norm, surprise


@dataclass(frozen=True)
class _Token:
    """One token for a learner (see `learner.Problem`), rows [G, 1, ...]."""

    setting: Setting
    key: Tensor
    value: Tensor
    gates: Gates
    initial: Weights
    anchor: Weights | None
    position: Tensor
    gradient: Callable[[Weights], Weights]

    @property
    def architecture(self) -> Any:
        return self.setting.network

    @property
    def retention(self) -> Any:
        return self.setting.memory.retention

    @property
    def anchored_at(self) -> str:
        return self.setting.memory.anchor

    @property
    def apply(self) -> str:
        return self.setting.memory.apply

    @property
    def segment(self) -> int:
        return self.setting.memory.segment

    @property
    def closes(self) -> Tensor:
        return self.position == self.segment - 1

    @property
    def scalars(self) -> dict[str, Tensor]:
        return self.setting.scalars

    def with_gates(self, **gates: Any) -> _Token:
        return replace(self, gates=self.gates._replace(**gates))

    def parameter(self, name: str) -> Tensor:
        return self.setting.scalars[name]

    def solve(self, matrix: Tensor, right: Tensor) -> Tensor:
        return solve_psd(matrix, right)

    def expm(self, matrix: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(matrix)

    def power(self, matrix: Tensor, exponent: float) -> Tensor:
        return power(matrix, exponent)


def materialised_tile(setting: Setting, tile: Tile, carry: Carry) -> tuple[Tensor, Carry, dict[str, Tensor]]:
    """Outputs [G, c, V], the carry after the tile, the asked info [G, c]."""
    memory = setting.memory
    learner: Learner = memory.learner
    constants, W = setting.constants(carry.memory), lifted(setting.written(carry.memory))
    buffers, initial = lifted(carry.buffers), lifted(setting.initial)
    keys = memory.architecture.embed(constants, tile.k)
    channel = tile.gates["lr"] if memory.rate_per == "channel" else None
    error = errors(memory.objective, tile.v, tile.own, channel)

    def look(weights: Weights) -> Pass:
        return key_pass(setting.network, {**constants, **lowered(weights)}, keys, error)

    seen = look(lifted(setting.link(carry.anchor))) if carry.anchor else None
    notes: dict[str, Tensor] = {}
    if "surprise" in setting.info:
        notes["surprise"] = surprise(setting, tile, constants, keys, carry.anchor or lowered(W))
    c = tile.q.shape[1]
    halo = tile.k.shape[1] - c
    waits = memory.apply == "segment" and memory.segment > 1  # the segment's start answers until its end
    held = lifted(carry.anchor) if waits else W
    stands: list[Weights] = [held]
    for t in range(c):
        token = _Token(
            setting, keys[:, None, halo + t], tile.v[:, None, halo + t], _gates(tile, t), initial,
            lifted(carry.anchor) if carry.anchor else None, tile.position[:, t],
            lambda at, t=t: _gradient(setting, seen or look(at), tile.gamma, t),
        )  # fmt: skip
        written, moved = learner.write(token, W, buffers)  # pyright: ignore[reportArgumentType]
        real = tile.real[:, t]
        W, buffers = choose(real, written, W), choose(real, moved, buffers)
        held = choose(token.closes & real, W, held) if waits else W
        stands.append(held)
    read = stands[:-1] if memory.order == "read-write" else stands[1:]
    output = _answers(setting, constants, tile.q, read)
    if "memory_norm" in setting.info:
        notes["memory_norm"] = torch.stack([norm(setting.link(lowered(w))) for w in stands[1:]], 1)
    return output, Carry(constants | lowered(W), lowered(buffers), carry.anchor), notes


def _gates(tile: Tile, t: int) -> Gates:
    return Gates(**{n: g[:, None, t] for n, g in tile.gates.items()})


def _gradient(setting: Setting, seen: Pass, gamma: Tensor | None, t: int) -> Weights:
    """Token t's gradient of every weight, [G, 1, ...]."""
    out: Weights = {}
    for weight, bias in setting.network.layers:
        X, D = seen.inputs[weight], seen.deltas[weight]
        if gamma is None:
            X, D = X[:, t : t + 1], D[:, t : t + 1]
        else:
            D = gamma[:, t, :, None] * D
        out[weight] = (X.mT @ D)[:, None]
        if bias is not None:
            out[bias] = D.sum(1)[:, None]
    return out


def _answers(setting: Setting, constants: Weights, q: Tensor, stands: list[Weights]) -> Tensor:
    """Answers of the c memories to their own queries: [G, c, V]."""
    c = len(stands)
    weights = {n: torch.stack([w[n][:, 0] for w in stands], 1).flatten(0, 1) for n in stands[0]}
    weights = setting.link(weights) if not setting.memory.retention.dual else _linked(setting, weights, c)
    repeated = {n: x.repeat_interleave(c, 0) for n, x in constants.items()}
    out = setting.memory.architecture.apply({**repeated, **weights}, q.flatten(0, 1)[:, None])
    return out[:, 0].unflatten(0, (-1, c))


def _linked(setting: Setting, weights: Weights, c: int) -> Weights:
    """The link of weights [G c, ...]."""
    scalars = {n: s.repeat_interleave(c, 0) for n, s in setting.scalars.items()}
    return replace(setting, scalars=scalars).link(weights)
