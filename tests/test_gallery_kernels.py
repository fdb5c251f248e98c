"""Kernel regression in the gallery (D1, D2, X3, X4) against the source's digits and plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.neighbors import KNeighborsRegressor

from innerloop import look
from innerloop.gallery import bandwidth, leak, temperature
from innerloop.gallery.experiment import Outcome

IDS = ("D1", "D2", "X3", "X4")


def quiet(word: str) -> None:
    """Progress that nobody reads."""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    runs = (bandwidth.sweep, bandwidth.learned, leak.leak, temperature.temperature)
    return {name: run(quiet) for name, run in zip(IDS, runs, strict=True)}


@pytest.fixture(scope="module")
def drawn() -> tuple[np.ndarray, np.ndarray]:
    """The points as the source draws them, from the global generator."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = torch.sort(torch.rand(40) * 5).values
        y = 2 * torch.sin(x) + x + torch.randn(40)
    return x.double().numpy(), y.double().numpy()


QUERIES = torch.arange(0, 5, 0.1).double().numpy()
TRUTH = 2 * np.sin(QUERIES) + QUERIES


def kernel(q: np.ndarray, x: np.ndarray, w: float, *, own: bool = True) -> np.ndarray:
    """Attention of queries to points; without their own vote the i-th query does not see the i-th point."""
    squares = (q[:, None] - x) ** 2
    if not own:
        np.fill_diagonal(squares, np.inf)
    p = np.exp(-(w**2) * (squares - squares.min(1, keepdims=True)) / 2)
    return p / p.sum(1, keepdims=True)


def error(x: np.ndarray, y: np.ndarray, w: float, *, own: bool) -> float:
    return float(np.mean((kernel(x, x, w, own=own) @ y - y) ** 2))


def slope(x: np.ndarray, y: np.ndarray, w: float, *, own: bool) -> float:
    """d error / dw, by the derivative of a softmax: dp_ij / dw = -w p_ij (d_ij - sum_l p_il d_il), d squared gaps."""
    p, squares = kernel(x, x, w, own=own), (x[:, None] - x) ** 2
    dp = -w * p * (squares - (p * squares).sum(1, keepdims=True))
    return float(np.mean(2 * (p @ y - y) * (dp @ y)))


def descent(x: np.ndarray, y: np.ndarray, steps: int, *, own: bool) -> list[float]:
    w = [1.0]
    for _ in range(steps):
        w.append(w[-1] - 0.5 * slope(x, y, w[-1], own=own))
    return w


def least(x: np.ndarray, y: np.ndarray) -> float:
    """The w of least leave-one-out error."""
    search: Any = minimize_scalar(lambda w: error(x, y, w, own=False), bounds=(1, 10), method="bounded")
    return float(search.x)


@pytest.mark.parametrize("name", IDS)
def test_every_row_holds(outcomes: dict[str, Outcome], name: str) -> None:
    assert outcomes[name].rows
    assert [row for row in outcomes[name].rows if not row.holds] == []


@pytest.mark.parametrize("theme", look.THEMES)
@pytest.mark.parametrize("name", IDS)
def test_figures_are_drawn(outcomes: dict[str, Outcome], name: str, theme: look.Theme) -> None:
    assert outcomes[name].figures
    for picture in outcomes[name].figures.values():
        assert look.png(picture.paint, theme, size=picture.size).startswith(b"\x89PNG")


def test_the_table_is_the_sources_and_leaves_the_global_generator_alone(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    before = torch.get_rng_state()
    data = bandwidth.table()
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(data.x.double().numpy(), drawn[0])
    np.testing.assert_array_equal(data.y.double().numpy(), drawn[1])


@pytest.mark.parametrize(("sigma", "printed"), [(0.1, 0.350), (0.5, 0.136), (2.0, 0.741)])
def test_sweep(
    outcomes: dict[str, Outcome], drawn: tuple[np.ndarray, np.ndarray], sigma: float, printed: float
) -> None:
    x, y = drawn
    found = outcomes["D1"].value(f"MSE against the truth, sigma {sigma:g}")
    assert round(found, 3) == printed
    assert found == pytest.approx(np.mean((kernel(QUERIES, x, 1 / sigma) @ y - TRUTH) ** 2), abs=1e-5)


def test_descent_by_leave_one_out(outcomes: dict[str, Outcome], drawn: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = drawn
    printed = [(1.259, 1.268), (1.146, 1.428), (1.102, 1.545), (1.078, 1.637), (1.062, 1.716)]
    w = descent(x, y, 5, own=False)
    for i, (loss, after) in enumerate(printed, 1):
        found = (
            outcomes["D2"].value(f"leave-one-out error before step {i}"),
            outcomes["D2"].value(f"w after step {i}"),
        )
        assert (round(found[0], 3), round(found[1], 3)) == (loss, after)
        assert found == pytest.approx((error(x, y, w[i - 1], own=False), w[i]), abs=1e-5)
    assert round(outcomes["D2"].value("sigma after five steps"), 3) == 0.583


def test_the_least_leave_one_out_error(outcomes: dict[str, Outcome], drawn: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = drawn
    best = outcomes["D2"].value("w of the least leave-one-out error")
    assert best == pytest.approx(least(x, y), rel=1e-4)
    there = outcomes["D2"].value("MSE against the truth there")
    assert there == pytest.approx(np.mean((kernel(QUERIES, x, best) @ y - TRUTH) ** 2), abs=1e-5)


def test_attention_is_the_kernel(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    found = bandwidth.attention(bandwidth.table(), 1.7).numpy()
    np.testing.assert_allclose(found, kernel(QUERIES, drawn[0], 1.7), atol=1e-6)


def test_the_leak(outcomes: dict[str, Outcome], drawn: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = drawn
    w = descent(x, y, 1000, own=True)
    found = outcomes["X3"]
    for step in (5, 100, 1000):
        assert found.value(f"w after {step} steps") == pytest.approx(w[step], rel=1e-6)
        assert found.value(f"training error after {step} steps") == pytest.approx(
            error(x, y, w[step], own=True), rel=1e-6
        )
    truth = [float(np.mean((kernel(QUERIES, x, a) @ y - TRUTH) ** 2)) for a in w]
    best = int(np.argmin(truth))
    assert found.value(f"error against the truth, at best (step {best})") == pytest.approx(truth[best], rel=1e-5)
    assert found.value("error against the truth after 1000 steps") == pytest.approx(truth[1000], rel=1e-5)
    nearest = KNeighborsRegressor(1).fit(x[:, None], y).predict(QUERIES[:, None])
    assert found.value("error against the truth there") == pytest.approx(np.mean((nearest - TRUTH) ** 2), rel=1e-5)
    assert found.value("training error at w = 1000") < 1e-12
    # the gradient is negative wherever it does not vanish in rounding: there is no width to stop at
    assert max(slope(x, y, a, own=True) for a in np.geomspace(0.1, 200, 200)) < 0
    assert found.value("w after 300 steps that leave one out") == pytest.approx(least(x, y), abs=1e-3)


def test_leaving_one_out_is_a_loop_over_tables_without_the_row(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = drawn
    errors = []
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        errors.append((kernel(x[i : i + 1], x[others], 2.0) @ y[others])[0] - y[i])
    found = bandwidth.training_error(bandwidth.table(), torch.tensor([2.0]), leave_one_out=True).item()
    assert found == pytest.approx(np.mean(np.square(errors)), abs=1e-5)


def test_unit_keys_are_softmax_with_logits_w_squared() -> None:
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(6, 5)), rng.normal(size=(9, 5))
    k /= np.linalg.norm(k, axis=1, keepdims=True)
    w = 1.7
    logits = w**2 * q @ k.T
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    queries, keys = torch.from_numpy(q), torch.from_numpy(k)
    np.testing.assert_allclose(temperature.gaussian(queries, keys, w).numpy(), p, atol=1e-14)
    np.testing.assert_allclose(temperature.softmax(queries, keys, w).numpy(), p, atol=1e-14)
    far = np.exp(-(w**2) * ((q[:, None] - 2 * k * (1 + np.arange(9))[:, None]) ** 2).sum(-1) / 2)
    longer = temperature.gaussian(queries, 2 * keys * (1 + torch.arange(9))[:, None], w).numpy()
    np.testing.assert_allclose(longer, far / far.sum(1, keepdims=True), atol=1e-12)


def test_a_bias_of_the_key_is_what_plain_softmax_lacks(outcomes: dict[str, Outcome]) -> None:
    found = outcomes["X4"]
    assert found.value("the same, keys of different norms") > 0.1
    assert found.value("the same, -w^2 |k|^2 / 2 added to the logits") < 1e-12
