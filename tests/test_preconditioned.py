"""Learners that shape the gradient: against torch's optimisers, singular and eigenvalue decompositions, hand loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import innerloop as il
from innerloop.core.linalg import power
from innerloop.testing import assert_close

torch.set_num_threads(1)

B, T, H, K, V = 1, 9, 2, 4, 3
POINTWISE = (3.4445, -4.7750, 2.0315)  # Jordan's triple (Atlas); LaCT's, one for each step:
LACT = [
    (4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
]  # fmt: skip


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(*shape: int, seed: int = 0, low: float = 0.1, high: float = 0.9) -> Tensor:
    return low + (high - low) * torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Q, KEYS, VALUES = normal(B, T, H, K, seed=1), normal(B, T, H, K, seed=2), normal(B, T, H, V, seed=3)
START, LR = normal(B, H, K, V, seed=4), uniform(B, T, H, seed=5)


def run(learner: Any, retention: Any = None, **gates: Tensor) -> il.Result:
    """T tokens of a matrix under L2, from START."""
    memory = il.Memory(il.Matrix(), il.L2(), retention or il.Keep(), learner)
    state = il.init_state(memory, B, H, K, V, initial={"S": START}, dtype=torch.float64)
    return il.scan(memory, Q, KEYS, VALUES, il.Gates(lr=LR, **gates), state)


def gradient(S: Tensor, t: int, h: int) -> Tensor:
    """Of 1/2 |S^T k - v|^2 [K, V]."""
    return torch.outer(KEYS[0, t, h], S.T @ KEYS[0, t, h] - VALUES[0, t, h])


def by_hand(step: Callable[[int, int, Tensor, dict[str, Any]], Tensor], kept: Any = 1.0) -> Tensor:
    """The final memory [H, K, V] of a loop over heads and tokens; `step(t, h, gradient, memo)` is what is added."""
    heads = []
    for h in range(H):
        S, memo = START[0, h], {}
        for t in range(T):
            S = (kept if isinstance(kept, float) else kept[0, t, h]) * S + step(t, h, gradient(S, t, h), memo)
        heads.append(S)
    return torch.stack(heads)


def orthogonalised(matrix: Tensor, triples: list[tuple[float, float, float]], num_steps: int) -> Tensor:
    """Newton-Schulz by its meaning: an odd polynomial of each singular value of S / |S|_F."""
    left, s, right = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.square().sum(-1, keepdim=True).sqrt()
    for i in range(num_steps):
        a, b, c = triples[min(i, len(triples) - 1)]
        s = a * s + b * s**3 + c * s**5
    return (left * s[..., None, :]) @ right


# Newton-Schulz


@pytest.mark.parametrize("shape", [(6, 3), (3, 6), (4, 4), (1, 5), (5, 1), (2, 3, 5, 4), (2, 3, 4, 5)])
@pytest.mark.parametrize("coefficients", ["standard", "lact"])
@pytest.mark.parametrize("num_steps", [1, 2, 5, 7])
def test_newton_schulz_moves_singular_values(num_steps: int, coefficients: str, shape: tuple[int, ...]) -> None:
    matrix = normal(*shape)
    wanted = orthogonalised(matrix, [POINTWISE] if coefficients == "standard" else LACT, num_steps)
    assert_close(il.newton_schulz(matrix, num_steps, coefficients), wanted, "by singular values")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("coefficients", "low", "high"), [("standard", 0.68, 1.135), ("lact", 0.977, 1.033)])
def test_newton_schulz_lands_in_its_interval(coefficients: str, low: float, high: float, dtype: torch.dtype) -> None:
    """Singular values s and sqrt(1 - s^2), s from .01 to .7, under random rotations: all of [.01, 1]."""
    small = torch.linspace(0.0101, 0.7071, 400, dtype=torch.float64)
    s = torch.stack([small, (1 - small**2).sqrt()], -1)
    left, right = (torch.linalg.qr(normal(400, n, 2, seed=n))[0] for n in (5, 3))
    matrix = ((left * s[:, None]) @ right.mT).to(dtype)
    landed = torch.linalg.svdvals(il.newton_schulz(matrix, 5, coefficients).double())[:, :2]
    assert low <= float(landed.min()) < low + 0.02
    assert high - 0.02 < float(landed.max()) <= high


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_newton_schulz_has_no_scale(dtype: torch.dtype) -> None:
    """The same at 1e-30 and 1e30 times the size (bit for bit where the factor is a power of two); 0 gives 0."""
    matrix = normal(3, 5, 4).to(dtype)
    wanted = il.newton_schulz(matrix)
    for factor in (1e-30, 1e30):
        assert_close(il.newton_schulz(matrix * factor), wanted, f"times {factor}")
    for exponent in (-100, 100):
        assert torch.equal(il.newton_schulz(matrix * 2.0**exponent), wanted)
    zero = torch.zeros(2, 5, 4, dtype=dtype)
    zero[1] = matrix[0]
    zero.requires_grad_()
    got = il.newton_schulz(zero)
    assert not got[0].any()
    assert_close(got[1], wanted[0], "beside a zero matrix")
    (slope,) = torch.autograd.grad(got.sum(), zero)
    assert bool(slope.isfinite().all())


# Muon


@pytest.mark.parametrize("side", ["outside", "inside"])
@pytest.mark.parametrize("coefficients", ["standard", "lact"])
@pytest.mark.parametrize("gated", [True, False])
def test_muon(gated: bool, coefficients: Any, side: Any) -> None:
    """U <- m U + g and S <- a S - lr NS(U); "inside": U <- m U + lr g and S <- a S - NS(U)."""
    momentum, decay = uniform(B, T, H, seed=6), uniform(B, T, H, seed=7, low=0.8, high=0.99)
    triples = [POINTWISE] if coefficients == "standard" else LACT

    def step(t: int, h: int, g: Tensor, memo: dict[str, Any]) -> Tensor:
        m, lr = (momentum[0, t, h] if gated else 0.6), LR[0, t, h]
        memo["U"] = m * memo.get("U", 0) + (lr * g if side == "inside" else g)
        return -(1 if side == "inside" else lr) * orthogonalised(memo["U"], triples, 4)

    gates = {"momentum": momentum} if gated else {}
    result = run(il.Muon(4, coefficients, side, 0.6), il.Decay(), log_decay=decay.log(), **gates)
    assert_close(result.state.memory["S"][0], by_hand(step, decay), "muon")


def test_muon_treats_a_bias_as_a_row() -> None:
    """A vector's one singular value is its length: the step of a bias is the unit vector, moved by the polynomial."""
    memory = il.Memory(il.MLP(1, 1, bias=True), il.Dot(), il.Keep(), il.Muon(5, "standard", coefficient=0.0))
    state = il.init_state(memory, B, H, K, V, initial={"weight_0": START}, dtype=torch.float64)
    first = il.scan(memory, Q[:, :1], KEYS[:, :1], VALUES[:, :1], il.Gates(lr=LR[:, :1]), state).state
    for h in range(H):
        wanted = LR[0, 0, h] * orthogonalised(VALUES[0, :1, h], [POINTWISE], 5)[0]  # the gradient of -<v, b> is -v
        assert_close(first.memory["bias_0"][0, h], wanted, "bias")


# Adam, AdaGrad


def optimised(make: Callable[[list[Tensor]], torch.optim.Optimizer]) -> Tensor:
    """The final memory [H, K, V] of one of torch's optimisers, token by token with LR."""
    heads = []
    for h in range(H):
        S = START[0, h].clone().requires_grad_()
        optimiser = make([S])
        for t in range(T):
            optimiser.param_groups[0]["lr"] = float(LR[0, t, h])
            optimiser.zero_grad()
            (0.5 * (S.T @ KEYS[0, t, h] - VALUES[0, t, h]).square().sum()).backward()
            optimiser.step()
        heads.append(S.detach())
    return torch.stack(heads)


@pytest.mark.parametrize(("b", "second", "eps"), [(0.9, 0.99, 1e-8), (0.5, 0.9, 1e-2), (0.0, 0.999, 1e-3)])
def test_adam_is_torchs(b: float, second: float, eps: float) -> None:
    """Without a gate: the same betas, the same bias corrections, eps beside the root."""
    wanted = optimised(lambda p: torch.optim.Adam(p, betas=(b, second), eps=eps))
    assert_close(run(il.Adam(b, second, eps)).state.memory["S"][0], wanted, "Adam")
    constant = torch.full((B, T, H), b, dtype=torch.float64)
    assert_close(run(il.Adam(0.7, second, eps), momentum=constant).state.memory["S"][0], wanted, "by the gate")


@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_adagrad_is_torchs(eps: float) -> None:
    wanted = optimised(lambda p: torch.optim.Adagrad(p, eps=eps))
    assert_close(run(il.AdaGrad(eps)).state.memory["S"][0], wanted, "AdaGrad")


def test_adam_under_a_changing_gate() -> None:
    """The first moment is the weighted mean of the gradients, with the weights that the gates give, summing to one."""
    momentum, decay = uniform(B, T, H, seed=6), uniform(B, T, H, seed=7, low=0.8, high=0.99)

    def step(t: int, h: int, g: Tensor, memo: dict[str, Any]) -> Tensor:
        past = memo.setdefault("g", [])
        past.append(g)
        w = np.array([(1 - momentum[0, i, h]) * momentum[0, i + 1 : t + 1, h].prod() for i in range(t + 1)])
        u = np.array([0.99 ** (t - i) for i in range(t + 1)])
        mean = sum(float(x) * past[i] for i, x in enumerate(w / w.sum()))
        square = sum(float(x) * past[i] ** 2 for i, x in enumerate(u / u.sum()))
        return -LR[0, t, h] * mean / (square.sqrt() + 1e-8)

    result = run(il.Adam(), il.Decay(), momentum=momentum, log_decay=decay.log())
    assert_close(result.state.memory["S"][0], by_hand(step, decay), "Adam")


def test_adam_with_momentum_one_waits() -> None:
    """Momentum 1 from the start gathers nothing, and steps nowhere; afterwards it counts what came."""
    momentum = torch.ones(B, T, H, dtype=torch.float64)
    still = run(il.Adam(), momentum=momentum)
    assert torch.equal(still.state.memory["S"], START)
    momentum[:, 4:] = 0.9
    assert not torch.equal(run(il.Adam(), momentum=momentum).state.memory["S"], START)


@pytest.mark.parametrize("learner", [il.AdaGrad(), il.Adam(), il.Shampoo(), il.Muon(), il.Diagonal()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_gradient_no_step(learner: Any, dtype: torch.dtype) -> None:
    """Zero values on a zero memory, then zero keys: nothing moves, all derivatives are finite."""
    memory = il.Memory(il.Matrix(), il.L2(), il.Keep(), learner)
    k = KEYS.to(dtype).clone()
    k[:, 3:] = 0
    k.requires_grad_()
    v = torch.zeros(B, T, H, V, dtype=dtype, requires_grad=True)
    lr = LR.to(dtype).clone().requires_grad_()
    result = il.scan(memory, Q.to(dtype), k, v, il.Gates(lr=lr))
    assert not result.state.memory["S"].any()
    for slope in torch.autograd.grad(result.output.sum(), (k, v, lr), allow_unused=True):
        assert slope is None or bool(slope.isfinite().all())


# Shampoo


def eigen_power(matrix: Any, exponent: float) -> Any:
    x, vectors = np.linalg.eigh(matrix)
    return (vectors * x**exponent) @ vectors.T


@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_shampoo(eps: float) -> None:
    """L^(-1/4) g R^(-1/4) by eigenvalues; at the first tokens L and R have eps many times over among them."""

    def step(t: int, h: int, g: Tensor, memo: dict[str, Any]) -> Tensor:
        memo["L"] = memo.get("L", eps * np.eye(K)) + (g @ g.T).numpy()
        memo["R"] = memo.get("R", eps * np.eye(V)) + (g.T @ g).numpy()
        left, right = (torch.from_numpy(eigen_power(memo[side], -0.25)) for side in "LR")
        return -LR[0, t, h] * left @ g @ right

    assert_close(run(il.Shampoo(eps)).state.memory["S"][0], by_hand(step), "Shampoo")


def test_shampoo_treats_a_bias_as_a_row() -> None:
    """L is the number eps + |g|^2, and R = eps I + g g^T stretches along g: a step of (eps + |g|^2)^(-1/2) g."""
    memory = il.Memory(il.MLP(1, 1, bias=True), il.Dot(), il.Keep(), il.Shampoo(1e-3))
    state = il.init_state(memory, B, H, K, V, initial={"weight_0": START}, dtype=torch.float64)
    first = il.scan(memory, Q[:, :1], KEYS[:, :1], VALUES[:, :1], il.Gates(lr=LR[:, :1]), state).state
    for h in range(H):
        v = VALUES[0, 0, h]
        wanted = LR[0, 0, h] * v / (1e-3 + v.square().sum()).sqrt()
        assert_close(first.memory["bias_0"][0, h], wanted, "bias")


def spectrum(values: list[float], seed: int = 0) -> Tensor:
    """A symmetric matrix of these eigenvalues."""
    basis, _ = torch.linalg.qr(normal(len(values), len(values), seed=seed))
    return (basis * torch.tensor(values, dtype=torch.float64)) @ basis.T


@pytest.mark.parametrize("exponent", [-0.25, 0.5, -1.0])
@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0, 0.5], [2.0, 2.0, 2.0, 0.7], [1.3] * 4, [1.0, 1 + 1e-9, 3.0, 3.0]])
def test_powers_and_their_derivative(values: list[float], exponent: float) -> None:
    """Against eigenvalues, and against differences along symmetric directions, also where eigenvalues repeat."""
    A = spectrum(values)
    assert_close(power(A, exponent), torch.from_numpy(eigen_power(A.numpy(), exponent)), "value")
    leaf = A.clone().requires_grad_()
    weight = normal(4, 4, seed=3)
    (slope,) = torch.autograd.grad((weight * power(leaf, exponent)).sum(), leaf)
    for seed in (4, 5):
        direction = normal(4, 4, seed=seed)
        direction = direction + direction.T
        high, low = (eigen_power((A + s * direction).numpy(), exponent) for s in (1e-5, -1e-5))
        wanted = float((weight.numpy() * (high - low)).sum()) / 2e-5
        assert float((slope * direction).sum()) == pytest.approx(wanted, rel=1e-6, abs=1e-7)
    if exponent == -1.0:
        assert_close(power(A, exponent) @ A, torch.eye(4, dtype=torch.float64), "inverse")


ILL = {
    "rank one": lambda n: torch.outer(x := normal(n).float(), x),
    "rank one, tiny": lambda n: torch.outer(x := 1e-8 * normal(n).float(), x),
    "spread over 20 decades": lambda n: spectrum([10.0 ** (-20 * i / (n - 1)) for i in range(n)]).float(),
    "huge": lambda n: 1e15 * spectrum([1.0 + i for i in range(n)]).float(),
    "zero": lambda n: torch.zeros(n, n),
    "Gram of equal keys": lambda n: 1e6 * torch.ones(n, n),
}


@pytest.mark.parametrize("name", ILL)
@pytest.mark.parametrize("n", [2, 16, 64])
def test_powers_of_ill_conditioned_float32(n: int, name: str) -> None:
    """Rounding may leave such a matrix indefinite: the root stays finite, and so does its derivative."""
    A = torch.stack([ILL[name](n), torch.eye(n)]) + 1e-6 * torch.eye(n)
    A.requires_grad_()
    root = power(A, -0.25)
    assert root.dtype == torch.float32
    assert bool(root.isfinite().all())
    assert float(root.detach().abs().max()) < 64, "1e-6 I was added: the root is at most near 1e-6^(-1/4) = 32"
    assert_close(root[1], torch.eye(n), "the regular one beside it")
    (slope,) = torch.autograd.grad(root.sum(), A)
    assert bool(slope.isfinite().all())


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("size", [1.0, 100.0])
def test_shampoo_in_float32(size: float, equal: bool) -> None:
    """Against float64. The moments have rank t until t = K: rounding makes them indefinite, far above eps."""
    k, v = normal(1, 24, 1, 16, seed=1), size * normal(1, 24, 1, 16, seed=2)
    if equal:
        k, v = (x[:, :1].expand_as(x) for x in (k, v))
    outputs = []
    for dtype in (torch.float64, torch.float32):
        keys, values = (x.to(dtype).requires_grad_() for x in (k.clone(), v.clone()))
        gates = il.Gates(lr=torch.full((1, 24, 1), 0.01, dtype=dtype))
        result = il.scan(il.get("shampoo_memory"), keys, keys, values, gates)
        outputs.append(result.output.detach().double())
        for slope in torch.autograd.grad(result.output.sum(), (keys, values)):
            assert bool(slope.isfinite().all())
    assert float((outputs[1] - outputs[0]).abs().max()) < 1e-3 * float(outputs[0].abs().max())


# Diagonal


@pytest.mark.parametrize("gated", [False, True])
def test_diagonal(gated: bool) -> None:
    """The write key k * M, with M out of the decayed sum of squares, own token included; the read key is k."""
    center, span = 0.3, 1.8
    evidence, decay = uniform(B, T, H, seed=8), uniform(B, T, H, seed=9)
    kept = uniform(B, T, H, seed=7, low=0.8, high=0.99)

    def step(t: int, h: int, g: Tensor, memo: dict[str, Any]) -> Tensor:
        k, w = KEYS[0, t, h], float((evidence if gated else LR)[0, t, h])
        a = float(decay[0, t, h]) if gated else 1.0
        memo["A"] = [a * x + w * float(k[i]) ** 2 for i, x in enumerate(memo.get("A", [0.0] * K))]
        level = [math.log(x + 1e-6) - center for x in memo["A"]]
        M = [math.exp(-math.log(span) * x / (1 + abs(x))) for x in level]
        return -LR[0, t, h] * torch.tensor(M, dtype=torch.float64)[:, None] * g

    gates = {"precond_lr": evidence, "precond_log_decay": decay.log()} if gated else {}
    result = run(il.Diagonal(center, span), il.Decay(), log_decay=kept.log(), **gates)
    assert_close(result.state.memory["S"][0], by_hand(step, kept), "Diagonal")


@pytest.mark.parametrize("span", [1.0, 1.5, 4.0])
def test_diagonal_keeps_its_interval(span: float) -> None:
    """From nothing to an infinity of evidence M falls from near span to near 1/span, and is 1 at the centre."""
    learner = il.Diagonal(-0.2, span)
    second = torch.cat([torch.zeros(1), torch.logspace(-12, 30, 500), torch.tensor([math.exp(-0.2) - 1e-6])]).double()
    M = learner.scale(second, -0.2, math.log(span))
    assert 1 / span <= float(M.min())
    assert float(M.max()) <= span
    assert bool((M[:-1].diff() <= 0).all())
    assert float(M[-1]) == pytest.approx(1, abs=1e-7)
    assert float(M[0]) == pytest.approx(span ** ((6 * math.log(10) - 0.2) / (6 * math.log(10) + 0.8)), rel=1e-6)
