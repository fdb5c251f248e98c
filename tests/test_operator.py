"""The tiled affine operator against the token loop: values, all gradients, strong decay, causality, restarts."""

from __future__ import annotations

import itertools

import pytest
import torch

from innerloop.executors import operator
from innerloop.executors.operator import affine_operator

B, H, N, K, V = 2, 2, 3, 5, 3
NAMES = ("q", "w", "u", "e", "b", "log_decay", "start", "fresh")


def token_loop(q, w, u, *, e=None, b=None, log_decay=None, decayed=True, read_first=False, start, restart=None,
               fresh=None):  # fmt: skip
    """The recurrence, one token after the other."""
    B, H, N, c, _ = q.shape
    S, out = start, []
    for n in range(N):
        if restart is not None:
            S = torch.where(restart[:, n, None, None, None], fresh, S)
        for t in range(c):
            before = S
            if log_decay is not None:
                g = log_decay[:, :, n, t]
                S = S * torch.exp(g if g.dim() == 3 else g[..., None])[..., None]
            if e is not None:
                X = S if decayed else before
                S = S - b[:, :, n, t, :, None] * (e[:, :, n, t, None, :] @ X)
            S = S + w[:, :, n, t, :, None] * u[:, :, n, t, None, :]
            out.append(((before if read_first else S).mT @ q[:, :, n, t, :, None]).squeeze(-1))
    o = torch.stack(out, 2).view(B, H, N, c, -1) if out else u.new_zeros(u.shape)
    return o, S


def gates(kind, shape, gen):
    if kind is None:
        return None
    if kind == "zero":
        return torch.zeros(shape, dtype=torch.float64)
    if kind == "random":
        return -torch.rand(shape, generator=gen, dtype=torch.float64)
    if kind == "mix":
        values = torch.tensor([0.0, -1e-3, -5.0, -1e30, -torch.inf, -0.3], dtype=torch.float64)
        return values[torch.randint(len(values), shape, generator=gen)]
    return torch.full(shape, float(kind), dtype=torch.float64)


def problem(c, *, gate="random", channel=False, writer="same", keys="random", restart=False, N=N, K=K, V=V, seed=0):
    """Inputs as they come from [B, T, H, K]: views with odd strides."""
    gen = torch.Generator().manual_seed(seed)

    def tiled(width):
        flat = torch.randn(B, N * c, H, width, generator=gen, dtype=torch.float64)
        return flat.view(B, N, c, H, width).permute(0, 3, 1, 2, 4)

    q, u, k = tiled(K), tiled(V), tiled(K)
    if keys == "repeated":
        k = torch.nn.functional.normalize(k[:, :, :1, :1], dim=-1).expand(k.shape)
    elif keys == "zero":
        k = torch.zeros_like(k)
    else:
        k = torch.nn.functional.normalize(k, dim=-1)
    x = {"q": q, "w": k, "u": u, "start": torch.randn(B, H, K, V, generator=gen, dtype=torch.float64)}
    lr = 1.0 if keys == "repeated" else torch.rand(B, H, N, c, 1, generator=gen, dtype=torch.float64)
    if writer == "same":
        x.update(e=k, w=lr * k)
    elif writer == "other":
        x.update(e=k, b=lr * k, w=tiled(K))
    x["log_decay"] = gates(gate, (B, H, N, c, K) if channel else (B, H, N, c), gen)
    if restart:
        x["restart"] = torch.tensor([[True, False, True], [False, False, True]])[:, :N]
        x["fresh"] = torch.randn(B, H, K, V, generator=gen, dtype=torch.float64)
    return x


def call(f, x, **options):
    x = dict(x)
    if x.get("e") is not None and x.get("b") is None:
        x["b"] = x["w"]
    return f(x.pop("q"), x.pop("w"), x.pop("u"), **x, **options)


def with_gradients(f, x, **options):
    leaves = {k: x[k].detach().requires_grad_() for k in NAMES if x.get(k) is not None}
    o, end = call(f, {**x, **leaves}, **options)
    gen = torch.Generator().manual_seed(7)
    weights = [torch.randn(y.shape, generator=gen, dtype=torch.float64).to(y.dtype) for y in (o, end)]
    loss = (o * weights[0]).sum() + (end * weights[1]).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return o.detach(), end.detach(), dict(zip(leaves, grads, strict=True))


def close(a, b, tol):
    assert a.shape == b.shape
    assert torch.isfinite(a).all()
    assert (a - b).abs().max() <= tol * max(1.0, float(b.abs().max()))


def check(x, **options):
    expected, got = (with_gradients(f, x, **options) for f in (token_loop, affine_operator))
    close(got[0], expected[0], 1e-12)
    close(got[1], expected[1], 1e-12)
    for name, grad in expected[2].items():
        assert (got[2][name] is None) == (grad is None), name
        if grad is not None:
            close(got[2][name], grad, 1e-10)


WRITERS = ("none", "same", "other")


@pytest.mark.parametrize(("decayed", "read_first"), list(itertools.product((True, False), repeat=2)))
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("channel", [False, True])
def test_matches_token_loop(writer, channel, decayed, read_first):
    check(problem(5, channel=channel, writer=writer, restart=True), decayed=decayed, read_first=read_first)


@pytest.mark.parametrize("gate", [None, "zero", "-1e-3", "-5", "-1e30", "-inf", "mix"])
@pytest.mark.parametrize(("writer", "channel"), list(itertools.product(WRITERS, (False, True))))
def test_extreme_decay(gate, writer, channel):
    odd = writer == "other"
    check(problem(6, gate=gate, channel=channel, writer=writer), decayed=not odd, read_first=odd)
    if gate == "mix":
        check(problem(6, gate=gate, channel=channel, writer=writer, restart=True), decayed=odd, read_first=odd)


@pytest.mark.parametrize("channel", [False, True])
@pytest.mark.parametrize("c", [1, 2, 15, 16, 17, 32, 33, 48, 70])
def test_tile_sizes(c, channel):
    for writer in WRITERS:
        check(problem(c, gate="mix", channel=channel, writer=writer, N=2 if c < 40 else 1, seed=c), decayed=c != 33)


@pytest.mark.parametrize(("K", "V"), [(1, 1), (1, 4), (4, 1), (16, 8)])
@pytest.mark.parametrize("channel", [False, True])
def test_widths(K, V, channel):
    for writer in WRITERS:
        check(problem(3, channel=channel, writer=writer, K=K, V=V))


@pytest.mark.parametrize("keys", ["repeated", "zero"])
@pytest.mark.parametrize("gate", [None, "zero", "mix"])
@pytest.mark.parametrize("c", [16, 64])
def test_repeated_and_zero_keys(keys, gate, c):
    check(problem(c, keys=keys, gate=gate, N=1))
    check(problem(c, keys=keys, gate=gate, N=1, channel=True))


def test_repeated_keys_overwrite_exactly():
    c, k = 64, torch.zeros(1, 1, 1, 1, 4, dtype=torch.float32)
    k[..., 0] = 1.0
    k = k.expand(1, 1, 2, c, 4)
    u = torch.randn(1, 1, 2, c, 3)
    o, end = affine_operator(k, k, u, e=k, b=k, start=torch.randn(1, 1, 4, 3))
    assert (o - u).abs().max() < 1e-5
    assert (end[0, 0, 0] - u[0, 0, -1, -1]).abs().max() < 1e-5


@pytest.mark.parametrize("writer", WRITERS)
def test_zero_decay_is_no_decay_bit_for_bit(writer):
    x = problem(8, gate="zero", writer=writer)
    y = {**x, "log_decay": None}
    for options in ({}, {"decayed": False}, {"read_first": True}):
        a, b = (with_gradients(affine_operator, z, **options) for z in (x, y))
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1])
        for k, grad in b[2].items():
            close(a[2][k], grad, 0.0 if writer != "other" else 1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("writer", "channel"), list(itertools.product(WRITERS, (False, True))))
def test_bitwise_causal(writer, channel, dtype):
    for c, K in ((20, 5), (32, 16), (64, 8)):
        x = problem(c, gate="random", channel=channel, writer=writer, N=2, K=K)
        y = problem(c, gate="mix", channel=channel, writer=writer, N=2, K=K, seed=1)
        x, y = ({k: v.to(dtype) for k, v in z.items() if v is not None} for z in (x, y))
        o = call(affine_operator, x)[0].flatten(2, 3)
        for t in (0, 1, c // 2, c - 2, c, 2 * c - 2):
            later = (torch.arange(2 * c) > t).view(2, c)
            mixed = {}
            for name, a in x.items():
                mask = later if a.dim() == 4 else later[..., None]
                mixed[name] = a if name == "start" else torch.where(mask, y[name] * 3, a)
            changed = call(affine_operator, mixed)[0].flatten(2, 3)
            assert torch.equal(o[:, :, : t + 1], changed[:, :, : t + 1])
            assert not torch.equal(o, changed)


@pytest.mark.parametrize("channel", [False, True])
def test_reset_forgets_exactly(channel):
    x = problem(6, gate="random", channel=channel)
    x["log_decay"][:, :, 1, 2] = -torch.inf
    o, end = call(affine_operator, x)
    other = {**x, "start": x["start"] + 1, "u": x["u"].clone()}
    other["u"][:, :, 0] += 1
    o2, end2 = call(affine_operator, other)
    assert torch.equal(o[:, :, 1, 2:], o2[:, :, 1, 2:])
    assert torch.equal(end, end2)
    _, _, grads = with_gradients(affine_operator, x)
    assert (grads["log_decay"][:, :, 1, 2] == 0).all()


def test_no_tiles_returns_start():
    x = problem(4, N=0, gate=None)
    o, end = call(affine_operator, x)
    assert o.shape == (B, H, 0, 4, V)
    assert torch.equal(end, x["start"])


@pytest.mark.parametrize(("writer", "channel"), list(itertools.product(WRITERS, (False, True))))
def test_grad_modes_and_inputs_untouched(writer, channel):
    x = problem(4, writer=writer, channel=channel, restart=True)
    saved = {k: v.clone() for k, v in x.items()}
    expected = with_gradients(affine_operator, x)
    with torch.no_grad():
        assert torch.equal(call(affine_operator, x)[0], expected[0])
    with torch.inference_mode():
        assert torch.equal(call(affine_operator, x)[0], expected[0])
    assert all(torch.equal(saved[k], x[k]) for k in x)


@pytest.mark.parametrize(("writer", "channel"), list(itertools.product(WRITERS, (False, True))))
def test_one_gradient_at_a_time(writer, channel):
    x = problem(4, writer=writer, channel=channel, restart=True)
    everything = with_gradients(affine_operator, x)[2]
    for name in everything:
        leaf = x[name].detach().requires_grad_()
        o, end = call(affine_operator, {**x, name: leaf})
        gen = torch.Generator().manual_seed(7)
        loss = sum((y * torch.randn(y.shape, generator=gen, dtype=y.dtype)).sum() for y in (o, end))
        (grad,) = torch.autograd.grad(loss, leaf)
        if not (writer == "same" and name == "w"):
            close(grad, everything[name], 1e-13)


@pytest.mark.parametrize(("writer", "channel"), list(itertools.product(WRITERS, (False, True))))
def test_second_derivative(writer, channel):
    x = problem(3, N=2, K=3, V=2, writer=writer, channel=channel, restart=True)
    leaves = {k: x[k].detach().requires_grad_() for k in NAMES if x.get(k) is not None}
    found = []
    for f in (token_loop, affine_operator):
        # u depends on q: the gradient with respect to q alone must not follow that path.
        o, end = call(f, {**x, **leaves, "u": leaves["u"] * leaves["q"].sum(-1, keepdim=True)})
        first = torch.autograd.grad(o.square().sum() + end.pow(3).sum(), list(leaves.values()), create_graph=True)
        found.append(torch.autograd.grad(sum(y.square().sum() for y in first), list(leaves.values())))
    for a, b in zip(*found, strict=True):
        close(b, a, 1e-10)


def test_incomplete_arguments():
    x = problem(4)
    with pytest.raises(ValueError, match="e needs b"):
        affine_operator(x["q"], x["w"], x["u"], e=x["e"], start=x["start"])
    with pytest.raises(ValueError, match="restart and fresh"):
        affine_operator(x["q"], x["w"], x["u"], start=x["start"], fresh=x["start"])


@pytest.mark.parametrize("groups", [[slice(0, 1), slice(1, 2), slice(2, 3)], [slice(0, 2), slice(2, 3)]])
@pytest.mark.parametrize(("writer", "channel"), list(itertools.product(WRITERS, (False, True))))
def test_groups_of_tiles(writer, channel, groups, monkeypatch):
    monkeypatch.setattr(operator, "_groups", lambda q: groups)
    for restart in (False, True):
        check(problem(9, gate="mix", writer=writer, channel=channel, restart=restart), decayed=not restart)
    x = problem(9, writer=writer, channel=channel)
    with torch.no_grad():
        got = call(affine_operator, x)
    for a, b in zip(got, call(token_loop, x), strict=True):
        close(a, b, 1e-12)


def test_long_input_is_cut_into_groups():
    c = 16
    x = problem(c, N=2 * operator.GROUP_ROWS * torch.get_num_threads() // (B * H * c) + 1, K=2, V=2)
    assert len(operator._groups(x["q"])) > 2
    check(x)


def test_expanded_and_shared_inputs():
    x = problem(4, writer="other")
    x["u"] = x["u"][:, :1].expand(x["u"].shape)
    x["e"] = x["q"][..., :1].expand(x["q"].shape)
    x["log_decay"] = x["log_decay"][..., :1].expand(x["log_decay"].shape)
    check(x)


def test_compile_runs():
    x = problem(4)
    compiled = torch.compile(
        lambda q, w: affine_operator(q, w, x["u"], e=x["e"], b=w, start=x["start"]), backend="aot_eager"
    )
    expected, got = [], []
    for f, out in ((affine_operator, expected), (None, got)):
        q, w = (x[k].detach().requires_grad_() for k in "qw")
        o, _ = compiled(q, w) if f is None else f(q, w, x["u"], e=x["e"], b=w, start=x["start"])
        out += [o, *torch.autograd.grad(o.sum(), (q, w))]
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


def test_float32_close_to_float64():
    x = problem(32, gate="mix", K=16, V=16)
    results = [
        with_gradients(affine_operator, {k: v.to(t) for k, v in x.items()}) for t in (torch.float64, torch.float32)
    ]
    (o, end, grads), (o32, end32, grads32) = results
    for a, b in [(o, o32), (end, end32), *((grads[k], grads32[k]) for k in grads)]:
        assert (a - b).abs().max() < 5e-5 * a.abs().max()
