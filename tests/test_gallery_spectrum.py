"""The solver spectrum in the gallery (D3, X1, X6) against the source's digits and plain numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import innerloop as il
from innerloop import look
from innerloop.gallery import floor, spectrum
from innerloop.gallery.experiment import Outcome
from innerloop.gallery.spectrum import Problem

IDS = ("D3", "X1", "X6")
PENALTY = 0.01


def quiet(word: str) -> None:
    """Progress that nobody reads."""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    runs = (spectrum.spectrum, spectrum.recursive, floor.floor)
    return {name: run(quiet) for name, run in zip(IDS, runs, strict=True)}


@pytest.fixture(scope="module")
def exact() -> Problem:
    return spectrum.problem(torch.float64)


def numpy_passes(keys: np.ndarray, y: np.ndarray, rate: float, penalty: float, passes: int) -> np.ndarray:
    """The online step as the source writes it, row by row."""
    S = np.zeros(keys.shape[1])
    for _ in range(passes):
        for phi, target in zip(keys, y, strict=True):
            S = S - rate * (phi * (phi @ S - target) + penalty / len(y) * S)
    return S


def rms(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sqrt(np.mean((a - b) ** 2)))


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


def test_the_problem_is_the_sources() -> None:
    before = torch.get_rng_state()
    p = spectrum.problem()
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        x = torch.rand(80) * 6 - 3
        y = torch.sin(1.5 * x) + 0.3 * x + 0.35 * torch.randn(80)
        w = torch.randn(128)
        b = torch.rand(128) * 2 * torch.pi
    assert torch.equal(p.x, x)
    assert torch.equal(p.y, y)
    torch.testing.assert_close(p.keys, torch.cos(x[:, None] * w + b) * math.sqrt(2 / 128), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("Nadaraya-Watson, sigma 0.12", (0.027, None, 0.135)),
        ("online, 1 pass", (0.070, 8.916, 0.277)),
        ("online, 5 passes", (0.027, 6.238, 0.100)),
        ("online, 30 passes", (0.022, 6.134, 0.077)),
        ("batch ridge", (0.010, 5.860, 0.0)),
    ],
)
def test_the_printed_table(outcomes: dict[str, Outcome], name: str, printed: tuple[float, float | None, float]) -> None:
    columns = ("test error", "objective", "distance to the batch fit")
    for column, value in zip(columns, printed, strict=True):
        if value is not None:
            assert round(outcomes["D3"].value(f"{name}: {column}"), 3) == value


def test_online_passes_are_the_sources_loop(outcomes: dict[str, Outcome], exact: Problem) -> None:
    keys, y, queries = exact.keys.numpy(), exact.y.numpy(), exact.queries.numpy()
    model = Ridge(alpha=PENALTY, fit_intercept=False, solver="cholesky").fit(keys, y)
    np.testing.assert_allclose(exact.ridge().numpy(), model.coef_, atol=1e-9)
    for passes, name in ((1, "online, 1 pass"), (5, "online, 5 passes"), (30, "online, 30 passes")):
        S = numpy_passes(keys, y, 0.06, PENALTY, passes)
        objective = 0.5 * np.sum((keys @ S - y) ** 2) + PENALTY / 2 * S @ S
        assert outcomes["D3"].value(f"{name}: objective") == pytest.approx(objective, abs=1e-4)
        distance = rms(queries @ S, queries @ model.coef_)
        assert outcomes["D3"].value(f"{name}: distance to the batch fit") == pytest.approx(distance, abs=1e-5)
        assert outcomes["D3"].value(f"{name}: test error") == pytest.approx(
            np.mean((queries @ S - exact.truth.numpy()) ** 2), abs=1e-5
        )


def test_one_recursive_pass_is_the_textbooks(exact: Problem) -> None:
    """Sherman and Morrison's recursion on the inverse, row by row, and the state that the memory ends with."""
    keys, y = exact.keys.numpy(), exact.y.numpy()
    P, S = np.eye(128) / PENALTY, np.zeros(128)
    for phi, target in zip(keys, y, strict=True):
        gain = P @ phi / (1 + phi @ P @ phi)
        S, P = S + gain * (target - phi @ S), P - np.outer(gain, phi @ P)
    k, v = exact.keys[None, :, None], exact.y.reshape(1, -1, 1, 1)
    state = il.chunked(spectrum.LEAST_SQUARES, k, k, v).state
    fit = spectrum.answers(spectrum.LEAST_SQUARES, state, exact.queries).numpy()
    np.testing.assert_allclose(fit, exact.queries.numpy() @ S, atol=1e-9)


def test_state_sizes(outcomes: dict[str, Outcome]) -> None:
    found = outcomes["X1"]
    assert found.value("state, online step").endswith(f"= {128:,}")
    assert found.value("state, Nadaraya-Watson").endswith(f"= {80 * 2:,}")
    assert found.value("state, recursive least squares").endswith(f"= {128 * 128 + 128:,}")
    assert found.value("rows kept, batch ridge").endswith(f"= {80 * 129:,}")


@pytest.mark.parametrize("penalty", [0.0, PENALTY])
def test_the_affine_map_of_a_pass(exact: Problem, penalty: float) -> None:
    A = np.eye(128)
    for phi in exact.keys.numpy():
        A = ((1 - 0.06 * penalty / 80) * np.eye(128) - 0.06 * np.outer(phi, phi)) @ A
    found, b = floor.pass_map(exact, 0.06, penalty)
    np.testing.assert_allclose(found.numpy(), A, atol=1e-12)
    np.testing.assert_allclose(
        b.numpy(), numpy_passes(exact.keys.numpy(), exact.y.numpy(), 0.06, penalty, 1), atol=1e-12
    )


def test_doubling_is_a_loop_of_passes(exact: Problem) -> None:
    S = numpy_passes(exact.keys.numpy(), exact.y.numpy(), 0.03, PENALTY, 24)
    found = floor.after(exact, 0.03, 3, passes=3)
    assert len(found) == 4
    np.testing.assert_allclose(found[-1].numpy(), S, atol=1e-12)


def test_floors(outcomes: dict[str, Outcome], exact: Problem) -> None:
    """The fixed point by running the map until it rests, not by solving for it."""
    A, b = (t.numpy() for t in floor.pass_map(exact, 0.06))
    ridge = exact.queries.numpy() @ exact.ridge().numpy()
    S = np.zeros(128)
    for _ in range(30_000):  # the slowest direction shrinks by 1 - 6e-4 a pass
        S = A @ S + b
    floor_06 = outcomes["X6"].value("the floor: distance after passes without end, rate 0.06")
    assert floor_06 == pytest.approx(rms(exact.queries.numpy() @ S, ridge), rel=1e-6)
    assert outcomes["X6"].value("distance after 30 passes, rate 0.06") == pytest.approx(0.077, abs=5e-4)
    quarter = outcomes["X6"].value("the floor: distance after passes without end, rate 0.015")
    assert floor_06 / quarter == pytest.approx(4, abs=0.3)
    assert outcomes["X6"].value("rate 5.9e-05, 31,457,280 passes") < 1e-4


def test_without_decay_passes_end_at_the_interpolator_nearest_to_their_start(exact: Problem) -> None:
    order = exact.x.argsort()[5::10]
    keys, y = exact.keys[order].numpy(), exact.y[order].numpy()
    assert len(y) == 8
    few = Problem(exact.x[order], exact.y[order], exact.keys[order], exact.grid, exact.queries, exact.truth)
    least = np.linalg.lstsq(keys, y, rcond=None)[0]
    np.testing.assert_allclose(keys @ least, y, atol=1e-9)
    S = floor.after(few, 0.06, 21, penalty=0.0)[-1].numpy()
    np.testing.assert_allclose(S, least, atol=1e-8)
    # from elsewhere: what lies off the span of the keys stays
    start = np.random.default_rng(0).normal(size=128)
    A, _ = floor.pass_map(few, 0.06, 0.0)
    carried = torch.linalg.matrix_power(A, 2**21).numpy() @ start
    off = start - keys.T @ np.linalg.solve(keys @ keys.T, keys @ start)
    np.testing.assert_allclose(carried, off, atol=1e-8)
