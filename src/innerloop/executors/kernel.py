"""Exemplars by blocks of queries: log-sum-exp softmax, and the local linear correction.

    o_t = sum_j p_tj v_j,   p = softmax over the visible exemplars of log w(q_t, k_j)                       order 0
    o_t = v - W^T (k - q_t),   k = sum_j p_tj k_j,   v = sum_j p_tj v_j,                                      order 1
          (sum_j p_tj (k_j - k)(k_j - k)^T + (penalty / sum w) I) W = sum_j p_tj (k_j - k)(v_j - v)^T

Visible to token t: exemplars of its own document (since the last reset), no later than t (before t under read-write),
among the last `capacity`. Arrays of one block of queries exist at a time.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..core.architecture import Exemplars
from ..core.checks import Call
from ..core.linalg import solve_ridge
from ..core.memory import Memory
from ..core.reference import Result, append
from ..core.state import all_parameters

SUMMARY = "softmax over the exemplars, in blocks of queries"
BLOCK = 128
FAR = -0.375  # power of the dtype's epsilon: 7e5 squared bandwidths in float64, where products lose ten digits
LINEAR_BLOCK = 32  # queries of a local linear fit, which sees every exemplar from its own centre


def why_not(memory: Memory, call: Call | None = None) -> list[str]:
    """Reasons why this is no kernel memory."""
    return [] if isinstance(memory.architecture, Exemplars) else ["needs Exemplars"]


def flops(memory: Memory) -> str:
    """Per token and head, n exemplars visible."""
    assert isinstance(memory.architecture, Exemplars)
    zeroth = "2 n (K + V)"
    return zeroth if memory.architecture.order == 0 else f"{zeroth} + 2 n K (K + V) + K^3 / 3"


def run(memory: Memory, call: Call, chunk_size: int | None) -> Result:
    """All reads, block by block; then the pairs are appended."""
    architecture = memory.architecture
    assert isinstance(architecture, Exemplars)
    state, (B, T) = call.state, call.q.shape[:2]
    device = call.q.device
    old = state.memory
    n = old["keys"].shape[2]
    keys = torch.cat([old["keys"], call.k.transpose(1, 2)], 2)
    values = torch.cat([old["values"], call.v.transpose(1, 2)], 2)
    here = torch.ones(B, T, dtype=torch.bool, device=device) if call.mask is None else call.mask
    valid = torch.cat([old["valid"], here], 1)
    document = torch.zeros(B, n + T, dtype=torch.int64, device=device)
    if call.reset is not None:
        document[:, n:] = call.reset.cumsum(1)
    rank = valid.cumsum(1)  # how many exemplars stand at or before a place
    scalars = all_parameters(memory, state.parameters, call.q.dtype, device)
    # where every row is packed (no masks, no resets), a capacity bounds the exemplars a block can see
    packed = call.mask is None and call.reset is None and bool(old["valid"].all())
    size = chunk_size or (BLOCK if architecture.order == 0 else LINEAR_BLOCK)
    outputs: list[Tensor] = []
    for first in range(0, T, size):
        last = min(first + size, T)
        low = 0
        if packed and architecture.capacity is not None:
            low = max(0, n + first - architecture.capacity)
        high = n + last
        time = torch.arange(n + first, n + last, device=device)
        place = torch.arange(low, high, device=device)
        earlier = place[None, :] < time[:, None] if memory.order == "read-write" else place[None, :] <= time[:, None]
        own = document[:, n + first : n + last, None] == document[:, None, low:high]
        visible = earlier & own & valid[:, None, low:high]
        if architecture.capacity is not None:
            through = rank[:, n + first : n + last, None]
            if memory.order == "read-write":
                through = through - valid[:, n + first : n + last, None].to(rank.dtype)
            visible = visible & (rank[:, None, low:high] > through - architecture.capacity)
        q = call.q[:, first:last].transpose(1, 2)
        outputs.append(_read(architecture, q, keys[:, :, low:high], values[:, :, low:high], visible, scalars))
    output = torch.cat(outputs, 2).transpose(1, 2) if outputs else call.v
    if call.mask is not None:
        output = torch.where(call.mask[:, :, None, None], output, torch.zeros_like(output))
    kept = dict(old)
    if call.reset is not None and T:
        final = document[:, -1:]
        kept["valid"] = old["valid"] & (final == 0)
        here = here & (document[:, n:] == final)
    body = append(kept, call.k.transpose(1, 2), call.v.transpose(1, 2), here, architecture)
    return Result(output, replace(state, memory=body))


def _read(
    architecture: Exemplars, q: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scalars: dict[str, Tensor]
) -> Tensor:
    """Reads of queries [B, H, m, K] from exemplars [B, H, n, K], of which `visible` [B, m, n] count."""
    visible = visible[:, None]
    some = visible.any(-1, keepdim=True)
    logits = _log_weights(architecture, q, keys, scalars["bandwidth"][..., None])
    # a row that sees nothing gets zeros instead of -inf, so that no NaN is born in it, forward or backward
    logits = torch.where(some, logits.masked_fill(~visible, float("-inf")), torch.zeros_like(logits))
    p = logits.softmax(-1) * some
    output = p @ values
    if architecture.order == 0:
        return output
    total = logits.logsumexp(-1)
    # the penalty in units of the weights' sum (beyond exp(80) of it no slope is left)
    relative = scalars["penalty"] * (-total.clamp(min=-80.0)).exp()
    mean = p @ keys
    # around the means, query by query: a difference of second moments would lose the small one of a sharp kernel
    centred, around = keys[:, :, None] - mean[..., None, :], values[:, :, None] - output[..., None, :]
    weighted = p[..., None] * centred
    W = solve_ridge(weighted.mT @ centred, relative, weighted.mT @ around)
    return torch.where(some, output - (W.mT @ (mean - q)[..., None])[..., 0], torch.zeros_like(output))


def _log_weights(architecture: Exemplars, q: Tensor, keys: Tensor, bandwidth: Tensor) -> Tensor:
    if architecture.kernel == "exp" or not keys.shape[2]:
        return architecture.log_weights(q, keys, bandwidth)
    # |q - k|^2 by products, around one exemplar: around the origin it would cancel for data that lies far from it
    # (the first one, not the mean, which would carry later tokens' bits into earlier answers)
    from_first, others = q - keys[:, :, :1], keys - keys[:, :, :1]
    squares = from_first.square().sum(-1)[..., :, None] + others.square().sum(-1)[..., None, :]
    far = squares.detach() / bandwidth.detach() ** 2
    if bool((far > torch.finfo(q.dtype).eps ** FAR).any()):  # one exemplar lies far off: differences, entry by entry
        if q.requires_grad or keys.requires_grad:
            squares = (q[..., :, None, :] - keys[..., None, :, :]).square().sum(-1)
        else:
            squares = torch.cdist(q, keys, compute_mode="donot_use_mm_for_euclid_dist").square()
        return -0.5 * squares / bandwidth**2
    return -0.5 * (squares - 2 * from_first @ others.mT).clamp(min=0) / bandwidth**2
