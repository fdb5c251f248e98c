"""The matrix memory with momentum, exactly, tile by tile: one unit-triangular solve (no per-token state).

    U_t = eta_t U_{t-1} - lr_t k_t r_t^T,   S_t = a_t S_{t-1} + mu_t U_t,   r_t = X_t^T k_t - v_t   (Dot: r_t = -v_t)
    X_t = S_{t-1}, or a_t S_{t-1} when `decayed`.   mu_t = 1 for tokens, 0 for padding (which has a = eta = 1, lr = 0)

With L_x[t, s] = prod_{s < r <= t} x_r (lower triangular, by cumulative products: no division, exact at zero gates):

    E = L_eta diag(lr)        U_t = p_t U_0 - sum_{i<=t} E[t, i] k_i r_i^T           p_t = prod_{r<=t} eta_r
    C = L_a diag(mu) E        S_t = A_t S_0 + m_t U_0 - sum_{i<=t} C[t, i] k_i r_i^T     A_t = prod a,  m = L_a (mu p)

and r solves (I + C' * K K^T) r = A' (K S_0) + m' (K U_0) - V, where ' shifts one row down (times a_t when decayed).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def momentum_operator(
    q: Tensor, k: Tensor, v: Tensor, lr: Tensor | None, log_decay: Tensor | None, momentum: Tensor | None,
    coefficient: float, real: Tensor | None, *, erase: bool, decayed: bool, read_first: bool,
    start: tuple[Tensor, Tensor], restart: Tensor | None, fresh: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Outputs [B, H, N, c, V] and the last S, U [B, H, K, V].

    q, k: [B, H, N, c, K]; v: [B, H, N, c, V]; lr, log_decay, momentum: [B, H, N, c] or None; real: [B, 1, N, c], which
    places hold a token (None: all); start: S and U before the first tile; restart: [B, N], tiles before which S becomes
    `fresh` and U zero.
    """
    shape = k.shape[:-1]
    one = torch.ones((), dtype=k.dtype, device=k.device)
    here = one.expand(shape) if real is None else real.to(k.dtype).expand(shape)
    lr = here if lr is None else lr * here
    a = one.expand(shape) if log_decay is None else log_decay.exp()
    eta = (coefficient * one).expand(shape) if momentum is None else momentum
    if real is not None:
        eta = torch.where(real, eta, one)

    E = products(eta) * lr[..., None, :]
    p = eta.cumprod(-1)
    La = products(a)
    C = La @ (here[..., None] * E)
    A, m = a.cumprod(-1), (La @ (here * p)[..., None])[..., 0]
    before = tuple(_down(x, fill) for x, fill in ((A, 1.0), (m, 0.0)))
    C_before = torch.nn.functional.pad(C, (0, 0, 1, 0))[..., :-1, :]
    C_read, A_read, m_read = (C_before, *before) if read_first else (C, A, m)
    scores = C_read * (q @ k.mT)
    if erase:
        factor = a if decayed else one.expand(shape)
        eye = torch.eye(shape[-1], dtype=k.dtype, device=k.device)
        system = eye + factor[..., None] * C_before * (k @ k.mT)
        A_error, m_error = factor * before[0], factor * before[1]

    S, U = start
    outputs: list[Tensor] = []
    for n in range(shape[2]):
        if restart is not None:
            again = restart[:, n, None, None, None]
            S, U = torch.where(again, fresh, S), torch.where(again, torch.zeros_like(U), U)
        kn, qn = k[:, :, n], q[:, :, n]
        if erase:
            right = A_error[:, :, n, :, None] * (kn @ S) + m_error[:, :, n, :, None] * (kn @ U) - v[:, :, n]
            r = torch.linalg.solve_triangular(system[:, :, n], right, upper=False, unitriangular=True)
        else:
            r = -v[:, :, n]
        read = A_read[:, :, n, :, None] * (qn @ S) + m_read[:, :, n, :, None] * (qn @ U)
        outputs.append(read - scores[:, :, n] @ r)
        last = (C[:, :, n, -1, :, None] * kn).mT @ r, (E[:, :, n, -1, :, None] * kn).mT @ r
        S, U = (
            A[:, :, n, -1, None, None] * S + m[:, :, n, -1, None, None] * U - last[0],
            p[:, :, n, -1, None, None] * U - last[1],
        )
    output = torch.stack(outputs, 2) if outputs else v
    return output, S, U


def products(x: Tensor) -> Tensor:
    """`L[t, s] = prod_{s < r <= t} x_r` of x [..., c]: [..., c, c], ones on the diagonal, zeros above."""
    return _Products.apply(x)  # pyright: ignore


class _Products(torch.autograd.Function):
    """`dL[t, s] / dx_r = L[t, r] L[r - 1, s]` for s < r <= t: one product of matrices, and no division either."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        c = x.shape[-1]
        below = torch.ones(c, c, dtype=x.dtype, device=x.device).tril(-1)
        # x under the diagonal and 1 elsewhere: by a sum, as a choice takes five times as long
        L = torch.addcmul(1 - below, x[..., :, None], below).cumprod_(-2).tril_()
        ctx.save_for_backward(x, L)
        return L

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> Any:
        x, L = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone differentiates this too, and L must then depend on x
            L = products(x)
        before = torch.nn.functional.pad(L, (0, 0, 1, 0))[..., :-1, :]
        return ((L.mT @ outer[0].tril()) * before).sum(-1)


def _down(x: Tensor, fill: float) -> Tensor:
    """The coefficients of the token before."""
    return torch.nn.functional.pad(x, (1, 0), value=fill)[..., :-1]
