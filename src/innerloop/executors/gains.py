"""Ridge that keeps its mean: a gain per token, then the affine operator.

    w_t = w_{t-1} + g_t (v_t - w_{t-1}^T k_t)^T,   g_t = l_t A_t^-1 k_t

"regularized": A_t = f A_{t-1} + (1 - f) Lambda + l k k^T, so that A - Lambda is the Gram matrix of linear attention and
every A_t of a tile is formed at once. "directional": A_t follows from A_{t-1} token by token (rank two each). The gains
are one batched solve per group of tokens; the recurrence in w is the delta rule with write key g. A prequential call
(q = k, read-write) reads what the recurrence needs anyway: with T = tril(K G^T, -1) of a tile that starts from w,

    e = (I + T)^-1 (V - K w),    o = V - e,    w <- w + G^T e
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.linalg import segment_sums, solve_psd
from .operator import affine_operator
from .sums import tile_starts

if TYPE_CHECKING:
    from .exact import Folded

CHUNK = 32
NARROW = 16  # up to this K Gram matrices are formed by so many tokens at once: it costs c K^2 a token
GROUP = 1 << 18  # floats of Gram matrices formed at once: they stay in the cache


def run(call: Folded, rule: str) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
    """Outputs [R, T, V], the Gram matrix and moment after the call, the variances [R, T] if asked for."""
    cut = call.tiles(CHUNK)
    real = cut.real
    q, k, v = cut.gather(call.q), cut.gather(call.k), cut.gather(call.v)
    lr = torch.ones_like(k[..., 0]) if call.lr is None else cut.gather(call.lr)
    lr = lr if real is None else lr * real
    log_decay = torch.zeros_like(lr) if call.log_decay is None else cut.gather(call.log_decay)

    find = _regularized if rule == "regularized" else _directional
    solved, A = find(call, k, lr, log_decay, cut.restart, real)
    gains = lr[..., None] * solved
    start = solve_psd(call.state["gram"], call.state["moment"])
    fresh = solve_psd(call.initial["gram"], call.initial["moment"])
    if call.q is call.k and call.read_first:
        output, w = _prequential(k, gains, v, start, cut.restart, fresh)
    else:
        output, w = affine_operator(
            q[:, None], gains[:, None], v[:, None], e=k[:, None], b=gains[:, None], read_first=call.read_first,
            start=start[:, None], restart=cut.restart, fresh=None if cut.restart is None else fresh[:, None],
        )  # fmt: skip
        output, w = output[:, 0], w[:, 0]
    variance = None
    if call.asks:  # of A_t, which holds the pair: x = k^T A_t^-1 k = h / (1 + l h) of the h without it
        x = (k * solved).sum(-1)
        left = 1 - lr * x
        known = left > 1e-12  # rounding: nothing was known of this direction
        variance = torch.where(
            known, x / torch.where(known, left, torch.ones_like(left)), torch.full_like(x, torch.inf)
        )
        variance = cut.scatter(variance[..., None])[..., 0]
    return cut.scatter(output), {"gram": A, "moment": A @ w}, variance


def _prequential(
    k: Tensor, gains: Tensor, v: Tensor, w: Tensor, restart: Tensor | None, fresh: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs [R, N, c, V] and the last w: everything but w itself is batched over tiles."""
    c = k.shape[2]
    eye = torch.eye(c, dtype=k.dtype, device=k.device)
    system = (k @ gains.mT).tril(-1) + eye
    both = torch.linalg.solve_triangular(system, torch.cat([v, k], -1), upper=False, unitriangular=True)
    ours, theirs = both.split([v.shape[-1], k.shape[-1]], -1)  # e = ours - theirs w
    moves = gains.mT @ both
    added, turned = moves.split([v.shape[-1], k.shape[-1]], -1)
    starts: list[Tensor] = []
    for n, (more, turn) in enumerate(zip(added.unbind(1), turned.unbind(1), strict=True)):
        if restart is not None:
            w = torch.where(restart[:, n, None, None], fresh, w)
        starts.append(w)
        w = w + more - turn @ w
    if not starts:
        return v, w
    return v - (ours - theirs @ torch.stack(starts, 1)), w


def _regularized(
    call: Folded, k: Tensor, lr: Tensor, log_decay: Tensor, restart: Tensor | None, real: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`A_t^-1 k_t` [R, N, c, K] and the last Gram matrix."""
    K, c = k.shape[-1], k.shape[2]
    parts = c // NARROW
    if K <= NARROW and parts > 1 and c % NARROW == 0:
        cut = [x.unflatten(2, (parts, NARROW)).flatten(1, 2) for x in (k, lr, log_decay)]
        if restart is not None:
            restart = torch.nn.functional.pad(restart[..., None], (0, parts - 1)).flatten(1)
        solved, A = _regularized(call, cut[0], cut[1], cut[2], restart, None)
        return solved.unflatten(1, (-1, parts)).flatten(2, 3), A
    prior = torch.diag_embed(call.parameters["penalty"].expand(k.shape[0], K))
    excess, fresh = call.state["gram"] - prior, call.initial["gram"] - prior  # A - Lambda
    keep = log_decay.cumsum(-1).exp()
    weights = segment_sums(log_decay).exp() * lr[..., None, :]
    last = weights[..., -1, :, None] * k
    starts, excess = tile_starts(last.mT @ k, log_decay.sum(-1), excess, restart, fresh)
    if not k.shape[1]:
        return k, excess + prior
    # A_t = keep_t (A - Lambda)_start + sum_i weights_ti k_i k_i^T + Lambda is one product of coefficients and matrices
    coefficients = torch.cat([keep[..., None], weights, torch.ones_like(keep[..., None])], -1)
    gains: list[Tensor] = []
    step = max(1, GROUP // (k.shape[0] * k.shape[2] * K * K))
    for first in range(0, k.shape[1], step):
        here = slice(first, first + step)
        kn = k[:, here]
        start = starts[:, here].flatten(-2)[:, :, None]
        matrices = torch.cat(
            [
                start,
                (kn[..., :, None] * kn[..., None, :]).flatten(-2),
                prior.flatten(-2)[:, None, None].expand_as(start),
            ],
            2,
        )
        grams = (coefficients[:, here] @ matrices).unflatten(-1, (K, K))
        gains.append(solve_psd(grams, kn[..., None])[..., 0])
    return torch.cat(gains, 1), excess + prior


def _directional(
    call: Folded, k: Tensor, lr: Tensor, log_decay: Tensor, restart: Tensor | None, real: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`A_t^-1 k_t` [R, N, c, K] and the last Gram matrix."""
    A = call.state["gram"]
    lost = -torch.expm1(log_decay)  # 1 - f, zero in padding
    grams: list[Tensor] = []
    for n in range(k.shape[1]):
        if restart is not None:
            A = torch.where(restart[:, n, None, None], call.initial["gram"], A)
        for t in range(k.shape[2]):
            key = k[:, n, t, :, None]
            Ak = A @ key
            excitation = (key * Ak).sum((-2, -1), keepdim=True)
            excited = excitation > 0
            share = torch.where(excited, lost[:, n, t, None, None] / torch.where(excited, excitation, 1.0), 0.0)
            A = A - share * Ak @ Ak.mT + lr[:, n, t, None, None] * key @ key.mT
            grams.append(A)
    if not grams:
        return k, A
    step = max(1, GROUP // (k.shape[0] * k.shape[3] ** 2))
    gains = [
        solve_psd(torch.stack(grams[i : i + step], 1), right)[..., 0]
        for i, right in zip(range(0, len(grams), step), k.flatten(1, 2)[..., None].split(step, 1), strict=True)
    ]
    return torch.cat(gains, 1).reshape(k.shape), A
