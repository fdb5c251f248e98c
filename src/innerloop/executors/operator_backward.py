"""State passes over tiles and the hand-derived gradients of :mod:`innerloop.executors.operator`.

One tile of c tokens (rows = tokens, S0 = state before it, G = running sum of the log decays inside it):

    D   = T (Z - Eg S0)            T = (I + M)^{-1},   Eg = E * exp Gr
    O   = Qg S0 + N D              Qg = Q * exp G
    S_c = whole * S0 + Wg^T D      Wg = W * exp(G_c - G),   whole = exp G_c          (+ J, an optional direct write)

and backwards, with dS the gradient of S_c:

    dZ  = T^T (N^T dO + Wg dS)     dS0 = whole * dS + Qg^T dO - Eg^T dZ
    dN  = dO D^T                   dM  = -dZ D^T

Everything without an S0 or dS in it is one batched product over all tiles; the Python loops hold two products a tile.
Layout: tiles first, [N, G, c, *] with G = batch * heads, so that one tile of all heads is one contiguous block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_LEAF = 32  # below this size one triangular solve per tile beats halving


class Decay(NamedTuple):
    """Scalar decay of a tile, folded into factors. ``None`` factors are ones."""

    read: Tensor  # [n | 1, c, c], zero where the read does not see the write
    erase: Tensor  # [n | 1, c, c], strictly lower
    start_read: Tensor | None  # [n, c, 1], tile start to the read
    start_erase: Tensor | None  # [n, c, 1], tile start to the erase
    to_end: Tensor | None  # [n, c, 1], write to tile end
    whole: Tensor | None  # [n, 1, 1]


class Rule(NamedTuple):
    """What is not a tensor to differentiate. ``restarts[n]``: None, or the [G, 1, 1] mask of rows that start again."""

    decayed: bool
    read_first: bool
    restarts: list[Tensor | None]


class Scratch:
    """Buffers by name, allocated once and filled again by every group of tiles: touching fresh memory costs more than
    most passes over it."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        size = math.prod(shape)
        flat = self._buffers.get(name)
        if flat is None or flat.numel() < size:
            flat = self._buffers[name] = self._like.new_empty(size)
        return flat[:size].view(shape)

    def like(self, name: str, x: Tensor) -> Tensor:
        return self(name, *x.shape)

    def scale(self, name: str, x: Tensor, factor: Tensor | None) -> Tensor:
        return x if factor is None else torch.mul(x, factor, out=self.like(name, x))


def lower(c: int, like: Tensor, *, strict: bool = False) -> Tensor:
    return torch.ones(c, c, dtype=like.dtype, device=like.device).tril_(-1 if strict else 0)


def shift_rows(x: Tensor, first: float) -> Tensor:
    """Row t becomes row t - 1; row 0 is filled with ``first``."""
    return torch.nn.functional.pad(x[:, :-1], (0, 0, 1, 0), value=first)


def scalar_decay(g: Tensor | None, c: int, like: Tensor, rule: Rule) -> Decay:
    """Factors 2^(sum of g over an interval); ``g`` is [n, c], finite, in units of log 2."""
    if g is None:
        strict = lower(c, like, strict=True)[None]
        return Decay(strict if rule.read_first else lower(c, like)[None], strict, None, None, None, None)
    # sums[t, i] = g_{i+1} + ... + g_t, added up term by term: no difference of two large sums anywhere. It is zero for
    # i >= t, so no exponent is ever positive, masked or not.
    sums = (g[:, :, None] * lower(c, g, strict=True)).cumsum_(1)
    pairs = sums.exp2_() * lower(c, g)
    start = g.cumsum(1).exp2()[:, :, None]
    shifted = shift_rows(pairs, 0.0), shift_rows(start, 1.0)
    read, start_read = shifted if rule.read_first else (pairs, start)
    erase, start_erase = (pairs * lower(c, g, strict=True), start) if rule.decayed else shifted
    return Decay(read, erase, start_read, start_erase, pairs[:, -1, :, None], start[:, -1:])


def scale(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x * factor


def unit_inverse(M: Tensor) -> Tensor:
    """(I + M)^{-1} for [n, c, c], M read below its diagonal only; forward substitution, by blocks when large.

    [[A, 0], [C, B]]^{-1} = [[A', 0], [-B' C A', B']] is forward substitution too: repeated keys give exact 0, 1, -1.
    """
    n, c, _ = M.shape
    if c <= _LEAF:
        # X (I + M) = I, row by row: as exact as from the left, in half the time on a CPU.
        eye = torch.eye(c, dtype=M.dtype, device=M.device).expand(n, c, c)
        return torch.linalg.solve_triangular(M, eye, upper=False, left=False, unitriangular=True)
    h = c // 2
    out = M.new_zeros(n, c, c)
    if 2 * h == c:
        both = unit_inverse(torch.stack((M[:, :h, :h], M[:, h:, h:])).flatten(0, 1))
        a, b = both[:n], both[n:]
    else:
        a, b = unit_inverse(M[:, :h, :h]), unit_inverse(M[:, h:, h:])
    out[:, :h, :h], out[:, h:, h:] = a, b
    out[:, h:, :h] = torch.bmm(b, torch.bmm(M[:, h:, :h], a)).neg_()
    return out


def run_forward(
    z: Tensor, T: Tensor | None, TE: Tensor | None, Wg: Tensor, whole: Tensor | None, inject: Tensor | None, S: Tensor,
    fresh: Tensor | None, restarts: list[Tensor | None], D: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """D [n, c, V]; fills S[1:] of the states [N + 1, G, K, V] before every tile and after the last."""
    N, G, K, V = S[1:].shape
    c = z.shape[1]
    WgT = Wg.mT
    if T is None:
        D = z
        torch.bmm(WgT, z, out=S[1:].flatten(0, 1))
    else:
        D = torch.bmm(T, z, out=D)
    states, WN = S.unbind(0), WgT.unflatten(0, (N, G)).unbind(0)
    DN, TN = D.view(N, G, c, V).unbind(0), None if TE is None else TE.view(N, G, c, K).unbind(0)
    decays = None if whole is None else whole.unbind(0)
    for i in range(N):
        old, new, rows = states[i], states[i + 1], restarts[i]
        if rows is not None:
            old.copy_(torch.where(rows, fresh, old))
        if TN is None:
            new.add_(old) if decays is None else new.addcmul_(old, decays[i])
        else:
            d = DN[i].baddbmm_(TN[i], old, alpha=-1)
            new.copy_(old) if decays is None else torch.mul(old, decays[i], out=new)
            new.baddbmm_(WN[i], d)
        if inject is not None:
            new.add_(inject[i])
    return D


def run_backward(
    dz: Tensor, WT: Tensor, Eg: Tensor | None, dS: Tensor, whole: Tensor | None, restarts: list[Tensor | None],
    dfresh: Tensor | None,
) -> None:  # fmt: skip
    """In place: ``dz`` from T^T N^T dO to dZ; ``dS[n]`` from Qg^T dO to the gradient of the state before tile n.

    After it, rows restarted before tile n are zero in ``dS[n]``: it is then the gradient of the end of tile n - 1.
    """
    N, G, K, V = dS[1:].shape
    c = dz.shape[1]
    states, WN, dzN = dS.unbind(0), WT.view(N, G, c, K).unbind(0), dz.view(N, G, c, V).unbind(0)
    EN = None if Eg is None else Eg.mT.unflatten(0, (N, G)).unbind(0)
    decays = None if whole is None else whole.unbind(0)
    for i in reversed(range(N)):
        new, old, rows = states[i + 1], states[i], restarts[i]
        old.add_(new) if decays is None else old.addcmul_(new, decays[i])
        if EN is not None:
            d = dzN[i].baddbmm_(WN[i], new)
            old.baddbmm_(EN[i], d, alpha=-1)
        if rows is not None:
            if dfresh is not None:
                dfresh += torch.where(rows, old, 0.0)
            old.masked_fill_(rows, 0.0)
    if EN is None:
        dz.baddbmm_(WT, dS[1:].flatten(0, 1))


def plain_scan(
    Qg: Tensor, Eg: Tensor | None, Wg: Tensor, M: Tensor | None, R: Tensor, z: Tensor, whole: Tensor | None,
    inject: Tensor | None, start: Tensor, fresh: Tensor | None, restarts: list[Tensor | None],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """:class:`TileScan` in differentiable steps, for second derivatives."""
    S, G = start, start.shape[0]
    before, D = [], []
    for i, rows in enumerate(restarts):
        tile = slice(i * G, (i + 1) * G)
        if rows is not None:
            S = torch.where(rows, fresh, S)
        before.append(S)
        d = z[tile]
        if M is not None:
            d = torch.linalg.solve_triangular(M[tile], d - torch.bmm(Eg[tile], S), upper=False, unitriangular=True)
        D.append(d)
        S = (S if whole is None else S * whole[i]) + torch.bmm(Wg[tile].mT, d)
        if inject is not None:
            S = S + inject[i]
    return torch.bmm(Qg, torch.cat(before)) + torch.bmm(R, torch.cat(D)), S


class TileScan(torch.autograd.Function):
    """The state pass on folded factors, for decay per channel and for separate write keys."""

    @staticmethod
    def forward(
        ctx: Any, Qg: Tensor, Eg: Tensor | None, Wg: Tensor, M: Tensor | None, R: Tensor, z: Tensor,
        whole: Tensor | None, inject: Tensor | None, start: Tensor, fresh: Tensor | None,
        restarts: list[Tensor | None],
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        T = None if M is None else unit_inverse(M)
        TE = None if T is None else torch.bmm(T, Eg)
        S = start.new_empty(len(restarts) + 1, *start.shape)
        S[0] = start
        D = run_forward(z, T, TE, Wg, whole, inject, S, fresh, restarts)
        o = torch.bmm(Qg, S[:-1].flatten(0, 1)).baddbmm_(R, D)
        ctx.save_for_backward(Qg, Eg, Wg, T, R, whole, D, S)
        ctx.restarts = restarts
        return o, S[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor, dend: Tensor) -> tuple[Tensor | None, ...]:
        Qg, Eg, Wg, T, R, whole, D, S = ctx.saved_tensors
        need = ctx.needs_input_grad
        before, dS = S[:-1].flatten(0, 1), torch.empty_like(S)
        torch.bmm(Qg.mT, do, out=dS[:-1].flatten(0, 1))
        dS[-1] = dend
        dz, WT = torch.bmm(R.mT, do), Wg
        if T is not None:
            dz, WT = torch.bmm(T.mT, dz), torch.bmm(T.mT, Wg)
        dfresh = torch.zeros_like(dS[0]) if need[9] else None
        run_backward(dz, WT, Eg, dS, whole, ctx.restarts, dfresh)
        after = dS[1:].flatten(0, 1)
        return (
            torch.bmm(do, before.mT) if need[0] else None,
            torch.bmm(dz, before.mT).neg_() if need[1] else None,
            torch.bmm(D, after.mT) if need[2] else None,
            torch.bmm(dz, D.mT).neg_().tril_(-1) if need[3] else None,
            torch.bmm(do, D.mT) if need[4] else None,
            dz,
            (S[:-1] * dS[1:]).sum_to_size(whole.shape) if need[6] else None,
            dS[1:] if need[7] else None,
            dS[0],
            dfresh,
            None,
        )


def fused_forward(
    q: Tensor, w: Tensor, u: Tensor, e: Tensor | None, g: Tensor | None, S: Tensor, fresh: Tensor | None, rule: Rule,
    new: Scratch,
) -> Tensor:  # fmt: skip
    """Outputs [n, c, V] of the tiles whose states fill ``S`` [N + 1, G, K, V]; S[0] is given."""
    n, c, _ = u.shape
    decay = scalar_decay(g, c, q, rule)
    T = TE = None
    if e is not None:
        T = unit_inverse(torch.bmm(e, w.mT, out=new("pairs", n, c, c)).mul_(decay.erase))
        TE = T if decay.start_erase is None else torch.mul(T, decay.start_erase.mT, out=new("pairs", n, c, c))
        TE = torch.bmm(TE, e, out=new.like("TE", e))
    Wg = new.scale("Wg", w, decay.to_end)
    D = run_forward(u, T, TE, Wg, tiles(decay.whole, S), None, S, fresh, rule.restarts, new.like("D", u))
    o = torch.bmm(q, S[:-1].flatten(0, 1), out=new.like("o", u))
    if decay.start_read is not None:
        o.mul_(decay.start_read)
    return o.baddbmm_(torch.bmm(q, w.mT, out=new("pairs", n, c, c)).mul_(decay.read), D)


def fused_backward(
    q: Tensor, w: Tensor, u: Tensor, e: Tensor | None, g: Tensor | None, S: Tensor, do: Tensor, dend: Tensor,
    dfresh: Tensor | None, rule: Rule, need: Sequence[bool], new: Scratch,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of q, w, u, e, g and of S[0]; ``need`` is in the order q, w, u, e, g. Adds to ``dfresh``."""
    need_q, need_w, _, need_e, need_g = need
    n, c, _ = u.shape
    decay = scalar_decay(g, c, q, rule)
    gates = GateGradient(n, c, q) if g is not None and need_g else None
    before, dS = S[:-1].flatten(0, 1), new.like("dS", S)
    after = dS[1:].flatten(0, 1)
    R = torch.bmm(q, w.mT, out=new("R", n, c, c)).mul_(decay.read)
    dz, WT = torch.bmm(R.mT, do, out=new.like("dz", u)), new.scale("Wg", w, decay.to_end)
    D, Eg, M, side = u, None, None, new.like("V", u)
    if e is not None:
        M = torch.bmm(e, w.mT, out=new("M", n, c, c)).mul_(decay.erase)
        T = unit_inverse(M)
        Eg = new.scale("Eg", e, decay.start_erase)
        torch.baddbmm(u, Eg, before, alpha=-1, out=side)
        D = torch.bmm(T, side, out=new.like("D", u))
        dz = torch.bmm(T.mT, dz, out=side)
        WT = torch.bmm(T.mT, WT, out=new.like("WT", w))
        side = new.like("dz", u)
    dog = new.scale("dog", do, decay.start_read)
    torch.bmm(q.mT, dog, out=dS[:-1].flatten(0, 1))
    dS[-1] = dend
    run_backward(dz, WT, Eg, dS, tiles(decay.whole, dS), rule.restarts, dfresh)
    # From here on all tiles at once.
    dq = de = dw = dM = None
    dR = torch.bmm(do, D.mT, out=new("dR", n, c, c))
    if e is not None:
        dM = torch.bmm(dz, D.mT, out=new("dM", n, c, c)).neg_()
    if gates is not None:
        gates.add_pairs(R.mul_(dR), rule.read_first)
        if dM is not None:
            gates.add_pairs(M.mul_(dM), not rule.decayed)
    dR.mul_(decay.read)
    if dM is not None:
        dM.mul_(decay.erase)
    if need_w or gates is not None:
        Dg = D if decay.to_end is None else torch.mul(D, decay.to_end, out=side)
        dw = torch.bmm(Dg, after.mT, out=new.like("dw", w))
        if gates is not None:
            gates.columns = torch.mul(dw, w, out=new.like("K", w)).sum(-1)
        dw.baddbmm_(dR.mT, q)
        if dM is not None:
            dw.baddbmm_(dM.mT, e)
    if need_q or gates is not None:
        dq = torch.bmm(dog, before.mT, out=new.like("dq", q))
        if gates is not None:
            gates.add_rows(torch.mul(dq, q, out=new.like("K", w)).sum(-1), rule.read_first)
        dq.baddbmm_(dR, w)
    if e is not None and (need_e or gates is not None):
        dzg = dz if decay.start_erase is None else torch.mul(dz, decay.start_erase, out=side)
        de = torch.bmm(dzg, before.mT, out=new.like("de", e)).neg_()
        if gates is not None:
            gates.add_rows(torch.mul(de, e, out=new.like("K", w)).sum(-1), not rule.decayed)
        de.baddbmm_(dM, w)
    dg = None
    if gates is not None:
        dg = gates.total(after.mul_(before).sum((1, 2)) * decay.whole[:, 0, 0])  # the last use of dS[1:]
    return dq, dw, dz, de, dg, dS[0].clone()


def tiles(whole: Tensor | None, states: Tensor) -> Tensor | None:
    return None if whole is None else whole.view(-1, states.shape[-3], *whole.shape[1:])


class GateGradient:
    """Gradient of g_r: the sum over all intervals (i, t] that contain r.

    ``pairs[t, i]``, ``rows[t]`` (from the tile start) and ``columns[i]`` (to the tile end) are the gradients of the
    log factors. Summing rectangles directly keeps a gate that blocks everything at an exact zero.
    """

    columns: Tensor

    def __init__(self, n: int, c: int, like: Tensor) -> None:
        self.pairs: Tensor | None = None
        self.rows = like.new_zeros(n, c)

    def add_pairs(self, pairs: Tensor, before_own: bool) -> None:
        if before_own:  # token t saw the decays up to t - 1 only
            pairs = torch.nn.functional.pad(pairs[:, 1:], (0, 0, 0, 1))
        self.pairs = pairs if self.pairs is None else self.pairs.add_(pairs)

    def add_rows(self, rows: Tensor, before_own: bool) -> None:
        if before_own:
            self.rows[:, :-1] += rows[:, 1:]
        else:
            self.rows += rows

    def total(self, whole: Tensor) -> Tensor:
        c = self.pairs.shape[1]
        until = lower(c, self.pairs)  # [t, r]: t >= r
        since = lower(c, self.pairs, strict=True).mT  # [i, r]: i < r
        inside = (torch.mm(self.pairs.view(-1, c), since).view_as(self.pairs).mul_(until)).sum(1)
        return inside + self.rows @ until + self.columns @ since + whole[:, None]
