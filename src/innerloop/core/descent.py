"""One token of any gradient learner: gradient at the anchor, the learner's step, the retention's merge.

    g_t = gradient of the loss at the anchor (of the window's, when there is one)
    m_t = settle(keep(m_{t-1}) + step(g_t))                  apply "token"

With apply "segment" whatever is not linear waits for the segment's last token, and until then every read sees the
segment's start. A linear learner keeps moving the memory (a link's dual variable) token by token, and the link, norm or
prox acts at the end; the prox then with the sum of the step sizes. For a learner that is not linear, gradients are
summed, and it takes one step at the end: with the mean of the segment's step sizes and momenta and with the product of
its decays.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from .axis import Array, Weights
from .learner import Buffers, GradientLearner, GradientStep, LinearLearner, Problem, clipped, rates
from .retention import Decay, ElasticNet, Retention, expand

PENDING = "pending."
"""Prefix of the buffers that hold a segment's sums until its last token."""


def pending_shapes(
    learner: GradientLearner, retention: Retention, weights: dict[str, tuple[int, ...]], named: int
) -> dict[str, tuple[int, ...]]:
    """Buffers of a memory with apply "segment"; `named` counts the step sizes of a token (0: one)."""
    lr: dict[str, tuple[int, ...]] = {PENDING + "lr": (named,) if named else ()}
    if learner.linear:
        return lr if isinstance(retention, ElasticNet) else {}
    sums: dict[str, tuple[int, ...]] = {PENDING + name: shape for name, shape in weights.items()}
    more = [name for name in ("momentum", "log_decay") if name in (*learner.gates, *retention.gates)]
    out = sums | lr | {PENDING + name: () for name in more}
    if isinstance(retention, Decay) and retention.per == "channel":
        out[PENDING + "log_decay"] = next(iter(weights.values()))[:1]
    return out


def descend(learner: GradientLearner, problem: Problem, memory: Weights, buffers: Buffers) -> tuple[Weights, Buffers]:
    """The memory and buffers after the token."""
    retention, decay = problem.retention, problem.gates.log_decay
    at = problem.anchor or memory
    if problem.anchor is None and problem.anchored_at == "retained":
        at = retention.keep(memory, decay, problem.initial)
    gradient = _gradient(learner, problem, at)
    if isinstance(learner, GradientStep) and learner.average:
        return _mean_step(problem, gradient, problem.anchor or memory, buffers)
    if problem.apply == "segment":
        wait = _wait_linear if learner.linear else _wait
        return wait(learner, problem, gradient, memory, buffers)
    step, buffers = learner.update(problem, gradient, buffers)
    lr = rates(problem, step)
    if learner.weighs_inside:  # the step has no size of its own
        lr = {name: array_namespace(r).ones_like(r) for name, r in lr.items()}
    memory = retention.merge(memory, step, decay, problem.initial, lr, problem.scalars)
    for _ in range(learner.num_steps - 1 if isinstance(learner, GradientStep) else 0):
        step, buffers = learner.update(problem, _gradient(learner, problem, memory), buffers)
        memory = retention.merge(memory, step, None, problem.initial, lr, problem.scalars)
    return memory, buffers


def _gradient(learner: GradientLearner, problem: Problem, at: Weights) -> Weights:
    gradient = problem.gradient(problem.retention.link(at, problem.scalars))
    return clipped(gradient, getattr(learner, "max_norm", None)) if isinstance(learner, LinearLearner) else gradient


def _mean_step(problem: Problem, gradient: Weights, anchor: Weights, buffers: Buffers) -> tuple[Weights, Buffers]:
    """`m_t = m_anchor - scale_t sum_{j<=t} lr_j g_j`."""
    lr = rates(problem, gradient)
    begins = problem.position == 0
    total = {
        n: _choose(begins, array_namespace(s).zeros_like(s), s) + expand(lr[n], s) * gradient[n]
        for n, s in buffers.items()
    }
    scale = problem.gates.scale
    if scale is None:
        count = problem.position + 1
        scale = array_namespace(problem.key).ones_like(problem.key[..., 0]) / count[:, None]
    return {n: anchor[n] - expand(scale, s) * s for n, s in total.items()}, total


def _wait_linear(
    learner: GradientLearner, problem: Problem, gradient: Weights, memory: Weights, buffers: Buffers
) -> tuple[Weights, Buffers]:
    own, pending = _split(buffers)
    step, own = learner.update(problem, gradient, own)
    moved = problem.retention.accumulate(memory, step, problem.gates.log_decay, problem.initial)
    lr = rates(problem, step)
    total = _with_rates(problem, pending, lr)
    if total:
        lr = _by_weight(problem, total[PENDING + "lr"], lr)
    settled = problem.retention.settle(moved, problem.initial, lr, problem.scalars)
    return _closing(problem, settled, moved), own | _emptied(problem, total)


def _wait(
    learner: GradientLearner, problem: Problem, gradient: Weights, memory: Weights, buffers: Buffers
) -> tuple[Weights, Buffers]:
    own, pending = _split(buffers)
    lr = rates(problem, gradient)
    total = _with_rates(problem, pending, lr)
    for name, g in gradient.items():
        total[PENDING + name] = pending[PENDING + name] + (expand(lr[name], g) * g if learner.weighs_inside else g)
    if PENDING + "momentum" in pending:
        given = problem.gates.momentum
        more = getattr(learner, "coefficient", 0.0) if given is None else given
        total[PENDING + "momentum"] = pending[PENDING + "momentum"] + more
    if PENDING + "log_decay" in pending and problem.gates.log_decay is not None:
        total[PENDING + "log_decay"] = pending[PENDING + "log_decay"] + problem.gates.log_decay
    merged, moved = pooled_step(learner, problem, memory, own, total)
    return _closing(problem, merged, memory), _closing(problem, moved, own) | _emptied(problem, total)


def pooled_step(
    learner: GradientLearner, problem: Problem, memory: Weights, own: Buffers, total: Buffers
) -> tuple[Weights, Buffers]:
    """The one step of a segment from its sums (named as in `pending_shapes`): the memory, the learner's own buffers."""
    lr = total[PENDING + "lr"] / problem.segment
    gates: dict[str, Any] = {"lr": array_namespace(lr).ones_like(lr) if learner.weighs_inside else lr}
    if PENDING + "momentum" in total:
        gates["momentum"] = total[PENDING + "momentum"] / problem.segment
    decay = total.get(PENDING + "log_decay")
    if decay is not None:
        gates["log_decay"] = decay
    last = problem.with_gates(**gates)
    step, moved = learner.update(last, {name: total[PENDING + name] for name in memory}, own)
    return problem.retention.merge(memory, step, decay, problem.initial, rates(last, step), problem.scalars), moved


def _split(buffers: Buffers) -> tuple[Buffers, Buffers]:
    """The learner's own buffers, and the segment's sums."""
    own = {n: b for n, b in buffers.items() if not n.startswith(PENDING)}
    return own, {n: b for n, b in buffers.items() if n.startswith(PENDING)}


def _with_rates(problem: Problem, pending: Buffers, lr: Weights) -> Buffers:
    """The sums with this token's step sizes added; the others are copied."""
    if PENDING + "lr" not in pending:
        return dict(pending)
    named = problem.architecture.rates
    one = next(iter(lr.values()))
    token = array_namespace(one).stack([lr[name] for name in named], axis=-1) if named else one
    return {**pending, PENDING + "lr": pending[PENDING + "lr"] + token}


def _by_weight(problem: Problem, total: Array, lr: Weights) -> Weights:
    named = problem.architecture.rates
    return {name: total[..., named.index(name)] if named else total for name in lr}


def _emptied(problem: Problem, total: Buffers) -> Buffers:
    return {n: _choose(problem.closes, array_namespace(b).zeros_like(b), b) for n, b in total.items()}


def _closing(problem: Problem, last: Weights, before: Weights) -> Weights:
    """`last` in the rows whose segment ends at this token."""
    return {name: _choose(problem.closes, last[name], before[name]) for name in before}


def _choose(flag: Array, yes: Array, no: Array) -> Array:
    """Row by row of the batch."""
    return array_namespace(yes).where(flag.reshape((-1,) + (1,) * (yes.ndim - 1)), yes, no)
