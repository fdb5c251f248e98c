"""What the segment executor hands from tile to tile, and what it knows of each.

G rows: the heads of all batch rows        c tokens of a tile, n = window - 1 + c pairs that they look at
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.architecture import Architecture
from ..core.memory import Memory
from .coefficients import Rows
from .dual import errors, gradient_norms, key_pass

Weights = dict[str, Tensor]
Flag = Tensor | bool
"""Rows [G] to which something happens; True: to all, False: to none."""


class Carry(NamedTuple):
    """memory (the outer parameters with it), buffers, and the segment's start (empty when segment == 1): [G, ...]."""

    memory: Weights
    buffers: Weights
    anchor: Weights


@dataclass(frozen=True)
class Tile:
    """One tile's tokens.

    q [G, c, K]; k, v [G, n, ...]; own: the objective's scalars [G, n or 1]; gates [G, c, ...] by name, `lr` always
    (0 in padding); gamma [G, c, n] or None; before, after: the coefficients of each token's read, and after its write;
    p, E: those of the carried sum at the tile's end; real [G, c]; position [G, c] in the segment.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    own: dict[str, Tensor]
    gates: dict[str, Tensor]
    gamma: Tensor | None
    before: Rows | None
    after: Rows | None
    p: Tensor | None
    E: list[Tensor] | None
    scale: Tensor | None
    real: Tensor
    position: Tensor
    restart: Flag
    begins: Flag
    ends: Flag
    some: Flag


@dataclass(frozen=True)
class Setting:
    """What is the same for all tiles.

    initial: the memory that a reset restores, [G, ...]; scalars: the axes' own, [G, 1, 1 or K]; size: c.
    """

    memory: Memory
    initial: Weights
    scalars: dict[str, Tensor]
    outer: frozenset[str]
    info: tuple[str, ...]
    size: int

    @cached_property
    def network(self) -> Architecture:
        """What the memory is, behind a feature map."""
        return self.memory.architecture.parametric

    @cached_property
    def rate(self) -> dict[str, int]:
        """Which step size each weight has."""
        named = self.network.rates
        return {weight: named.index(weight) if named else 0 for weight, _ in self.network.layers}

    def written(self, memory: Mapping[str, Tensor]) -> Weights:
        """The entries that tokens write."""
        return {n: w for n, w in memory.items() if n not in self.outer}

    def constants(self, memory: Mapping[str, Tensor]) -> Weights:
        """The outer parameters."""
        return {n: w for n, w in memory.items() if n in self.outer}

    def link(self, weights: Weights) -> Weights:
        """The weights that a read uses, of what is kept."""
        if not self.memory.retention.dual:
            return weights
        return lowered(self.memory.retention.link(lifted(weights), self.scalars))


def start(setting: Setting, tile: Tile, carry: Carry) -> Carry:
    """The carry as the tile's first token finds it: resets, then the segment's start."""
    memory, buffers, anchor = carry
    if tile.restart is not False:
        memory = choose(tile.restart, setting.initial, memory)
        buffers = choose(tile.restart, {n: torch.zeros_like(b) for n, b in buffers.items()}, buffers)
        anchor = choose(tile.restart, {n: setting.initial[n] for n in anchor}, anchor)
    if anchor:
        anchor = choose(tile.begins, {n: memory[n] for n in anchor}, anchor)
    return Carry(memory, buffers, anchor)


def surprise(setting: Setting, tile: Tile, constants: Weights, keys: Tensor, at: Weights) -> Tensor:
    """Norms [G, c] of the loss's own gradients at a memory, whatever the step sizes."""
    error = errors(setting.memory.objective, tile.v, tile.own, None)
    seen = key_pass(setting.network, {**constants, **setting.link(at)}, keys, error)
    return gradient_norms(setting.network.layers, seen, tile.gamma)


def choose(flag: Flag, yes: Mapping[str, Tensor], no: Mapping[str, Tensor]) -> Weights:
    """Row by row; `no` decides about the names."""
    if isinstance(flag, bool):
        return {n: yes[n] for n in no} if flag else dict(no)
    return {n: torch.where(flag.reshape(-1, *(1,) * (w.ndim - 1)), yes[n], w) for n, w in no.items()}


def lifted(weights: Mapping[str, Tensor]) -> Weights:
    """[G, ...] as [G, 1, ...]: rows of one head each, as the axes want them."""
    return {n: w[:, None] for n, w in weights.items()}


def lowered(weights: Mapping[str, Tensor]) -> Weights:
    """The inverse."""
    return {n: w[:, 0] for n, w in weights.items()}


def norm(weights: Mapping[str, Tensor]) -> Tensor:
    """The Frobenius norm of all weights, [G]."""
    squares = torch.stack([w.flatten(1).square().sum(-1) for w in weights.values()]).sum(0)
    some = squares > 0
    return torch.where(some, torch.where(some, squares, torch.ones_like(squares)).sqrt(), torch.zeros_like(squares))
