"""The scale of the written key under the learner `Diagonal`, for all tokens: a linear recurrence, channel by channel.

    A_t = f_t A_{t-1} + p_t k_t * k_t        M_t = scale(A_t)        f = exp(precond_log_decay),  p = precond_lr

Within a tile A_t = (prod f) A_0 + sum_s prod_{s < r <= t} f_r p_s k_s * k_s, by cumulative products without a division.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.clock import Tiles
from ..core.memory import Memory
from .momentum import products


def scales(
    memory: Memory, k: Tensor, lr: Tensor | None, precond_lr: Tensor | None, precond_log_decay: Tensor | None,
    scalars: dict[str, Tensor], second: Tensor, cut: Tiles,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """M [B, H, N, c, K] of keys likewise, and A after the last tile [B, H, K].

    lr, precond_lr, precond_log_decay: [B, H, N, c] or None; second: A before the first tile.
    """
    evidence = lr if precond_lr is None else precond_lr
    squares = k.square() if evidence is None else evidence[..., None] * k.square()  # padding has k = 0
    if precond_log_decay is None:
        gathered, kept = squares.cumsum(-2), None
    else:
        f = precond_log_decay.exp()
        gathered, kept = products(f) @ squares, f.cumprod(-1)
    starts: list[Tensor] = []
    for n in range(cut.count):
        if cut.restart is not None:
            second = torch.where(cut.restart[:, n, None, None], torch.zeros_like(second), second)
        starts.append(second)
        left = second if kept is None else kept[:, :, n, -1, None] * second
        second = left + gathered[:, :, n, -1]
    start = torch.stack(starts, 2)[..., None, :]
    A = gathered + (start if kept is None else kept[..., None] * start)
    return scale(memory, A, {n: x[:, :, None, None] for n, x in scalars.items()}), second


def scale(memory: Memory, second: Tensor, scalars: dict[str, Tensor]) -> Tensor:
    """M of second moments, the learner's scalars broadcasting against them."""
    return memory.learner.scale(second, scalars["center"], scalars["span"].log())  # pyright: ignore
