"""The verbs: `scan` (the oracle), `chunked` (fast where proved exact), `step` (one token), `read` (nothing changes)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from . import checks, reference
from .checks import Call, prepare
from .memory import Gates, Memory
from .reference import Result
from .state import State

# In this order `chunked` asks; the first that declines nothing runs.
EXECUTORS = ("affine", "segment", "exact", "kernel", "loop")


class Executor(Protocol):
    """A module of `innerloop.executors`."""

    SUMMARY: str
    why_not: Callable[..., list[str]]
    run: Callable[..., Result]
    flops: Callable[[Memory], str]


def executor(name: str) -> Executor:
    """The executor module of that name."""
    if name not in EXECUTORS:
        raise ValueError(f"executor={name!r}: pass None or one of {list(EXECUTORS)}")
    return cast(Executor, importlib.import_module(f"innerloop.executors.{name}"))


def choose(memory: Memory, call: Call | None = None) -> tuple[str, dict[str, list[str]]]:
    """The first executor that is exact for the memory (and call), and why those before it declined."""
    declined: dict[str, list[str]] = {}
    for name in EXECUTORS:
        reasons = executor(name).why_not(memory, call)
        if not reasons:
            return name, declined
        declined[name] = reasons
    raise AssertionError("the loop executor takes everything")


def parallel(memory: Memory, name: str) -> str:
    """What that executor computes for many tokens of this memory at once."""
    module = executor(name)
    told: Callable[[Memory], str] | None = getattr(module, "parallel", None)
    return told(memory) if told else module.SUMMARY


def scan(
    memory: Memory, q: Tensor, k: Tensor, v: Tensor, gates: Gates | None = None, state: State | None = None, *,
    mask: Tensor | None = None, reset: Tensor | None = None, info: tuple[str, ...] = (),
) -> Result:  # fmt: skip
    """The oracle: the equation, token by token, by autograd and dense solves; slow, and the meaning of the others.

    Args:
        memory: which memory.
        q, k: queries and keys [B, T, H, K]; v: values [B, T, H, V]; float64, float32, bfloat16 or float16.
        gates: what each token says about its write, `Gates(lr=..., ...)`; absent gates take their documented values.
        state: where to go on (default: `init_state`); it is never changed.
        mask: [B, T] bool, False: the token is the identity and reads 0.
        reset: [B, T] bool, True: the memory restarts from its initial state before the token.
        info: any of "surprise" (norm of the loss's gradient before the write), "memory_norm" (Frobenius norm after
            it) and, of least squares and the Kalman filter, "variance" (k^T P k, that of the answer to the key once the
            evidence has faded or the weights have walked, before the write), each [B, T, H] in the result's `info`.

    Returns:
        Result(output [B, T, H, V] in the dtype of q, state, info).

    Raises:
        ValueError, TypeError: a wrong shape, dtype, device or gate; nothing has been computed then.
    """
    call = prepare(memory, q, k, v, gates, state, mask, reset, info)
    with _precise(call):
        result = reference.scan(
            memory, call.q, call.k, call.v, call.gates, call.state, call.mask, call.reset, call.info
        )
    return _finish(call, result)


def chunked(
    memory: Memory, q: Tensor, k: Tensor, v: Tensor, gates: Gates | None = None, state: State | None = None, *,
    mask: Tensor | None = None, reset: Tensor | None = None, chunk_size: int | None = None, executor: str | None = None,
    checkpoint: bool | None = None, info: tuple[str, ...] = (),
) -> Result:  # fmt: skip
    """The same function as `scan`, by the first executor that proves from the memory's value that it is exact.

    Args:
        chunk_size: the most tokens worked on at once; it changes speed and memory, never the result beyond rounding.
            None takes the executor's measured best.
        executor: force one of "affine", "segment", "exact", "kernel", "loop"; ValueError lists its reasons if it
            declines.
        checkpoint: keep only some tiles' starting states for the backward pass and compute the rest again (deep
            memories, which executor "segment" runs). None: where the graph would be large.
        (the others: see `scan`)
    """
    if chunk_size is not None and (not isinstance(chunk_size, int) or isinstance(chunk_size, bool) or chunk_size < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"chunk_size={chunk_size!r}: pass a positive int, e.g. 64, or None for the measured best")
    if checkpoint is not None and not isinstance(checkpoint, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"checkpoint={checkpoint!r}: pass True, False or None (where the graph would be large)")
    call = prepare(memory, q, k, v, gates, state, mask, reset, info)._replace(checkpoint=checkpoint)
    if executor is None:
        name, _ = choose(memory, call)
    else:
        name = executor
        reasons = _module(name).why_not(memory, call)
        if reasons:
            raise ValueError(f"executor={name!r} is not exact here: {'; '.join(reasons)}")
    if q.shape[1] == 0 or q.shape[0] == 0:
        name = "loop"
    with _precise(call):
        result = _module(name).run(memory, call, chunk_size)
    return _finish(call, result)


def step(
    memory: Memory, q: Tensor, k: Tensor, v: Tensor, gates: Gates | None = None, state: State | None = None, *,
    mask: Tensor | None = None, reset: Tensor | None = None, info: tuple[str, ...] = (),
) -> Result:  # fmt: skip
    """One token: q, k [B, H, K], v [B, H, V], gates [B, H] (or [B, H, K]), mask and reset [B]; output [B, H, V].

    Equal to `scan` on a sequence of length one; its cost does not grow with the tokens read (exemplars excepted).
    Raises ValueError and TypeError as `scan` does.
    """
    for label, x in (("q", q), ("k", k), ("v", v)):
        checks.tensor(label, x)
        if x.ndim != 3:
            raise ValueError(
                f"{label}: shape {list(x.shape)}: wanted [B, H, {'V' if label == 'v' else 'K'}], one token"
            )
    lifted = gates
    if isinstance(gates, Gates):  # anything else is refused by name in `prepare`
        lifted = Gates(*(g.unsqueeze(1) if isinstance(g, Tensor) else g for g in gates))
    masks = [m.unsqueeze(1) if isinstance(m, Tensor) else m for m in (mask, reset)]
    call = prepare(memory, q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1), lifted, state, masks[0], masks[1], info)
    name, _ = choose(memory, call)
    run: Callable[[Memory, Call], Result] = getattr(_module(name), "step", _module("loop").step)  # type: ignore[attr-defined]
    with _precise(call):
        result = run(memory, call)
    output, after, told = _finish(call, result)
    return Result(output[:, 0], after, None if told is None else {n: x[:, 0] for n, x in told.items()})


def read(memory: Memory, q: Tensor, state: State) -> Tensor:
    """Answers of the memory as it stands to queries q [B, T, H, K]: [B, T, H, V]. Nothing changes.

    Raises ValueError and TypeError for wrong queries or a state of another memory.
    """
    call = checks.prepare_read(memory, q, state)
    with _precise(call):
        output = reference.read(memory, call.q.transpose(1, 2), call.state).transpose(1, 2)
    return output.to(call.dtype)


def _precise(call: Call) -> torch.autocast:
    """Autocast would take the products of a float32 state in half precision: it ends at the inputs."""
    return torch.autocast(call.q.device.type, enabled=False)


def _module(name: str) -> Any:
    return executor(name)


def _finish(call: Call, result: Result) -> Result:
    """The output in the input's dtype; the state stays in the computing dtype."""
    return Result(result.output.to(call.dtype), result.state, result.info)
