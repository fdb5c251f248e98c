"""Exact solves: recursive least squares, Mesa and the Kalman filter, in float64 whatever the inputs are.

Four roads, each in its file:

    innovations   Ridge "exponential": Cholesky of each tile's innovation matrix, all tiles at once (`innovations.py`)
    cg            Ridge "static": conjugate gradients whose matvec is an affine read, implicit backward (`cg.py`)
    gains         Ridge "regularized" and "directional": A_t^-1 k_t per token (batched), then the affine operator
    filter        Kalman: the innovation matrix of a random walk, tile after tile (`filter.py`)

Heads are folded into the batch, so that log_decay = -inf of one head is a reset of that head alone.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.checks import Call
from ..core.clock import Tiles, tiles
from ..core.memory import Memory
from ..core.reference import Result
from ..core.solvers import Kalman, Ridge
from ..core.state import all_parameters
from . import cg, filter, gains, innovations
from .lift import on_features

SUMMARY = "one Cholesky per tile, conjugate gradients or a batched solve per token"


class Folded(NamedTuple):
    """A call with the heads in the batch (R = B H rows), in float64: what the four roads run on."""

    q: Tensor  # [R, T, K]
    k: Tensor
    v: Tensor  # [R, T, V]
    lr: Tensor | None  # [R, T]
    log_decay: Tensor | None  # [R, T], no -inf in it
    mask: Tensor | None
    reset: Tensor | None
    state: dict[str, Tensor]  # [R, K, ...]
    initial: dict[str, Tensor]
    parameters: dict[str, Tensor]  # [R, 1 or K]
    chunk: int | None
    read_first: bool
    scale: Tensor | None  # [R, T]
    asks: bool  # whether the variance is asked for

    def tiles(self, usual: int, *, fade: Tensor | None = None, limit: float = math.inf) -> Tiles:
        """The call's tiles, of `usual` tokens unless the user says otherwise; fade and limit: see `clock.tiles`."""
        R, T = self.q.shape[:2]
        start = torch.zeros(R, dtype=torch.int64, device=self.q.device)
        return tiles(R, T, self.chunk or usual, start, mask=self.mask, reset=self.reset, fade=fade, limit=limit)


def why_not(memory: Memory, call: Call | None = None) -> list[str]:
    """Reasons why no exact solver applies."""
    out: list[str] = []
    if not isinstance(memory.learner, Ridge | Kalman):
        out.append(f"{type(memory.learner).__name__} solves no least-squares problem")
    if call is not None and set(call.info) - {"variance"}:
        out.append(f"info={call.info!r} is reported by the loop")
    return out


def flops(memory: Memory) -> str:
    """Per token and head, tiles of c tokens."""
    learner = memory.learner
    if isinstance(learner, Kalman):
        return "4 K^2 + 4 c K + 3 c V + c^2 / 3"
    assert isinstance(learner, Ridge)
    return {
        "exponential": "K^3 / (3 c) + 3 K^2 + 4 c K + 3 c V + c^2 / 3",
        "static": "n (4 K^2 + 4 c K), n iterations of conjugate gradients (at most about K)",
        "regularized": "K^3 / 3 + 2 K^2 + 6 K V + 4 c K + 3 c V",
        "directional": "K^3 / 3 + 8 K^2 + 6 K V + 4 c K + 3 c V",
    }[learner.rule]


@on_features
def run(memory: Memory, call: Call, chunk_size: int | None) -> Result:
    """Fold the heads, take the learner's road, unfold."""
    folded = _fold(memory, call, chunk_size)
    B, T, H = call.q.shape[:3]
    learner = memory.learner
    if isinstance(learner, Kalman):
        output, body, variance = filter.run(folded)
    else:
        assert isinstance(learner, Ridge)
        road = {"exponential": innovations.run, "static": cg.run}.get(learner.rule)
        output, body, variance = road(folded) if road else gains.run(folded, learner.rule)
    dtype = call.q.dtype
    output = output.reshape(B, H, T, -1).transpose(1, 2).to(dtype)
    if call.mask is not None:
        output = torch.where(call.mask[:, :, None, None], output, torch.zeros_like(output))
    told = None
    if variance is not None:
        variance = variance.reshape(B, H, T).transpose(1, 2).to(dtype)
        if call.mask is not None:
            variance = torch.where(call.mask[:, :, None], variance, torch.zeros_like(variance))
        told = {"variance": variance}
    memory_after = {name: x.reshape(B, H, *x.shape[1:]).to(dtype) for name, x in body.items()}
    return Result(output, replace(call.state, memory=memory_after), told)


def _fold(memory: Memory, call: Call, chunk: int | None) -> Folded:
    B, T, H = call.q.shape[:3]
    wide = torch.float64

    def rows(x: Tensor) -> Tensor:  # [B, T, H, ...] -> [R, T, ...]
        return x.transpose(1, 2).reshape(B * H, T, *x.shape[3:]).to(wide)

    def body(x: Tensor) -> Tensor:  # [B, H, ...] -> [R, ...]
        return x.expand(B, H, *x.shape[2:]).reshape(B * H, *x.shape[2:]).to(wide)

    def flags(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[:, None].expand(B, H, T).reshape(B * H, T)

    lr, log_decay = (None if g is None else rows(g) for g in call.gates[:2])
    mask, reset = flags(call.mask), flags(call.reset)
    if log_decay is not None:
        forget = torch.isneginf(log_decay)
        if bool(forget.any()):
            # -inf restores the prior before the token, if the token counts: a reset in all but name
            forget = forget if mask is None else forget & mask
            reset = forget if reset is None else reset | forget
            log_decay = log_decay.masked_fill(torch.isneginf(log_decay), 0.0)
    k = rows(call.k)
    q = k if call.q is call.k else rows(call.q)  # a prequential call is told by its q being its k
    return Folded(
        q, k, rows(call.v), lr, log_decay, mask, reset,
        {n: body(x) for n, x in call.state.memory.items()}, {n: body(x) for n, x in call.state.initial.items()},
        {n: body(x) for n, x in all_parameters(memory, call.state.parameters, wide, call.q.device).items()},
        chunk, memory.order == "read-write", None if call.gates.scale is None else rows(call.gates.scale),
        bool(call.info),
    )  # fmt: skip
