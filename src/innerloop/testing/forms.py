"""The three forms agree: chunked and step against scan, at every length and size, with all gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.dispatch import EXECUTORS, choose, chunked, executor, read, step
from ..core.memory import Gates, Memory
from ..core.reference import Result
from ..core.solvers import Ridge
from ..core.state import State
from .check import assert_same, assert_same_state, both_orders, check, chunks, outcome, refused, scan, slow, steps
from .inputs import Draw, Inputs, Start
from .tolerance import assert_close

# tokens, what the initial state overrides, chunk sizes: each size meets lengths below, at and beyond it
LENGTHS: list[tuple[int, Start, tuple[int | None, ...]]] = [
    (0, "memory", (1, None)),
    (1, "parameters", (1, 64, None)),
    (15, "memory", (1, 7, 20)),
    (64, "parameters", (16, 64, 69)),
    (130, "memory", (64, None)),
]


@check
def chunked_equals_scan(memory: Memory, draw: Draw) -> None:
    """Outputs, state and all gradients, at every length and chunk size."""
    for tokens, start, sizes in LENGTHS:
        x = draw(memory, tokens, start=start)
        wanted = outcome(scan, memory, x)
        for size in sizes:
            assert_same(outcome(chunks(size), memory, x), wanted, f"T={tokens}, chunk_size={size}")


@check
def executors_say_what_they_can(memory: Memory, draw: Draw) -> None:
    """An executor that names no reason against itself is exact; one that does refuses, with that reason."""
    x = draw(memory, 20)
    wanted = scan(memory, x, x.state(memory))
    for name in EXECUTORS:
        call: dict[str, Any] = {"memory": memory, "q": x.q, "k": x.k, "v": x.v, "gates": x.gates, "executor": name}
        reasons = executor(name).why_not(memory)
        if reasons:
            refused(chunked, reasons[0], call)
            continue
        got = chunked(**call, chunk_size=8)
        assert_close(got.output, wanted.output, f"executor {name}: output")
        assert_same_state(got.state, wanted.state, f"executor {name}")


@check
def many_rows_go_in_groups(memory: Memory, draw: Draw) -> None:
    """Enough rows that the work is cut into groups of tiles: masks and resets on the borders, gradients too."""
    x = replace(draw, batch=8, heads=4)(memory, 70, start="memory")
    plain = outcome(scan, memory, x)
    for size in (1, 8):
        assert_same(outcome(chunks(size), memory, x), plain, f"32 rows, chunk_size={size}")
    generator = torch.Generator().manual_seed(11)
    mask, reset = (torch.rand(8, 70, generator=generator) < p for p in (0.8, 0.1))
    x = replace(x, mask=mask, reset=reset)
    assert_same(outcome(chunks(4), memory, x), outcome(scan, memory, x), "32 rows with masks and resets")


@check
def step_equals_scan(memory: Memory, draw: Draw) -> None:
    """Token by token, in both orders, with a masked and a reset token on the way."""
    for start in ("memory", "parameters"):
        for member in both_orders(memory):
            x = draw(member, 9, start=start)
            mask, reset = torch.ones(2, 9, dtype=torch.bool), torch.zeros(2, 9, dtype=torch.bool)
            mask[0, 4], reset[1, 6], reset[0, 3] = False, True, True
            x = replace(x, mask=mask, reset=reset)
            assert_same(outcome(steps, member, x), outcome(scan, member, x), f"steps, {member.order}")


@check
def orders_differ_by_one_token(memory: Memory, draw: Draw) -> None:
    """Read-write equals scan too, and reads what the state before the token would answer."""
    for member in both_orders(memory):
        x = draw(member, 35, start="parameters")
        assert_same(outcome(chunks(8), member, x), outcome(scan, member, x), f"{member.order}, chunk_size=8")
    after, before = (replace(memory, order=order) for order in ("write-read", "read-write"))
    x = draw(memory, 5, start="memory")
    state = x.state(after)
    reads = []
    for t in range(5):
        reads.append(read(after, x.q[:, t : t + 1], state))
        state = scan(after, x.tokens(t, t + 1), state).state
    assert_close(
        scan(before, x, x.state(before)).output, torch.cat(reads, 1), "read-write against reads of the state before"
    )


@check
def odd_shapes(memory: Memory, draw: Draw) -> None:
    """K != V, K = 1, V = 1, one head, an empty batch."""
    for B, H, K, V in ((1, 1, 1, 1), (2, 3, 1, 4), (3, 1, 5, 1), (1, 2, 3, 7), (2, 1, 7, 3), (0, 2, 3, 2)):
        small = replace(draw, batch=B, heads=H, key_dim=K, value_dim=V)
        for member in both_orders(memory):
            x = small(member, 11, start="memory")
            what = f"B={B}, H={H}, K={K}, V={V}, {member.order}"
            assert_same(outcome(chunks(4), member, x), outcome(scan, member, x), what)


@check
def causal_bit_by_bit(memory: Memory, draw: Draw) -> None:
    """Editing later keys, values, queries and gates leaves earlier answers as they are, to the last bit.

    Later tokens may not even decide the order of a sum. (A BLAS gives other last bits to other alignments in memory, so
    the sizes here are such that a tile more or less, cut where edited gates decay strongly, moves nothing.)
    """
    for member in both_orders(memory):
        x, other = draw(member, 70), replace(draw, seed=draw.seed + 1)(member, 70, decay="mixed")
        if isinstance(memory.learner, Ridge):  # there -inf is a reset, and resets are summed in another order
            gate = other.gates.log_decay
            other = (
                other if gate is None else replace(other, gates=other.gates._replace(log_decay=gate.clamp(min=-1e30)))
            )
        for dtype in (torch.float64, torch.float32):
            y = x.to(dtype)
            for size in (16, None):
                run = chunks(size)
                whole = run(member, y, y.state(member)).output
                assert bool(whole.isfinite().all()), f"{dtype}: {int((~whole.isfinite()).sum())} answers are not finite"
                for kept in (5, 16, 41, 69):
                    tokens = zip(x.tensors().items(), other.tensors().values(), strict=True)
                    z = x.with_tensors({n: torch.cat([a[:, :kept], b[:, kept:]], 1) for (n, a), b in tokens}).to(dtype)
                    first, second = whole[:, :kept], run(member, z, z.state(member)).output[:, :kept]
                    what = f"{member.order}, {dtype}, chunk_size={size}: {kept} answers"
                    assert torch.equal(first, second), f"{what} changed by {(first - second).abs().max():.1e}"


@check
def rows_and_heads_are_independent(memory: Memory, draw: Draw) -> None:
    """A batch row or a head alone answers as it does among others."""
    x = replace(draw, batch=3, heads=3)(memory, 20, start="memory")
    wanted = outcome(chunks(8), memory, x, gradients=False)
    for i in range(3):
        row = outcome(chunks(8), memory, x.rows(slice(i, i + 1)), gradients=False)
        assert_close(row.output, wanted.output[i : i + 1], f"row {i} alone")
        head = outcome(chunks(8), memory, x.heads(slice(i, i + 1)), gradients=False)
        assert_close(head.output, wanted.output[:, :, i : i + 1], f"head {i} alone")


@check
def layouts_are_free(memory: Memory, draw: Draw) -> None:
    """Non-contiguous and expanded inputs answer as contiguous copies do."""
    x = draw(memory, 21)
    turned = {n: t.transpose(0, 1).contiguous().transpose(0, 1) for n, t in x.tensors().items()}
    strided = {n: torch.stack([t, -t], -1).flatten(-2)[..., ::2] for n, t in x.tensors().items()}
    for what, tensors in (("transposed", turned), ("strided", strided)):
        assert not any(t.is_contiguous() for n, t in tensors.items() if n in "qkv")
        _same_layout(memory, x, x.with_tensors(tensors), what)
    expanded = {n: t[:1].expand_as(t) for n, t in x.tensors().items()}
    copied = {n: t.clone() for n, t in expanded.items()}
    _same_layout(memory, x.with_tensors(copied), x.with_tensors(expanded), "expanded over the batch")
    expanded = {n: t[:, :, :1].expand_as(t) for n, t in x.tensors().items()}
    copied = {n: t.clone() for n, t in expanded.items()}
    _same_layout(memory, x.with_tensors(copied), x.with_tensors(expanded), "expanded over the heads")


def _same_layout(memory: Memory, x: Inputs, y: Inputs, what: str) -> None:
    for run in (chunks(8), scan):
        assert_same(outcome(run, memory, y, gradients=False), outcome(run, memory, x, gradients=False), what)


@check
def works_without_autograd(memory: Memory, draw: Draw) -> None:
    """Under no_grad and inference_mode the answers are the same, and no graph is kept."""
    x = draw(memory, 17, start="memory")
    wanted = outcome(scan, memory, x, gradients=False)
    leaves = x.with_tensors({n: t.clone().requires_grad_() for n, t in x.tensors().items()})
    for mode in (torch.no_grad, torch.inference_mode):
        for name, run in (("scan", scan), ("chunked", chunks(8)), ("step", steps)):
            with mode():
                got = run(memory, leaves, leaves.state(memory))
            assert not got.output.requires_grad, f"{name} under {mode.__name__} keeps a graph"
            assert_close(got.output, wanted.output, f"{name} under {mode.__name__}")


@slow
def compiled_step(memory: Memory, draw: Draw) -> None:
    """`torch.compile` of one token gives what the plain call gives."""
    x = draw(memory, 3, start="memory")
    first = scan(memory, x.tokens(0, 2), x.state(memory)).state

    def one(q: Tensor, k: Tensor, v: Tensor, gates: Gates, state: State) -> Result:
        return step(memory, q, k, v, gates, state)

    gates = Gates(*(None if g is None else g[:, 2] for g in x.gates))
    arguments = (x.q[:, 2], x.k[:, 2], x.v[:, 2], gates, first)
    torch.compiler.reset()
    got, wanted = torch.compile(one, backend="aot_eager")(*arguments), one(*arguments)
    assert_close(got.output, wanted.output, "compiled step: output")
    for name, tensor in wanted.state.memory.items():
        if tensor.is_floating_point():
            assert_close(got.state.memory[name], tensor, f"compiled step: state {name}")


@slow
def compiled_chunked(memory: Memory, draw: Draw) -> None:
    """`torch.compile` of chunked, for the rows of the affine executor (the others run value-dependent loops)."""
    if choose(memory)[0] != "affine":
        return
    x = draw(memory, 40, start="memory")
    leaves = x.with_tensors({n: t.clone().requires_grad_() for n, t in x.tensors().items()})
    state = x.state(memory)

    def all_tokens(q: Tensor, k: Tensor, v: Tensor, gates: Gates, state: State) -> Result:
        return chunked(memory, q, k, v, gates, state, chunk_size=16)

    torch.compiler.reset()
    compiled = torch.compile(all_tokens, backend="aot_eager")
    wanted = all_tokens(leaves.q, leaves.k, leaves.v, leaves.gates, state)
    got = compiled(leaves.q, leaves.k, leaves.v, leaves.gates, state)
    assert_close(got.output, wanted.output, "compiled chunked: output")
    assert_close(got.state.memory["S"], wanted.state.memory["S"], "compiled chunked: state")
    inputs = [t for n, t in leaves.tensors().items() if not n.startswith("start.")]
    pairs = zip(
        torch.autograd.grad(got.output.square().sum(), inputs),
        torch.autograd.grad(wanted.output.square().sum(), inputs),
        strict=True,
    )
    for mine, plain in pairs:
        assert_close(mine, plain, "compiled chunked: gradient", gradient=True)
