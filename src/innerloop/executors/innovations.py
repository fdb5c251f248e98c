"""Recursive least squares by tiles: one Cholesky of each tile's innovation matrix, never a solve per token.

Within a tile that starts from A_0, b_0 (w_0 = A_0^-1 b_0) and with D_t = prod_{i<=t} f_i,

    A_t / D_t = A_0 + sum_{i<=t} (l_i / D_i) k_i k_i^T

is a Bayesian regression with prior precision A_0 and noise variances D_i / l_i. Whiten by A_0 = C C^T:
X = sqrt(l) K C^-T, e = sqrt(l) (V - K w_0). The innovation matrix and its factor,

    Sigma = diag(D) + X X^T = L L^T

condition on every prefix of the tile at once, since leading blocks of L factor leading blocks of Sigma:

    o_t = q_t^T w_0 + sum_{i<=t} (q_t^T C^-T Y^T)_i z_i,     Y = L^-1 X,   z = L^-1 e        (read-write: i < t)

The Gram matrices at all tiles' starts come from a short scan, so everything else is batched over tiles. Tiles are cut
short where D would fall below 1e-4 (the innovation matrix loses as many digits as D does); tiles whose A_0 is singular
(an unpenalised direction without data) are read token by token, densely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.clock import tiles
from ..core.linalg import cholesky, segment_sums, solve_psd

if TYPE_CHECKING:
    from .exact import Folded

CHUNK = 64  # measured: benchmarks/rls.py
FADE = 9.0  # -log of the smallest D in a tile
GROUP = 256  # tiles worked on at once: the innovation matrices of a group stay in the cache


def run(call: Folded) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs [R, T, V] and the Gram matrix and moment after the call."""
    R, T, _ = call.q.shape
    size = fading_size(call.log_decay, call.chunk or CHUNK)
    cut = tiles(R, T, size, torch.zeros(R, dtype=torch.int64, device=call.q.device), mask=call.mask, reset=call.reset)
    A, b = call.state["gram"], call.state["moment"]
    real = cut.real
    q, k, v = cut.gather(call.q), cut.gather(call.k), cut.gather(call.v)
    lr = torch.ones_like(k[..., 0]) if call.lr is None else cut.gather(call.lr)
    lr = lr if real is None else lr * real
    log_decay = torch.zeros_like(lr) if call.log_decay is None else cut.gather(call.log_decay)

    outputs: list[Tensor] = []
    step = max(1, GROUP // max(1, R))
    for first in range(0, cut.count, step):
        here = slice(first, first + step)
        restart = None if cut.restart is None else cut.restart[:, here]
        grams, moments, A, b = _starts(k[:, here], v[:, here], lr[:, here], log_decay[:, here], A, b, restart, call)
        outputs.append(_reads(q[:, here], k[:, here], v[:, here], lr[:, here], log_decay[:, here], grams, moments, call))
    output = cut.scatter(torch.cat(outputs, 1)) if outputs else call.v
    return output, {"gram": A, "moment": b}


def fading_size(log_decay: Tensor | None, size: int) -> int:
    """The longest tile, at most `size`, in which no run of tokens fades by more than exp(-FADE)."""
    if log_decay is None or not log_decay.shape[1]:
        return size
    faded = torch.nn.functional.pad(-log_decay.detach().cumsum(1), (1, 0))
    while size > 1:
        reach = min(size, log_decay.shape[1])
        if float((faded[:, reach:] - faded[:, :-reach]).max()) <= FADE:
            break
        size //= 2
    return size


def _starts(
    k: Tensor, v: Tensor, lr: Tensor, log_decay: Tensor, A: Tensor, b: Tensor, restart: Tensor | None, call: Folded
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gram matrices and moments before each tile [R, N, K, .], and after the last."""
    total = log_decay.sum(-1)
    tail = (total[..., None] - log_decay.cumsum(-1)).exp() * lr  # a sum over (i, c], of finite entries of one sign
    weighted = (tail[..., None] * k).mT
    new_A, new_b, keep = weighted @ k, weighted @ v, total.exp()
    grams: list[Tensor] = []
    moments: list[Tensor] = []
    for n in range(k.shape[1]):
        if restart is not None:
            again = restart[:, n, None, None]
            A, b = torch.where(again, call.initial["gram"], A), torch.where(again, call.initial["moment"], b)
        grams.append(A)
        moments.append(b)
        A = torch.addcmul(new_A[:, n], keep[:, n, None, None], A)
        b = torch.addcmul(new_b[:, n], keep[:, n, None, None], b)
    return torch.stack(grams, 1), torch.stack(moments, 1), A, b


def _reads(
    q: Tensor, k: Tensor, v: Tensor, lr: Tensor, log_decay: Tensor, A: Tensor, b: Tensor, call: Folded
) -> Tensor:
    """All reads of all tiles, [R, N, c, V]."""
    C, regular = cholesky(A)
    whole = bool(regular.all())
    if not whole:
        eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        C, _ = cholesky(torch.where(regular[..., None, None], A, eye))
    w = torch.cholesky_solve(b, C)
    # sqrt has no derivative at 0, but the answer has one in l: shift zeros by less than any digit
    root = (lr + (lr == 0) * 1e-30).sqrt()[..., None]
    kw = _whiten(C, k)
    X = root * kw
    D = log_decay.cumsum(-1).exp()
    L, _ = torch.linalg.cholesky_ex(X @ X.mT + torch.diag_embed(D))
    e = root * (v - k @ w)
    solved = torch.linalg.solve_triangular(L, torch.cat([X, e], -1), upper=False)
    Y, z = solved.split([X.shape[-1], e.shape[-1]], -1)
    qw = kw if q is k else _whiten(C, q)
    output = q @ w + (qw @ Y.mT).tril(-1 if call.read_first else 0) @ z
    if whole:
        return output
    rows = (~regular).nonzero(as_tuple=True)
    return output.index_put(rows, dense_reads(
        q[rows], k[rows], v[rows], lr[rows], log_decay[rows], A[rows], b[rows], None, call.read_first
    ))  # fmt: skip


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
    grams = keep[..., None, None] * A[:, None] + (weights @ (k[..., :, None] * k[..., None, :]).flatten(-2)).unflatten(-1, A.shape[-2:])
    moments = keep[..., None, None] * b[:, None] + (weights @ (k[..., :, None] * v[..., None, :]).flatten(-2)).unflatten(-1, b.shape[-2:])
    if read_first:
        grams = torch.cat([A[:, None], grams], 1)[:, :c]
        moments = torch.cat([b[:, None], moments], 1)[:, :c]
    if penalty is not None:
        grams = grams + torch.diag_embed(penalty.expand(-1, A.shape[-1]))[:, None]
    return (solve_psd(grams, moments).mT @ q[..., None])[..., 0]
