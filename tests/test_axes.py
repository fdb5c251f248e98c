"""Each axis alone: errors against autograd, retentions by hand, learners against autograd or a direct solve, JSON."""

from __future__ import annotations

from dataclasses import dataclass, fields
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

torch.set_num_threads(1)

B, H, K, V = 2, 3, 4, 3


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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


LR = 0.1 + 0.8 * torch.rand(B, H, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


# objectives


@pytest.mark.parametrize("objective", [il.Dot(), il.L2()])
def test_error_is_the_negative_gradient_of_the_loss(objective: Any) -> None:
    prediction, value = normal(B, H, V).requires_grad_(), normal(B, H, V, seed=1)
    (gradient,) = torch.autograd.grad(objective.loss(prediction, value).sum(), prediction)
    assert_close(objective.error(prediction, value), -gradient, "error")
    assert objective.loss(prediction, value).shape == (B, H)


def test_losses_by_hand() -> None:
    prediction, value = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])
    assert float(il.L2().loss(prediction, value)) == 6.5  # (4 + 9) / 2: the loss carries 1/2
    assert float(il.Dot().loss(prediction, value)) == -1.0


# architectures


def test_matrix_reads_by_its_transpose() -> None:
    S, x = normal(B, H, K, V), normal(B, H, 5, K, seed=1)
    assert_close(il.Matrix().apply({"S": S}, x), torch.einsum("bhkv,bhnk->bhnv", S, x), "S^T x")
    assert il.Matrix().shapes(K, V) == {"S": (K, V)}


def test_kernels_by_hand() -> None:
    q, k, h = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0, 1.0]]]), torch.tensor(2.0)
    assert float(il.Exemplars("exp").log_weights(q, k, h)) == pytest.approx(5 / 4)
    assert float(il.Exemplars("gaussian").log_weights(q, k, h)) == pytest.approx(-5 / 8)  # -(4 + 1) / (2 * 4)


# retentions


def test_keep_and_decay_by_hand() -> None:
    S, S0, step = ({"S": normal(B, H, K, V, seed=s)} for s in (0, 1, 2))
    a = LR.log()
    assert il.Keep().keep(S, a, S0) is S
    assert_close(il.Keep().merge(S, step, None, S0)["S"], S["S"] + step["S"], "Keep.merge")
    whole = LR[..., None, None]
    assert_close(il.Decay("head").keep(S, a, S0)["S"], whole * S["S"], "decay per head")
    assert_close(il.Decay("head").merge(S, step, a, S0)["S"], whole * S["S"] + step["S"], "Decay.merge")
    home = il.Decay("head", toward="init").keep(S, a, S0)["S"]
    assert_close(home, S0["S"] + whole * (S["S"] - S0["S"]), "toward the initial memory")
    channels = -torch.rand(B, H, K, dtype=torch.float64)
    assert_close(il.Decay("channel").keep(S, channels, S0)["S"], channels.exp()[..., None] * S["S"], "per channel")
    assert il.Decay().keep(S, None, S0) is S
    gone = il.Decay().keep(S, torch.full((B, H), float("-inf"), dtype=torch.float64), S0)["S"]
    assert torch.equal(gone, torch.zeros_like(gone))


def test_retnet_schedule() -> None:
    schedule = il.Decay(schedule="retnet").scheduled(4)
    assert schedule is not None
    assert np.exp(schedule) == pytest.approx([31 / 32, 63 / 64, 127 / 128, 255 / 256], rel=1e-15)
    assert il.Decay().scheduled(4) is None


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


# values


AXES: list[Any] = [
    il.Matrix(),
    il.Exemplars("gaussian", 1, 0.3, 7, 2.0),
    il.Dot(),
    il.L2(),
    il.Keep(),
    il.Decay("channel", toward="init"),
    il.Decay(schedule="retnet"),
    il.GradientStep(),
    il.Momentum(0.3),
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
    from innerloop.core.learner import GradientLearner, Learner
    from innerloop.core.objective import Objective
    from innerloop.core.retention import Retention

    kinds = {Axis, Architecture, GradientLearner, Learner, Objective, Retention}
    ours = {c for c in Axis._classes.values() if c.__module__.startswith("innerloop") and c not in kinds}
    assert ours == {type(axis) for axis in AXES}


INF, NAN = float("inf"), float("nan")
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (il.Exemplars, {"kernel": "box"}, "kernel"),
    (il.Exemplars, {"order": 2}, "order"),
    (il.Exemplars, {"bandwidth": 0.0}, "bandwidth"),
    (il.Exemplars, {"capacity": 0}, "capacity"),
    (il.Exemplars, {"penalty": -1.0}, "penalty"),
    (il.Decay, {"per": "token"}, "per"),
    (il.Decay, {"toward": "mean"}, "toward"),
    (il.Decay, {"schedule": "cosine"}, "schedule"),
    (il.Decay, {"per": "channel", "schedule": "retnet"}, "schedule"),
    (il.Momentum, {"coefficient": 1.5}, "coefficient"),
    (il.Momentum, {"coefficient": -0.1}, "coefficient"),
    (il.Ridge, {"penalty": -1.0}, "penalty"),
    (il.Ridge, {"penalty": INF}, "penalty"),
    (il.Ridge, {"penalty": NAN}, "penalty"),
    (il.Ridge, {"penalty": True}, "penalty"),
    (il.Ridge, {"penalty": "1"}, "penalty"),
    (il.Ridge, {"rule": "sliding"}, "rule"),
    (il.Kalman, {"process_noise": -1.0}, "process_noise"),
    (il.Kalman, {"observation_noise": 0.0}, "observation_noise"),
    (il.Kalman, {"prior_variance": 0.0}, "prior_variance"),
]


@pytest.mark.parametrize(("kind", "options", "named"), REFUSED, ids=str)
def test_scalars_and_words_out_of_range_are_refused(kind: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        kind(**options)


@dataclass(frozen=True)
class Cubic(il.L2):
    """An objective of the user's own."""


M, X, D2 = il.Matrix(), il.Exemplars(), il.Decay()
MEANINGLESS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((X, il.L2(), il.Keep(), il.GradientStep()), {}, "Append"),
    ((M, il.L2(), il.Keep(), il.Append()), {}, "Append"),
    ((X, il.L2(), D2, il.Append()), {}, "Keep"),
    ((M, il.L2(), D2, il.Kalman()), {}, "Keep"),
    ((X, il.Dot(), il.Keep(), il.Append()), {}, "L2"),
    ((M, il.Dot(), il.Keep(), il.Proximal()), {}, "L2"),
    ((M, il.Dot(), il.Keep(), il.GradientFlow()), {}, "L2"),
    ((M, il.Dot(), il.Keep(), il.Ridge()), {}, "L2"),
    ((M, il.Dot(), il.Keep(), il.Kalman()), {}, "L2"),
    ((M, il.L2(), il.Keep(), il.Proximal()), {"anchor": "retained"}, "anchor"),
    ((M, il.L2(), il.Decay("channel"), il.Ridge()), {}, "per head"),
    ((M, il.L2(), il.Decay(toward="init"), il.Ridge()), {}, "per head"),
    ((M, il.L2(), il.Keep(), il.Proximal()), {"window": 2}, "window"),
    ((M, il.L2(), il.Keep(), il.Ridge()), {"segment": 2}, "segment"),
    ((X, il.L2(), il.Keep(), il.Append()), {"window": 2}, "window"),
    ((X, il.L2(), il.Keep(), il.Append()), {"segment": 4}, "segment"),
    ((M, il.L2(), D2, il.GradientStep()), {"segment": 2, "anchor": "retained"}, "segment"),
    ((M, il.L2(), D2, il.GradientStep()), {"apply": "segment"}, "apply"),
]


@pytest.mark.parametrize(("axes", "options", "named"), MEANINGLESS, ids=lambda x: str(x)[:60])
def test_combinations_that_mean_nothing_are_refused(axes: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        il.Memory(*axes, **options)


def test_executors_refuse_what_they_do_not_know() -> None:
    """A subclass may change the mathematics, so the fast forms of its parent decline it, and say so."""
    memory = il.Memory(M, Cubic(), il.Keep(), il.GradientStep())
    explained = il.explain(memory)
    assert explained.executor == "loop"
    assert any("Dot or L2" in reason for reason in explained.declined["affine"])
    q, k, v = normal(1, 3, 1, 2), normal(1, 3, 1, 2, seed=1), normal(1, 3, 1, 2, seed=2)
    with pytest.raises(ValueError, match="affine"):
        il.chunked(memory, q, k, v, executor="affine")


def test_learners_need_only_their_protocol() -> None:
    """`Problem` is all that a learner sees: a plain namespace will do (another framework brings its own)."""
    key, value, S = normal(B, H, K), normal(B, H, V), normal(B, H, K, V)
    seen = SimpleNamespace(
        key=key,
        value=value,
        gates=il.Gates(),
        retention=il.Keep(),
        initial={},
        anchor=None,
        anchored_at="previous",
        gradient=lambda w: w,
        parameter=None,
        solve=None,
        expm=None,
    )
    assert_close(
        il.GradientStep().write(seen, {"S": S}, {})[0]["S"], 0 * S, "lr 1 along a gradient equal to the memory", scale=1
    )
