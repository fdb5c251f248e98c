"""Long runs, hard inputs and the faults of other libraries, each with the value that is right."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import innerloop as il
from innerloop.core import registry
from innerloop.core.linalg import power
from innerloop.testing import assert_close

torch.set_num_threads(1)

VERBS = pytest.mark.parametrize("verb", [il.scan, il.chunked], ids=["scan", "chunked"])


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def full(value: float, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.full(shape, value, dtype=dtype)


def one(x: Any) -> Tensor:
    """Numbers as [1, T, 1, 1]."""
    return torch.as_tensor(x, dtype=torch.float64).reshape(1, -1, 1, 1)


# long streams


@pytest.mark.parametrize("rule", ["exponential", "regularized", "directional"])
def test_twenty_thousand_rls_steps_at_forgetting_point_nine(rule: Any) -> None:
    """Finite and right at the end: against one direct weighted solve of the tokens that still count."""
    T, K, f = 20_000, 6, 0.9
    memory = il.get("rls", rule=rule)
    k, W, noise = normal(1, T, 1, K), normal(K, 2, seed=1), normal(1, T, 1, 2, seed=2)
    v = k @ W + 0.1 * noise
    result = il.chunked(memory, k, k, v, il.Gates(log_decay=full(math.log(f), 1, T, 1)))
    assert bool(result.output.isfinite().all())
    gram = result.state.memory["gram"][0, 0]
    assert_close(gram, gram.mT, "symmetry")
    assert float(torch.linalg.eigvalsh(gram).min()) > 0, "the Gram matrix stays positive"
    if rule == "exponential":
        near = slice(T - 600, T)  # .9^600 is 1e-28
        weights = f ** torch.arange(599, -1, -1, dtype=torch.float64)
        X, Y = k[0, near, 0], v[0, near, 0]
        w = torch.linalg.lstsq(weights.sqrt()[:, None] * X, weights.sqrt()[:, None] * Y).solution
        assert_close(il.read(memory, k[:, -1:], result.state)[0, 0, 0], k[0, -1, 0] @ w, "last answer")
        assert_close(result.output[0, -1, 0], k[0, -1, 0] @ w, "last output")
    assert float((torch.linalg.solve(gram, result.state.memory["moment"][0, 0]) - W).abs().max()) < 0.3


@pytest.mark.parametrize("rule", ["exponential", "static", "regularized", "directional"])
def test_a_constant_regressor_does_not_wind_up(rule: Any) -> None:
    """Ten thousand equal keys, then excitation returns: the answers stay near the truth."""
    T, K = 10_000, 3
    key = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    k = torch.cat([key.expand(1, T, 1, K), normal(1, 300, 1, K)], 1)
    W = normal(K, 1, seed=1)
    memory = il.Memory(il.Matrix(), il.L2(), il.Decay(), il.Ridge(1.0, rule), order="read-write")
    output = il.chunked(memory, k, k, k @ W, il.Gates(log_decay=full(math.log(0.95), 1, T + 300, 1))).output
    assert bool(output.isfinite().all())
    # "static" keeps pulling toward 0 with its whole penalty
    assert float((output - k @ W)[:, T - 10 : T].abs().max()) < (0.1 if rule == "static" else 1e-6)
    bound = 1e3 if rule == "exponential" else 20.0  # the prior has faded: without it no more than minimum norm is known
    assert float(output[:, T:].abs().max()) < bound, "no burst when excitation returns"
    assert float((output - k @ W)[:, -20:].abs().max()) < 0.5


@pytest.mark.parametrize("rule", ["exponential", "static", "regularized", "directional"])
def test_zero_regressors_for_long(rule: Any) -> None:
    """Nothing is seen for two thousand tokens; the first pair after it is still learned."""
    T, K = 2_000, 3
    k = torch.cat([normal(1, 50, 1, K), full(0.0, 1, T, 1, K), normal(1, 60, 1, K, seed=1)], 1)
    W = normal(K, 2, seed=2)
    gates = il.Gates(log_decay=full(math.log(0.9), 1, T + 110, 1))
    result = il.chunked(il.get("rls", rule=rule), k, k, k @ W, gates)
    assert bool(result.output.isfinite().all())
    error = (result.output - k @ W)[:, -5:].abs().max()
    assert float(error) < (1.0 if rule == "static" else 0.05)


LONG = [(name, case) for name in il.names() for case in [{}, *map(dict, registry.entry(name).cases)]]
LONG = [cell for i, cell in enumerate(LONG) if cell not in LONG[:i]]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), LONG, ids=str)
def test_normal_inputs_stay_finite(name: str, options: dict[str, Any]) -> None:
    """16,384 tokens in float32 at default gates, and beside them at twice their lr; exemplars keep 128 pairs."""
    tokens = 16_384
    exemplars = isinstance(il.get(name, **options).architecture, il.Exemplars)
    memory = il.get(name, **{**options, **({"capacity": 128} if exemplars else {})})
    q, k, v = (normal(1, tokens, 1, n, seed=s, dtype=torch.float32) for s, n in enumerate((16, 16, 8)))
    gates = il.default_gates(memory, 2, tokens, 1, 16)
    if gates.lr is not None:
        gates.lr[1] *= 2
    result = il.chunked(memory, *(x.expand(2, -1, -1, -1) for x in (q, k, v)), gates)
    assert bool(result.output.isfinite().all())
    assert float(result.output.abs().max()) < 1e4 * tokens
    for entry, t in result.state.tensors().items():
        assert not t.is_floating_point() or bool(t.isfinite().all()), entry


# powers of positive matrices (Shampoo's roots)


def symmetric_power(exponent: float) -> Any:
    """Of the symmetric part: `gradcheck` moves one entry of a matrix at a time."""
    return lambda matrix: power((matrix + matrix.mT) / 2, exponent)


@pytest.mark.parametrize("exponent", [-0.25, 0.5, -1.0, 2.0])
def test_powers_and_their_gradients(exponent: float) -> None:
    """Distinct, equal and nearly equal eigenvalues; against the inverse, the product, and differences of values."""
    turn = torch.linalg.qr(normal(5, 5)).Q
    for values in ((0.3, 1.0, 2.0, 3.0, 7.0), (2.0,) * 5, (1.0, 1.0, 1.0 + 1e-9, 4.0, 4.0)):
        x = torch.tensor(values, dtype=torch.float64)
        matrix = (turn * x) @ turn.mT
        assert_close(power(matrix, exponent), (turn * x**exponent) @ turn.mT, f"{values}")
        assert torch.autograd.gradcheck(symmetric_power(exponent), matrix.requires_grad_()), values
    matrix = matrix.detach()
    assert_close(power(matrix, -1.0), torch.linalg.inv(matrix), "the inverse")
    assert_close(power(matrix, 2.0), matrix @ matrix, "the square")


def test_powers_of_what_rounding_left_below_zero() -> None:
    """Two pairs in sixteen channels, float32: eigenvalues 0 come out at +-1e-4, which no root may see."""
    rows = normal(2, 16, seed=1).float()
    gram = 300 * rows.mT @ rows + 1e-6 * torch.eye(16)
    assert float(torch.linalg.eigvalsh(gram.double()).min()) < 0
    root = power(gram, -0.25)
    assert bool(root.isfinite().all())
    largest = float(torch.linalg.eigvalsh(gram.double()).max())
    assert float(root.abs().max()) <= 1.01 * (torch.finfo(torch.float32).eps * largest) ** -0.25
    # along the pairs themselves, where the digits are, it is the root
    span = torch.linalg.qr(rows.double().mT).Q
    inside = span.mT @ gram.double() @ span
    assert float((span.mT @ root.double() @ span - power(inside, -0.25)).abs().max()) < 1e-4
    # below the floor the power stands still: so does its derivative, and between the two sides it is a difference
    turn = torch.linalg.qr(normal(4, 4)).Q
    mixed = (turn * torch.tensor([3.0, 1.0, -0.1, -0.2], dtype=torch.float64)) @ turn.mT
    assert torch.autograd.gradcheck(symmetric_power(0.5), mixed.requires_grad_())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_powers_never_raise(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN and infinity give NaN, alone; tiny, huge and zero matrices are finite; and an iteration that never ends."""
    good = torch.eye(4, dtype=dtype) + 0.1
    bad = torch.stack([good, torch.full_like(good, float("nan")), float("inf") * good, good])
    out = power(bad.requires_grad_(), -0.25)
    assert bool(out[[0, 3]].isfinite().all())
    assert bool(out[[1, 2]].isnan().all())
    assert torch.equal(out[0], power(good, -0.25))
    (gradient,) = torch.autograd.grad(out[[0, 3]].sum(), bad)
    assert bool(gradient[[0, 3]].isfinite().all())
    for size in (1e-30, 1e30):
        assert_close(power(size * good, -0.25) * size**0.25, power(good, -0.25), f"in units of {size:g}")
    assert bool(power(torch.zeros(3, 3, dtype=torch.float64), -0.25).isfinite().all())

    def never_ends(matrix: Tensor) -> Any:
        raise torch.linalg.LinAlgError("failed to converge")

    wanted = power(good, -0.25)
    monkeypatch.setattr(torch.linalg, "eigh", never_ends)
    assert_close(power(good, -0.25), wanted, "by singular vectors")


# ridge without a prior, far queries


@VERBS
@pytest.mark.parametrize("name", ["rls", "mesa"])
def test_penalties_with_zeros_read_the_minimum_norm(verb: Any, name: str) -> None:
    """An unpenalised channel (an intercept) and, before there is data, a singular Gram matrix."""
    memory = il.get(name)
    k, v = normal(1, 30, 1, 3), normal(1, 30, 1, 2, seed=1)
    k = torch.cat([k, torch.ones_like(k[..., :1])], -1)
    penalty = torch.tensor([0.5, 0.5, 0.5, 0.0], dtype=torch.float64).expand(1, 1, 4)
    state = il.init_state(memory, 1, 1, 4, 2, initial={"penalty": penalty}, dtype=torch.float64)
    output = verb(memory, k, k, v, state=state).output
    for t in (0, 3, 29):
        X, Y = k[0, : t + 1, 0], v[0, : t + 1, 0]
        w = torch.linalg.pinv(X.mT @ X + torch.diag(penalty[0, 0]), hermitian=True) @ X.mT @ Y
        assert_close(output[0, t, 0], k[0, t, 0] @ w, f"token {t}")
    none = il.init_state(memory, 1, 1, 4, 2, initial={"penalty": torch.zeros(1, 1, 4)}, dtype=torch.float64)
    result = verb(memory, k, k, v, state=none)
    for t in (0, 2, 29):
        w = torch.linalg.pinv(k[0, : t + 1, 0]) @ v[0, : t + 1, 0]
        error = float((result.output[0, t, 0] - k[0, t, 0] @ w).abs().max())
        assert error < 1e-7, f"token {t}: no penalty at all: the minimum-norm fit, to the Gram matrix's digits"
    leaf = k.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(verb(memory, leaf, leaf, v, state=state).output.square().sum(), leaf)
    assert bool(gradient.isfinite().all())


@VERBS
def test_far_queries_of_a_smoother_stay_finite(verb: Any) -> None:
    """All Gaussian weights underflow at distance 1e3: the nearest exemplar answers, and gradients are finite."""
    memory = il.get("nadaraya_watson", bandwidth=0.5)
    k, v = normal(1, 12, 1, 3), normal(1, 12, 1, 2, seed=1)
    q = (k + 1e3).requires_grad_()
    output = verb(memory, q, k, v).output
    last = (q[0, -1, 0].detach() - k[0, :, 0]).square().sum(-1).argmin()
    assert_close(output[0, -1, 0], v[0, int(last), 0], "nearest exemplar")
    (gradient,) = torch.autograd.grad(output.sum(), q)
    assert bool(gradient.isfinite().all())


@VERBS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_far_queries_of_a_local_linear_fit(verb: Any, dtype: torch.dtype) -> None:
    """Weights of exp(1000): the penalty is lost beside them, and one exemplar alone is still answered by its value."""
    memory = il.get("local_linear_attention")
    k, v = normal(1, 12, 1, 3).to(dtype), normal(1, 12, 1, 2, seed=1).to(dtype)
    q = (300 * normal(1, 12, 1, 3, seed=3).to(dtype)).requires_grad_()
    output = verb(memory, q, k, v).output
    assert bool(output.isfinite().all())
    assert_close(verb(memory, 300 * k, k, v).output[:, 0], v[:, 0], "a single exemplar")
    (gradient,) = torch.autograd.grad(output.sum(), q)
    assert bool(gradient.isfinite().all())


@VERBS
def test_keys_far_from_the_origin(verb: Any) -> None:
    """A timestamp near 1.7e9 as a channel: distances do not cancel."""
    memory = il.get("nadaraya_watson", bandwidth=2.0)
    k = normal(1, 20, 1, 2)
    v = normal(1, 20, 1, 1, seed=1)
    near = verb(memory, k, k, v).output
    shift = torch.tensor([0.0, 2.0**30], dtype=torch.float64)  # a power of two: adding it costs digits of k only
    moved = (k + shift) - shift
    assert_close(verb(memory, k + shift, k + shift, v).output, verb(memory, moved, moved, v).output, "shifted keys")
    assert float((verb(memory, moved, moved, v).output - near).abs().max()) < 1e-5


# the faults of others, with the right values


@VERBS
def test_gated_deltanet_decays_before_the_error(verb: Any) -> None:
    """S0 = 2, decay 1/2, k = lr = v = 1: the decayed memory predicts 1, so nothing is corrected. The other order: 0."""
    memory = il.get("gated_deltanet")
    state = il.init_state(memory, 1, 1, 1, 1, initial={"S": full(2.0, 1, 1, 1, 1)})
    gates = il.Gates(lr=full(1.0, 1, 1, 1), log_decay=full(math.log(0.5), 1, 1, 1))
    result = verb(memory, one([1]), one([1]), one([1]), gates, state)
    assert float(result.state.memory["S"]) == pytest.approx(1.0, abs=1e-15)
    other = il.Memory(il.Matrix(), il.L2(), il.Decay(), il.GradientStep())  # anchored before the decay
    state = il.init_state(other, 1, 1, 1, 1, initial={"S": full(2.0, 1, 1, 1, 1)})
    assert float(verb(other, one([1]), one([1]), one([1]), gates, state).state.memory["S"]) == pytest.approx(
        0.0, abs=1e-15
    )


def test_a_counter_does_not_stall_in_bfloat16() -> None:
    """A memory that counts to a thousand with bfloat16 inputs: a bfloat16 state would stop at 256."""
    ones = torch.ones(1, 1_000, 1, 1, dtype=torch.bfloat16)
    for name in ("linear_attention", "rls"):
        state = il.chunked(il.get(name), ones, ones, ones).state
        held = state.memory["S" if name == "linear_attention" else "moment"]
        assert held.dtype == torch.float32
        assert float(held) == pytest.approx(1000.0, rel=1e-6)


def test_gates_are_not_rounded_to_the_inputs_dtype() -> None:
    """log_decay -1e-3 in float32 beside bfloat16 inputs: rounding would give another horizon."""
    T = 512
    ones, gate = torch.ones(1, T, 1, 1, dtype=torch.bfloat16), full(-0.001 * 1.003, 1, T, 1, dtype=torch.float32)
    held = il.chunked(il.get("mamba2"), ones, ones, ones, il.Gates(log_decay=gate)).state.memory["S"]
    a = math.exp(float(gate[0, 0, 0]))
    assert float(held) == pytest.approx((1 - a**T) / (1 - a), rel=2e-6)


@VERBS
def test_many_equal_keys_at_lr_one(verb: Any) -> None:
    """Each write overwrites the last one exactly; a Neumann series of the tile's triangle would blow up."""
    T = 256
    key = torch.nn.functional.normalize(normal(1, 1, 1, 64), dim=-1)
    k, v = key.expand(1, T, 1, 64), normal(1, T, 1, 8)
    for dtype in (torch.float64, torch.float32):
        output = verb(il.get("deltanet"), k.to(dtype), k.to(dtype), v.to(dtype)).output
        assert_close(output, v.to(dtype), f"{dtype}: what was written last")


@VERBS
@pytest.mark.parametrize("name", ["gated_deltanet", "kda", "mamba2", "gla", "longhorn", "titans_linear"])
def test_strong_decay_gives_finite_gradients(verb: Any, name: str) -> None:
    """Factors exp(G_i) exp(-G_j) overflow at -80 per token; -1e30 and -inf turn into NaN by inf - inf."""
    memory = il.get(name, **({"decay": True} if name == "longhorn" else {}))
    q, k, v = (normal(1, 48, 1, n, seed=s).float().requires_grad_() for s, n in enumerate((4, 4, 3)))
    channels = (
        (4,)
        if memory.gate_specs()[[s.name for s in memory.gate_specs()].index("log_decay")].shape.endswith("K]")
        else ()
    )
    for value in (-80.0, -1e4, -1e30, float("-inf")):
        gate = full(-0.01, 1, 48, 1, *channels, dtype=torch.float32)
        gate[:, 10::7] = value
        gates = {"log_decay": gate.requires_grad_(), "lr": full(0.2, 1, 48, 1, dtype=torch.float32).requires_grad_()}
        given = il.Gates(**{n: g for n, g in gates.items() if n in memory.reads})
        output = verb(memory, q, k, v, given).output
        leaves = [q, k, v, *(g for g in given if g is not None)]
        for gradient in torch.autograd.grad(output.square().sum(), leaves):
            assert bool(gradient.isfinite().all()), f"log_decay {value:g}"


@VERBS
def test_steps_beyond_two_diverge_and_say_so(verb: Any) -> None:
    """lr |k|^2 = 3: the explicit step doubles the error at each token, the implicit one halves it and more."""
    T = 30
    k, v, gates = full(1.0, 1, T, 1, 1), full(1.0, 1, T, 1, 1), il.Gates(lr=full(3.0, 1, T, 1))
    explicit = verb(il.get("deltanet"), k, k, v, gates).output[0, :, 0, 0]
    assert_close(explicit, 1 - (-2.0) ** torch.arange(1, T + 1, dtype=torch.float64), "1 - (-2)^t")
    factor, unstable = il.stability(il.get("deltanet"), k, gates)
    assert torch.equal(factor, full(-2.0, 1, T, 1))
    assert bool(unstable.all())
    implicit = verb(il.get("longhorn"), k, k, v, gates).output[0, :, 0, 0]
    assert_close(implicit, 1 - 0.25 ** torch.arange(1, T + 1, dtype=torch.float64), "1 - 4^-t")
    assert not bool(il.stability(il.get("longhorn"), k, gates).unstable.any())


@VERBS
def test_padding_is_no_token_even_with_momentum(verb: Any) -> None:
    """With momentum, lr = 0 is not a no-op: surprise goes on. A masked token is; a chunk's padding is none."""
    memory = il.get("titans_linear")
    q, k, v = (normal(1, 9, 1, n, seed=s) for s, n in enumerate((3, 3, 2)))
    gates = il.Gates(lr=full(0.2, 1, 9, 1), log_decay=full(-0.1, 1, 9, 1), momentum=full(0.8, 1, 9, 1))
    mask = torch.tensor([[True] * 5 + [False] * 4])
    short = verb(memory, q[:, :5], k[:, :5], v[:, :5], il.Gates(*(None if g is None else g[:, :5] for g in gates)))
    masked = verb(memory, q, k, v, gates, mask=mask)
    for name in ("memory", "buffers"):
        assert_close(getattr(masked.state, name)["S"], getattr(short.state, name)["S"], name)
    idle = verb(memory, q, k, v, gates._replace(lr=torch.where(mask[..., None], 0.2, 0.0)))
    assert float((idle.state.memory["S"] - short.state.memory["S"]).abs().max()) > 1e-2


def test_equal_sizes_do_not_hide_a_swapped_layout() -> None:
    """[B, T, H, D] with T = H: swapping time and heads gives another answer, as it must."""
    q, k, v = (normal(1, 4, 4, 3, seed=s) for s in range(3))
    plain = il.chunked(il.get("deltanet"), q, k, v).output
    swapped = il.chunked(il.get("deltanet"), *(x.transpose(1, 2) for x in (q, k, v))).output.transpose(1, 2)
    assert float((plain - swapped).abs().max()) > 0.1
    wanted = il.scan(il.get("deltanet"), q[:, :, 2:3], k[:, :, 2:3], v[:, :, 2:3]).output
    assert_close(plain[:, :, 2:3], wanted, "head 2 alone")


def test_a_batch_does_not_share_one_memory() -> None:
    k, v = normal(3, 10, 1, 4), normal(3, 10, 1, 2, seed=1)
    S = normal(1, 1, 4, 2, seed=2)
    memory = il.get("deltanet")
    state = il.init_state(memory, 3, 1, 4, 2, initial={"S": S}, dtype=torch.float64)
    after = il.chunked(memory, k, k, v, il.Gates(lr=full(0.3, 3, 10, 1)), state).state.memory["S"]
    assert float((after[0] - after[1]).abs().max()) > 0.1
    assert_close(state.memory["S"], S.expand(3, 1, 4, 2), "the shared initial memory")


@VERBS
def test_info_by_hand(verb: Any) -> None:
    """S0 = 2, k = 3, v = 4: residual 2, gradient 6; at lr 1/9 the memory goes to 2 - 6/9 = 4/3. Masked: no surprise."""
    memory = il.get("deltanet")
    state = il.init_state(memory, 1, 1, 1, 1, initial={"S": full(2.0, 1, 1, 1, 1)})
    gates = il.Gates(lr=full(1 / 9, 1, 2, 1))
    mask = torch.tensor([[True, False]])
    info = verb(
        memory, one([3, 1]), one([3, 1]), one([4, 1]), gates, state, mask=mask, info=("surprise", "memory_norm")
    ).info
    assert info["surprise"].flatten().tolist() == pytest.approx([6.0, 0.0])
    assert info["memory_norm"].flatten().tolist() == pytest.approx([4 / 3, 4 / 3])


@pytest.mark.slow
def test_the_step_compiles_to_machine_code() -> None:
    """gated_deltanet's step through inductor, over a few tokens: the answers of the plain step."""
    memory = il.get("gated_deltanet")
    q, k, v = (normal(1, 5, 2, n, seed=s, dtype=torch.float32) for s, n in enumerate((8, 8, 8)))
    k = torch.nn.functional.normalize(k, dim=-1)
    lr, decay = full(0.5, 1, 5, 2, dtype=torch.float32), full(-0.1, 1, 5, 2, dtype=torch.float32)
    torch.compiler.reset()
    compiled = torch.compile(lambda q, k, v, gates, state: il.step(memory, q, k, v, gates, state))
    state = il.init_state(memory, 1, 2, 8, 8)
    for t in range(5):
        output, state, _ = compiled(q[:, t], k[:, t], v[:, t], il.Gates(lr[:, t], decay[:, t]), state)
        wanted = il.scan(
            memory, q[:, : t + 1], k[:, : t + 1], v[:, : t + 1], il.Gates(lr[:, : t + 1], decay[:, : t + 1])
        )
        assert_close(output, wanted.output[:, -1], f"token {t}")
