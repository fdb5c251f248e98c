"""`check_memory`, the table of checks, and what the checks share: running a call, its gradients, comparing outcomes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import dispatch, registry
from ..core.memory import Gates, Memory
from ..core.reference import Result
from ..core.state import State
from .inputs import Draw, Inputs
from .tolerance import assert_close

Check = Callable[[Memory, Draw], None]

CHECKS: dict[str, Check] = {}
SLOW: set[str] = set()


def check(function: Check) -> Check:
    """Add a check to the table, under its function's name."""
    CHECKS[function.__name__] = function
    return function


def slow(function: Check) -> Check:
    """Add a check that `check_memory` runs only when it is asked for by name."""
    SLOW.add(function.__name__)
    return check(function)


def check_memory(memory: Memory | str, *, checks: Iterable[str] | None = None) -> list[str]:
    """Hold a memory against the contract; returns the names of the checks that ran.

    Args:
        memory: a memory, or a registered name (then every case of the row runs).
        checks: names out of `CHECKS` (default: all but the slow ones).

    Raises:
        AssertionError: a check failed; its name, the memory and the difference are in the message. Checks from which
            the registered row is exempt must fail.
        ValueError: an unknown name.
    """
    chosen = [name for name in CHECKS if name not in SLOW] if checks is None else list(checks)
    for name in chosen:
        if name not in CHECKS:
            raise ValueError(f"checks: {name!r} is no check: pass any of {sorted(CHECKS)}")
    if isinstance(memory, str):
        row = registry.entry(memory)
        members = [row.build(**dict(case)) for case in row.cases]
    else:
        found = registry.name_of(memory)
        row, members = registry.entry(found) if found else None, [memory]
    exempt = {exemption.check: exemption.reason for exemption in row.exemptions} if row else {}
    for member in members:
        for name in chosen:
            failure = None
            try:
                CHECKS[name](member, Draw())
            except AssertionError as error:
                failure = error
            if failure is not None and name not in exempt:
                raise AssertionError(f"{name}: {failure}\n  of {member}") from failure
            if failure is None and name in exempt:
                raise AssertionError(f"{name} passes, so its exemption is stale: {exempt[name]}\n  of {member}")
    return chosen


class Outcome(NamedTuple):
    """What a call gave: its output, the state after it, and the gradients of a fixed pairing with both."""

    output: Tensor
    state: State
    gradients: dict[str, Tensor]


Run = Callable[[Memory, Inputs, State], Result]


def scan(memory: Memory, x: Inputs, state: State) -> Result:
    """The oracle."""
    return dispatch.scan(memory, x.q, x.k, x.v, x.gates, state, mask=x.mask, reset=x.reset)


def chunks(size: int | None) -> Run:
    """`chunked` in chunks of that size."""

    def run(memory: Memory, x: Inputs, state: State) -> Result:
        return dispatch.chunked(memory, x.q, x.k, x.v, x.gates, state, mask=x.mask, reset=x.reset, chunk_size=size)

    return run


def steps(memory: Memory, x: Inputs, state: State) -> Result:
    """`step`, token by token."""
    outputs: list[Tensor] = []
    for t in range(x.q.shape[1]):
        gates = Gates(*(None if g is None else g[:, t] for g in x.gates))
        flags: dict[str, Any] = {n: None if f is None else f[:, t] for n, f in (("mask", x.mask), ("reset", x.reset))}
        output, state, _ = dispatch.step(memory, x.q[:, t], x.k[:, t], x.v[:, t], gates, state, **flags)
        outputs.append(output)
    return Result(torch.stack(outputs, 1), state)


def pieces(run: Run, lengths: Iterable[int]) -> Run:
    """`run` on consecutive pieces, each continuing from the state before."""

    def split(memory: Memory, x: Inputs, state: State) -> Result:
        outputs: list[Tensor] = []
        first = 0
        for length in lengths:
            output, state, _ = run(memory, x.tokens(first, first + length), state)
            outputs.append(output)
            first += length
        assert first == x.q.shape[1], "the pieces must cover the call"
        return Result(torch.cat(outputs, 1), state)

    return split


def outcome(run: Run, memory: Memory, x: Inputs, *, gradients: bool = True) -> Outcome:
    """Run a call; with gradients of q, k, v, every gate, the initial memory and the overridden scalars."""
    if not gradients:
        result = run(memory, x, x.state(memory))
        return Outcome(result.output, result.state, {})
    leaves = {name: t.detach().clone().requires_grad_() for name, t in x.tensors().items()}
    x = x.with_tensors(leaves)
    result = run(memory, x, x.state(memory))
    after = {n: t for n, t in sorted(body(result.state).items()) if t.is_floating_point()}
    total = torch.zeros((), dtype=torch.float64)
    generator = torch.Generator().manual_seed(7)
    for tensor in (result.output, *after.values()):
        weight = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        total = total + (weight * tensor.to(torch.float64)).sum()
    if not total.requires_grad:
        found: tuple[Tensor | None, ...] = (None,) * len(leaves)
    else:
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    named = zip(leaves.items(), found, strict=True)
    state = result.state.detach()
    return Outcome(result.output.detach(), state, {n: torch.zeros_like(t) if g is None else g for (n, t), g in named})


def body(state: State) -> dict[str, Tensor]:
    """What a state has become: without the initial memory and the scalars, which no call changes."""
    return {n: t for n, t in state.tensors().items() if not n.startswith(("initial/", "parameters/"))}


def assert_same(
    got: Outcome, wanted: Outcome, what: str, *, dtype: torch.dtype | None = None, slack: float = 1.0
) -> None:
    """Outputs, states and gradients, each within the table's tolerance (times `slack`).

    A gradient that is zero in exact arithmetic (of q, when all values it averages are equal) comes out as the rounding
    noise of terms that cancel; so none is held to more than a thousandth of the call's largest gradient.
    """
    assert_close(got.output, wanted.output, f"{what}: output", dtype=dtype, slack=slack)
    assert_same_state(got.state, wanted.state, what, dtype=dtype, slack=slack)
    floor = 1e-3 * max((float(g.abs().max()) for g in wanted.gradients.values() if g.numel()), default=0.0)
    for name, gradient in wanted.gradients.items():
        what_of = f"{what}: gradient of {name}"
        assert_close(got.gradients[name], gradient, what_of, gradient=True, dtype=dtype, scale=floor, slack=slack)


def assert_same_state(
    got: State, wanted: State, what: str, *, dtype: torch.dtype | None = None, slack: float = 1.0
) -> None:
    """Every tensor, anchors and sums that nothing will read again included; integers and flags exactly."""
    mine, theirs = got.tensors(), wanted.tensors()
    assert mine.keys() == theirs.keys(), f"{what}: the state holds {sorted(mine)}, wanted {sorted(theirs)}"
    for name, tensor in theirs.items():
        if tensor.is_floating_point():
            assert_close(mine[name], tensor, f"{what}: state {name}", dtype=dtype, slack=slack)
        else:
            assert torch.equal(mine[name], tensor), f"{what}: state {name} is {mine[name]}, wanted {tensor}"


def both_orders(memory: Memory) -> list[Memory]:
    """The memory as it is, and with the other order."""
    other = "read-write" if memory.order == "write-read" else "write-read"
    return [memory, replace(memory, order=other)]


def refused(
    call: Callable[..., Any], names: str | set[str], arguments: dict[str, Any], positional: tuple[Any, ...] = ()
) -> None:
    """The call raises ValueError or TypeError whose message names the argument (one of `names`)."""
    shown = {n: tuple(a.shape) if isinstance(a, Tensor) else type(a).__name__ for n, a in arguments.items()}
    wanted = {names} if isinstance(names, str) else names
    try:
        call(*positional, **arguments)
    except (ValueError, TypeError) as error:
        message = str(error)
        named = any(re.search(rf"(?<!\w){re.escape(n)}(?!\w)", message) for n in wanted)
        assert named, f"{call.__name__}: the message names none of {wanted}: {message}"
        assert "unexpected keyword" not in message, message
        return
    except Exception as error:
        raise AssertionError(f"{call.__name__}, wrong {wanted}: {type(error).__name__}: {error}, {shown}") from error
    raise AssertionError(f"{call.__name__} took a wrong {wanted}: {shown}")
