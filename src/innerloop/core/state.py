"""`State`: everything a memory needs to go on at any token, as an immutable tree of tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from .architecture import Exemplars
from .axis import Weights
from .files import write_atomic
from .learner import Learner
from .memory import Memory

Tensors = Mapping[str, Tensor]

_GROUPS = ("memory", "initial", "buffers", "anchor", "window", "parameters")


def _empty() -> dict[str, Tensor]:
    return {}


@dataclass(frozen=True)
class State:
    """What a memory has become. Nothing is updated in place: every call returns a new state.

    kind: the memory value that this state belongs to.
    memory: what is read: `{"S": [B, H, K, V]}`, `{"weight_0", "bias_0", ...}`, `{"gram", "moment"}`,
        `{"S", "covariance"}` or, for exemplars, `{"keys": [B, H, n, K], "values": [B, H, n, V], "valid": [B, n]}`;
        under Lq and KL the dual variables; and the outer parameters (`norm_weight`, `feature_coefficients`, ...).
    position: tokens since the segment's start, [B].
    initial: the memory that a reset restores.
    buffers: the learner's own (past surprise, second moments), and a segment's sums under apply="segment".
    anchor: the memory at the segment's start, when segment > 1.
    window: the last window - 1 pairs, newest last: `{"keys", "values", "valid": [B, n]}` (and Huber's `delta`).
    parameters: scalars of the axes that were overridden by tensors.
    """

    kind: Memory
    memory: Tensors
    position: Tensor
    initial: Tensors
    buffers: Tensors = field(default_factory=_empty)
    anchor: Tensors = field(default_factory=_empty)
    window: Tensors = field(default_factory=_empty)
    parameters: Tensors = field(default_factory=_empty)

    def _map(self, change: Callable[[Tensor], Tensor]) -> State:
        groups: dict[str, Any] = {g: {n: change(t) for n, t in getattr(self, g).items()} for g in _GROUPS}
        return replace(self, position=change(self.position), **groups)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor under a flat name, `group/name`."""
        flat = {f"{g}/{n}": t for g in _GROUPS for n, t in getattr(self, g).items()}
        return flat | {"position": self.position}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, the initial memory included."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    def detach(self) -> State:
        """The same values, cut from the graph."""
        return self._map(Tensor.detach)

    def clone(self) -> State:
        """A copy that shares no memory."""
        return self._map(Tensor.clone)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> State:
        """The state in another floating dtype, on another device."""

        def change(t: Tensor) -> Tensor:
            return t.to(device=device, dtype=dtype if t.is_floating_point() else None)

        return self._map(change)

    def select(self, index: Tensor) -> State:
        """The batch rows `index` [n], repeats allowed (beam search): no row shares memory with another."""
        if index.ndim != 1 or index.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"index: shape {tuple(index.shape)}, {index.dtype}: pass int64 [n], rows of the batch")
        return self._map(lambda t: t.index_select(0, index.to(t.device)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to one safetensors file, atomically."""
        # clones, since safetensors refuses tensors that share memory (a fresh memory is its own initial memory)
        flat = {
            name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in self.tensors().items()
        }
        data = safetensors.torch.save(flat, metadata={"innerloop": "state 1", "memory": self.kind.to_json()})
        write_atomic(path, data)

    @staticmethod
    def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> State:
        """Read what `save` wrote. ValueError when the file is something else."""
        try:
            with safetensors.safe_open(os.fspath(path), framework="pt", device=str(device)) as file:  # pyright: ignore
                meta: dict[str, str] = file.metadata() or {}  # pyright: ignore
                names: list[str] = list(file.keys())  # pyright: ignore
                # clones, since the tensors are windows on the file: who writes over it would change the state
                flat: dict[str, Tensor] = {name: file.get_tensor(name).clone() for name in names}  # pyright: ignore
        except safetensors.SafetensorError as error:
            raise ValueError(f"path={os.fspath(path)!r} is no safetensors file ({error})") from None
        if meta.get("innerloop") != "state 1" or "position" not in flat:
            raise ValueError(f"path={os.fspath(path)!r} holds no innerloop state: pass a file that State.save wrote")
        return State.from_tensors(Memory.from_json(meta["memory"]), flat)

    @staticmethod
    def from_tensors(kind: Memory, flat: Tensors) -> State:
        """The inverse of `tensors`."""
        groups: dict[str, dict[str, Tensor]] = {g: {} for g in _GROUPS}
        for name, tensor in flat.items():
            group, _, leaf = name.partition("/")
            if leaf:
                groups[group][leaf] = tensor
        return State(kind=kind, position=flat["position"], **groups)

    def __repr__(self) -> str:
        lines = [f"State({self.nbytes:,} bytes, {self.position.device}"]
        for name, tensor in self.tensors().items():
            if not name.startswith("initial/"):
                lines.append(f"  {name}: {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}")
        return "\n".join(lines) + ")"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, State) or self.kind != other.kind:
            return NotImplemented if not isinstance(other, State) else False
        mine, theirs = self.tensors(), other.tensors()
        return mine.keys() == theirs.keys() and all(torch.equal(t, theirs[n]) for n, t in mine.items())

    __hash__ = None  # type: ignore[assignment]


def init_state(
    memory: Memory,
    batch: int,
    heads: int,
    key_dim: int,
    value_dim: int,
    *,
    initial: Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> State:
    """The state of a memory that has read nothing.

    Args:
        memory: which memory.
        batch, heads, key_dim, value_dim: B, H, K, V.
        initial: entries of the initial memory by name (`{"S": [B, H, K, V]}`; a leading B or H of size 1 broadcasts),
            and overrides of the axes' scalars by name (`{"penalty": [B, H, K]}`). All are differentiable; none is
            ever written.
        dtype: float32 (default) or float64; half precisions are raised to float32.
        device: where the state lives (default: where `initial` lives, else the CPU).

    Raises:
        ValueError: an unknown name or a wrong shape in `initial`.
        TypeError: `memory` is no Memory.
    """
    a_memory(memory)
    given = dict(initial or {})
    for name, size in (("batch", batch), ("heads", heads), ("key_dim", key_dim), ("value_dim", value_dim)):
        if size < 0 or (size == 0 and name != "batch"):
            raise ValueError(f"{name}={size}: pass an int >= 1")
    if device is None:
        device = next((t.device for t in given.values()), torch.device("cpu"))
    given_dtypes = [t.dtype for t in given.values() if t.is_floating_point()]
    kind = dtype or (max(given_dtypes, key=lambda d: d.itemsize) if given_dtypes else torch.float32)
    kind = torch.promote_types(kind, torch.float32)

    def place(tensor: Tensor) -> Tensor:
        return tensor.to(device=device, dtype=kind)

    parameters: dict[str, Tensor] = {}
    for name, (_, per) in memory.parameters.items():
        if name in given:
            channels = (memory.architecture.inputs(key_dim),) if per == "HK" else ()
            parameters[name] = place(_fit(name, given.pop(name), batch, heads, channels))
    values = all_parameters(memory, parameters, kind, device)

    exemplars = isinstance(memory.architecture, Exemplars)
    written = memory.learner.memory_shapes(memory.architecture, key_dim, value_dim)
    shapes = memory.shapes(key_dim, value_dim)
    unknown = sorted(set(given) - set(shapes))
    if unknown:
        wanted = sorted([*shapes, *memory.parameters])
        raise ValueError(f"initial has {unknown[0]!r}, which this memory does not hold: pass any of {wanted}")
    solves = type(memory.learner).start is not Learner.start  # a feature map's identity matrix may be large
    eye = torch.eye(memory.architecture.inputs(key_dim) if solves else 0, dtype=kind, device=device)
    drawn = memory.architecture.start(_normal(heads), shapes)  # the same whatever the batch, and whatever is given
    start: Weights = {n: torch.as_tensor(x, dtype=torch.float64) for n, x in drawn.items()}
    start = {n: place(x) for n, x in start.items()} | memory.learner.start(eye, values)
    body: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        full = (batch, heads, *shape)
        if name in given:
            body[name] = place(_fit(name, given[name], batch, heads, shape)).expand(full)
        elif name in start:
            body[name] = start[name].expand(full)
        else:
            body[name] = torch.zeros(full, dtype=kind, device=device)
    if exemplars:
        body = {
            "keys": torch.zeros(batch, heads, 0, key_dim, dtype=kind, device=device),
            "values": torch.zeros(batch, heads, 0, value_dim, dtype=kind, device=device),
            "valid": torch.zeros(batch, 0, dtype=torch.bool, device=device),
        }
    buffers = {
        name: torch.zeros(batch, heads, *shape, dtype=kind, device=device)
        for name, shape in memory.buffer_shapes(key_dim, value_dim).items()
    }
    past = memory.window - 1
    window = {
        "keys": torch.zeros(batch, heads, past, key_dim, dtype=kind, device=device),
        "values": torch.zeros(batch, heads, past, value_dim, dtype=kind, device=device),
        "valid": torch.zeros(batch, past, dtype=torch.bool, device=device),
    }
    for name in memory.objective.gates:  # each pair in the window keeps the threshold it came with
        window[name] = torch.zeros(batch, heads, past, dtype=kind, device=device)
    return State(
        kind=memory,
        memory=body,
        position=torch.zeros(batch, dtype=torch.int64, device=device),
        initial={} if exemplars else dict(body),
        buffers=buffers,
        anchor={name: body[name] for name in written} if memory.segment > 1 else {},
        window=window if past else {},
        parameters={n: t.expand(batch, heads, *t.shape[2:]) for n, t in parameters.items()},
    )


def _normal(heads: int) -> Callable[[tuple[int, ...]], Any]:
    """Standard normal draws `[1, H, *shape]` from a fixed seed: default weights are the same on every machine."""
    generator = np.random.default_rng(0)
    return lambda shape: generator.standard_normal((1, heads, *shape))


def a_memory(memory: object) -> None:
    """Refuse what is no memory (a registered name, say)."""
    if not isinstance(memory, Memory):
        raise TypeError(f"memory={memory!r}: pass a Memory, e.g. innerloop.get('gated_deltanet')")


def all_parameters(
    memory: Memory, overrides: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device | str
) -> dict[str, Tensor]:
    """Every scalar of the axes as [B or 1, H or 1, K or 1]: the override where there is one."""
    out: dict[str, Tensor] = {}
    for name, (value, _) in memory.parameters.items():
        if name in overrides:
            tensor = overrides[name]
            out[name] = tensor if tensor.ndim == 3 else tensor[..., None]
        else:
            out[name] = torch.full((1, 1, 1), value, dtype=dtype, device=device)
    return out


def _fit(name: str, tensor: Tensor, batch: int, heads: int, shape: tuple[int, ...]) -> Tensor:
    """Check a tensor of `initial`: [B or 1, H or 1, *shape], where a per-channel scalar may also be [B, H]."""
    got = tuple(tensor.shape)
    rest = (shape, ()) if len(shape) < 2 else (shape,)
    good = len(got) >= 2 and got[0] in (1, batch) and got[1] in (1, heads) and got[2:] in rest
    if not good:
        raise ValueError(f"initial[{name!r}]: shape {list(got)}: wanted {[batch, heads, *shape]} (B or H may be 1)")
    return tensor
