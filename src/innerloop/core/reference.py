"""The oracle: `scan` runs the equation token by token and knows nothing else.

Per unmasked token: (1) a reset restores the initial body; (2) at position 0 the anchor becomes the memory; (3) the
pair enters the window; (4) body = learner.write(problem, body, gates); (5) the read stands before or after (4), by
`order`; (6) the position advances modulo `segment`. A masked token is the identity and reads 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .architecture import Architecture, Exemplars
from .axis import Weights
from .learner import Learner
from .linalg import power, quadratic, solve_psd, solve_ridge
from .memory import Gates, Memory
from .objective import Objective
from .retention import Retention
from .solvers import Append, Kalman, Ridge
from .state import State, all_parameters


class Result(NamedTuple):
    """What a call returns: output [B, T, H, V], the state after it, and the asked `info` by name, [B, T, H] each."""

    output: Tensor
    state: State
    info: dict[str, Tensor] | None = None


@dataclass(frozen=True)
class TorchProblem:
    """One token for a learner, in PyTorch. See `learner.Problem`."""

    architecture: Architecture  # behind the feature map
    objective: Objective
    retention: Retention
    key: Tensor
    value: Tensor
    gates: Any
    initial: Weights
    anchor: Weights | None
    anchored_at: Literal["previous", "retained"]
    apply: Literal["token", "segment"]
    segment: int
    position: Tensor
    scalars: Mapping[str, Tensor]
    constants: Weights  # the outer parameters, which no learner sees
    keys: Tensor  # [B, H, W, K]: the window, oldest first (W = 1: the pair itself)
    values: Tensor
    gammas: Tensor  # [B, H, W]: its weights, 0 where there is no pair yet
    own: Mapping[str, Tensor]  # the objective's scalars, [B, H, W or 1]
    channel_rates: Tensor | None = None  # [B, H, V]: step sizes that weigh the error

    @property
    def closes(self) -> Tensor:
        """Whether the token is the segment's last."""
        return self.position == self.segment - 1

    def gradient(self, weights: Weights) -> Weights:
        """Gradient of the window's loss by autograd (works under no_grad, and is itself differentiable)."""
        rates = self.channel_rates
        if rates is None:
            return torch.func.grad(self._loss)(weights)
        # the chain rule with the loss's own gradient weighed channel by channel
        error = -torch.func.grad(lambda p: (self.gammas * self._losses(p)).sum())(self._answers(weights))
        return torch.func.grad(lambda w: -(self._answers(w) * rates[..., None, :] * error).sum())(weights)

    def surprise(self, weights: Weights) -> Weights:
        """The gradient of the loss itself, whatever the step sizes."""
        return torch.func.grad(self._loss)(weights)

    def _answers(self, weights: Weights) -> Tensor:
        return self.architecture.apply({**self.constants, **weights}, self.keys)

    def _losses(self, predictions: Tensor) -> Tensor:
        given = (self.own,) if self.own else ()
        return self.objective.loss(predictions, self.values, *given)

    def _loss(self, weights: Weights) -> Tensor:
        return (self.gammas * self._losses(self._answers(weights))).sum()

    def with_gates(self, **gates: Any) -> TorchProblem:
        """The same token under other gates."""
        return replace(self, gates=self.gates._replace(**gates))

    def parameter(self, name: str) -> Tensor:
        """[B or 1, H or 1, K or 1]."""
        return self.scalars[name]

    def solve(self, matrix: Tensor, right: Tensor) -> Tensor:
        """`solve_psd`."""
        return solve_psd(matrix, right)

    def quadratic(self, matrix: Tensor, x: Tensor) -> Tensor:
        """`linalg.quadratic`."""
        return quadratic(matrix, x)

    def expm(self, matrix: Tensor) -> Tensor:
        """`torch.linalg.matrix_exp`."""
        return torch.linalg.matrix_exp(matrix)

    def power(self, matrix: Tensor, exponent: float) -> Tensor:
        """`linalg.power`."""
        return power(matrix, exponent)


def scan(
    memory: Memory, q: Tensor, k: Tensor, v: Tensor, gates: Gates, state: State, mask: Tensor | None,
    reset: Tensor | None, info: tuple[str, ...],
) -> Result:  # fmt: skip
    """The whole sequence, token by token, on checked tensors in the computing dtype (see `innerloop.scan`)."""
    outputs: list[Tensor] = []
    notes: dict[str, list[Tensor]] = {name: [] for name in info}
    for t in range(q.shape[1]):
        token = Gates(*(None if g is None else g[:, t] for g in gates))
        here = None if mask is None else mask[:, t]
        fresh = None if reset is None else reset[:, t]
        output, state, told = _token(memory, q[:, t], k[:, t], v[:, t], token, state, here, fresh, info)
        outputs.append(output)
        for name in info:
            notes[name].append(told[name])
    shape = (q.shape[0], 0, q.shape[2])
    output = torch.stack(outputs, 1) if outputs else q.new_zeros(*shape, v.shape[-1])
    stacked = {n: torch.stack(told, 1) if told else q.new_zeros(shape) for n, told in notes.items()}
    return Result(output, state, stacked if info else None)


def read(memory: Memory, q: Tensor, state: State) -> Tensor:
    """Answers to queries [B, H, n, K] by the memory as it stands: [B, H, n, V]."""
    parameters = all_parameters(memory, state.parameters, q.dtype, q.device)
    if isinstance(memory.architecture, Exemplars):
        return _read_exemplars(memory.architecture, q, state.memory, parameters)
    return memory.architecture.apply(read_weights(memory, state, parameters), q)


def read_weights(memory: Memory, state: State, parameters: Mapping[str, Tensor]) -> Weights:
    """The weights that a read uses: the solver's, through the retention's link; the outer parameters with them.

    With apply="segment" they are those of the segment's start until its last token has been written.
    """
    held, constants = split(memory, state.memory)
    if memory.apply == "segment" and memory.segment > 1:
        held = _choose(state.position == 0, held, state.anchor)
    weights = memory.learner.weights(held, parameters, solve_psd)
    return {**constants, **memory.retention.link(weights, parameters)}


def split(memory: Memory, entries: Mapping[str, Tensor]) -> tuple[Weights, Weights]:
    """What is written, and the outer parameters."""
    outer = memory.architecture.constants(1, 1)
    return {n: t for n, t in entries.items() if n not in outer}, {n: t for n, t in entries.items() if n in outer}


def _token(
    memory: Memory, q: Tensor, k: Tensor, v: Tensor, gates: Gates, state: State, mask: Tensor | None,
    reset: Tensor | None, info: tuple[str, ...],
) -> tuple[Tensor, State, dict[str, Tensor]]:  # fmt: skip
    """One token: q, k [B, H, K], v [B, H, V], gates [B, H, ...], mask and reset [B] or None."""
    if reset is not None:
        state = _restored(state, reset)  # (1)
    before = state
    if memory.segment > 1:
        held, _ = split(memory, state.memory)
        state = replace(state, anchor=_choose(state.position == 0, held, state.anchor))  # (2)
    problem, state = _problem(memory, k, v, gates, state)  # (3)
    written = _write(memory, problem, state, mask)  # (4)
    written = replace(written, position=(state.position + 1) % memory.segment)  # (6)
    after = written if mask is None else _blend(mask, written, before)
    reader = before if memory.order == "read-write" else after  # (5)
    output = read(memory, q[:, :, None], reader)[:, :, 0]
    told = {name: _note(name, memory, problem, before, after) for name in info}
    if mask is not None:
        output = torch.where(mask[:, None, None], output, torch.zeros_like(output))
        told = {n: x if n == "memory_norm" else torch.where(mask[:, None], x, 0 * x) for n, x in told.items()}
    return output, after, told


def _problem(memory: Memory, k: Tensor, v: Tensor, gates: Gates, state: State) -> tuple[TorchProblem, State]:
    """The token's problem, and the state with the pair in its window."""
    parameters = all_parameters(memory, state.parameters, k.dtype, k.device)
    keys, values = k[:, :, None], v[:, :, None]
    gammas = torch.ones_like(k[..., :1])
    own = {name: parameters[name] for name in memory.objective.parameters}
    own |= {n: g[..., None] for n in memory.objective.gates if (g := getattr(gates, n)) is not None}
    if memory.window > 1:
        past = state.window
        keys, values = torch.cat([past["keys"], keys], 2), torch.cat([past["values"], values], 2)
        valid = torch.cat([past["valid"], torch.ones_like(past["valid"][:, :1])], 1)
        # the gate counts back from the token (gamma of t, t-1, ...), the window is kept oldest first
        gammas = gammas.expand(*k.shape[:2], memory.window) if gates.window is None else gates.window.flip(-1)
        gammas = gammas * valid[:, None, :]
        for name in memory.objective.gates:
            own[name] = torch.cat([past[name], own[name].expand(*k.shape[:2], 1)], 2)
        window = {"keys": keys[:, :, 1:], "values": values[:, :, 1:], "valid": valid[:, 1:]}
        window |= {name: own[name][:, :, 1:] for name in memory.objective.gates}
        state = replace(state, window=window)
        # a place without a pair weighs 0; its threshold must not be 0 / 0 in a gradient
        own |= {n: torch.where(valid[:, None], own[n], torch.ones_like(own[n])) for n in memory.objective.gates}
    _, constants = split(memory, state.memory)
    initial, _ = split(memory, state.initial)
    embed = memory.architecture.embed
    problem = TorchProblem(
        architecture=memory.architecture.parametric,
        objective=memory.objective,
        retention=memory.retention,
        key=embed(constants, k[:, :, None])[:, :, 0],
        value=v,
        gates=gates,
        initial=initial,
        anchor=dict(state.anchor) if memory.segment > 1 else None,
        anchored_at=memory.anchor,
        apply=memory.apply,
        segment=memory.segment,
        position=state.position,
        scalars=parameters,
        constants=constants,
        keys=embed(constants, keys),
        values=values,
        gammas=gammas,
        own=own,
        channel_rates=gates.lr if memory.rate_per == "channel" else None,
    )
    return problem, state


def _write(memory: Memory, problem: TorchProblem, state: State, mask: Tensor | None) -> State:
    if isinstance(memory.learner, Append):
        return replace(state, memory=append(state.memory, problem.keys, problem.values, mask, memory.architecture))
    learner: Learner = memory.learner
    held, constants = split(memory, state.memory)
    written, buffers = learner.write(problem, held, dict(state.buffers))
    return replace(state, memory={**written, **constants}, buffers=buffers)


def append(
    memory: Mapping[str, Tensor], keys: Tensor, values: Tensor, mask: Tensor | None, architecture: Architecture
) -> dict[str, Tensor]:
    """Exemplars [B, H, n, ...] with m more pairs, of which mask [B] or [B, m] says which count; the oldest leave.

    Canonical form: pairs that count stand to the right, in order; what stands left of them is zero.
    """
    B, _, m, _ = keys.shape
    here = torch.ones(B, m, dtype=torch.bool, device=keys.device) if mask is None else mask.reshape(B, m)
    valid = torch.cat([memory["valid"], here], 1)
    keys, values = torch.cat([memory["keys"], keys], 2), torch.cat([memory["values"], values], 2)
    if isinstance(architecture, Exemplars) and architecture.capacity is not None:
        age = valid.flip(1).cumsum(1).flip(1)  # how many valid pairs stand at or after this one
        valid = valid & (age <= architecture.capacity)
    length = int(valid.sum(1).max()) if B else 0
    order = valid.to(torch.int8).argsort(dim=1, stable=True)[:, valid.shape[1] - length :]
    valid = valid.gather(1, order)
    index = order[:, None, :, None]

    def pick(x: Tensor) -> Tensor:
        chosen = x.gather(2, index.expand(-1, x.shape[1], -1, x.shape[3]))
        return torch.where(valid[:, None, :, None], chosen, torch.zeros_like(chosen))

    return {"keys": pick(keys), "values": pick(values), "valid": valid}


def _read_exemplars(
    architecture: Exemplars, q: Tensor, memory: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
) -> Tensor:
    """The local fit around each query, solved as it is stated: weighted least squares, densely."""
    keys, values, valid = memory["keys"], memory["values"], memory["valid"]
    if not keys.shape[2]:
        return q.new_zeros(*q.shape[:-1], values.shape[-1])
    logits = architecture.log_weights(q, keys, parameters["bandwidth"][..., None])
    logits = torch.where(valid[:, None, None, :], logits, torch.full_like(logits, float("-inf")))
    some = valid.any(1)[:, None, None, None]
    logits = torch.where(some, logits, torch.zeros_like(logits))
    p = torch.softmax(logits, -1) * valid[:, None, None, :]  # an overall factor of the weights leaves the fit alone
    if architecture.order == 0:
        return p @ values
    # min over (b, W) of sum_j w_j |v_j - b - W^T (k_j - q)|^2 / 2 + penalty |W|^2 / 2. The best intercept of a slope W
    # is mean(v) - W^T (mean(k) - q), so W solves the centred problem (and W alone is small where the penalty decides).
    total = torch.where(some[..., 0], torch.logsumexp(logits, -1), torch.zeros_like(logits[..., 0]))
    relative = parameters["penalty"] * torch.exp(-total.clamp(min=-80.0))  # in units of the weights' sum, [B, H, n]
    mean, answer = p @ keys, p @ values
    centred, around = keys[:, :, None] - mean[..., None, :], values[:, :, None] - answer[..., None, :]
    weighted = p[..., None] * centred
    W = solve_ridge(weighted.mT @ centred, relative, weighted.mT @ around)
    b = answer - (W.mT @ (mean - q)[..., None])[..., 0]
    return torch.where(some, b, torch.zeros_like(b))


def _note(name: str, memory: Memory, problem: TorchProblem, before: State, after: State) -> Tensor:
    """`surprise`: norm of the gradient of the loss at the memory before the write (at the anchor in a segment).
    `memory_norm`: Frobenius norm of the weights after it. `variance`: of the answer to the key before the write."""
    if name == "variance":
        assert isinstance(memory.learner, Ridge | Kalman)
        return memory.learner.variance(problem, split(memory, before.memory)[0])
    if name == "memory_norm":
        weights = split(memory, read_weights(memory, after, problem.scalars))[0]
    else:
        at = problem.anchor or memory.learner.weights(split(memory, before.memory)[0], problem.scalars, solve_psd)
        weights = problem.surprise(memory.retention.link(at, problem.scalars))
    return torch.stack([w.flatten(2).square().sum(-1) for w in weights.values()]).sum(0).sqrt()


def _pick(flag: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(flag.reshape(-1, *(1,) * (yes.ndim - 1)), yes, no)


def _choose(flag: Tensor, yes: Mapping[str, Tensor], no: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: _pick(flag, yes[name], no[name]) for name in yes}


def _blend(mask: Tensor, new: State, old: State) -> State:
    """Row by row: the new body where the token counts, the old one where it is masked."""
    if isinstance(new.kind.learner, Append):
        return replace(new, position=old.position)  # the mask went into `valid`
    groups: dict[str, Any] = {
        g: _choose(mask, getattr(new, g), getattr(old, g)) for g in ("memory", "buffers", "anchor", "window")
    }
    return replace(new, position=_pick(mask, new.position, old.position), **groups)


def _restored(state: State, reset: Tensor) -> State:
    """The rows that reset stand where they began."""
    if isinstance(state.kind.learner, Append):
        return replace(state, memory=append(
            {**state.memory, "valid": state.memory["valid"] & ~reset[:, None]},
            state.memory["keys"][:, :, :0], state.memory["values"][:, :, :0],
            state.memory["valid"][:, :0], state.kind.architecture,
        ))  # fmt: skip
    zeros = {name: torch.zeros_like(t) for name, t in state.buffers.items()}
    window = dict(state.window)
    if window:
        window = _choose(reset, {name: torch.zeros_like(t) for name, t in window.items()}, window)
    return replace(
        state,
        memory=_choose(reset, state.initial, state.memory),
        buffers=_choose(reset, zeros, state.buffers),
        anchor=_choose(reset, {n: state.initial[n] for n in state.anchor}, state.anchor),
        window=window,
        position=_pick(reset, torch.zeros_like(state.position), state.position),
    )
