"""The gallery on how a memory learns at test time, N1 to N6, against plain loops and the source's values."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import innerloop as il
from innerloop.gallery import capacity, conditioning, equivalences, forgetting, orthogonal, outlier, pairs
from innerloop.gallery.experiment import Outcome
from innerloop.look import THEMES, png

RUNS: dict[str, Callable[..., Outcome]] = {
    "N1": equivalences.equivalences,
    "N2": capacity.capacity,
    "N3": conditioning.conditioning,
    "N4": forgetting.forgetting,
    "N5": outlier.outlier,
    "N6": orthogonal.orthogonal,
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    told: list[str] = []
    found = {name: run(told.append) for name, run in RUNS.items()}
    assert len(told) >= len(RUNS)
    return found


@pytest.mark.parametrize("name", RUNS)
def test_every_row_holds(outcomes: dict[str, Outcome], name: str) -> None:
    assert [row.name for row in outcomes[name].rows if not row.holds] == []


@pytest.mark.parametrize("name", RUNS)
def test_pictures_are_drawn_for_both_pages(outcomes: dict[str, Outcome], name: str) -> None:
    from matplotlib.image import imread

    for picture in outcomes[name].figures.values():
        for theme in THEMES:
            image = imread(io.BytesIO(png(picture.paint, theme, size=picture.size)), format="png")
            assert abs(image.shape[1] - picture.size[0] * 144) <= 1
            assert image[..., :3].std() > 0.01  # something stands on the page


def test_relative_error_by_hand() -> None:
    answers = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    values = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    assert pairs.relative_error(answers, values) == pytest.approx((4 / 5 + 2 / 2) / 2)


# N1


@pytest.mark.parametrize("segment", [1, 8, 64])
def test_linear_ttt_is_mini_batch_descent_on_the_whole_squares(segment: int) -> None:
    q, k, v = (x.numpy() for x in equivalences.pairs())
    W, start = np.zeros((16, 16)), np.zeros((16, 16))
    expected = []
    for t in range(len(k)):
        if t % segment == 0:
            start = W
        W = W - 0.5 * 2 * np.outer(k[t], k[t] @ start - v[t])  # eta = 1/2, the loss has no half
        expected.append(q[t] @ W)
    np.testing.assert_allclose(equivalences.linear_ttt(segment).numpy(), expected, atol=1e-11)


def test_both_ends_by_their_own_definitions() -> None:
    q, k, v = (x.numpy() for x in equivalences.pairs())
    attention = np.tril(q @ k.T) @ v
    np.testing.assert_allclose(equivalences.linear_ttt(64).numpy(), attention, atol=1e-11)
    S, expected = np.zeros((16, 16)), []
    for t in range(len(k)):
        S = (np.eye(16) - np.outer(k[t], k[t])) @ S + np.outer(k[t], v[t])
        expected.append(q[t] @ S)
    np.testing.assert_allclose(equivalences.linear_ttt(1).numpy(), expected, atol=1e-11)


# N2


def test_fitting_is_adam_on_all_pairs() -> None:
    keys, values, hidden, output = (x.double() for x in capacity.draw(24))
    memory = capacity.memory(il.MLP(expansion=4, bias=True), 24)
    initial = {"weight_0": hidden[None, None], "weight_1": output[None, None]}
    state = il.init_state(memory, 1, 1, 16, 16, initial=initial)
    state = pairs.fitted(memory, keys, values, rate=0.1, steps=20, state=state)
    weights = [hidden.clone(), torch.zeros(64).double(), output.clone(), torch.zeros(16).double()]
    for w in weights:
        w.requires_grad_()
    # a mean of whole squares against a sum of half squares: 2 / 24 of the gradient, and of what eps is compared with
    solver = torch.optim.Adam(weights, lr=0.1, eps=1e-8 * 2 / 24)
    for _ in range(20):
        solver.zero_grad()
        answers = F.gelu(keys @ weights[0] + weights[1]) @ weights[2] + weights[3]
        (answers - values).square().sum(-1).mean().backward()
        solver.step()
    for name, w in zip(("weight_0", "bias_0", "weight_1", "bias_1"), weights, strict=True):
        torch.testing.assert_close(state.memory[name][0, 0], w.detach(), rtol=1e-7, atol=1e-7)


def test_capacity_values(outcomes: dict[str, Outcome]) -> None:
    found = outcomes["N2"]
    assert found.value("matrix, 32 pairs") == pytest.approx(0.69, abs=0.005)
    assert found.value("network, 32 pairs") < 0.005
    keys, values, *_ = (x.double().numpy() for x in capacity.draw(32))
    residual = values - keys @ np.linalg.lstsq(keys, values, rcond=None)[0]
    best = np.mean(np.linalg.norm(residual, axis=1) / np.linalg.norm(values, axis=1))
    assert found.value("matrix, 32 pairs") == pytest.approx(best, abs=1e-4)


def test_no_linear_memory_beats_least_squares() -> None:
    keys, values, *_ = capacity.draw(32)
    assert np.linalg.matrix_rank(keys.numpy()) == 16 < len(values)
    assert capacity.deep_linear_error(32) == pytest.approx(capacity.matrix_error(32), abs=1e-3)


# N3


def test_momentum_is_heavy_ball_descent_on_all_pairs() -> None:
    keys, values, _ = (x.double().numpy() for x in conditioning.pairs())
    np.testing.assert_allclose(np.linalg.svd(keys)[1], np.linspace(1, 0.15, 16), atol=1e-6)
    answers, _ = conditioning.descended(80)
    for h, momentum in enumerate(conditioning.MOMENTA):
        W, U = np.zeros((16, 16)), np.zeros((16, 16))
        for t in range(80):
            U = momentum * U - 0.3 * 2 / 20 * keys.T @ (keys @ W - values)
            W = W + U
            np.testing.assert_allclose(answers[t, h].numpy(), keys @ W, atol=1e-4)


def test_momentum_arrives_at_46_counted_from_zero(outcomes: dict[str, Outcome]) -> None:
    keys, values, _ = (x.double().numpy() for x in conditioning.pairs())

    def arrives(momentum: float, power: int) -> int:
        W, U, t = np.zeros((16, 16)), np.zeros((16, 16)), 0
        while (np.linalg.norm(keys @ W - values) / np.linalg.norm(values)) ** power >= 0.1:
            U = momentum * U - 0.3 * 2 / 20 * keys.T @ (keys @ W - values)
            W, t = W + U, t + 1
        return t

    found = outcomes["N3"]
    assert found.value("momentum .9: index of the step, from 0, with error < .1") == arrives(0.9, 1) - 1 == 46
    assert found.value("plain: index of the step with error < .1") == arrives(0.0, 1) - 1
    assert f"after {arrives(0.9, 2)} steps with momentum .9, and after {arrives(0.0, 2)} by plain" in found.notes[0]


# N4


def test_forgetting_is_the_decayed_sum_of_outer_products(outcomes: dict[str, Outcome]) -> None:
    keys, values = (x.double().numpy() for x in forgetting.pairs())
    result = forgetting.written(*(x[None] for x in forgetting.pairs()))
    assert result.info is not None
    errors = {}
    for h, a in enumerate((0.0, 0.1, 0.3)):
        S, norms = np.zeros((16, 16)), []
        for k, v in zip(keys, values, strict=True):
            S = (1 - a) * S + np.outer(k, v)
            norms.append(np.linalg.norm(S))
        np.testing.assert_allclose(result.info["memory_norm"][0, :, h].numpy(), norms, rtol=1e-4)
        each = np.linalg.norm(keys @ S - values, axis=1) / np.linalg.norm(values, axis=1)
        errors[a] = (each[115:].mean(), each[75:80].mean())
    found = outcomes["N4"]
    for a, (recent, old) in errors.items():
        assert found.value(f"forgetting {a:g}: error of the last 5") == pytest.approx(recent, abs=1e-4)
        assert (recent < old) == (a > 0)


# N5


@pytest.mark.parametrize("loss", ["squares", "huber"])
def test_outlier_by_torch_adam(outcomes: dict[str, Outcome], loss: str) -> None:
    keys, values, clean = outlier.few()
    S = torch.zeros(16, 16, requires_grad=True)
    solver = torch.optim.Adam([S], lr=0.05)
    for _ in range(400):
        solver.zero_grad()
        answers = keys @ S
        of = (answers - values).square().sum(-1).mean()
        (of if loss == "squares" else 16 * F.huber_loss(answers, values, delta=1.0)).backward()
        solver.step()
    residual = (keys @ S - values)[clean].detach()
    error = float((residual.norm(dim=-1) / values[clean].norm(dim=-1)).mean())
    name = {
        "squares": "squares: error of the 8 clean pairs, 400 steps",
        "huber": "Huber: error of the 8 clean pairs, 400 steps",
    }
    assert outcomes["N5"].value(name[loss]) == pytest.approx(error, abs=1e-3)
    assert error == pytest.approx({"squares": 0.30, "huber": 0.0}[loss], abs=0.005)


def test_nine_pairs_fit_exactly_whatever_the_loss() -> None:
    keys, values, _ = outlier.few()
    assert np.linalg.matrix_rank(keys.numpy()) == 9
    fit = np.linalg.lstsq(keys.numpy(), values.numpy(), rcond=None)[0]
    np.testing.assert_allclose(keys.numpy() @ fit, values.numpy(), atol=1e-3)


# N6


def test_newton_schulz_by_singular_values(outcomes: dict[str, Outcome]) -> None:
    G = orthogonal.gradient().double().numpy()
    s = np.linalg.svd(G)[1]
    assert (round(s.min(), 2), round(s.max(), 2)) == (0.09, 17.73)
    x = s / np.sqrt((s**2).sum())
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
    found = outcomes["N6"]
    assert found.value("smallest after five steps") == pytest.approx(x.min(), abs=1e-4)
    assert found.value("largest after five steps") == pytest.approx(x.max(), abs=1e-4)
    assert x.argmax() == s.argmin()  # the 1.14 is what becomes of the smallest


@pytest.mark.parametrize("window", [1, 3, 8])
def test_omega_is_descent_on_the_window(window: int) -> None:
    keys, values = (x.double().numpy() for x in orthogonal.pairs())
    M = np.zeros((16, 16))
    for t in range(8):
        K, V = keys[max(0, t - window + 1) : t + 1], values[max(0, t - window + 1) : t + 1]
        for _ in range(80):
            M = M - 0.15 * 2 / len(K) * K.T @ (K @ M - V)
    np.testing.assert_allclose(orthogonal.omega()[window - 1].numpy(), keys @ M, atol=1e-4)


def test_omega_values(outcomes: dict[str, Outcome]) -> None:
    found = outcomes["N6"]
    assert found.value("mean recall error, window 1") == pytest.approx(0.87, abs=0.005)
    assert found.value("mean recall error, window 8") == pytest.approx(0.65, abs=0.005)
    keys, values = (x.double().numpy() for x in orthogonal.pairs())
    assert np.linalg.matrix_rank(keys, tol=1e-5) == 5
    residual = values - keys @ np.linalg.pinv(keys, rcond=1e-5) @ values
    floor = np.mean(np.linalg.norm(residual, axis=1) / np.linalg.norm(values, axis=1))
    assert found.value("mean recall error, least squares") == pytest.approx(floor, abs=1e-4)
