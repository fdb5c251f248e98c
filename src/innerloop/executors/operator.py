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

Every exponent is a sum over one interval, so at most zero; a pair that must not meet gets exponent 0 and factor 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .operator_backward import (
    Rule,
    Scratch,
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

LOG2_E, LN_2 = 1.4426950408889634, 0.6931471805599453
FLOOR = -1e30  # exp(FLOOR) = 0 and 0 * FLOOR = 0, where -inf would give nan
SUB = 8  # tokens whose pairwise channel decays are formed explicitly; 16 takes twice the time, 4 the same
GROUP_ROWS = 2048  # tokens * heads that one thread works on at a time

Inside = Callable[[Tensor, Tensor, Tensor], Tensor]
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
    B, H, N, c, V = u.shape
    if e is not None and b is None:
        raise ValueError("e needs b: the erase is written along b")
    if (restart is None) != (fresh is None):
        raise ValueError("restart and fresh come together: both None, or both tensors")
    if N == 0 or B == 0 or H == 0:
        return u.new_zeros(B, H, N, c, V), start.clone()
    same = b is w or e is None
    rule = Rule(decayed, read_first, _restarts(restart, N, H))
    run = _outside_graphs() if torch.compiler.is_compiling() else _run
    return run(q, w, u, e, None if same else b, log_decay, start, fresh, rule)


def _run(*args: Any) -> tuple[Tensor, Tensor]:
    with torch.autocast(args[0].device.type, enabled=False):
        # Inside a Function the grad mode is always off: it is asked for here.
        return _Operator.apply(*args, torch.is_grad_enabled())


def _outside_graphs() -> Callable[..., tuple[Tensor, Tensor]]:
    """Buffers that are filled again do not survive tracing. Made on demand: it loads the compiler."""
    return torch.compiler.disable(_run)


class _Operator(torch.autograd.Function):
    """Keeps the inputs and states at tile (or group) starts. Works on some tiles at a time, so that what it recomputes
    stays small and in cache; the tiles of a group are batched products, the groups are chained by the state."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, w: Tensor, u: Tensor, e: Tensor | None, b: Tensor | None, log_decay: Tensor | None,
        start: Tensor, fresh: Tensor | None, rule: Rule, grad_mode: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        B, H = q.shape[:2]
        o = torch.empty_like(u)
        fused = _is_fused(b, log_decay)
        flat = (B * H, *start.shape[2:])
        f0 = None if fresh is None else fresh.reshape(flat)
        groups = _groups(q)
        keep = grad_mode and any(ctx.needs_input_grad)
        borders = _borders(groups, fused) if keep else [slice(0, groups[0].stop if fused else 1)] * len(groups)
        states = start.new_empty(borders[-1].stop + 1, *flat)
        states[0] = start.reshape(flat)
        scratch = Scratch(u)
        for group, border in zip(groups, borders, strict=True):
            part = rule._replace(restarts=rule.restarts[group])
            x = [_rows(y, group, scratch, name) for name, y in zip("qwuebg", (q, w, u, e, b, log_decay), strict=True)]
            S = states[border.start : border.start + (group.stop - group.start if fused else 1) + 1]
            if fused:
                y = fused_forward(x[0], x[1], x[2], x[3], _in_log2(x[5]), S, f0, part, scratch)
            else:
                y, S[-1] = _general(x, S[0], f0, part)
            o[:, :, group] = _unrows(y, B, H)
            end = S[-1].clone()
            if not keep:
                states[0] = end
        if keep:
            ctx.save_for_backward(q, w, u, e, b, log_decay, start, fresh, states)
            ctx.rule = rule
        return o, end.view(start.shape)

    @staticmethod
    def backward(ctx: Any, do: Tensor, dend: Tensor) -> tuple[Tensor | None, ...]:
        # With create_graph the gradient itself will be differentiated.
        gradient = _differentiable_gradient if torch.is_grad_enabled() else _gradient
        with torch.autocast(do.device.type, enabled=False):
            return *gradient(ctx, do, dend), None, None


def _gradient(ctx: Any, do: Tensor, dend: Tensor) -> tuple[Tensor | None, ...]:
    *inputs, start, fresh, states = ctx.saved_tensors
    q, _, u, _, b, log_decay = inputs
    B, H = q.shape[:2]
    need, rule = ctx.needs_input_grad, ctx.rule
    fused, scratch = _is_fused(b, log_decay), Scratch(u)
    grads = [torch.empty_like(x) if wanted else None for x, wanted in zip(inputs, need, strict=False)]
    f0 = None if fresh is None else fresh.reshape(states.shape[1:])
    dfresh = torch.zeros_like(states[0]) if need[7] else None
    dstate = dend.reshape(states.shape[1:])
    groups = _groups(q)
    for group, border in reversed(list(zip(groups, _borders(groups, fused), strict=True))):
        part = rule._replace(restarts=rule.restarts[group])
        x = [_rows(y, group, scratch, name) for name, y in zip("qwuebg", inputs, strict=True)]
        S, dy = states[border.start : border.stop + 1], _rows(do, group, scratch, "do")
        if fused:
            args = (*x[:4], _in_log2(x[5]), S, dy, dstate, dfresh, part, (*need[:4], need[5]), scratch)
            *found, dg, dstate = fused_backward(*args)
            found += [None, dg]
        else:
            found, dstate, df = _general_backward(x, S[0], f0, dy, dstate, part, need)
            if dfresh is not None and df is not None:
                dfresh += df
        for grad, y in zip(grads, found, strict=True):
            if grad is not None:
                grad[:, :, group] = _unrows(y, B, H)
    dstart = dstate.view(start.shape) if need[6] else None
    return *grads, dstart, None if dfresh is None else dfresh.view(start.shape)


def _differentiable_gradient(ctx: Any, do: Tensor, dend: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient as a function of everything it depends on: the same factors, the state pass in plain steps."""
    *tensors, _ = ctx.saved_tensors
    need = ctx.needs_input_grad[:8]
    # Views, so that a dependence of one input on another is not followed here.
    *parts, start, fresh = (y.view_as(y) if wanted else y for y, wanted in zip(tensors, need, strict=True))
    B, H, K, V = start.shape
    s0, f0 = (None if y is None else y.reshape(B * H, K, V) for y in (start, fresh))
    y, end = _general([_all_rows(y) for y in parts], s0, f0, ctx.rule, plain=True)
    outputs = _unrows(y, B, H), end.view(B, H, K, V)
    wanted = [y for y, is_wanted in zip((*parts, start, fresh), need, strict=True) if is_wanted]
    found = iter(torch.autograd.grad(outputs, wanted, (do, dend), create_graph=True, allow_unused=True))
    return tuple(next(found) if is_wanted else None for is_wanted in need)


def _is_fused(b: Tensor | None, log_decay: Tensor | None) -> bool:
    return b is None and (log_decay is None or log_decay.dim() == 4)


def _groups(q: Tensor) -> list[slice]:
    """Tiles worked on together."""
    B, H, N, c, _ = q.shape
    size = N
    if q.device.type == "cpu":
        size = max(1, min(N, GROUP_ROWS * torch.get_num_threads() // (B * H * c)))
    return [slice(i, min(i + size, N)) for i in range(0, N, size)]


def _borders(groups: list[slice], fused: bool) -> list[slice]:
    """Which kept states belong to a group: one for every tile, or only the first where the rest is recomputed."""
    return groups if fused else [slice(i, i + 1) for i in range(len(groups))]


def _in_log2(log_decay: Tensor | None) -> Tensor | None:
    """Finite, in units of log 2: exp2 is several times faster than exp on a CPU, most of all for vanishing results."""
    return None if log_decay is None else log_decay.clamp(min=FLOOR) * LOG2_E


def _rows(x: Tensor | None, tiles: slice, scratch: Scratch, name: str) -> Tensor | None:
    """Some tiles of [B, H, N, ...], contiguous as [n * B * H, ...]: one tile of all heads is one block."""
    if x is None:
        return None
    x = x[:, :, tiles]
    x = x.permute(2, 0, 1, *range(3, x.dim()))
    return scratch.like(name, x).copy_(x).flatten(0, 2)


def _all_rows(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.permute(2, 0, 1, *range(3, x.dim())).flatten(0, 2)


def _unrows(x: Tensor, B: int, H: int) -> Tensor:
    return x.unflatten(0, (-1, B, H)).permute(1, 2, 0, *range(3, x.dim() + 2))


def _restarts(restart: Tensor | None, N: int, H: int) -> list[Tensor | None]:
    if restart is None:
        return [None] * N
    some = restart.any(0).tolist()
    return [restart[:, n].repeat_interleave(H)[:, None, None] if some[n] else None for n in range(N)]


def _general(
    inputs: Sequence[Tensor | None], start: Tensor, fresh: Tensor | None, rule: Rule, *, plain: bool = False
) -> tuple[Tensor, Tensor]:
    """Decay per channel, or erase and write keys of their own: factors by autograd, the two large steps by hand.

    With ``plain`` those two are differentiable steps as well."""
    scan = plain_scan if plain else TileScan.apply
    q, w, u, e, b, g = inputs
    g = _in_log2(g)
    readers = [(q, rule.read_first)] if e is None else [(q, rule.read_first), (e, not rule.decayed)]
    writers = [w] if b is None else [w, b]
    if g is not None and g.dim() == 3:
        inside = _near_pairs if plain else _NearPairs.apply
        from_start, pairs, to_end, whole = _channel_factors(g, readers, writers, inside)
    else:
        from_start, pairs, to_end, whole = _scalar_factors(g, readers, writers)
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
        y, end = _general(x, s0, f0, rule)
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


def _channel_factors(g: Tensor, readers: Readers, writers: list[Tensor], inside: Inside) -> Factors:
    c = g.shape[1]
    start = g.cumsum(1).exp2()
    from_start = [x * (shift_rows(start, 1.0) if before_own else start) for x, before_own in readers]
    rows = torch.stack([_advance(x) if before_own else x for x, before_own in readers], 1)
    blocks = [_row_block(g, rows, writers, i, min(i + SUB, c), inside) for i in range(0, c, SUB)]
    pairs = []
    for r, (_, before_own) in enumerate(readers):
        full = [torch.cat([block[j][:, r] for block in blocks], 1) for j in range(len(writers))]
        pairs.append([shift_rows(x, 0.0) if before_own else x for x in full])
    to_end = _after(g).exp2()
    return from_start, pairs, [y * to_end for y in writers], start[:, -1, :, None]


def _row_block(g: Tensor, rows: Tensor, writers: list[Tensor], i: int, j: int, inside: Inside) -> list[Tensor]:
    """Rows i..j of every pair matrix, [n, R, j - i, c] for each writer; zero right of the diagonal."""
    c, s = g.shape[1], j - i
    own, R = g[:, i:j], rows[:, :, i:j]
    out = [inside(own, R, y[:, i:j]) for y in writers]
    if i > 0:
        # Earlier writers meet the rows at the block border: both exponents are sums over tokens on one side of it.
        left = R * own.cumsum(1).exp2()[:, None]
        right = _after(g[:, :i]).exp2()
        earlier = [torch.bmm(left.flatten(1, 2), (y[:, :i] * right).mT).unflatten(1, (-1, s)) for y in writers]
        out = [torch.cat(both, -1) for both in zip(earlier, out, strict=True)]
    return [torch.nn.functional.pad(x, (0, c - j)) for x in out]


def _between(g: Tensor) -> tuple[Tensor, Tensor]:
    """Of a block of s tokens: the 0/1 matrix [1, (t, i), r] of i < r <= t, and 2^(g_{i+1} + ... + g_t) [n, t, i, K].

    The sums are zero for i >= t, so no exponent is ever positive."""
    s = g.shape[1]
    between = (lower(s, g)[:, None] * lower(s, g, strict=True).mT).reshape(1, s * s, s)
    return between, torch.bmm(between.expand(len(g), -1, -1), g).unflatten(1, (s, s)).exp2()


def _near_pairs(g: Tensor, rows: Tensor, y: Tensor) -> Tensor:
    """[n, R, t, i] pairs inside one block: sum_j rows_tj y_ij 2^(g_{i+1} + ... + g_t)_j for i <= t."""
    weighted = _between(g)[1] * y[:, None]
    return torch.matmul(rows.transpose(1, 2), weighted.mT).transpose(1, 2) * lower(g.shape[1], g)


class _NearPairs(torch.autograd.Function):
    """:func:`_near_pairs`, which forms its [n, t, i, K] decays again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, rows: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(g, rows, y)
        return _near_pairs(g, rows, y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        g, rows, y = ctx.saved_tensors
        d = (d * lower(g.shape[1], g)).transpose(1, 2)  # [n, t, R, i]
        between, decay = _between(g)
        weighted = decay * y[:, None]
        drows = torch.matmul(d, weighted).transpose(1, 2) if ctx.needs_input_grad[1] else None
        dweighted = torch.matmul(d.mT, rows.transpose(1, 2))
        dy = decay.mul_(dweighted).sum(1) if ctx.needs_input_grad[2] else None
        dg = None
        if ctx.needs_input_grad[0]:
            dsums = weighted.mul_(dweighted).flatten(1, 2)
            dg = torch.bmm(between.mT.expand(len(g), -1, -1), dsums).mul_(LN_2)
        return dg, drows, dy


def _advance(x: Tensor) -> Tensor:
    """Row t becomes row t + 1; the last row is zero."""
    return torch.nn.functional.pad(x[:, 1:], (0, 0, 0, 1))


def _after(g: Tensor) -> Tensor:
    """after[i] = g_{i+1} + ... + g_{last}."""
    return _advance(g).flip(1).cumsum(1).flip(1)
