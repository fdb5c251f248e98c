"""Ridge with a static penalty (Mesa): conjugate gradients on all tokens at once.

    o_t = b_t^T x_t,   (H_t + Lambda) x_t = q_t,   H_t = f_t H_{t-1} + l_t k_t k_t^T,   b_t likewise with v_t

H_t p_t for every token is one read of linear attention with values k, so an iteration costs one affine read and no
H_t is formed. Backward is implicit: y = (H + Lambda)^-1 dx, dq = y, and the rest is the gradient of
-<y, (H + Lambda) x> at fixed x, y (MesaNet, arXiv 2506.05233, section 3). Tokens that conjugate gradients cannot settle
(a singular or very ill-conditioned matrix) are solved densely.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .innovations import dense_reads, dense_variances
from .operator import affine_operator

if TYPE_CHECKING:
    from .exact import Folded

CHUNK = 32
TOLERANCE = 1e-13  # residual relative to the query's norm, in float64


def run(call: Folded) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
    """Outputs [R, T, V], the Gram matrix and moment after the call, the variances [R, T] if asked for."""
    R, _, K = call.q.shape
    cut = call.tiles(CHUNK)
    real = cut.real
    q, k, v = (cut.gather(x)[:, None] for x in (call.q, call.k, call.v))  # [R, 1, N, c, .]: one head
    lr = torch.ones_like(k[..., 0]) if call.lr is None else cut.gather(call.lr)[:, None]
    lr = lr if real is None else lr * real[:, None]
    log_decay = None if call.log_decay is None else cut.gather(call.log_decay)[:, None]
    penalty = call.parameters["penalty"].expand(R, K)[:, None, None, None]

    def tokens_read(query: Tensor, value: Tensor, name: str, *, k: Tensor, lr: Tensor, log_decay: Tensor | None,
                    start: Tensor, fresh: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
        return affine_operator(
            query, lr[..., None] * k, value, log_decay=log_decay, read_first=call.read_first,
            start=start[:, None], restart=cut.restart, fresh=None if cut.restart is None else fresh[:, None],
        )  # fmt: skip

    def matvec(p: Tensor, k: Tensor, lr: Tensor, log_decay: Tensor | None, start: Tensor, fresh: Tensor,
               penalty: Tensor) -> Tensor:  # fmt: skip
        read, _ = tokens_read(p, k, "gram", k=k, lr=lr, log_decay=log_decay, start=start, fresh=fresh)
        return read + penalty * p

    operands = (k, lr, log_decay, call.state["gram"], call.initial["gram"], penalty)
    x, settled = _Solve.apply(matvec, q, *operands)
    output, moment = tokens_read(
        x, v, "moment", k=k, lr=lr, log_decay=log_decay, start=call.state["moment"], fresh=call.initial["moment"]
    )
    _, gram = tokens_read(
        x.detach(), k, "gram", k=k, lr=lr, log_decay=log_decay, start=call.state["gram"], fresh=call.initial["gram"]
    )
    output = output[:, 0]
    if not bool(settled.all()):
        output = _settle(output, settled[:, 0], call, cut.restart, q[:, 0], k[:, 0], v[:, 0], lr[:, 0], log_decay)
    variance = None
    if call.asks:
        found = _variances(call, cut.restart, k[:, 0], lr[:, 0], log_decay)
        variance = cut.scatter(found[..., None])[..., 0]
    return cut.scatter(output), {"gram": gram[:, 0], "moment": moment[:, 0]}, variance


def conjugate_gradients(matvec: Callable[[Tensor], Tensor], q: Tensor) -> tuple[Tensor, Tensor]:
    """Solve `matvec(x) = q` for each vector q [..., K]; returns x and which vectors met the tolerance [...]."""
    x, r = torch.zeros_like(q), q.clone()
    p, rho = r, r.square().sum(-1)
    goal = rho * TOLERANCE**2
    for _ in range(4 * q.shape[-1] + 20):
        active = rho > goal
        if not bool(active.any()):
            break
        Ap = matvec(p)
        curvature = (p * Ap).sum(-1)
        good = active & (curvature > 0)
        alpha = torch.where(good, rho / torch.where(good, curvature, 1.0), 0.0)
        x = x + alpha[..., None] * p
        r = r - alpha[..., None] * Ap
        following = torch.where(good, r.square().sum(-1), rho)
        beta = torch.where(good, following / torch.where(good, rho, 1.0), 0.0)
        p, rho = torch.where(good[..., None], r + beta[..., None] * p, p), following
    return x, rho <= goal


class _Solve(torch.autograd.Function):
    """x = (H + Lambda)^-1 q with the implicit gradient."""

    @staticmethod
    def forward(ctx: Any, matvec: Callable[..., Tensor], q: Tensor, *operands: Tensor | None) -> tuple[Tensor, Tensor]:
        x, settled = conjugate_gradients(lambda p: matvec(p, *operands), q)
        ctx.matvec = matvec
        ctx.save_for_backward(x, *operands)
        ctx.mark_non_differentiable(settled)
        return x, settled

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dx: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, *operands = ctx.saved_tensors
        y, _ = conjugate_gradients(lambda p: ctx.matvec(p, *operands), dx)
        with torch.enable_grad():
            wanted = ctx.needs_input_grad[2:]
            leaves = [o if o is None else o.detach().requires_grad_(w) for o, w in zip(operands, wanted, strict=True)]
            asked = [leaf for leaf, w in zip(leaves, wanted, strict=True) if w]
            grads: list[Tensor | None] = [None] * len(leaves)
            if asked:
                pairing = -(y * ctx.matvec(x, *leaves)).sum()
                found = iter(torch.autograd.grad(pairing, asked, allow_unused=True))
                grads = [next(found) if w else None for w in wanted]
        return None, y if ctx.needs_input_grad[1] else None, *grads


def _settle(
    output: Tensor, settled: Tensor, call: Folded, restart: Tensor | None, q: Tensor, k: Tensor, v: Tensor, lr: Tensor,
    log_decay: Tensor | None,
) -> Tensor:  # fmt: skip
    """Solve every tile that holds an unsettled token densely, from the Gram matrix at its start."""
    log_decay = torch.zeros_like(lr) if log_decay is None else log_decay[:, 0]
    A, b = call.state["gram"], call.state["moment"]
    outputs: list[Tensor] = []
    penalty = call.parameters["penalty"]
    for n in range(q.shape[1]):
        if restart is not None:
            again = restart[:, n, None, None]
            A, b = torch.where(again, call.initial["gram"], A), torch.where(again, call.initial["moment"], b)
        here = (k[:, n], v[:, n], lr[:, n], log_decay[:, n])
        tile = output[:, n]
        if not bool(settled[:, n].all()):
            dense = dense_reads(q[:, n], *here, A, b, penalty, call.read_first)
            tile = torch.where(settled[:, n, :, None], tile, dense)
        outputs.append(tile)
        total = here[3].sum(-1)
        tail = (total[:, None] - here[3].cumsum(-1)).exp() * here[2]
        weighted = (tail[..., None] * here[0]).mT
        A = total.exp()[:, None, None] * A + weighted @ here[0]
        b = total.exp()[:, None, None] * b + weighted @ here[1]
    return torch.stack(outputs, 1)


def _variances(call: Folded, restart: Tensor | None, k: Tensor, lr: Tensor, log_decay: Tensor | None) -> Tensor:
    """Variances [R, N, c], by a dense solve per token."""
    fades = torch.zeros_like(lr) if log_decay is None else log_decay[:, 0]
    A, penalty = call.state["gram"], call.parameters["penalty"]
    found: list[Tensor] = []
    for n in range(k.shape[1]):
        if restart is not None:
            A = torch.where(restart[:, n, None, None], call.initial["gram"], A)
        found.append(dense_variances(k[:, n], lr[:, n], fades[:, n], A, penalty))
        total = fades[:, n].sum(-1)
        tail = (total[:, None] - fades[:, n].cumsum(-1)).exp() * lr[:, n]
        A = total.exp()[:, None, None] * A + (tail[..., None] * k[:, n]).mT @ k[:, n]
    return torch.stack(found, 1) if found else lr
