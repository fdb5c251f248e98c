"""Recursive least squares by tiles: one Cholesky of each tile's innovation matrix, never a solve per token.

Within a tile that starts from A_0, b_0 (w_0 = A_0^-1 b_0) and with D_t = prod_{i<=t} f_i,

    A_t / D_t = A_0 + sum_{i<=t} (l_i / D_i) k_i k_i^T

is a Bayesian regression with prior precision A_0 and noise variances D_i / l_i. Whiten by A_0 = C C^T:
X = sqrt(l) K C^-T, e = sqrt(l) (V - K w_0). The innovation matrix and its factor,

    Sigma = diag(D) + X X^T = L L^T

condition on every prefix of the tile at once, since leading blocks of L factor leading blocks of Sigma:

    o_t = q_t^T w_0 + sum_{i<=t} (q_t^T C^-T Y^T)_i z_i,     Y = L^-1 X,   z = L^-1 e        (read-write: i < t)

A prequential call (q = k, read-write, no weights) needs no Y: the innovations are diag(L) z, so o = v - diag(L) z.
The variance k_t^T (f_t A_{t-1})^-1 k_t is (L_tt^2 / D_t - 1) / l_t.

The Gram matrices at all tiles' starts come from a short scan, so everything else is batched over tiles. Tiles are cut
short where D would fall below 1e-4 (the innovation matrix loses as many digits as D does); tiles whose A_0 is singular
(an unpenalised direction without data) or all but forgotten by their token are read token by token, densely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..core.linalg import cholesky, quadratic, segment_sums, solve_psd
from .sums import tile_starts

if TYPE_CHECKING:
    from .exact import Folded

CHUNK = 32  # measured: benchmarks/rls.py
FADE = 9.0  # -log of the smallest D in a tile of several tokens
GONE = 20.0  # -log of the smallest D of a token alone (one that fades more than a factor e)
GROUP = 256  # tiles worked on at once: the innovation matrices of a group stay in the cache


def run(call: Folded) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
    """Outputs [R, T, V], the Gram matrix and moment after the call, the variances [R, T] if asked for."""
    R = call.q.shape[0]
    fade = None if call.log_decay is None else -call.log_decay
    cut = call.tiles(CHUNK, fade=fade, limit=FADE - 1)
    A, b = call.state["gram"], call.state["moment"]
    real = cut.real
    prequential = call.q is call.k and call.read_first and call.lr is None
    k, v = cut.gather(call.k), cut.gather(call.v)
    q = None if prequential else cut.gather(call.q)
    lr = torch.ones_like(k[..., 0]) if call.lr is None else cut.gather(call.lr)
    lr = lr if real is None else lr * real
    log_decay = None if call.log_decay is None else cut.gather(call.log_decay)

    outputs: list[Tensor] = []
    variances: list[Tensor] = []
    step = max(1, GROUP // max(1, R))
    for first in range(0, cut.count, step):
        here = slice(first, first + step)
        group = Group(None if q is None else q[:, here], k[:, here], v[:, here], lr[:, here],
                      None if log_decay is None else log_decay[:, here],
                      None if real is None else real[:, here])  # fmt: skip
        restart = None if cut.restart is None else cut.restart[:, here]
        grams, moments, A, b = _starts(group, A, b, restart, call)
        output, variance = _reads(group, grams, moments, call.read_first, call.asks)
        outputs.append(output)
        if variance is not None:
            variances.append(variance)
    output = cut.scatter(torch.cat(outputs, 1)) if outputs else call.v
    variance = cut.scatter(torch.cat(variances, 1)[..., None])[..., 0] if variances else None
    return output, {"gram": A, "moment": b}, variance


class Group(NamedTuple):
    """Tiles worked on at once; q is None when it equals k in a prequential call, log_decay when nothing fades."""

    q: Tensor | None  # [R, N, c, K]
    k: Tensor
    v: Tensor
    lr: Tensor  # [R, N, c]
    log_decay: Tensor | None
    real: Tensor | None  # places that hold a token; None: all


def _starts(
    group: Group, A: Tensor, b: Tensor, restart: Tensor | None, call: Folded
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gram matrices and moments before each tile [R, N, K, .], and after the last."""
    K = A.shape[-1]
    body = torch.cat([A, b], -1)  # one scan for both
    tail, total = group.lr, None
    if group.log_decay is not None:
        total = group.log_decay.sum(-1)
        later = torch.nn.functional.pad(group.log_decay, (0, 1))[..., 1:].flip(-1).cumsum(-1).flip(-1)
        tail = later.exp() * tail  # each token's weight at the tile's end
    new = (tail[..., None] * group.k).mT @ torch.cat([group.k, group.v], -1)
    fresh = torch.cat([call.initial["gram"], call.initial["moment"]], -1)
    bodies, body = tile_starts(new, total, body, restart, fresh)
    return bodies[..., :K], bodies[..., K:], body[..., :K], body[..., K:]


def _reads(group: Group, A: Tensor, b: Tensor, read_first: bool, asks: bool) -> tuple[Tensor, Tensor | None]:
    """All reads of all tiles, [R, N, c, V], and the variances [R, N, c] if asked for."""
    k, v, lr, log_decay = group.k, group.v, group.lr, group.log_decay
    C, regular = cholesky(A)
    if log_decay is not None:
        regular = regular & (log_decay.sum(-1) > -GONE)
    if asks:  # a pair of weight 0 leaves no trace in the innovation matrix
        heard = lr > 0 if group.real is None else (lr > 0) | ~group.real
        regular = regular & heard.all(-1)
    whole = bool(regular.all())
    if not whole:  # an identity in their place, so that no NaN is born there, forward or backward
        eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        C, _ = cholesky(torch.where(regular[..., None, None], A, eye))
        log_decay = None if log_decay is None else torch.where(regular[..., None], log_decay, 0.0)
    w = torch.cholesky_solve(b, C)
    # sqrt has no derivative at 0, but the answer has one in l: shift zeros by less than any digit
    root = (lr + (lr == 0) * 1e-30).sqrt()[..., None]
    X = root * _whiten(C, k)
    sigma = X @ X.mT
    D = 1.0 if log_decay is None else log_decay.cumsum(-1).exp()
    sigma.diagonal(dim1=-2, dim2=-1).add_(D)
    L, _ = torch.linalg.cholesky_ex(sigma)
    e = root * (v - k @ w)
    if group.q is None:
        z = torch.linalg.solve_triangular(L, e, upper=False)
        output = v - L.diagonal(dim1=-2, dim2=-1)[..., None] * z
    else:
        solved = torch.linalg.solve_triangular(L, torch.cat([X, e], -1), upper=False)
        Y, z = solved.split([X.shape[-1], e.shape[-1]], -1)
        output = group.q @ w + (_whiten(C, group.q) @ Y.mT).tril(-1 if read_first else 0) @ z
    variance = None
    if asks:
        variance = (L.diagonal(dim1=-2, dim2=-1).square() / D - 1) / torch.where(lr > 0, lr, torch.ones_like(lr))
        variance = variance.clamp(min=0)
    if whole:
        return output, variance
    rows = (~regular).nonzero(as_tuple=True)
    given = torch.zeros_like(lr) if group.log_decay is None else group.log_decay
    q = k if group.q is None else group.q
    output = output.index_put(rows, dense_reads(
        q[rows], k[rows], v[rows], lr[rows], given[rows], A[rows], b[rows], None, read_first
    ))  # fmt: skip
    if variance is not None:
        variance = variance.index_put(rows, dense_variances(k[rows], lr[rows], given[rows], A[rows], None))
    return output, variance


def _whiten(C: Tensor, x: Tensor) -> Tensor:
    """`x C^-T`, rows x [..., c, K]."""
    return torch.linalg.solve_triangular(C, x.mT, upper=False).mT


def dense_reads(
    q: Tensor, k: Tensor, v: Tensor, lr: Tensor, log_decay: Tensor, A: Tensor, b: Tensor, penalty: Tensor | None,
    read_first: bool,
) -> Tensor:  # fmt: skip
    """Reads by a Gram matrix per token: [n, c, K] tiles that start from A [n, K, K], b [n, K, V]; exact when singular.

    penalty: a static diagonal [n, K or 1] added before solving, or None.
    """
    weights = segment_sums(log_decay).exp() * lr[..., None, :]  # [n, t, i]
    keep = log_decay.cumsum(-1).exp()
    c = k.shape[-2]
    grams = keep[..., None, None] * A[:, None] + (weights @ (k[..., :, None] * k[..., None, :]).flatten(-2)).unflatten(
        -1, A.shape[-2:]
    )
    moments = keep[..., None, None] * b[:, None] + (
        weights @ (k[..., :, None] * v[..., None, :]).flatten(-2)
    ).unflatten(-1, b.shape[-2:])
    if read_first:
        grams = torch.cat([A[:, None], grams], 1)[:, :c]
        moments = torch.cat([b[:, None], moments], 1)[:, :c]
    if penalty is not None:
        grams = grams + torch.diag_embed(penalty.expand(-1, A.shape[-1]))[:, None]
    return (solve_psd(grams, moments).mT @ q[..., None])[..., 0]


def dense_variances(k: Tensor, lr: Tensor, log_decay: Tensor, A: Tensor, penalty: Tensor | None) -> Tensor:
    """`k_t^T (f_t A_{t-1} + penalty)^-1 k_t` by a matrix per token, [n, c], of tiles as in `dense_reads`."""
    weights = (segment_sums(log_decay).exp() * lr[..., None, :]).tril(-1)
    keep = log_decay.cumsum(-1).exp()
    grams = (weights @ (k[..., :, None] * k[..., None, :]).flatten(-2)).unflatten(-1, A.shape[-2:])
    grams = grams + keep[..., None, None] * A[:, None]
    if penalty is not None:
        grams = grams + torch.diag_embed(penalty.expand(-1, A.shape[-1]))[:, None]
    return quadratic(grams, k)
