"""The affine state recurrence of every linear memory, tile by tile.

    S_t = L_t S_{t-1} - b_t (e_t^T X_t) + w_t u_t^T        L_t = diag(exp log_decay_t)
    X_t = L_t S_{t-1} (decayed) or S_{t-1}                 o_t = S_t^T q_t, or S_{t-1}^T q_t (read_first)

Inside a tile of c tokens, with G the running sum of the log decays (Gr = G, or G without the own token):

    M_b[t,i] = sum_j e_tj b_ij exp(Gr_tj - G_ij)  (i < t)      N_b[t,i] = sum_j q_tj b_ij exp(G_tj - G_ij)  (i <= t)
    R   = (I + M_b)^{-1} ((E exp Gr) S_0 + M_w U)
    O   = (Q exp G) S_0 + N_w U - N_b R
    S_c = exp(G_c) S_0 + (W exp(G_c - G))^T U - (B exp(G_c - G))^T R

When b is w, one difference D = U - R takes both places and one M and one N are enough:

    D = (I + M)^{-1} (U - (E exp Gr) S_0)      O = (Q exp G) S_0 + N D      S_c = exp(G_c) S_0 + (W exp(G_c - G))^T D

Every exponent is a sum over an interval, at most zero, and masked before exp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .operator_backward import (
    Rule,
    TileScan,
    fused_backward,
    fused_forward,
    lower,
    plain_scan,
    scalar_decay,
    scale,
    shift_rows,
    tiles,
)

LOG2_E = 1.4426950408889634
FLOOR = -1e30  # exp(FLOOR) = 0 and 0 * FLOOR = 0, where -inf would give nan
SUB = 16  # tokens whose pairwise channel decays are formed explicitly

GROUP_ROWS = 2048  # tokens * heads that one thread works on at a time

Scan = Callable[..., tuple[Tensor, Tensor]]
Readers = list[tuple[Tensor, bool]]
Factors = tuple[list[Tensor], list[list[Tensor]], list[Tensor], Tensor | None]


def affine_operator(
    q: Tensor,
    w: Tensor,
    u: Tensor,
    *,
    e: Tensor | None = None,
    b: Tensor | None = None,
    log_decay: Tensor | None = None,
    decayed: bool = True,
    read_first: bool = False,
    start: Tensor,
    restart: Tensor | None = None,
    fresh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs [B, H, N, c, V] and the state after the last tile [B, H, K, V].

    q, w, e, b: [B, H, N, c, K]; u: [B, H, N, c, V]; log_decay: [B, H, N, c] or [B, H, N, c, K]; start: [B, H, K, V];
    restart [B, N]: rows whose state becomes ``fresh`` before that tile. Without ``e`` nothing is erased. Pass the same
    object as ``b`` and ``w`` when they are equal: it is much cheaper.
    """
    B, H, N, c, K = q.shape
    V = u.shape[-1]
    if e is not None and b is None:
        raise ValueError("e needs b: the erase is written along b")
    if (restart is None) != (fresh is None):
        raise ValueError("restart and fresh come together: both None, or both tensors")
    if N == 0 or B == 0 or H == 0:
        return u.new_zeros(B, H, N, c, V), start.clone()
    same = b is w or e is None
    rule = Rule(decayed, read_first, _restarts(restart, N, H))
    with torch.autocast(q.device.type, enabled=False):
        return _Operator.apply(q, w, u, e, None if same else b, log_decay, start, fresh, rule)


class _Operator(torch.autograd.Function):
    """Keeps the inputs and the states before every tile. Works on some tiles at a time, so that what it recomputes
    stays small and in cache; the tiles of a group are batched products, the groups are chained by the state."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, w: Tensor, u: Tensor, e: Tensor | None, b: Tensor | None, log_decay: Tensor | None,
        start: Tensor, fresh: Tensor | None, rule: Rule,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        B, H, N, c, K = q.shape
        V = u.shape[-1]
        o = torch.empty_like(u)
        fused = _is_fused(b, log_decay)
        flat = (B * H, K, V)
        f0 = None if fresh is None else fresh.reshape(flat)
        groups = _groups(q)
        keep = any(ctx.needs_input_grad)
        states = start.new_empty((N if keep else groups[0].stop) + 1, *flat)
        states[0] = start.reshape(flat)
        for group in groups:
            part = rule._replace(restarts=rule.restarts[group])
            x = [_rows(y, group) for y in (q, w, u, e, b, log_decay)]
            S = states[group.start : group.stop + 1] if keep else states[: group.stop - group.start + 1]
            if fused:
                y = fused_forward(x[0], x[1], x[2], x[3], _in_log2(x[5]), S, f0, part)
            else:
                y, S[-1] = _general(x, S[0], f0, part, TileScan.apply)
            o[:, :, group] = _unrows(y, B, H)
            if not keep:
                states[0] = S[-1]
        if keep:
            ctx.save_for_backward(q, w, u, e, b, log_decay, start, fresh, states)
            ctx.rule = rule
        return o, (states[-1] if keep else states[0]).clone().view(B, H, K, V)

    @staticmethod
    def backward(ctx: Any, do: Tensor, dend: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph: the gradient itself will be differentiated
            return _twice(ctx, do, dend)
        *inputs, start, fresh, states = ctx.saved_tensors
        q, w, u, e, b, log_decay = inputs
        B, H = q.shape[:2]
        need, rule = ctx.needs_input_grad, ctx.rule
        fused = _is_fused(b, log_decay)
        grads = [torch.empty_like(x) if wanted else None for x, wanted in zip(inputs, need, strict=False)]
        f0 = None if fresh is None else fresh.reshape(states.shape[1:])
        dfresh = torch.zeros_like(states[0]) if need[7] else None
        dstate = dend.reshape(states.shape[1:])
        for group in reversed(_groups(q)):
            part = rule._replace(restarts=rule.restarts[group])
            x = [_rows(y, group) for y in inputs]
            S, dy = states[group.start : group.stop + 1], _rows(do, group)
            if fused:
                wanted = (need[0], need[1], need[2], need[3], need[5])
                dq, dw, du, de, dg, dstate = fused_backward(
                    x[0], x[1], x[2], x[3], _in_log2(x[5]), S, dy, dstate, dfresh, part, wanted
                )
                found = (dq, dw, du, de, None, dg)
            else:
                found, dstate, df = _general_backward(x, S[0], f0, dy, dstate, part, need)
                if dfresh is not None and df is not None:
                    dfresh += df
            for grad, y in zip(grads, found, strict=True):
                if grad is not None:
                    grad[:, :, group] = _unrows(y, B, H)
        shape = start.shape
        return *grads, dstate.view(shape) if need[6] else None, None if dfresh is None else dfresh.view(shape), None


def _twice(ctx: Any, do: Tensor, dend: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient as a differentiable function of everything, from the same factors in differentiable steps."""
    *tensors, _ = ctx.saved_tensors
    B, H, N, c, _ = tensors[0].shape
    # Views, so that a dependence of one input on another is not followed here.
    x = [y.view_as(y) if wanted else y for y, wanted in zip(tensors, ctx.needs_input_grad, strict=False)]
    *parts, start, fresh = x
    rows = [_rows(y, slice(0, N)) for y in parts]
    flat = (B * H, *start.shape[2:])
    y, end = _general(rows, start.reshape(flat), None if fresh is None else fresh.reshape(flat), ctx.rule, plain_scan)
    wanted = [y for y, is_wanted in zip(x, ctx.needs_input_grad, strict=False) if is_wanted]
    found = iter(
        torch.autograd.grad((_unrows(y, B, H), end.view(start.shape)), wanted, (do, dend), create_graph=True,
                            allow_unused=True)
    )  # fmt: skip
    return *(next(found) if is_wanted else None for is_wanted in ctx.needs_input_grad[:8]), None


def _is_fused(b: Tensor | None, log_decay: Tensor | None) -> bool:
    return b is None and (log_decay is None or log_decay.dim() == 4)


def _groups(q: Tensor) -> list[slice]:
    """Tiles worked on together."""
    B, H, N, c, _ = q.shape
    size = N
    if q.device.type == "cpu":
        size = max(1, min(N, GROUP_ROWS * torch.get_num_threads() // (B * H * c)))
    return [slice(i, min(i + size, N)) for i in range(0, N, size)]


def _in_log2(log_decay: Tensor | None) -> Tensor | None:
    """Finite, in units of log 2: exp2 is several times faster than exp on a CPU, most of all for vanishing results."""
    return None if log_decay is None else log_decay.clamp(min=FLOOR) * LOG2_E


def _rows(x: Tensor | None, tiles: slice) -> Tensor | None:
    """Some tiles of [B, H, N, ...], contiguous as [n * B * H, ...]: one tile of all heads is one block."""
    if x is None:
        return None
    x = x[:, :, tiles]
    return x.permute(2, 0, 1, *range(3, x.dim())).contiguous().flatten(0, 2)


def _unrows(x: Tensor, B: int, H: int) -> Tensor:
    return x.unflatten(0, (-1, B, H)).permute(1, 2, 0, *range(3, x.dim() + 2))


def _restarts(restart: Tensor | None, N: int, H: int) -> list[Tensor | None]:
    if restart is None:
        return [None] * N
    some = restart.any(0).tolist()
    return [restart[:, n].repeat_interleave(H)[:, None, None] if some[n] else None for n in range(N)]


def _general(
    inputs: Sequence[Tensor | None], start: Tensor, fresh: Tensor | None, rule: Rule, scan: Scan
) -> tuple[Tensor, Tensor]:
    """Decay per channel, or erase and write keys of their own: factors by autograd, the state pass by hand."""
    q, w, u, e, b, g = inputs
    g = _in_log2(g)
    readers = [(q, rule.read_first)] if e is None else [(q, rule.read_first), (e, not rule.decayed)]
    writers = [w] if b is None else [w, b]
    make = _channel_factors if g is not None and g.dim() == 3 else _scalar_factors
    from_start, pairs, to_end, whole = make(g, readers, writers)
    whole, restarts = tiles(whole, start), rule.restarts
    if e is None:
        return scan(from_start[0], None, to_end[0], None, pairs[0][0], u, whole, None, start, fresh, restarts)
    Qg, Eg = from_start
    (N_w, N_b), (M_w, M_b) = ((row[0], row[-1]) for row in pairs)
    M_b = M_b.tril(-1)
    if b is None:
        return scan(Qg, Eg, to_end[0], M_b, N_w, u, whole, None, start, fresh, restarts)
    # Here D = -R. The direct write joins every tile's end state, its reads are added after the pass.
    inject = torch.bmm(to_end[0].mT, u).view(-1, *start.shape)
    z = -torch.bmm(M_w.tril(-1), u)
    o, end = scan(Qg, Eg, to_end[1], M_b, N_b, z, whole, inject, start, fresh, restarts)
    return torch.baddbmm(o, N_w, u), end


def _general_backward(
    inputs: Sequence[Tensor | None], start: Tensor, fresh: Tensor | None, do: Tensor, dend: Tensor, rule: Rule,
    need: Sequence[bool],
) -> tuple[list[Tensor | None], Tensor, Tensor | None]:  # fmt: skip
    with torch.enable_grad():
        x = [None if y is None else y.detach().requires_grad_(wanted) for y, wanted in zip(inputs, need, strict=False)]
        s0 = start.detach().requires_grad_()
        f0 = None if fresh is None else fresh.detach().requires_grad_(need[7])
        y, end = _general(x, s0, f0, rule, TileScan.apply)
        wanted = [t for t in (*x, s0, f0) if t is not None and t.requires_grad]
        found = iter(torch.autograd.grad((y, end), wanted, (do, dend), allow_unused=True))
    grads = [next(found) if t is not None and t.requires_grad else None for t in (*x, s0, f0)]
    return grads[:6], grads[6], grads[7]


# Both factor makers return, for every reader (x, before_own) and writer y of a tile:
#   from_start: x * exp(decay from the tile start to x)          pairs[x][y][t, i]: x_t . y_i * exp(decay from i to t)
#   to_end:     y * exp(decay from y to the tile end)            whole: exp(decay of the tile)
# A reader "before its own decay" meets what the inclusive reader of the token before would meet.


def _scalar_factors(g: Tensor | None, readers: Readers, writers: list[Tensor]) -> Factors:
    q = readers[0][0]
    from_start, pairs = [], []
    for x, before_own in readers:
        d = scalar_decay(g, q.shape[1], q, Rule(True, before_own, []))
        from_start.append(scale(x, d.start_read))
        pairs.append([torch.bmm(x, y.mT) * d.read for y in writers])
    return from_start, pairs, [scale(y, d.to_end) for y in writers], d.whole


def _channel_factors(g: Tensor, readers: Readers, writers: list[Tensor]) -> Factors:
    c = g.shape[1]
    start = g.cumsum(1).exp2()
    from_start = [x * (shift_rows(start, 1.0) if before_own else start) for x, before_own in readers]
    rows = torch.stack([_advance(x) if before_own else x for x, before_own in readers], 1)
    blocks = [_row_block(g, rows, writers, i, min(i + SUB, c)) for i in range(0, c, SUB)]
    pairs = []
    for r, (_, before_own) in enumerate(readers):
        full = [torch.cat([block[j][:, r] for block in blocks], 1) for j in range(len(writers))]
        pairs.append([shift_rows(x, 0.0) if before_own else x for x in full])
    to_end = _after(g).exp2()
    return from_start, pairs, [y * to_end for y in writers], start[:, -1, :, None]


def _row_block(g: Tensor, rows: Tensor, writers: list[Tensor], i: int, j: int) -> list[Tensor]:
    """Rows i..j of every pair matrix, [n, R, j - i, c] for each writer; zero right of the diagonal."""
    n, c, _ = g.shape
    own, R = g[:, i:j], rows[:, :, i:j]
    s = j - i
    # Pairs inside the block: sums[t, i] = g_{i+1} + ... + g_t per channel, zero for i >= t, so never positive.
    sums = (own[:, :, None] * lower(s, g, strict=True)[:, :, None]).cumsum(1)
    inside = sums.exp2() * lower(s, g)[:, :, None]
    by_token = R.transpose(1, 2)
    out = [torch.matmul(by_token, (inside * y[:, None, i:j]).mT).transpose(1, 2) for y in writers]
    if i > 0:
        # Earlier writers meet the rows at the block border: both exponents are sums over tokens on one side of it.
        left = R * own.cumsum(1).exp2()[:, None]
        right = _after(g[:, :i]).exp2()
        earlier = [torch.bmm(left.flatten(1, 2), (y[:, :i] * right).mT).unflatten(1, (-1, s)) for y in writers]
        out = [torch.cat(both, -1) for both in zip(earlier, out, strict=True)]
    return [torch.nn.functional.pad(x, (0, c - j)) for x in out]


def _advance(x: Tensor) -> Tensor:
    """Row t becomes row t + 1; the last row is zero."""
    return torch.nn.functional.pad(x[:, 1:], (0, 0, 0, 1))


def _after(g: Tensor) -> Tensor:
    """after[i] = g_{i+1} + ... + g_{last}."""
    return _advance(g).flip(1).cumsum(1).flip(1)
