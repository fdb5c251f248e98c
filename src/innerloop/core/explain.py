"""What a memory is, in words and numbers: `explain`, `default_gates`, `stability`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import dispatch, registry
from .architecture import Matrix
from .axis import Axis
from .checks import prepare
from .counting import K, V, formula
from .learner import GradientLearner, GradientStep, Momentum
from .memory import Gates, GateSpec, Memory, typical_lr
from .objective import L2
from .retention import Decay
from .solvers import GradientFlow, Proximal


@dataclass(frozen=True)
class Explanation:
    """What `explain` returns; `str()` of it is readable.

    state_floats, flops: formulas per head in K, V (and c tokens per tile), FLOPs per token with 2 per multiply-add.
    gradient: where it is taken. parallel: what is computed for many tokens at once, and exactly so.
    executor: who runs `chunked`; declined: the executors asked before it, with their reasons.
    """

    name: str
    summary: str
    equation: str
    axes: dict[str, str]
    reference: str
    departs: str
    gates: list[GateSpec]
    options: dict[str, Any]
    order: str
    state_floats: str
    flops: str
    gradient: str
    parallel: str
    executor: str
    declined: dict[str, list[str]]

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.summary}", "", self.equation, ""]
        lines += [f"{axis:>13}: {value}" for axis, value in self.axes.items()]
        lines += [f"{'options':>13}: " + (", ".join(f"{k}={v!r}" for k, v in self.options.items()) or "none")]
        for gate in self.gates:
            letter = f" (paper: {gate.letter})" if gate.letter else ""
            lines.append(
                f"{'gate ' + gate.name:>18}: {gate.shape} in {gate.range}, absent {gate.absent}, "
                f"typical {gate.typical}: {gate.meaning}{letter}"
            )
        lines += [f"{'state':>13}: {self.state_floats} floats per head"]
        lines += [f"{'cost':>13}: {self.flops} FLOPs per token and head"]
        lines += [f"{'gradient':>13}: {self.gradient}", f"{'in parallel':>13}: {self.parallel}"]
        lines += [f"{'executor':>13}: {self.executor}"]
        lines += [f"{'not ' + name:>13}: {'; '.join(reasons)}" for name, reasons in self.declined.items()]
        return "\n".join([*lines, "", f"Reference: {self.reference}", f"Departs: {self.departs}"])


def explain(memory: Memory | str) -> Explanation:
    """Equation, axes, paper, gates, state size, cost and executor of a memory or of a registered name.

    Raises ValueError for an unknown name.
    """
    if isinstance(memory, str):
        row, memory = registry.entry(memory), registry.get(memory)
    else:
        found = registry.name_of(memory)
        row = registry.entry(found) if found else None
    name, declined = dispatch.choose(memory)
    text = row.fields if row else {}
    axes = {f.name: _show(getattr(memory, f.name)) for f in fields(memory) if f.name != "order"}
    return Explanation(
        name=row.name if row else "memory",
        summary=row.summary if row else "a memory of your own",
        equation=text.get("Equation", "m_t = argmin of the axes below"),
        axes=axes,
        reference=text.get("Reference", "none: this combination is not registered"),
        departs=text.get("Departs", "nothing to depart from"),
        gates=memory.gate_specs(dict(row.letters) if row else None),
        options=row.options if row else {},
        order=memory.order,
        state_floats=state_floats(memory),
        flops=dispatch.executor(name).flops(memory),
        gradient=_gradient(memory),
        parallel=dispatch.parallel(memory, name),
        executor=name,
        declined=declined,
    )


def state_floats(memory: Memory) -> str:
    """Floats of the state per head, as a formula in K and V (the initial memory apart)."""
    learner, architecture = memory.learner, memory.architecture
    held = [*learner.memory_shapes(architecture, K, V).values(), *memory.buffer_shapes(K, V).values()]
    if memory.segment > 1:
        held += architecture.shapes(K, V).values()
    if memory.window > 1:
        held += [(memory.window - 1, K), (memory.window - 1, V)]
    if not held:
        capacity = getattr(architecture, "capacity", None)
        return f"{capacity if capacity else 'T'} (K + V)"
    return formula([(1, shape) for shape in held], architecture)


def _gradient(memory: Memory) -> str:
    """Where the gradient is taken."""
    if not isinstance(memory.learner, GradientLearner):
        return "none: the equation is solved"
    if memory.segment > 1:
        return f"at the memory of the segment's start, for each of its {memory.segment} tokens"
    return "at the memory before the token" + (", decayed" if memory.anchor == "retained" else "")


def default_gates(
    memory: Memory, batch: int, tokens: int, heads: int, key_dim: int, *, value_dim: int | None = None,
    dtype: torch.dtype | None = None, device: torch.device | str | None = None,
) -> Gates:  # fmt: skip
    """Typical gates, with which keys of normal entries keep the memory finite over long sequences.

    Explicit steps under L2 get lr = 1 / (2 K) (keys of K normal entries have |k|^2 near K), with momentum a tenth of
    it; implicit and exact rows get 1; log_decay is -0.02, a memory of about fifty tokens; a schedule stays in charge.
    A learner with a step size per channel needs `value_dim` where it is not `key_dim`.
    """
    specs = {spec.name: spec for spec in memory.gate_specs()}
    size = (batch, tokens, heads)
    made: dict[str, Tensor] = {}

    def full(value: float, *more: int) -> Tensor:
        return torch.full((*size, *more), value, dtype=dtype or torch.float32, device=device)

    if "lr" in specs:
        more = (len(memory.architecture.rates),) if memory.architecture.rates else ()
        if memory.rate_per == "channel":
            more = (value_dim or key_dim,)
        made["lr"] = full(typical_lr(memory)[0](key_dim), *more)
    if "log_decay" in specs and not (isinstance(memory.retention, Decay) and memory.retention.schedule):
        made["log_decay"] = full(-0.02, key_dim) if specs["log_decay"].shape.endswith("K]") else full(-0.02)
    if "momentum" in specs:
        made["momentum"] = full(float(specs["momentum"].typical))
    if "window" in specs:
        made["window"] = full(1.0, memory.window)
    if "delta" in specs:
        made["delta"] = full(float(specs["delta"].typical))
    if "precond_lr" in specs:
        made |= {"precond_lr": full(1.0), "precond_log_decay": full(-0.02)}
    return Gates(**made)


class Stability(NamedTuple):
    """factor [B, T, H]: what is left of an error along the key after the token; unstable [B, T, H]: |factor| > 1."""

    factor: Tensor
    unstable: Tensor


def stability(memory: Memory, k: Tensor, gates: Gates | None = None) -> Stability:
    """Growth of the memory along each key k [B, T, H, K]: the eigenvalue of one write in that direction.

    One explicit step: `1 - lr |k|^2` (times the decay), beyond -1 when lr |k|^2 > 2; implicit steps
    `1 / (1 + lr |k|^2)`; the flow `exp(-lr |k|^2)`. With momentum: the spectral radius of the 2 x 2 step of
    (memory, surprise).

    Raises:
        ValueError: the memory is not a matrix under L2 that takes steps, or decays per channel.
    """
    reasons = dispatch.executor("affine").why_not(memory)
    if not isinstance(memory.architecture, Matrix):
        reasons.append("takes keys, not their features")
    if type(memory.learner) not in (GradientStep, Momentum, Proximal, GradientFlow):
        reasons.append(f"{type(memory.learner).__name__} has no step that the key and the gates alone determine")
    if reasons or not isinstance(memory.objective, L2):
        why = "; ".join(reasons) or "its objective is Dot"
        raise ValueError(f"memory: stability is defined for matrix memories under L2 that take steps: {why}")
    if isinstance(memory.retention, Decay) and memory.retention.per == "channel":
        raise ValueError(
            "memory: with a decay per channel the key is no eigenvector of the write; pass a per-head memory"
        )
    call = prepare(memory, k, k, k, gates, None, None, None)
    k, gates = call.k, call.gates
    s = k.square().sum(-1)
    lr = torch.ones_like(s) if gates.lr is None else gates.lr
    a = torch.ones_like(s) if gates.log_decay is None else gates.log_decay.exp()
    learner = memory.learner
    if isinstance(learner, Proximal):
        factor = a / (1 + lr * s)
    elif isinstance(learner, GradientFlow):
        factor = a * (-lr * s).exp()
    elif isinstance(learner, GradientStep):
        factor = a * (1 - lr * s) if memory.anchor == "retained" else a - lr * s
    else:
        coefficient: float = getattr(learner, "coefficient", 0.0)
        eta = torch.full_like(s, coefficient) if gates.momentum is None else gates.momentum
        pull = lr * s * (a if memory.anchor == "retained" else 1)
        # (S, U) -> (a S + U', U'), U' = eta U - pull S: trace a - pull + eta, determinant a eta
        trace, determinant = a - pull + eta, a * eta
        discriminant = trace.square() / 4 - determinant
        real = trace.abs() / 2 + discriminant.clamp(min=0).sqrt()
        factor = torch.where(discriminant >= 0, real, determinant.clamp(min=0).sqrt())
    return Stability(factor, factor.abs() > 1 + 4 * torch.finfo(factor.dtype).eps)


def _show(value: object) -> str:
    if not isinstance(value, Axis):
        return str(value)
    given = {f.name: getattr(value, f.name) for f in fields(value)}
    usual = {f.name: f.default for f in fields(value)}
    inside = ", ".join(f"{name}={x!r}" for name, x in given.items() if x != usual[name])
    return f"{type(value).__name__}({inside})"
