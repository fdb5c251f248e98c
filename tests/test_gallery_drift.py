"""Regression under drift in the gallery: followers, how much to forget, momentum on the implicit tracker."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import innerloop as il
from innerloop.gallery import drift, tracking
from innerloop.gallery.experiment import Outcome


@pytest.fixture(scope="module")
def drifting() -> Outcome:
    return drift.drift(lambda word: None)


@pytest.fixture(scope="module")
def momentum() -> Outcome:
    return tracking.momentum(lambda word: None)


def plain_followers() -> np.ndarray:
    """The recipe as a numpy loop: distances [T, 3] of least squares, of forgetting .95, of the implicit step."""
    rng = np.random.default_rng(2)
    d = 8
    w = rng.normal(size=d)
    w /= np.linalg.norm(w)
    A, b, A2, b2, s = np.eye(d) * 1e-6, np.zeros(d), np.eye(d) * 1e-6, np.zeros(d), np.zeros(d)
    out = []
    for _ in range(2000):
        w = w + 0.03 * rng.normal(size=d)
        w /= np.linalg.norm(w)
        k = rng.normal(size=d) / np.sqrt(d)
        v = w @ k + 0.1 * rng.normal()
        A, b = A + np.outer(k, k), b + v * k
        A2, b2 = 0.95 * A2 + np.outer(k, k), 0.95 * b2 + v * k
        s = s + (v - s @ k) * k / (1 + k @ k)
        out.append([np.linalg.norm(x - w) for x in (np.linalg.solve(A, b), np.linalg.solve(A2, b2), s)])
    return np.array(out)


def test_d7_holds(drifting: Outcome) -> None:
    assert drifting.holds
    printed = {"least squares": "0.99", "forgetting .95": "0.29", "implicit step": "0.30"}
    assert {name: f"{drifting.value('mean distance, ' + name):.2f}" for name in printed} == printed


def test_followers_are_those_of_a_plain_loop(drifting: Outcome) -> None:
    want, found = plain_followers(), drift.followers()
    for i, name in enumerate(("least squares", "forgetting .95", "implicit step")):
        # until d pairs have been read the sum of outer products is singular but for the ridge
        np.testing.assert_allclose(found[name][20:].numpy(), want[20:, i], rtol=1e-6, err_msg=name)


def test_kalman_is_that_of_a_plain_loop() -> None:
    stream = drift.draw()
    P, w, out = np.eye(8) / 8, np.zeros(8), []
    for k, v in zip(stream.keys.numpy(), stream.values.numpy(), strict=True):
        P = P + 0.03**2 * np.eye(8)
        g = P @ k / (0.1**2 + k @ P @ k)
        w, P = w + g * (v - w @ k), P - np.outer(g, k @ P)
        out.append(w)
    want = np.linalg.norm(np.array(out) - stream.truth.numpy(), axis=1)
    np.testing.assert_allclose(drift.followers()["Kalman filter"].numpy(), want, rtol=1e-8)


def test_the_banks_weights_are_its_coefficients() -> None:
    """Asked through queries, or read from `coef_` row by row."""
    stream = drift.draw(tokens=drift.LAST + 20)
    found = drift.bank_weights(stream, penalty=1e-6)
    model = il.StreamingRegressor(forgetting="auto", fit_intercept=False, penalty=1e-6)
    X, y = stream.keys.numpy(), stream.values.numpy()
    model.partial_fit(X[:20], y[:20])
    for t in range(20, 25):
        model.partial_fit(X[t : t + 1], y[t : t + 1])
        np.testing.assert_allclose(found[t - 20].numpy(), model.coef_, rtol=1e-6, atol=1e-9)


def test_the_best_forgetting_balances_noise_and_lag() -> None:
    """The formula's minimum, by a search of its own."""
    for speed in (0.001, 0.01):
        grid = np.logspace(-4, 0, 20001)
        errors = [drift.distance(x, speed) for x in grid]
        assert grid[int(np.argmin(errors))] == pytest.approx(drift.theory(speed), rel=1e-3)


def test_the_bottom_of_a_curve() -> None:
    lost = 1 - drift.KEPT
    curve = np.exp((np.log(lost) - math.log(0.02)) ** 2)
    assert drift.bottom(curve) == pytest.approx(0.02, rel=1e-6)


def test_a_setting_of_the_sweep_is_that_of_a_plain_loop(drifting: Outcome) -> None:
    """Forgetting at one drift and one lambda, predictions before each row, in numpy."""
    i, j = 2, 12
    lam, squares = drift.KEPT[j], []
    for stream in (drift.draw(10 * i + s, drift.SPEEDS[i], drift.LONG) for s in range(drift.STREAMS)):
        P, w = np.eye(8) / 1e-6, np.zeros(8)
        truth, keys, values = (x.numpy() for x in stream)
        for t in range(drift.LONG):
            k = keys[t]
            if t >= drift.BURN:
                squares.append(((w - truth[t]) @ k) ** 2)
            g = P @ k / (lam + k @ P @ k)
            w, P = w + g * (values[t] - w @ k), (P - np.outer(g, k @ P)) / lam
    assert drift.speeds().each[i, j] == pytest.approx(math.sqrt(np.mean(squares)), rel=1e-5)


def test_x5_holds(momentum: Outcome) -> None:
    assert momentum.holds


@pytest.mark.parametrize("name", ["random walk", "rotation"])
@pytest.mark.parametrize(("eta", "beta"), [(0.5, 1.0), (0.9, 0.1)])
def test_momentum_is_that_of_a_plain_loop(name: str, eta: float, beta: float) -> None:
    stream = tracking.streams()[name]
    w, U, out = np.zeros(8), np.zeros(8), []
    for truth, k, v in zip(*(x.numpy() for x in stream), strict=True):
        U = eta * U + beta / (1 + beta * k @ k) * (v - w @ k) * k
        w = w + U
        out.append(np.linalg.norm(w - truth))
    assert tracking.tracked(stream, eta, beta) == pytest.approx(np.mean(out[-500:]), rel=1e-8)


def test_the_extrapolated_step_is_that_of_a_plain_loop() -> None:
    stream = tracking.streams()["rotation"]
    w, before, out = np.zeros(8), np.zeros(8), []
    for truth, k, v in zip(*(x.numpy() for x in stream), strict=True):
        ahead, before = w + 0.5 * (w - before), w
        w = np.linalg.solve(np.eye(8) + 2 * np.outer(k, k), ahead + 2 * v * k)
        out.append(np.linalg.norm(w - truth))
    assert tracking.extrapolated(stream, 0.5, 2.0) == pytest.approx(np.mean(out[-500:]), rel=1e-8)


def test_the_rotation_turns_in_its_plane() -> None:
    truth = tracking.streams()["rotation"].truth
    assert torch.allclose(truth.norm(dim=-1), torch.ones(2000, dtype=torch.float64))
    assert not truth[:, 2:].any()
    assert float(truth[100] @ truth[101]) == pytest.approx(math.cos(0.03), abs=1e-12)


@pytest.mark.parametrize(("eta", "beta"), [(0.0, 1.0), (0.5, 1.0), (0.9, 0.2), (0.9, 1.0)])
def test_growth_of_the_mean_square(eta: float, beta: float) -> None:
    """The same factor from the full second moment: the mean over keys of M kron M, 256 by 256."""
    keys = tracking.streams()["random walk"].keys.numpy()
    rng = np.random.default_rng(0)
    eye, total, count = np.eye(8), np.zeros((256, 256)), 0
    for k in keys:
        # all signs of a key are as likely: with them the mean is closer to that of all directions
        k = k * rng.choice([-1, 1], 8)
        G = beta / (1 + beta * k @ k) * np.outer(k, k)
        M = np.block([[eye - G, eta * eye], [-G, eta * eye]])
        total += np.kron(M, M)
        count += 1
    want = np.abs(np.linalg.eigvals(total / count)).max()
    assert tracking.growth(eta, beta) == pytest.approx(want, abs=0.02)
    assert (tracking.growth(eta, beta) > 1) == (want > 1)
