"""Coefficients of the dual form, for all tiles at once and without a division: exact at zero gates.

    U_t = eta_t U_{t-1} - lr_t g_t          W_t = a_t W_{t-1} + mu_t U_t          g_t = sum_i Gamma[t, i] grad_i

With L_x[t, s] = prod_{s < r <= t} x_r (lower triangular, by cumulative products):

    E = L_eta diag(lr) Gamma        U_t = p_t U_0 - sum_i E[t, i] grad_i                  p = prod eta
    C = L_a diag(mu) E              W_t = A_t W_0 + m_t U_0 - sum_i C[t, i] grad_i        A = prod a,  m = L_a (mu p)

without momentum C = L_a diag(lr) Gamma; without decay L_a = tril(1). mu is 1 for tokens and 0 for padding, which has
a = eta = 1, lr = 0. The running mean of a segment, W_t = W_seg - s_t (G_0 + sum_{i<=t} lr_i g_i), is A = 1, m = -s,
C = s tril(lr) Gamma, with U the sum G: p = 1, E = -lr Gamma.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .momentum import products


class Rows(NamedTuple):
    """Coefficients of the tokens t: A, m [G, c] (None: 1, 0) and C [G, c, n] for each step size."""

    A: Tensor | None
    m: Tensor | None
    C: list[Tensor]


@dataclass(frozen=True)
class Coefficients:
    """A, m [N, G, c] or None (1, 0); C [N, G, c, n] of each step size, p_last [N, G] or None, E_last [N, G, n] of each.

    C_after and the like: the same after every token's write, where the reads come before it.
    """

    A: Tensor | None
    m: Tensor | None
    C: list[Tensor]
    A_after: Tensor | None
    m_after: Tensor | None
    C_after: list[Tensor]
    p_last: Tensor | None
    E_last: list[Tensor] | None

    def rows(self) -> list[tuple[Rows, Rows]]:
        """Tile by tile: the coefficients of the reads, and after the writes."""
        after = _unbound(self.A_after, self.m_after, self.C_after)
        before = after if self.C is self.C_after else _unbound(self.A, self.m, self.C)
        return list(zip(before, after, strict=True))

    def ends(self) -> tuple[list[Tensor | None], list[list[Tensor] | None]]:
        """Tile by tile: p_last and E_last."""
        count = len(self.C[0])
        p = [None] * count if self.p_last is None else list(self.p_last.unbind())
        if self.E_last is None:
            return p, [None] * count
        return p, [list(x) for x in zip(*(e.unbind() for e in self.E_last), strict=True)]


def _unbound(A: Tensor | None, m: Tensor | None, C: list[Tensor]) -> list[Rows]:
    each = [x.unbind() for x in C]
    none = [None] * len(each[0])
    parts = zip(
        none if A is None else A.unbind(), none if m is None else m.unbind(), zip(*each, strict=True), strict=True
    )
    return [Rows(a, b, list(c)) for a, b, c in parts]


def coefficients(
    rates: list[Tensor], log_decay: Tensor | None, momentum: Tensor | None, scale: Tensor | None,
    gamma: Tensor | None, real: Tensor | None, *, read_first: bool,
) -> Coefficients:  # fmt: skip
    """From step sizes [N, G, c] (0 in padding), log decays and momenta likewise or None, the running mean's scale."""
    shape, lr = rates[0].shape, rates[0]
    here = lr.new_ones(shape) if real is None else real.to(lr.dtype).expand(shape)
    lower = torch.ones(shape[-1], shape[-1], dtype=lr.dtype, device=lr.device).tril()

    def windowed(x: Tensor) -> Tensor:
        return x if gamma is None else x @ gamma

    A = m = p_last = E_last = None
    if scale is not None:
        C = [windowed(scale[..., :, None] * lower * r[..., None, :]) for r in rates]
        m, p_last = -scale, torch.ones_like(lr[..., 0])
        E_last = [-windowed(r[..., None, :])[..., 0, :] for r in rates]
    else:
        La = lower
        if log_decay is not None:
            a = log_decay.exp()  # padding has log_decay 0
            La = products(a)
            A = La[..., 0] * a[..., :1]
        if momentum is None:
            C = [windowed(La * r[..., None, :]) for r in rates]
        else:
            eta = momentum if real is None else torch.where(real, momentum, torch.ones_like(momentum))
            Le = products(eta)
            p = Le[..., 0] * eta[..., :1]
            p_last = p[..., -1]
            La = La if real is None else La * here[..., None, :]
            m, both = (La @ p[..., None])[..., 0], La @ Le
            C = [windowed(both * r[..., None, :]) for r in rates]
            E_last = [windowed((Le[..., -1, :] * r)[..., None, :])[..., 0, :] for r in rates]
    after = (A, m, C)
    if read_first:
        A, m = (None if x is None else _down(x, fill) for x, fill in ((A, 1.0), (m, 0.0)))
        C = [torch.nn.functional.pad(x, (0, 0, 1, 0))[..., :-1, :] for x in C]
    return Coefficients(A, m, C, *after, p_last, E_last)


def _down(x: Tensor, fill: float) -> Tensor:
    """The coefficients of the token before."""
    return torch.nn.functional.pad(x, (1, 0), value=fill)[..., :-1]
