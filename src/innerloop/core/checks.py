"""Argument checks: every wrong call raises before anything is computed, naming what came and what is wanted."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .architecture import Exemplars
from .linalg import eager
from .memory import Gates, Memory
from .retention import Decay
from .solvers import Kalman, Ridge
from .state import State, a_memory, init_state

INFO = ("surprise", "memory_norm", "variance")


class Call(NamedTuple):
    """A checked call, in the computing dtype (float32 at least)."""

    q: Tensor  # [B, T, H, K]
    k: Tensor
    v: Tensor  # [B, T, H, V]
    gates: Gates
    state: State
    mask: Tensor | None  # [B, T]
    reset: Tensor | None
    info: tuple[str, ...]
    dtype: torch.dtype  # of the output
    checkpoint: bool | None = None  # see `chunked`


def prepare(
    memory: Memory, q: Tensor, k: Tensor, v: Tensor, gates: Gates | None, state: State | None,
    mask: Tensor | None, reset: Tensor | None, info: tuple[str, ...] = (),
) -> Call:  # fmt: skip
    """Check a call of [B, T, H, ...] tensors, raise half precision, supply the state and scheduled gates."""
    a_memory(memory)
    for name, x in (("q", q), ("k", k), ("v", v)):
        tensor(name, x)
        if x.ndim != 4:
            raise ValueError(f"{name}: shape {list(x.shape)}: wanted [B, T, H, {'V' if name == 'v' else 'K'}]")
    B, T, H, K = k.shape
    if q.shape != k.shape:
        raise ValueError(f"q: shape {list(q.shape)}: wanted {list(k.shape)}, the shape of k")
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(f"v: shape {list(v.shape)}: wanted [{B}, {T}, {H}, V], as k has {list(k.shape)}")
    V = v.shape[3]
    if min(H, K, V) < 1:
        raise ValueError(f"k: shape {list(k.shape)} and v: shape {list(v.shape)}: H, K and V must be at least 1")
    for name, x in (("k", k), ("v", v)):
        _alike(name, x, q)
    unknown = [name for name in info if name not in INFO]
    if unknown:
        raise ValueError(f"info={unknown[0]!r}: pass any of {list(INFO)}")
    if info and isinstance(memory.architecture, Exemplars):
        raise ValueError(f"info={info[0]!r}: exemplars have no weights to report on; pass info=()")
    if "variance" in info and not isinstance(memory.learner, Ridge | Kalman):
        raise ValueError(f"info='variance': {type(memory.learner).__name__} keeps no covariance; Ridge and Kalman do")
    dtype = torch.promote_types(q.dtype, torch.float32)
    gates = _gates(memory, gates, q, V, dtype)
    mask, reset = _flags("mask", mask, q), _flags("reset", reset, q)
    if state is None:
        state = init_state(memory, B, H, K, V, dtype=dtype, device=q.device)
    else:
        _state(memory, state, q, V)
        dtype = torch.promote_types(dtype, state_dtype(state))
        state = state.to(dtype=dtype) if state_dtype(state) != dtype else state
        gates = Gates(*(None if g is None else g.to(dtype) for g in gates))
    out = q.dtype
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if mask is not None:  # what stands in a masked place (a NaN, say) must not reach even a product with zero
        here = mask[:, :, None, None]
        q, k, v = (torch.where(here, x, torch.zeros_like(x)) for x in (q, k, v))
    return Call(q, k, v, gates, state, mask, reset, tuple(info), out)


def prepare_read(memory: Memory, q: Tensor, state: State) -> Call:
    """Check queries [B, T, H, K] against a state."""
    a_memory(memory)
    tensor("q", q)
    if q.ndim != 4:
        raise ValueError(f"q: shape {list(q.shape)}: wanted [B, T, H, K]")
    _state(memory, state, q, None)
    dtype = torch.promote_types(torch.promote_types(q.dtype, torch.float32), state_dtype(state))
    state = state.to(dtype=dtype) if state_dtype(state) != dtype else state
    x = q.to(dtype)
    return Call(x, x, x, Gates(), state, None, None, (), q.dtype)


def state_dtype(state: State) -> torch.dtype:
    """The floating dtype that a state is kept in."""
    return next(t.dtype for t in state.memory.values() if t.is_floating_point())


def tensor(name: str, x: object) -> None:
    """Refuse what is no floating tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: {type(x).__name__}: pass a torch.Tensor")
    if not x.is_floating_point():
        raise ValueError(f"{name}: dtype {x.dtype}: pass float64, float32, bfloat16 or float16")


def _alike(name: str, x: Tensor, q: Tensor) -> None:
    if x.dtype != q.dtype:
        raise ValueError(f"{name}: dtype {x.dtype}: wanted {q.dtype}, the dtype of q")
    if x.device != q.device:
        raise ValueError(f"{name}: on {x.device}: wanted {q.device}, where q is")


def _flags(name: str, x: Tensor | None, q: Tensor) -> Tensor | None:
    if x is None:
        return None
    if not isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{name}: {type(x).__name__}: pass a bool torch.Tensor [B, T]")
    if x.dtype != torch.bool or x.shape != q.shape[:2] or x.device != q.device:
        raise ValueError(
            f"{name}: {x.dtype} {list(x.shape)} on {x.device}: wanted torch.bool {list(q.shape[:2])} on {q.device}"
        )
    return x


def _gates(memory: Memory, gates: Gates | None, q: Tensor, value_dim: int, dtype: torch.dtype) -> Gates:
    gates = Gates() if gates is None else gates
    if not isinstance(gates, Gates):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"gates: {type(gates).__name__}: pass innerloop.Gates(lr=..., log_decay=...)")
    specs = {spec.name: spec for spec in memory.gate_specs()}
    B, T, H, K = q.shape
    sizes = {"B": B, "T": T, "H": H, "K": K, "V": value_dim, "W": memory.window, "3": 3}
    ready: dict[str, Tensor | None] = {}
    for name, gate in zip(Gates._fields, gates, strict=True):
        if gate is None:
            continue
        if name not in specs:
            raise ValueError(f"gates.{name}: this memory does not read it: it reads {list(specs) or 'no gates'}")
        tensor(f"gates.{name}", gate)
        spec = specs[name]
        wanted = [sizes[letter] for letter in spec.shape.strip("[]").split(", ")]
        if list(gate.shape) != wanted:
            raise ValueError(f"gates.{name}: shape {list(gate.shape)}: wanted {wanted}, {spec.shape}")
        if gate.device != q.device:
            raise ValueError(f"gates.{name}: on {gate.device}: wanted {q.device}, where q is")
        if eager() and gate.numel():
            low, high = (float(x) for x in gate.detach().aminmax())
            if not (spec.low <= low and high <= spec.high and high < float("inf")):
                bad = low if not spec.low <= low else high
                raise ValueError(f"gates.{name}: holds {bad:g}: wanted values in {spec.range}")
        ready[name] = gate.to(dtype)
    if isinstance(memory.retention, Decay) and "log_decay" not in ready:
        schedule = memory.retention.scheduled(H)
        if schedule is not None:
            ready["log_decay"] = torch.tensor(schedule, dtype=dtype, device=q.device).expand(B, T, H)
    return Gates(**ready)


def _state(memory: Memory, state: State, q: Tensor, value_dim: int | None) -> None:
    """Refuse a state of another memory or of other sizes; value_dim None takes the state's own."""
    if not isinstance(state, State):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"state: {type(state).__name__}: pass the State of an earlier call or of init_state")
    if state.kind != memory:
        raise ValueError(f"state: belongs to {state.kind}: wanted the state of {memory}")
    B, _, H, K = q.shape
    if value_dim is None:
        last = [layer[0] for layer in memory.architecture.layers[-1:]]
        value_dim = next((t.shape[-1] for n, t in state.memory.items() if n in ("values", "moment", *last)), 1)
    shapes = memory.shapes(K, value_dim)
    for name, tensor in state.memory.items():
        if name == "valid":
            continue
        shape = shapes.get(name)
        if shape is None:
            shape = (tensor.shape[2], K if name == "keys" else value_dim)
        wanted = (B, H, *shape)
        if tuple(tensor.shape) != wanted:
            raise ValueError(f"state: {name} has shape {list(tensor.shape)}: wanted {list(wanted)} for these inputs")
        if tensor.device != q.device:
            raise ValueError(f"state: on {tensor.device}: wanted {q.device}, where q is; use state.to(device=...)")
