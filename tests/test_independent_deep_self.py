"""The deep oracles against themselves: every derivative by hand against differences of what it is a derivative of.

Then maps against the definitions that they shorten, and small numbers worked out on paper. None of it runs the library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import independent_deep_parts as parts
from independent_deep import DEEP_HAND_CASES, DEEP_ROWS, Call, Seen, adam, check_deep_by_hand, momentum, shampoo
from independent_deep_parts import LOSSES, Array, Loss, Matrix, Network, SwiGlu, Weights

BITE = 1e-5  # central differences err by its square times third derivatives, and by rounding over it


def differences(f: Callable[[Array], float], at: Array) -> Array:
    """The gradient by central differences, entry by entry."""
    out = np.zeros_like(at)
    for i in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[i] = BITE
        out[i] = (f(at + step) - f(at - step)) / (2 * BITE)
    return out


def close(mine: Any, wanted: Any, rtol: float = 1e-7) -> None:
    np.testing.assert_allclose(mine, wanted, rtol=rtol, atol=rtol * np.abs(wanted).max(initial=0.1))


def network(rng: np.random.Generator, sizes: list[int], bias: bool, norm: bool) -> Weights:
    """Random weights; the norm's spread is near 1."""
    W = {f"weight_{i}": rng.normal(size=sizes[i : i + 2]) / sizes[i] ** 0.5 for i in range(len(sizes) - 1)}
    W |= {f"bias_{i}": rng.normal(size=sizes[i + 1]) for i in range(len(sizes) - 1) if bias}
    return W | ({"norm_weight": rng.normal(size=sizes[-1]), "norm_bias": rng.normal(size=sizes[-1])} if norm else {})


RNG = np.random.default_rng(11)
NETS: dict[str, tuple[Any, Weights]] = {
    "matrix": (Matrix(), {"S": RNG.normal(size=(4, 3))}),
    "swiglu": (SwiGlu(), {n: RNG.normal(size=(4, 5)) for n in ("gate", "up")} | {"down": RNG.normal(size=(5, 3))}),
    "one layer, norm, residual": (Network(residual=True), network(RNG, [4, 3], True, True)),
    "longer value": (Network(residual=True), network(RNG, [4, 8, 6], False, True)),
    "gelu": (Network(), network(RNG, [4, 8, 3], False, False)),
    "gelu_tanh, all": (Network("gelu_tanh", residual=True), network(RNG, [4, 8, 3], True, True)),
    "silu, three layers": (Network("silu"), network(RNG, [4, 8, 6, 3], True, False)),
    "features, norm": (
        Network(degree=3), network(RNG, [35, 8, 3], False, True) | {"feature_coefficients": RNG.normal(size=4)}
    ),
}  # fmt: skip
ALL_LOSSES = {
    **LOSSES,
    "lp 3": parts.lp(3.0),
    "lp 1.5": parts.lp(1.5),
    "lp 1": parts.lp(1.0),
    "robust": parts.robust(0.4),
}


@pytest.mark.parametrize("name", ALL_LOSSES)
def test_slopes(name: str) -> None:
    """On both sides of Huber's threshold (where the printed switch jumps, nobody stands)."""
    rng, loss, sides = np.random.default_rng(1), ALL_LOSSES[name], set[bool]()
    for size in (0.2, 0.5, 1.0, 3.0):
        y, v = rng.normal(size=(2, 5)) * size
        sides.add(bool(np.linalg.norm(y - v) > 1.2))
        close(loss.slope(y, v, 1.2), differences(lambda y, v=v: loss.value(y, v, 1.2), y))
    assert sides == {True, False}


@pytest.mark.parametrize("loss", ["l2", "dot", "coordinate", "lp 3"])
@pytest.mark.parametrize("name", NETS)
def test_gradients(name: str, loss: str) -> None:
    """The whole chain, loss of answer of weights, in every weight; outer parameters have no gradient here."""
    (net, W), stated = NETS[name], ALL_LOSSES[loss]
    rng = np.random.default_rng(2)
    x = rng.normal(size=4)
    v = rng.normal(size=net.answer(W, x).shape)
    mine = net.gradient(W, x, stated.slope(net.answer(W, x), v, 0.8))
    assert set(mine) == set(W) - set(parts.OUTER)
    for entry, gradient in mine.items():
        f = lambda w, n=entry: stated.value(net.answer(W | {n: w}, x), v, 0.8)  # noqa: E731
        close(gradient, differences(f, W[entry]), rtol=1e-6)


@pytest.mark.parametrize("name", parts.ACTIVATIONS)
def test_activations(name: str) -> None:
    act, bent = parts.ACTIVATIONS[name]
    x = np.linspace(-6, 6, 41)
    close(bent(x), (act(x + BITE) - act(x - BITE)) / (2 * BITE))
    # gelu'(0) = 1/2 = silu'(0); far out they are x and 0; an odd part of x/2 is what they share
    close([act(np.zeros(1))[0], bent(np.zeros(1))[0]], [0, 0.5], 1e-12)
    close(act(x) - act(-x), x, 1e-12)
    close(act(np.array([60.0, -60.0])), [60, 0], 1e-12)


def test_gelu_is_x_times_the_normal_mass_below_x() -> None:
    """By Simpson's rule on the normal density."""
    x = np.linspace(0, 1.5, 2001)
    density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    mass = 0.5 + (x[1] / 3) * (density[0] + 4 * density[1:-1:2].sum() + 2 * density[2:-1:2].sum() + density[-1])
    close(parts.ACTIVATIONS["gelu"][0](np.array([1.5])), [1.5 * mass], 1e-12)
    assert abs(parts.ACTIVATIONS["gelu_tanh"][0](np.array([1.5])) - 1.5 * mass)[0] < 1e-3  # near, and not the same


def test_layer_norm_by_hand() -> None:
    """z = (1, 2, 3, 6): mean 3, variance (4 + 1 + 0 + 9)/4 = 7/2; then 2 n + 1, and x = (5) padded to (5, 0, 0, 0)."""
    W = {"weight_0": np.array([[1.0, 2, 3, 6]]) / 5, "norm_weight": np.full(4, 2.0), "norm_bias": np.ones(4)}
    wanted = 2 * np.array([-2, -1, 0, 3]) / np.sqrt(3.5 + 1e-6) + 1
    close(Network().answer(W, np.array([5.0])), wanted, 1e-12)
    close(Network(residual=True).answer(W, np.array([5.0])), [wanted[0] + 5, *wanted[1:]], 1e-12)
    # cut: x = (5, 7) to one channel, which a norm of one channel answers with its bias
    cut = {"weight_0": np.ones((2, 1)), "norm_weight": np.ones(1), "norm_bias": np.full(1, 4.0)}
    close(Network(residual=True).answer(cut, np.array([5.0, 7.0])), [9], 1e-12)


def test_small_numbers_by_hand() -> None:
    """Huber at r = (3, -4), |r| = 5 and at half that; Lp; the monomials of (2, 3)."""
    r, zero = np.array([3.0, -4.0]), np.zeros(2)
    for form, value, slope in (
        ("coordinate", 4.5 + 3.5 * (4 - 1.75), [3, -3.5]),
        ("norm", 3.5 * (5 - 1.75), [2.1, -2.8]),
        ("switch", 3.5 * 7, [3.5, -3.5]),
    ):
        close([LOSSES[form].value(r, zero, 3.5)], [value], 1e-12)
        close(LOSSES[form].slope(r, zero, 3.5), slope, 1e-12)
        close(LOSSES[form].slope(r / 2, zero, 3.5), r / 2, 1e-12)
    close([parts.lp(3.0).value(r, zero, 0)], [(27 + 64) / 3], 1e-12)
    close(parts.lp(3.0).slope(r, zero, 0), [9, -16], 1e-12)
    close(parts.robust(0.5).slope(r, zero, 0), [3.3, -4.4], 1e-12)
    close(parts.monomials(np.array([2.0, 3.0]), 3), [1, 2, 3, 2, 3, 4.5, 8 / 6, 2, 3, 27 / 6], 1e-12)


def test_links_are_mirror_maps() -> None:
    """Gradients of |A|_q^2 / 2, and of the total times the log of the sum of exponentials, column by column."""
    A = np.random.default_rng(3).normal(size=(4, 3))
    for q in (1.7, 2.0, 4.0):
        close(parts.lq(q, "corrected")(A), differences(lambda A, q=q: (abs(A) ** q).sum() ** (2 / q) / 2, A))
    close(parts.lq(2.0, "paper")(A), A, 1e-12)
    close(parts.lq(4.0, "paper")(np.array([[3**0.5], [2.0]])), [[3**0.5 / 5], [2 / 5]], 1e-12)
    close(parts.kl(2.5)(A), differences(lambda A: 2.5 * np.log(np.exp(A).sum(0)).sum(), A))
    close(parts.kl(6.0)(np.log([[1.0], [2.0], [3.0]])), [[1], [2], [3]], 1e-12)


def test_proxes() -> None:
    """The elastic net's minimum is a minimum; the row norm's rows have the lengths, but for 1e-5 in the divisor."""
    rng = np.random.default_rng(4)
    W, W0 = rng.normal(size=(2, 5, 3))
    cost = lambda w: abs(w - W) ** 2 / 0.6 + 0.9 * abs(w) + 0.2 * w**2 / 2  # noqa: E731
    best = parts.elastic(0.9, 0.2)(W, W0, 0.3)
    assert 0 < (best == 0).sum() < best.size
    assert all((cost(best) <= cost(best + 0.01 * way)).all() for way in rng.normal(size=(50, 5, 3)))
    close(np.linalg.norm(parts.row_norm(W, W0), axis=0), np.linalg.norm(W0, axis=0), 1e-4)
    close(parts.row_norm(np.array([[3.0], [4.0]]), np.array([[0.0], [2.0]])), 2 / 5.00001 * np.array([[3], [4]]), 1e-12)


@pytest.mark.parametrize("triples", [parts.STANDARD, parts.LACT], ids=["standard", "lact"])
@pytest.mark.parametrize("shape", [(4, 7), (7, 4), (5, 5), (1, 6), (6,)], ids=str)
def test_newton_schulz(triples: Any, shape: tuple[int, ...]) -> None:
    """The iteration itself; where it lands; no scale, no sign lost; nothing out of nothing."""
    S = np.random.default_rng(5).normal(size=shape)
    X = np.atleast_2d(S) / np.linalg.norm(S)
    for a, b, c in triples:
        X = a * X + b * (X @ X.T) @ X + c * (X @ X.T) @ (X @ X.T) @ X
    mine = parts.orthogonal(S, triples)
    close(mine, X.reshape(shape), 1e-9)
    low, high = (0.68, 1.14) if triples is parts.STANDARD else (0.97, 1.04)
    sizes = np.linalg.svd(np.atleast_2d(mine), compute_uv=False)
    assert low < sizes.min() <= sizes.max() < high
    close(parts.orthogonal(-1e-9 * S, triples), -mine, 1e-9)
    assert not parts.orthogonal(0 * S, triples).any()


def _past(seed: int, tokens: int = 6) -> list[Seen]:
    rng = np.random.default_rng(seed)
    return [Seen(rng.normal(size=(4, 3)), *rng.uniform(0.1, 0.9, 2)) for _ in range(tokens)]


def test_learners_unrolled_are_their_recursions() -> None:
    past = _past(6)
    U, M, N, b, c = np.zeros((4, 3)), np.zeros((4, 3)), np.zeros((4, 3)), 1.0, 1.0
    for g, lr, m in past:
        U = m * U - lr * g
        M, N, b, c = m * M + (1 - m) * g, 0.99 * N + 0.01 * g * g, b * m, c * 0.99
    close(momentum(past)[0], U, 1e-12)
    step, buffers = adam(past)
    close(step, -past[-1].lr * (M / (1 - b)) / (np.sqrt(N / (1 - c)) + 1e-8), 1e-12)
    close([buffers["first_mass"], buffers["second_mass"]], [1 - b, 1 - c], 1e-12)
    # with a constant momentum, Kingma and Ba's correction
    still = [seen._replace(m=0.9) for seen in past]
    close([adam(still)[1]["first_mass"]], [1 - 0.9**6], 1e-12)


def test_shampoo_whitens() -> None:
    """(L + 1e-6)^(-1/4) g (R + 1e-6)^(-1/4) of one gradient: singular values s become s / (s^2 + 1e-6)^(1/2)."""
    seen = _past(7, 1)[0]
    left, s, right = np.linalg.svd(seen.g, full_matrices=False)
    close(shampoo([seen])[0], -seen.lr * (left * (s / np.sqrt(s * s + 1e-6))) @ right, 1e-9)


@pytest.mark.parametrize("index", range(len(DEEP_HAND_CASES)), ids=lambda i: f"{i}-{DEEP_HAND_CASES[i][0]}")
def test_rows_by_hand(index: int) -> None:
    check_deep_by_hand(*DEEP_HAND_CASES[index])


def test_a_segment_of_all_tokens_is_gradient_descent_on_the_sum() -> None:
    """Titans without momentum or decay: the last memory is one step along differences of the summed loss."""
    rng = np.random.default_rng(8)
    q, k, v = rng.normal(size=(3, 5, 4)), rng.normal(size=(5, 4)), rng.normal(size=(5, 3))
    W, lr, net, loss = network(rng, [4, 8, 3], True, True), rng.uniform(0, 0.3, 5), Network(), LOSSES["l2"]
    gates = {"lr": lr, "momentum": np.zeros(5)}
    _, final = DEEP_ROWS["titans"](Call(q[0], k, v, gates, W), segment=5)
    for n in set(W) - set(parts.OUTER):

        def total(w: Array, n: str = n) -> float:
            return sum(lr[i] * loss.value(net.answer(W | {n: w}, k[i]), v[i], 0.0) for i in range(5))

        close(final[f"memory/{n}"], W[n] - differences(total, W[n]), 1e-6)


def test_a_gate_that_is_not_read_raises() -> None:
    call = Call(*np.ones((3, 2, 2)), {"momentum": np.ones(2)}, {"S": np.zeros((2, 2))})
    with pytest.raises(ValueError, match="momentum"):
        DEEP_ROWS["adagrad_memory"](call)
    assert isinstance(LOSSES["l2"], Loss)
