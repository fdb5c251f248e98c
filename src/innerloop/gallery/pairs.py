"""Key-value pairs as one stream of one head, and how well a memory recalls them: what the experiments N share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import innerloop as il

MODULE = "A course module, Test-time learning: TTT, Titans, Miras, Atlas"


def unit(x: Tensor) -> Tensor:
    """Rows of length 1."""
    return F.normalize(x, dim=-1)


def stream(x: Tensor) -> Tensor:
    """[T, C] as [B, T, H, C] of one row and one head."""
    return x[None, :, None]


def recalled(memory: il.Memory, state: il.State, keys: Tensor) -> Tensor:
    """The memory's answers [N, V] to keys [N, K]."""
    return il.read(memory, stream(keys), state)[0, :, 0]


def relative_error(answers: Tensor, values: Tensor) -> float:
    """Mean over the pairs of |answer - value| / |value|: 0 is perfect, 1 what a silent memory scores."""
    return float(((answers - values).norm(dim=-1) / values.norm(dim=-1)).mean())


def fitted(
    memory: il.Memory, keys: Tensor, values: Tensor, *, rate: float, steps: int, state: il.State | None = None
) -> il.State:
    """The state after so many steps on all pairs: the stream is the pairs over and over, one segment to a step.

    memory: one whose learner takes one step at a segment's end, with as many tokens in a segment as there are pairs.
    """
    k, v = (stream(x.repeat(steps, 1)) for x in (keys, values))
    return il.chunked(memory, k, k, v, il.Gates(lr=torch.full(k.shape[:3], rate, dtype=k.dtype)), state).state
