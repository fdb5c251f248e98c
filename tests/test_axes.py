"""Learners that are linear or exact, against autograd and direct solves; deep memories that are shallow ones; JSON.

The other axes: test_architectures.py, test_objectives.py, test_retentions.py, test_preconditioned.py; what is refused:
test_refusals.py; whole rules, token by token: test_segment_rules.py.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

import innerloop as il
from innerloop.core.axis import Axis
from innerloop.core.linalg import solve_psd
from innerloop.core.reference import TorchProblem
from innerloop.testing import assert_close
from test_preconditioned import normal, uniform

torch.set_num_threads(1)

B, H, K, V = 2, 3, 4, 3


def problem(
    learner_gates: dict[str, Tensor] | None = None,
    *,
    objective: Any = None,
    retention: Any = None,
    parameters: dict[str, float] | None = None,
    anchor: Any = None,
    anchored_at: Any = "previous",
) -> TorchProblem:
    key, value = normal(B, H, K, seed=1), normal(B, H, V, seed=2)
    scalars = {n: torch.full((1, 1, 1), x, dtype=torch.float64) for n, x in (parameters or {}).items()}
    initial = {"S": normal(B, H, K, V, seed=3), "gram": 0.5 * torch.eye(K, dtype=torch.float64).expand(B, H, K, K)}
    initial["moment"] = initial["gram"] @ initial["S"]
    return TorchProblem(
        architecture=il.Matrix(),
        objective=objective or il.L2(),
        retention=retention or il.Keep(),
        key=key,
        value=value,
        gates=il.Gates(**(learner_gates or {})),
        initial=initial,
        anchor=anchor,
        anchored_at=anchored_at,
        apply="token",
        segment=1,
        position=torch.zeros(B, dtype=torch.int64),
        scalars=scalars,
        constants={},
        keys=key[:, :, None],
        values=value[:, :, None],
        gammas=torch.ones(B, H, 1, dtype=torch.float64),
        own={},
    )


LR = uniform(B, H, seed=4)


# learners


@pytest.mark.parametrize("objective", [il.Dot(), il.L2()])
@pytest.mark.parametrize("anchored_at", ["previous", "retained"])
def test_gradient_step(objective: Any, anchored_at: Any) -> None:
    """The step is -lr times autograd's gradient at the anchor, added to what is kept."""
    decay = -LR
    p = problem({"lr": LR, "log_decay": decay}, objective=objective, retention=il.Decay(), anchored_at=anchored_at)
    S = normal(B, H, K, V, seed=7)
    kept = decay.exp()[..., None, None] * S
    at = (kept if anchored_at == "retained" else S).clone().requires_grad_()
    loss = objective.loss((at.mT @ p.key[..., None])[..., 0], p.value).sum()
    (gradient,) = torch.autograd.grad(loss, at)
    written, buffers = il.GradientStep().write(p, {"S": S}, {})
    assert_close(written["S"], kept - LR[..., None, None] * gradient, "one step")
    assert buffers == {}
    assert_close(p.gradient({"S": at.detach()})["S"], gradient, "the problem's gradient")


def test_gradient_is_taken_at_the_segments_anchor() -> None:
    held = {"S": normal(B, H, K, V, seed=8)}
    p = problem({"lr": LR}, anchor=held)
    S = normal(B, H, K, V, seed=7)
    residual = (held["S"].mT @ p.key[..., None])[..., 0] - p.value
    wanted = S - LR[..., None, None] * p.key[..., :, None] * residual[..., None, :]
    assert_close(il.GradientStep().write(p, {"S": S}, {})[0]["S"], wanted, "anchored elsewhere")


def test_momentum() -> None:
    """U <- m U - lr g, S <- S + U, with the gate and with the learner's own coefficient."""
    S, U = normal(B, H, K, V, seed=7), normal(B, H, K, V, seed=8)
    for momentum, factor in ((LR / 2, (LR / 2)[..., None, None]), (None, 0.7)):
        p = problem({"lr": LR} | ({} if momentum is None else {"momentum": momentum}))
        gradient = p.gradient({"S": S})["S"]
        written, buffers = il.Momentum(0.7).write(p, {"S": S}, {"S": U})
        past = factor * U - LR[..., None, None] * gradient
        assert_close(buffers["S"], past, "surprise")
        assert_close(written["S"], S + past, "memory")


def test_proximal_is_stationary() -> None:
    """The gradient of 1/2 |S - keep(S0)|^2 + lr/2 |S^T k - v|^2 vanishes at what the learner writes."""
    p = problem({"lr": 5 * LR, "log_decay": -LR}, retention=il.Decay())
    S0 = normal(B, H, K, V, seed=7)
    S = il.Proximal().write(p, {"S": S0}, {})[0]["S"].requires_grad_()
    residual = (S.mT @ p.key[..., None])[..., 0] - p.value
    cost = (
        0.5 * (S - (-LR).exp()[..., None, None] * S0).square().sum() + 0.5 * (5 * LR * residual.square().sum(-1)).sum()
    )
    (gradient,) = torch.autograd.grad(cost, S)
    assert float(gradient.abs().max()) < 1e-12


def test_gradient_flow_solves_its_equation() -> None:
    """Against a general integrator of ordinary differential equations, per batch row and head."""
    p = problem({"lr": 2 * LR})
    S0 = normal(B, H, K, V, seed=7)
    written = il.GradientFlow().write(p, {"S": S0}, {})[0]["S"]
    for b in range(B):
        for h in range(H):
            k, v = p.key[b, h].numpy(), p.value[b, h].numpy()

            def slope(_: float, s: Any, k: Any = k, v: Any = v) -> Any:
                return -np.outer(k, s.reshape(K, V).T @ k - v).ravel()

            flow = solve_ivp(slope, (0, float(2 * LR[b, h])), S0[b, h].numpy().ravel(), rtol=1e-11, atol=1e-12)
            assert np.abs(flow.y[:, -1].reshape(K, V) - written[b, h].numpy()).max() < 1e-8


@pytest.mark.parametrize("rule", ["exponential", "static", "regularized", "directional"])
def test_ridge_writes(rule: Any) -> None:
    """One write from any state: the argmin that the rule names, solved directly."""
    f, weight = 0.8, LR
    p = problem(
        {"lr": weight, "log_decay": torch.full((B, H), np.log(f), dtype=torch.float64)},
        retention=il.Decay(),
        parameters={"penalty": 0.3},
    )
    M = normal(B, H, K, K, seed=9)
    A, w = M @ M.mT + torch.eye(K, dtype=torch.float64), normal(B, H, K, V, seed=10)
    k, kk = p.key, weight[..., None, None] * p.key[..., :, None] * p.key[..., None, :]
    written = il.Ridge(0.3, rule).write(p, {"gram": A, "moment": A @ w}, {})[0]
    prior = 0.3 * torch.eye(K, dtype=torch.float64)
    if rule in ("exponential", "static"):
        gram = f * A + kk
        moment = f * A @ w + weight[..., None, None] * k[..., :, None] * p.value[..., None, :]
    else:
        if rule == "regularized":
            before = f * A + (1 - f) * prior
        else:
            Ak = (A @ k[..., None])[..., 0]
            before = A - (1 - f) * Ak[..., :, None] * Ak[..., None, :] / (k * Ak).sum(-1)[..., None, None]
        gram = before + kk
        # argmin |S - w|^2 in the metric `before`, plus the weighted pair: the mean is kept, the evidence faded
        moment = before @ w + weight[..., None, None] * k[..., :, None] * p.value[..., None, :]
    assert_close(written["gram"], gram, "gram")
    assert_close(written["moment"], moment, "moment")
    scalars = {"penalty": torch.full((1, 1, 1), 0.3, dtype=torch.float64)}
    read = il.Ridge(0.3, rule).weights(written, scalars, solve_psd)["S"]
    assert_close(read, torch.linalg.solve(gram + (prior if rule == "static" else 0), moment), "what is read")


def test_kalman_conditions_a_gaussian() -> None:
    """Against the information form: precision + k k^T / noise, after the walk's noise was added."""
    p = problem({"lr": LR}, parameters={"process_noise": 0.2, "observation_noise": 0.5, "prior_variance": 1.0})
    M = normal(B, H, K, K, seed=9)
    P, S = M @ M.mT + torch.eye(K, dtype=torch.float64), normal(B, H, K, V, seed=10)
    written = il.Kalman(0.2, 0.5, 1.0).write(p, {"S": S, "covariance": P}, {})[0]
    prior = torch.linalg.inv(P + 0.2 * torch.eye(K, dtype=torch.float64))
    precision = prior + (LR / 0.5)[..., None, None] * p.key[..., :, None] * p.key[..., None, :]
    right = prior @ S + (LR / 0.5)[..., None, None] * p.key[..., :, None] * p.value[..., None, :]
    assert_close(written["covariance"], torch.linalg.inv(precision), "covariance")
    assert_close(written["S"], torch.linalg.solve(precision, right), "mean")


def test_solve_psd_reads_the_minimum_norm() -> None:
    """Regular and singular matrices in one batch; gradients of the regular ones stay finite."""
    M = normal(3, 4, 4)
    A = M @ M.mT
    A[1] = torch.diag(torch.tensor([2.0, 0, 3, 0], dtype=torch.float64))
    A[2] = 0
    right = normal(3, 4, 2, seed=1)
    assert_close(solve_psd(A, right), torch.linalg.pinv(A, hermitian=True) @ right, "pseudo-inverse")
    leaf = A.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(solve_psd(leaf, right)[0].sum(), leaf)
    assert bool(gradient.isfinite().all())


def test_learners_need_only_their_protocol() -> None:
    """`Problem` is all that a learner sees: a plain namespace will do (another framework brings its own)."""
    key, value, S = normal(B, H, K), normal(B, H, V), normal(B, H, K, V)
    seen = SimpleNamespace(
        key=key, value=value, gates=il.Gates(), architecture=il.Matrix(), retention=il.Keep(), initial={}, anchor=None,
        anchored_at="previous", apply="token", position=torch.zeros(B, dtype=torch.int64), segment=1, scalars={},
        closes=torch.ones(B, dtype=torch.bool), gradient=lambda w: w,
    )  # fmt: skip
    written = il.GradientStep().write(seen, {"S": S}, {})[0]["S"]
    assert_close(written, 0 * S, "lr 1 along a gradient equal to the memory", scale=1)


# deep memories that are shallow ones


T = 12
Q, KEYS, VALUES = normal(B, T, H, K, seed=11), normal(B, T, H, K, seed=12) / 2, normal(B, T, H, V, seed=13)
GATE, MORE = uniform(B, T, H, seed=14), uniform(B, T, H, seed=15)


def outputs(memory: il.Memory, initial: dict[str, Tensor] | None = None, **gates: Tensor) -> Tensor:
    state = il.init_state(memory, B, H, K, V, initial=initial, dtype=torch.float64)
    return il.scan(memory, Q, KEYS, VALUES, il.Gates(**gates), state).output


def linear(learner: Any, retention: Any = None, **options: Any) -> il.Memory:
    """A network of one layer without a bias."""
    return il.Memory(il.MLP(depth=1), il.L2(), retention or il.Keep(), learner, **options)


START = {"weight_0": normal(1, 1, K, V, seed=15)}


def test_one_token_of_linear_ttt_is_the_delta_rule() -> None:
    """Without norm and residual, in segments of one token: S <- S + lr k (v - S^T k)^T, worked out here."""
    S, wanted = START["weight_0"].expand(B, H, K, V), []
    for t in range(T):
        k, v = KEYS[:, t, :, :, None], VALUES[:, t, :, None]
        S = S + GATE[:, t, :, None, None] * k @ (v - k.mT @ S)
        wanted.append((Q[:, t, :, None] @ S)[:, :, 0])
    got = outputs(linear(il.GradientStep(average=True)), START, lr=GATE)
    assert_close(got, torch.stack(wanted, 1), "one token of TTT")


def test_titans_linear_is_the_delta_rule_with_momentum() -> None:
    """U <- m U + lr k (v - S^T k)^T, S <- a S + U; as a matrix and as a network of one layer."""
    S, U, wanted, decay = START["weight_0"].expand(B, H, K, V), torch.zeros(()), [], -GATE / 5
    for t in range(T):
        k, v = KEYS[:, t, :, :, None], VALUES[:, t, :, None]
        a, m, lr = (g[:, t, :, None, None] for g in (decay.exp(), MORE, GATE))
        U = m * U + lr * k @ (v - k.mT @ S)
        S = a * S + U
        wanted.append((Q[:, t, :, None] @ S)[:, :, 0])
    gates = {"lr": GATE, "log_decay": decay, "momentum": MORE}
    assert_close(
        outputs(il.get("titans_linear"), {"S": START["weight_0"]}, **gates), torch.stack(wanted, 1), "titans_linear"
    )
    assert_close(outputs(linear(il.Momentum(), il.Decay()), START, **gates), torch.stack(wanted, 1), "one layer")


def test_the_mean_of_ttt_decays_toward_the_segments_start() -> None:
    """D = m - m_0: scale 1/i of the sum is D <- (i-1)/i D - lr/i g (equations, section 3), the whole one segment."""
    model, count = il.MLP(2, bias=True, norm=True), torch.arange(1, T + 1, dtype=torch.float64)[:, None].expand(B, T, H)
    mean = il.Memory(model, il.L2(), il.Keep(), il.GradientStep(average=True), segment=T)
    home = il.Memory(model, il.L2(), il.Decay(toward="init"), il.GradientStep(), segment=T)
    faded = ((count - 1) / count).log()
    assert_close(outputs(mean, lr=GATE), outputs(home, lr=GATE / count, log_decay=faded), "as a decay toward init")


def test_absent_gates_are_their_documented_values() -> None:
    """lr 1, log_decay 0, momentum the learner's own, scale 1/i: written out they change nothing, segments or not."""
    one, step = torch.ones(B, T, H, dtype=torch.float64), torch.arange(T) % 4 + 1
    for options in ({}, {"segment": 4}, {"segment": 4, "apply": "segment"}):
        for learner, m in ((il.Adam(0.6), 0.6), (il.Muon(coefficient=0.3), 0.3)):
            memory = linear(learner, il.Decay(), **options)
            got = outputs(memory, START, lr=one, log_decay=0 * one, momentum=m * one)
            assert_close(outputs(memory, START), got, f"{memory}")
    small = {"weight_0": 0.1 * START["weight_0"]}
    memory = linear(il.Momentum(0.4), segment=4)
    assert_close(outputs(memory, small), outputs(memory, small, lr=one, momentum=0.4 * one), "momentum")
    memory = linear(il.GradientStep(average=True), segment=4)
    scale = (1 / step.double())[:, None] * one
    assert_close(outputs(memory, small), outputs(memory, small, lr=one, scale=scale), "scale")


WAYS = [il.GradientStep(), il.Momentum(), il.Muon(), il.Muon(lr="inside"), il.AdaGrad(), il.Adam(), il.Shampoo()]
PASTS = [il.Keep(), il.Decay(), il.Decay("channel"), il.ElasticNet(0.1, 0.3), il.RowNorm(), il.Lq(), il.KL()]


@pytest.mark.parametrize("past", PASTS, ids=lambda r: str(r).partition(", ")[0])
@pytest.mark.parametrize("way", WAYS, ids=lambda w: f"{type(w).__name__} {getattr(w, 'lr', '')}")
def test_segments_of_one_token_are_tokens(way: Any, past: Any) -> None:
    """With segment 1 "at the segment's end" is "at the token", whatever the learner, link, norm or prox."""
    token = il.Memory(il.Matrix(), il.L2(), past, way)
    if token.learner.linear and token.retention.linear:
        with pytest.raises(ValueError, match="apply='segment'"):
            replace(token, apply="segment")
        return
    gates = {"lr": GATE / 5}
    if "momentum" in token.reads:
        gates["momentum"] = MORE
    if "log_decay" in token.reads:
        gates["log_decay"] = -GATE[..., None].expand(B, T, H, K) if past == il.Decay("channel") else -GATE
    start = {"S": START["weight_0"]}
    assert_close(outputs(replace(token, apply="segment"), start, **gates), outputs(token, start, **gates), "segment 1")


# values


AXES: list[Any] = [
    il.Matrix(),
    il.MLP(3, 3, "silu", bias=True, norm=True, residual=True, std=0.1),
    il.SwiGLU(2),
    il.polynomial(3),
    il.fourier(5, 0.7),
    il.Features(il.polynomial(3), il.MLP(2, norm=True)),
    il.Features(il.fourier(5)),
    il.Exemplars("gaussian", 1, 0.3, 7, 2.0),
    il.Dot(),
    il.L2(),
    il.Lp(1.5),
    il.Huber(0.3, "switch"),
    il.Robust(0.2),
    il.Keep(),
    il.Decay("channel", toward="init"),
    il.Decay(schedule="retnet"),
    il.ElasticNet(0.2, 0.0),
    il.RowNorm(),
    il.Lq(3.0, "corrected"),
    il.KL(2.0),
    il.GradientStep(3, per="channel", max_norm=0.1),
    il.GradientStep(average=True),
    il.Momentum(0.3, "channel", 2.0),
    il.Muon(3, "lact", "inside", 0.4),
    il.Diagonal(0.1, 2.0),
    il.AdaGrad(1e-4),
    il.Adam(0.7, 0.8, 1e-3),
    il.Shampoo(1e-3),
    il.Proximal(),
    il.GradientFlow(),
    il.Ridge(0.2, "directional"),
    il.Kalman(0.1, 2.0, 3.0),
    il.Append(),
]


@pytest.mark.parametrize("axis", AXES, ids=lambda a: type(a).__name__)
def test_axes_are_values(axis: Any) -> None:
    """JSON round trip, equality, hash, immutability."""
    again = Axis.from_dict(axis.to_dict())
    assert again == axis
    assert hash(again) == hash(axis)
    for field in fields(axis):
        with pytest.raises(AttributeError):
            setattr(axis, field.name, None)
    with pytest.raises(ValueError, match="unknown"):
        Axis.from_dict({**axis.to_dict(), "axis": "Nonsense"})
    with pytest.raises(ValueError, match=type(axis).__name__):
        Axis.from_dict({**axis.to_dict(), "nonsense": 1})


def test_every_axis_class_is_tried_above() -> None:
    from innerloop.core.architecture import Architecture
    from innerloop.core.features import FeatureMap
    from innerloop.core.learner import GradientLearner, Learner, LinearLearner
    from innerloop.core.objective import Objective
    from innerloop.core.retention import Retention, _Link

    kinds = {Axis, Architecture, FeatureMap, GradientLearner, Learner, LinearLearner, Objective, Retention, _Link}
    ours = {c for c in Axis._classes.values() if c.__module__.startswith("innerloop") and c not in kinds}
    assert ours == {type(axis) for axis in AXES}


def test_memories_are_values() -> None:
    """JSON round trip, equality and hash of memories over these axes, options included."""
    chosen: dict[str, list[Any]] = {kind: [] for kind in ("Architecture", "Objective", "Retention", "GradientLearner")}
    for axis in AXES:
        for kind, members in chosen.items():
            if isinstance(axis, getattr(il, kind)):
                members.append(axis)
    tried = 0
    options = {"window": 2, "segment": 3, "order": "read-write"}
    for axes in product(*chosen.values()):
        for more in ({}, options, {"anchor": "retained"}, {"apply": "segment", "segment": 2}):
            try:
                memory = il.Memory(*axes, **more)
            except ValueError:
                continue
            again = il.Memory.from_json(memory.to_json())
            assert again == memory
            assert hash(again) == hash(memory)
            tried += 1
    assert tried > 2000
