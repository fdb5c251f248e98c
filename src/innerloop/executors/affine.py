"""Every row whose state is linear in itself, by one operator per tile (see `operator.py`, `momentum.py`).

    S_t = L_t S_{t-1} - b_t (e_t^T X_t)^T + w_t u_t^T        X_t = L_t S_{t-1} or S_{t-1}

    Dot, gradient step      e = 0,           w = lr k                                     u = v
    L2, gradient step       e = k,   b = w = lr k                                         u = v
    L2, proximal            e = k,   b = w = lr / (1 + lr |k|^2) k                        u = v
    L2, gradient flow       e = k,   b = w = (1 - exp(-lr |k|^2)) / |k|^2 k               u = v
    Diagonal                e = k,   b = w = lr M * k  (see `diagonal.py`)                u = v
    with momentum           the same errors, summed twice: one triangular solve

Features in front of the matrix are mapped first (`lift.py`). Decay toward the initial memory runs on the displacement
D = S - S_init, whose targets are v - S_init^T k.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.checks import Call
from ..core.clock import Tiles, tiles
from ..core.learner import GradientStep, Momentum
from ..core.memory import Memory
from ..core.objective import L2, Dot
from ..core.preconditioned import Diagonal
from ..core.reference import Result
from ..core.retention import Decay, Keep
from ..core.solvers import GradientFlow, Proximal
from ..core.state import State, all_parameters
from .diagonal import scale, scales
from .lift import on_features
from .momentum import momentum_operator
from .operator import affine_operator

SUMMARY = "tiles of matrix products and one unit-triangular solve"
CHUNK = 32  # measured: benchmarks/gated_deltanet.py


def why_not(memory: Memory, call: Call | None = None) -> list[str]:
    """Reasons why the operator does not give this memory exactly."""
    out: list[str] = []
    if not memory.is_matrix:
        out.append("needs a Matrix memory")
    if type(memory.objective) not in (Dot, L2):
        out.append("needs Dot or L2: the gradient must be affine in the memory")
    if type(memory.retention) not in (Keep, Decay):
        out.append("needs Keep or Decay: the retention must be linear")
    learner = memory.learner
    if type(learner) not in (GradientStep, Momentum, Diagonal, Proximal, GradientFlow):
        out.append(f"{type(learner).__name__} writes no affine step")
    if memory.rate_per == "channel":
        out.append("a step size per value channel erases each channel by another operator")
    if getattr(learner, "max_norm", None) is not None:
        out.append("a clipped gradient is not affine in the memory")
    if isinstance(learner, GradientStep) and learner.num_steps > 1:
        out.append("num_steps > 1 erases more than one direction at a token")
    if isinstance(learner, GradientStep) and learner.average:
        out.append("a running mean is scaled token by token")
    if memory.window > 1:
        out.append("window > 1 erases more than one direction at a token")
    if memory.segment > 1:
        out.append("segment > 1 holds the gradient at the segment's start")
    if isinstance(learner, Momentum) and isinstance(memory.retention, Decay) and memory.retention.per == "channel":
        out.append("momentum with a decay per channel has no masked-product form")
    if call is not None and call.info:
        out.append(f"info={call.info!r} is reported by the loop")
    return out


def flops(memory: Memory) -> str:
    """Useful floating-point work per token and head, tiles of c tokens."""
    if isinstance(memory.learner, Momentum):
        return "10 K V + 4 c (K + V) + 3 c^2"
    if isinstance(memory.objective, Dot) and isinstance(memory.learner, GradientStep):
        return "4 K V + 2 c (K + V)"
    return "6 K V + 4 c K + 3 c V + c^2"


class Operands(NamedTuple):
    """The operator's rows, `[..., K]` and `[..., V]`; e is None when nothing is erased (then b is None too)."""

    e: Tensor | None
    w: Tensor
    u: Tensor


def operands(memory: Memory, k: Tensor, v: Tensor, lr: Tensor | None, shaped: Tensor | None = None) -> Operands:
    """What a token erases and writes; for these rows the erase write key b is the write key w.

    shaped: the key as it is written, if that is another one.
    """
    learner = memory.learner
    if isinstance(learner, Proximal):
        squared = k.square().sum(-1)
        step = squared.add(1).reciprocal() if lr is None else lr / (1 + lr * squared)
    elif isinstance(learner, GradientFlow):
        squared = k.square().sum(-1)
        step = flow_step(torch.ones_like(squared) if lr is None else lr, squared)
    else:
        step = lr
    shaped = k if shaped is None else shaped
    w = shaped if step is None else step[..., None] * shaped
    return Operands(None if isinstance(memory.objective, Dot) else k, w, v)


def flow_step(lr: Tensor, squared: Tensor) -> Tensor:
    """`(1 - exp(-lr s)) / s`, with its limit lr (1 - lr s / 2) near s = 0, where the quotient has no digits."""
    small = lr * squared < 1e-5
    safe = torch.where(small, torch.ones_like(squared), squared)
    series = lr * (1 - lr * squared / 2 * (1 - lr * squared / 3))
    return torch.where(small, series, -torch.expm1(-lr * safe) / safe)


def anchored(memory: Memory) -> bool:
    """Whether errors are taken at the decayed memory (implicit steps start from it)."""
    return memory.anchor == "retained" or isinstance(memory.learner, Proximal | GradientFlow)


@on_features
def run(memory: Memory, call: Call, chunk_size: int | None) -> Result:
    """The whole call, tile by tile."""
    state, home = call.state, _home(memory, call.state)
    B, T = call.q.shape[:2]
    cut = tiles(B, T, chunk_size or CHUNK, state.position, mask=call.mask, reset=call.reset)
    q, k, v = (_tile(cut, x) for x in (call.q, call.k, call.v))
    lr, log_decay, momentum = (None if g is None else _tile(cut, g) for g in call.gates[:3])
    if home is not None and isinstance(memory.objective, L2):
        v = v - k @ home[:, :, None]
    start, fresh = state.memory["S"], state.initial["S"]
    if home is not None:
        start, fresh = start - home, torch.zeros_like(fresh)
    read_first = memory.order == "read-write"
    if isinstance(memory.learner, Momentum):
        real = cut.real
        output, S, U = momentum_operator(
            q, k, v, lr, log_decay, momentum, memory.learner.coefficient, None if real is None else real[:, None],
            erase=isinstance(memory.objective, L2), decayed=anchored(memory), read_first=read_first,
            start=(start, state.buffers["S"]), restart=cut.restart, fresh=fresh,
        )  # fmt: skip
        buffers = {"S": U}
    else:
        shaped, buffers = None, {}
        if isinstance(memory.learner, Diagonal):
            gates = (
                None if g is None else _tile(cut, g) for g in (call.gates.precond_lr, call.gates.precond_log_decay)
            )
            scalars = all_parameters(memory, state.parameters, k.dtype, k.device)
            M, second = scales(memory, k, lr, *gates, scalars, state.buffers["second"], cut)
            shaped, buffers = M * k, {"second": second}
        rows = operands(memory, k, v, lr, shaped)
        output, S = affine_operator(
            q, rows.w, rows.u, e=rows.e, b=None if rows.e is None else rows.w, log_decay=log_decay,
            decayed=anchored(memory), read_first=read_first, start=start, restart=cut.restart,
            fresh=None if cut.restart is None else fresh,
        )  # fmt: skip
    if home is not None:
        output, S = output + q @ home[:, :, None], S + home
    output = cut.scatter(output.permute(0, 2, 3, 1, 4))
    return Result(output, replace(state, memory={"S": S}, buffers=buffers, position=cut.position))


@on_features
def step(memory: Memory, call: Call) -> Result:
    """One token, in the operator's letters: the recurrence itself, no tile."""
    old, home = call.state, _home(memory, call.state)
    q, k, v = call.q[:, 0], call.k[:, 0], call.v[:, 0]
    lr, log_decay, momentum = (None if g is None else g[:, 0] for g in call.gates[:3])
    S0, past = old.memory["S"], dict(old.buffers)
    if call.reset is not None:
        again = call.reset[:, :1, None]
        S0 = torch.where(again[..., None], old.initial["S"], S0)
        past = {n: torch.where(again.reshape(-1, *(1,) * (x.ndim - 1)), 0 * x, x) for n, x in past.items()}
    X = S0 if home is None else S0 - home
    kept = X
    if log_decay is not None:
        kept = log_decay.exp().reshape(*log_decay.shape, *(1,) * (4 - log_decay.ndim)) * X
    buffers: dict[str, Tensor] = {}
    shaped = None
    if isinstance(memory.learner, Diagonal):
        shaped, buffers = _shaped(memory, call, k, lr, past["second"])
    rows = operands(memory, k, v, lr, shaped)
    error = rows.u
    if rows.e is not None:
        S_error = (kept if anchored(memory) else X) if home is None else (kept if anchored(memory) else X) + home
        error = error - (rows.e[..., None, :] @ S_error)[..., 0, :]
    move = rows.w[..., :, None] * error[..., None, :]
    if isinstance(memory.learner, Momentum):
        move = (memory.learner.coefficient if momentum is None else momentum[..., None, None]) * past["S"] + move
        buffers = {"S": move}
    S = kept + move if home is None else home + kept + move
    if call.mask is not None:
        here = call.mask[:, :1, None]
        S = torch.where(here[..., None], S, S0)
        buffers = {n: torch.where(here.reshape(-1, *(1,) * (x.ndim - 1)), x, past[n]) for n, x in buffers.items()}
    output = (q[..., None, :] @ (S0 if memory.order == "read-write" else S))[..., 0, :]
    if call.mask is not None:
        output = torch.where(call.mask[:, :1, None], output, torch.zeros_like(output))
    position = old.position
    if call.reset is not None:
        position = torch.where(call.reset[:, 0], torch.zeros_like(position), position)
    return Result(output[:, None], replace(old, memory={"S": S}, buffers=buffers, position=position))


def _shaped(
    memory: Memory, call: Call, k: Tensor, lr: Tensor | None, second: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The written key under `Diagonal`, and its buffer."""
    gates = call.gates
    evidence = lr if gates.precond_lr is None else gates.precond_lr[:, 0]
    if gates.precond_log_decay is not None:
        second = gates.precond_log_decay[:, 0].exp()[..., None] * second
    second = second + (k.square() if evidence is None else evidence[..., None] * k.square())
    scalars = all_parameters(memory, call.state.parameters, k.dtype, k.device)
    return scale(memory, second, scalars) * k, {"second": second}


def _home(memory: Memory, state: State) -> Tensor | None:
    """The initial memory, when the decay goes toward it."""
    toward = isinstance(memory.retention, Decay) and memory.retention.toward == "init"
    return state.initial["S"] if toward else None


def _tile(cut: Tiles, x: Tensor) -> Tensor:
    """[B, T, H, ...] to [B, H, N, c, ...]."""
    return cut.gather(x).movedim(3, 1)
