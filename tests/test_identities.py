"""Theorems: memories that must agree because the mathematics says so. None of these compares a row with itself."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import Ridge
from torch import Tensor

import innerloop as il
from innerloop.testing import assert_close

torch.set_num_threads(1)

B, T, H, K, V = 2, 40, 2, 5, 3
VERBS = pytest.mark.parametrize("verb", [il.scan, il.chunked], ids=["scan", "chunked"])


def draw(seed: int = 0, tokens: int = T, *, unit: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v in float64; keys near unit length, or exactly there."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(B, tokens, H, n, generator=generator, dtype=torch.float64) for n in (K, K, V))
    return q, F.normalize(k, dim=-1) if unit else k / K**0.5, v


def gate(seed: int = 1, low: float = 0.1, high: float = 0.9) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(B, T, H, generator=generator, dtype=torch.float64)


def start(memory: il.Memory, **initial: Tensor) -> il.State:
    return il.init_state(memory, B, H, K, V, initial=initial, dtype=torch.float64)


@VERBS
def test_linear_ttt_at_half_is_the_delta_rule(verb: Any) -> None:
    """TTT's loss is |S^T k - v|^2, so its step at eta = 1/2 is the delta rule at lr = 1 (here: 2 eta = lr)."""
    q, k, v = draw()
    eta = gate() / 2
    S = torch.zeros(B, H, K, V, dtype=torch.float64)
    outputs = []
    for t in range(T):
        key, value = k[:, t], v[:, t]

        def loss(S: Tensor, key: Tensor = key, value: Tensor = value) -> Tensor:
            return ((S.mT @ key[..., None])[..., 0] - value).square().sum()

        S = S - eta[:, t, :, None, None] * torch.func.grad(loss)(S)
        outputs.append((S.mT @ q[:, t, :, :, None])[..., 0])
    got = verb(il.get("deltanet"), q, k, v, il.Gates(lr=2 * eta))
    assert_close(got.output, torch.stack(outputs, 1), "explicit TTT steps")


@VERBS
def test_batch_gradient_descent_from_zero_is_linear_attention(verb: Any) -> None:
    """TTT's theorem 1: all gradients taken at W_0 = 0. As a value: a segment as long as the sequence."""
    q, k, v = draw()
    held = il.Memory(il.Matrix(), il.L2(), il.Keep(), il.GradientStep(), segment=T)
    wanted = torch.einsum("bthk,bshk,bshv,ts->bthv", q, k, v, torch.ones(T, T, dtype=torch.float64).tril())
    assert_close(verb(held, q, k, v).output, wanted, "one segment")
    assert_close(verb(il.get("linear_attention"), q, k, v).output, wanted, "linear attention")


@VERBS
def test_no_decay_reduces_the_gated_rows(verb: Any) -> None:
    q, k, v = draw()
    lr, zero = gate(), torch.zeros(B, T, H, dtype=torch.float64)
    zeros = zero[..., None].expand(B, T, H, K)
    delta = verb(il.get("deltanet"), q, k, v, il.Gates(lr=lr)).output
    assert_close(verb(il.get("gated_deltanet"), q, k, v, il.Gates(lr, zero)).output, delta, "gated_deltanet")
    assert_close(verb(il.get("kda"), q, k, v, il.Gates(lr, zeros)).output, delta, "kda")
    hebb = verb(il.get("linear_attention"), q, k, v, il.Gates(lr=lr)).output
    assert_close(verb(il.get("mamba2"), q, k, v, il.Gates(lr, zero)).output, hebb, "mamba2")
    assert_close(verb(il.get("gla"), q, k, v, il.Gates(lr, zeros)).output, hebb, "gla")
    assert_close(verb(il.get("retnet"), q, k, v, il.Gates(lr, zero)).output, hebb, "retnet")


@VERBS
def test_equal_channels_reduce_kda_and_gla(verb: Any) -> None:
    q, k, v = draw()
    lr, decay = gate(), -gate(2)
    channels = decay[..., None].expand(B, T, H, K)
    gated = verb(il.get("gated_deltanet"), q, k, v, il.Gates(lr, decay)).output
    assert_close(verb(il.get("kda"), q, k, v, il.Gates(lr, channels)).output, gated, "kda")
    summed = verb(il.get("mamba2"), q, k, v, il.Gates(lr, decay)).output
    assert_close(verb(il.get("gla"), q, k, v, il.Gates(lr, channels)).output, summed, "gla")


@VERBS
def test_titans_without_momentum_is_the_gated_delta_rule(verb: Any) -> None:
    """(a I - lr k k^T) S + lr k v^T: the gated delta rule at (lr', v') = (lr / a, a v), and back."""
    q, k, v = draw()
    lr, decay = gate(), -0.5 * gate(2)
    a = decay.exp()
    gated = verb(il.get("gated_deltanet"), q, k, v, il.Gates(lr, decay)).output
    titans = verb(il.get("titans_linear"), q, k, v / a[..., None], il.Gates(a * lr, decay, torch.zeros_like(lr))).output
    assert_close(titans, gated, "gate map (lr, v) -> (a lr, v / a)")


@VERBS
def test_retnet_is_its_direct_sum(verb: Any) -> None:
    q, k, v = draw()
    n = torch.arange(T, dtype=torch.float64)
    for h in range(H):
        kept = (1 - 2.0 ** -(5 + h)) ** (n[:, None] - n[None, :]).clamp(min=0)
        wanted = ((q[:, :, h] @ k[:, :, h].mT) * kept.tril()) @ v[:, :, h]
        assert_close(verb(il.get("retnet"), q, k, v).output[:, :, h], wanted, f"head {h}")


@VERBS
def test_mesa_is_ridge_from_scratch(verb: Any) -> None:
    q, k, v = draw()
    lr, decay = gate(), -0.3 * gate(2)
    output = verb(il.get("mesa", penalty=0.7), q, k, v, il.Gates(lr, decay)).output
    eye = torch.eye(K, dtype=torch.float64)
    for t in (0, 3, T - 1):
        kept = lr[:, : t + 1] * (decay[:, : t + 1].sum(1, keepdim=True) - decay[:, : t + 1].cumsum(1)).exp()
        gram = torch.einsum("bsh,bshk,bshl->bhkl", kept, k[:, : t + 1], k[:, : t + 1]) + 0.7 * eye
        moment = torch.einsum("bsh,bshk,bshv->bhkv", kept, k[:, : t + 1], v[:, : t + 1])
        wanted = (torch.linalg.solve(gram, moment).mT @ q[:, t, :, :, None])[..., 0]
        assert_close(output[:, t], wanted, f"token {t}")


@VERBS
@pytest.mark.parametrize("rule", ["exponential", "static", "regularized", "directional"])
def test_rls_that_never_forgets_is_batch_ridge(verb: Any, rule: Any) -> None:
    """Every rule, at every token, against scikit-learn on all pairs so far."""
    q, k, v = draw()
    output = verb(il.get("rls", penalty=0.4, rule=rule), q, k, v).output
    for t in (0, 2, 17, T - 1):
        for b in range(B):
            fit = Ridge(alpha=0.4, fit_intercept=False, solver="svd").fit(k[b, : t + 1, 0], v[b, : t + 1, 0])
            wanted = torch.as_tensor(fit.predict(q[b, t : t + 1, 0]))
            assert_close(output[b, t : t + 1, 0], wanted, f"{rule}, token {t}")


@VERBS
def test_forgetting_rls_is_weighted_ridge(verb: Any) -> None:
    """exponential: prior and data fade alike."""
    q, k, v = draw()
    weight, decay = gate(), torch.full((B, T, H), -0.1, dtype=torch.float64)
    output = verb(il.get("rls"), q, k, v, il.Gates(weight, decay)).output
    t = T - 1
    kept = weight[0, :, 0] * (-0.1 * (t - torch.arange(T, dtype=torch.float64))).exp()
    prior = math.exp(-0.1 * T)
    fit = Ridge(alpha=prior, fit_intercept=False, solver="cholesky").fit(
        k[0, :, 0], v[0, :, 0], sample_weight=kept.numpy()
    )
    assert_close(output[0, t:, 0], torch.as_tensor(fit.predict(q[0, t:, 0])), "last token")


@VERBS
def test_kalman_without_drift_is_rls(verb: Any) -> None:
    """penalty = observation_noise / prior_variance; a pair's weight divides its noise."""
    q, k, v = draw()
    lr = gate()
    filtered = verb(
        il.get("kalman", process_noise=0.0, observation_noise=0.6, prior_variance=1.5), q, k, v, il.Gates(lr)
    )
    solved = verb(il.get("rls", penalty=0.4), q, k, v, il.Gates(lr))
    assert_close(filtered.output, solved.output, "outputs")
    covariance = 0.6 * torch.linalg.inv(solved.state.memory["gram"])
    assert_close(filtered.state.memory["covariance"], covariance, "covariance")


@VERBS
def test_the_proximal_step_interpolates_as_lr_grows(verb: Any) -> None:
    _, k, v = draw()
    for lr, bound in ((1e3, 1e-1), (1e6, 1e-4), (1e9, 1e-7)):
        answer = verb(il.get("longhorn"), k, k, v, il.Gates(lr=torch.full((B, T, H), lr, dtype=torch.float64))).output
        assert float((answer - v).abs().max()) < bound * float(v.abs().max()), f"lr {lr:g}"


@VERBS
@pytest.mark.parametrize("name", ["longhorn", "efla"])
def test_implicit_and_flow_meet_the_delta_rule_at_second_order(verb: Any, name: str) -> None:
    """|S - S_delta| shrinks as lr^2: halving lr quarters the difference of one step from any memory."""
    q, k, v = draw(tokens=1)
    S0 = torch.randn(B, H, K, V, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    gaps = []
    for lr in (1e-2, 5e-3, 2.5e-3):
        gates = il.Gates(lr=torch.full((B, 1, H), lr, dtype=torch.float64))
        a, b = (verb(m, q, k, v, gates, start(m, S=S0)).state.memory["S"] for m in map(il.get, (name, "deltanet")))
        gaps.append(float((a - b).norm()))
    orders = [float(torch.log2(torch.tensor(big / small))) for big, small in pairwise(gaps)]
    assert orders == pytest.approx([2.0, 2.0], abs=0.05)


def test_the_flow_composes() -> None:
    """EFLA is exact in time: two steps of lr/2 on the same pair are one of lr; two explicit ones are not."""
    q, k, v = draw(tokens=1)
    twice = [x.expand(B, 2, *x.shape[2:]) for x in (q, k, v)]
    whole, half = (torch.full((B, n, H), 0.8 / n, dtype=torch.float64) for n in (1, 2))
    for name, equal in (("efla", True), ("deltanet", False)):
        memory = il.get(name)
        one = il.chunked(memory, q, k, v, il.Gates(lr=whole)).state.memory["S"]
        two = il.chunked(memory, *twice, il.Gates(lr=half)).state.memory["S"]
        assert torch.allclose(one, two, rtol=1e-12, atol=1e-12) == equal, name


@VERBS
def test_softmax_attention_is_torchs(verb: Any) -> None:
    q, k, v = draw()
    wanted = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), scale=1.0, is_causal=True)
    assert_close(verb(il.get("softmax_attention"), q, k, v).output, wanted.transpose(1, 2), "attention")


@VERBS
def test_sliding_window_attention(verb: Any) -> None:
    q, k, v = draw()
    near = torch.ones(T, T, dtype=torch.bool).tril().triu(-6)
    wanted = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), scale=1.0, attn_mask=near)
    assert_close(verb(il.get("softmax_attention", capacity=7), q, k, v).output, wanted.transpose(1, 2), "capacity 7")


@VERBS
def test_gaussian_kernel_on_unit_keys_is_softmax_with_temperature(verb: Any) -> None:
    """|q - k|^2 = |q|^2 + 1 - 2 q.k, and |q|^2 is the same for all keys: softmax of q.k / h^2."""
    q, k, v = draw(unit=True)
    smooth = verb(il.get("nadaraya_watson", bandwidth=0.7), q, k, v).output
    assert_close(smooth, verb(il.get("softmax_attention"), q / 0.7**2, k, v).output, "temperature h^2")


@VERBS
def test_local_linear_attention_with_a_huge_penalty_is_softmax(verb: Any) -> None:
    q, k, v = draw()
    flat = verb(il.get("softmax_attention"), q, k, v).output
    gaps = [
        float((verb(il.get("local_linear_attention", penalty=p), q, k, v).output - flat).abs().max())
        for p in (1e6, 1e9)
    ]
    assert gaps[1] < 1e-6
    assert gaps[1] == pytest.approx(gaps[0] / 1000, rel=0.01), "the slope vanishes as 1 / penalty"


@VERBS
def test_local_linear_attention_is_exact_on_linear_data(verb: Any) -> None:
    """What a local average cannot: values linear in the keys come back without bias, once the keys span."""
    q, k, _ = draw()
    W = torch.randn(K, V, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    output = verb(il.get("local_linear_attention", penalty=1e-9), q, k, k @ W + 2).output
    wanted = q @ W + 2
    assert float((output - wanted)[:, 20:].abs().max()) < 1e-5
    average = verb(il.get("softmax_attention"), q, k, k @ W + 2).output
    assert float((average - wanted)[:, 20:].abs().max()) > 0.1


@VERBS
def test_a_window_of_one_pair_at_full_weight_counts_as_none(verb: Any) -> None:
    """Omega's rule with gamma = (1, 0, 0) is the plain step."""
    q, k, v = draw()
    lr = gate()
    wide = il.Memory(il.Matrix(), il.L2(), il.Keep(), il.GradientStep(), window=3)
    gamma = torch.tensor([1.0, 0, 0], dtype=torch.float64).expand(B, T, H, 3)
    got = verb(wide, q, k, v, il.Gates(lr=lr, window=gamma)).output
    assert_close(got, verb(il.get("deltanet"), q, k, v, il.Gates(lr=lr)).output, "gamma (1, 0, 0)")


def test_orthonormal_keys_make_the_delta_rule_exact_recall() -> None:
    """At lr 1 every key returns its latest value, whatever was written before (the contrast of experiment D5)."""
    generator = torch.Generator().manual_seed(0)
    keys = torch.linalg.qr(torch.randn(8, 4, generator=generator, dtype=torch.float64)).Q.T  # 4 orthonormal keys
    order = torch.randint(4, (30,), generator=generator)
    v = torch.randn(30, 6, generator=generator, dtype=torch.float64)
    k = keys[order][None, :, None]
    result = il.chunked(il.get("deltanet"), k, k, v[None, :, None])
    latest = torch.stack([v[int((order == i).nonzero().max())] for i in range(4)])
    assert_close(il.read(il.get("deltanet"), keys[None, :, None], result.state)[0, :, 0], latest, "latest values")
