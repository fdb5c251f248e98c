"""Retentions: decays by hand, the prox and the links against the minimisation that each states, norms by counting."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

import innerloop as il
from innerloop.testing import assert_close

torch.set_num_threads(1)

B, H, K, V = 2, 3, 4, 3


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(seed: int = 0) -> dict[str, Tensor]:
    """A matrix and a bias."""
    return {"weight_0": normal(B, H, K, V, seed=seed), "bias_0": normal(B, H, V, seed=seed + 100)}


KEPT = 0.1 + 0.8 * torch.rand(B, H, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
LOG_DECAY = KEPT.log()


# what is linear in the step


def test_keep() -> None:
    m, step = weights(0), weights(1)
    assert il.Keep().keep(m, LOG_DECAY, weights(2)) is m
    for name, merged in il.Keep().merge(m, step, None, weights(2)).items():
        assert_close(merged, m[name] + step[name], name)


@pytest.mark.parametrize("toward", ["zero", "init"])
def test_decay_per_head(toward: Any) -> None:
    """`a m`, or `m_0 + a (m - m_0)`; the step is added whole."""
    m, step, initial = weights(0), weights(1), weights(2)
    retention = il.Decay("head", toward=toward)
    kept, merged = retention.keep(m, LOG_DECAY, initial), retention.merge(m, step, LOG_DECAY, initial)
    for name, w in m.items():
        for b in range(B):
            for h in range(H):
                a, home = float(KEPT[b, h]), initial[name][b, h] if toward == "init" else 0.0
                assert_close(kept[name][b, h], home + a * (w[b, h] - home), f"kept {name}")
                assert_close(merged[name][b, h], home + a * (w[b, h] - home) + step[name][b, h], f"merged {name}")
    assert_close(retention.keep(m, None, initial)["bias_0"], m["bias_0"], "no gate: nothing decays")
    gone = retention.keep(m, torch.full((B, H), float("-inf"), dtype=torch.float64), initial)
    for name, w in gone.items():
        assert torch.equal(w, initial[name] if toward == "init" else torch.zeros_like(w)), "-inf forgets all"


@pytest.mark.parametrize("toward", ["zero", "init"])
def test_decay_per_channel(toward: Any) -> None:
    """A rate for each key channel, the row of S."""
    S, initial = {"S": normal(B, H, K, V)}, {"S": normal(B, H, K, V, seed=1)}
    rates = -torch.rand(B, H, K, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    kept = il.Decay("channel", toward=toward).keep(S, rates, initial)["S"]
    for row in range(K):
        a = rates[:, :, row, None].exp()
        home = initial["S"][:, :, row] if toward == "init" else torch.zeros(B, H, V, dtype=torch.float64)
        assert_close(kept[:, :, row], a * S["S"][:, :, row] + (1 - a) * home, f"row {row}")


def test_retnet_schedule() -> None:
    schedule = il.Decay(schedule="retnet").scheduled(4)
    assert schedule is not None
    assert np.exp(schedule) == pytest.approx([31 / 32, 63 / 64, 127 / 128, 255 / 256], rel=1e-15)
    assert il.Decay().scheduled(4) is None


# elastic net


@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.7), (0.2, 0.5), (5.0, 0.1)])
def test_elastic_net_minimises(l1: float, l2: float) -> None:
    """Entry by entry against a scalar minimiser, and exactly: 0 is a subgradient there and nowhere else."""
    m, step, lr = weights(0), weights(1), {"weight_0": KEPT, "bias_0": 2 * KEPT}
    merged = il.ElasticNet(l1, l2).merge(m, step, None, weights(2), rates=lr)
    zeros = 0
    for name, w in merged.items():
        for index in np.ndindex(*w.shape):
            x, rate, got = float((m[name] + step[name])[index]), float(lr[name][index[:2]]), float(w[index])
            slope = (got - x) / rate + l2 * got
            zeros += got == 0
            if got == 0:
                assert abs(slope) <= l1 + 1e-12
            else:
                assert slope + math.copysign(l1, got) == pytest.approx(0, abs=1e-11)
            if sum(index) % 3 == 0:

                def cost(y: float, x: float = x, rate: float = rate) -> float:
                    return (y - x) ** 2 / (2 * rate) + l1 * abs(y) + l2 * y * y / 2

                best = minimize_scalar(
                    cost, bounds=(-abs(x) - 1, abs(x) + 1), method="bounded", options={"xatol": 1e-9}
                )
                assert got == pytest.approx(best.x, abs=1e-6)
    assert (zeros > 0) == (l1 > 0)


def test_elastic_net_in_the_papers_letters() -> None:
    """Miras (22): W = S_gamma(lambda W - zeta g), gamma = eta beta / (alpha (eta + beta)), zeta = eta lambda, and
    lambda = beta / (beta + eta)."""
    alpha, beta, eta = 2.5, 0.8, 0.3
    W, g = normal(B, H, K, V), normal(B, H, K, V, seed=1)
    gamma, lam = eta * beta / (alpha * (eta + beta)), beta / (beta + eta)
    z = lam * W - eta * lam * g
    wanted = z.sign() * (z.abs() - gamma).clamp(min=0)
    rates = {"S": torch.full((B, H), eta, dtype=torch.float64)}
    got = il.ElasticNet(1 / alpha, 1 / beta).merge({"S": W}, {"S": -eta * g}, None, {"S": W}, rates)
    assert_close(got["S"], wanted, "equation (22)")


def test_elastic_net_steps_and_overrides() -> None:
    """Without step sizes they are 1; a tensor of l1 and l2 is one setting for each batch row and head."""
    x = {"S": normal(1, 2, K, V)}
    alone = il.ElasticNet(0.4, 0.5).settle(x, x)["S"]
    assert_close(alone, x["S"].sign() * ((x["S"].abs() - 0.4) / 1.5).clamp(min=0), "lr 1")
    values = {
        "l1": torch.tensor([[[0.1], [0.9]]], dtype=torch.float64),
        "l2": torch.tensor([[[2.0], [0.0]]], dtype=torch.float64),
    }
    got = il.ElasticNet().settle(x, x, None, values)["S"]
    for h, (l1, l2) in enumerate([(0.1, 2.0), (0.9, 0.0)]):
        one = {"S": x["S"][:, h : h + 1]}
        assert_close(got[:, h : h + 1], il.ElasticNet(l1, l2).settle(one, one)["S"], f"head {h}")
    still = il.ElasticNet(3.0, 3.0).settle(x, x, {"S": torch.zeros(1, 2, dtype=torch.float64)})["S"]
    assert torch.equal(still, x["S"]), "a token of weight 0 changes nothing"


# norms


def test_row_norms_return_to_where_they_started() -> None:
    """Each unit's incoming weights point where the step sent them, as long as at the start (but for 1e-5)."""
    m, step, initial = weights(0), weights(1), weights(2)
    moved = m["weight_0"] + step["weight_0"]
    merged = il.RowNorm().merge(m, step, None, initial)
    for unit in range(V):
        incoming, before = merged["weight_0"][..., unit], moved[..., unit]
        length, start = before.norm(dim=-1), initial["weight_0"][..., unit].norm(dim=-1)
        assert_close(incoming.norm(dim=-1), start * length / (length + 1e-5), "length")
        assert_close((incoming * before).sum(-1), incoming.norm(dim=-1) * length, "direction")
    assert_close(merged["bias_0"], m["bias_0"] + step["bias_0"], "a bias has no norm to keep")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_row_norms_at_zero(dtype: torch.dtype) -> None:
    """Weights that are 0, or that started at 0, stay at 0 and have finite derivatives."""
    moved = normal(B, H, K, V).to(dtype)
    moved[..., 0] = 0
    leaf, start = moved.requires_grad_(), normal(B, H, K, V, seed=1).to(dtype)
    start[..., 1] = 0
    start.requires_grad_()
    settled = il.RowNorm().settle({"S": leaf}, {"S": start})["S"]
    assert torch.equal(settled[..., :2], torch.zeros_like(settled[..., :2]))
    assert bool((settled[..., 2] != 0).all())
    for gradient in torch.autograd.grad(settled.square().sum() + settled.sum(), (leaf, start)):
        assert bool(gradient.isfinite().all())


# links


@pytest.mark.parametrize("q", [1.5, 2.0, 3.0, 4.0])
def test_lq_is_the_dual_map_of_the_norm(q: float) -> None:
    """ "corrected" is the gradient of |A|_q^2 / 2, by autograd; and the gradient of |m|_p^2 / 2 leads back to A."""
    A = normal(B, H, K, V).requires_grad_()
    p = q / (q - 1)

    def half_square(x: Tensor, exponent: float) -> Tensor:
        return x.abs().pow(exponent).sum((-2, -1)).pow(2 / exponent).sum() / 2

    (gradient,) = torch.autograd.grad(half_square(A, q), A)
    m = il.Lq(q, "corrected").link({"S": A.detach()})["S"].requires_grad_()
    assert_close(m, gradient, "link")
    (back,) = torch.autograd.grad(half_square(m, p), m)
    assert_close(back, A.detach(), "there and back")


@pytest.mark.parametrize("q", [3.0, 4.0])
def test_lq_minimises(q: float) -> None:
    """m = argmin |m|_p^2 / 2 - <A, m>, 1/p + 1/q = 1, by a general minimiser; the printed link is worse."""
    p, A = q / (q - 1), normal(1, 1, K, V)

    def cost(m: Any) -> float:
        m = np.ravel(m)
        return 0.5 * (np.abs(m) ** p).sum() ** (2 / p) - float(A.ravel().numpy() @ m)

    best = minimize(cost, A.ravel().numpy(), method="BFGS", options={"gtol": 1e-9})
    corrected = il.Lq(q, "corrected").link({"S": A})["S"].ravel().numpy()
    assert np.abs(corrected - best.x).max() < 1e-4
    assert cost(corrected) <= best.fun + 1e-12
    assert cost(il.Lq(q, "paper").link({"S": A})["S"].numpy()) > best.fun + 0.05


def test_lq_as_printed() -> None:
    """A over |A|_q^(q-2), matrix by matrix; both forms are the identity at q = 2."""
    A = weights(0)
    got = il.Lq(4.0).link(A)
    for b in range(B):
        for h in range(H):
            one = A["weight_0"][b, h]
            norm = float((one**4).sum()) ** 0.25
            assert_close(got["weight_0"][b, h], one / norm**2, "q = 4")
    assert torch.equal(got["bias_0"], A["bias_0"])
    for form in ("paper", "corrected"):
        assert_close(il.Lq(2.0, form).link(A)["weight_0"], A["weight_0"], form)
    total = A["weight_0"].abs().sum((-2, -1), keepdim=True)
    assert_close(il.Lq(1.0, "corrected").link(A)["weight_0"], total * A["weight_0"].sign(), "q = 1")
    assert_close(il.Lq(1.0).link(A)["weight_0"], total * A["weight_0"], "q = 1 as printed")


@pytest.mark.parametrize("form", ["paper", "corrected"])
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e-12), (torch.float32, 1e12), (torch.float64, 1e-100)])
def test_lq_at_any_size(form: Any, dtype: torch.dtype, size: float) -> None:
    """Powers of tiny entries do not underflow: the links scale as they should, degree 1 and degree 3 - q."""
    A = normal(1, 2, K, V).to(dtype)
    retention = il.Lq(4.0, form)
    degree = 1 if form == "corrected" else -1
    small = retention.link({"S": A * size})["S"] / torch.tensor(size, dtype=dtype) ** degree
    assert_close(small, retention.link({"S": A})["S"], "scaled")


@pytest.mark.parametrize("form", ["paper", "corrected"])
@pytest.mark.parametrize("q", [1.0, 1.5, 2.0, 4.0])
def test_lq_of_nothing_is_nothing(form: Any, q: float) -> None:
    """A zero A, and a single zero entry of another: finite derivatives, no NaN."""
    A = normal(1, 2, K, V)
    A[:, 0] = 0
    A[:, 1, 0, 0] = 0
    A.requires_grad_()
    m = il.Lq(q, form).link({"S": A})["S"]
    assert torch.equal(m[:, 0], torch.zeros_like(m[:, 0]))
    assert float(m.detach()[0, 1, 0, 0]) == 0
    (gradient,) = torch.autograd.grad((m + m.square()).sum(), A)
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("total", [1.0, 2.5])
def test_kl_minimises_on_the_simplex(total: float) -> None:
    """m = argmin a KL(m | m_prev) + (1 - a) sum m log m - <m, step>, sums over inputs equal to `total` (Miras (20)).

    By a general constrained minimiser for one unit; for all by the condition of optimality: along the simplex the
    gradient is constant.
    """
    logits, step = {"S": normal(B, H, K, V)}, {"S": normal(B, H, K, V, seed=1)}
    retention = il.KL(total)
    previous = retention.link(logits)["S"]
    m = retention.link(retention.merge(logits, step, LOG_DECAY, logits))["S"]
    assert_close(m.sum(-2), torch.full((B, H, V), total, dtype=torch.float64), "sums over the inputs of each unit")
    assert bool((m > 0).all())
    a = KEPT[..., None, None]
    slope = m.log() - a * previous.log() - step["S"]
    assert_close(slope, slope.mean(-2, keepdim=True).expand_as(slope), "the same slope along each input", scale=1.0)
    start, push, kept = previous[0, 0, :, 0].numpy(), step["S"][0, 0, :, 0].numpy(), float(KEPT[0, 0])

    def cost(x: Any) -> float:
        return float((x * np.log(x)).sum() - kept * (x * np.log(start)).sum() - x @ push)

    on_simplex = {"type": "eq", "fun": lambda x: x.sum() - total}
    best = minimize(cost, start, bounds=[(1e-9, None)] * K, constraints=on_simplex, options={"ftol": 1e-14})
    assert np.abs(best.x - m[0, 0, :, 0].numpy()).max() < 1e-5


def test_kl_round_trip_and_range() -> None:
    """Logarithms of weights on the simplex are logits of them; huge logits and biases are safe; `total` overrides."""
    m = torch.rand(B, H, K, V, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    m = 2.5 * m / m.sum(-2, keepdim=True)
    assert_close(il.KL(2.5).link({"S": m.log()})["S"], m, "there and back")
    far = il.KL().link({"S": torch.tensor([1e30, -1e30, 0.0, 1e30])[None, None, :, None]})["S"]
    assert far.flatten().tolist() == [0.5, 0, 0, 0.5]
    bias = normal(B, H, V)
    assert torch.equal(il.KL().link({"bias_0": bias})["bias_0"], bias)
    totals = torch.tensor([[[1.0], [2.0], [3.0]]], dtype=torch.float64)
    sums = il.KL().link({"S": normal(B, H, K, V)}, {"total": totals})["S"].sum(-2)
    assert_close(sums, totals.expand(B, H, V), "a total for each head")


def test_links_decay_the_dual_variable() -> None:
    """`keep` and `accumulate` act on what is kept (A, logits), not on the weights."""
    A, step = weights(0), weights(1)
    for retention in (il.Lq(4.0), il.KL()):
        assert retention.dual
        merged = retention.merge(A, step, LOG_DECAY, weights(2))
        for name, a in A.items():
            factor = KEPT.reshape(B, H, *(1,) * (a.ndim - 2))
            assert_close(merged[name], factor * a + step[name], f"{retention}: {name}")
    q = torch.tensor([[[2.0], [4.0], [3.0]]], dtype=torch.float64)
    one = il.Lq(4.0).link(A, {"q": q})["weight_0"]
    for h, exponent in enumerate((2.0, 4.0, 3.0)):
        assert_close(one[:, h], il.Lq(exponent).link(A)["weight_0"][:, h], f"q = {exponent} for one head")
