"""Real series: rows and errors by plain loops of their own, and what docs/streaming-tables.md says of them."""

from __future__ import annotations

import functools
import math
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge, SGDRegressor

import innerloop as il
from innerloop.streaming.datasets import Series, load, names

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # benchmarks/ is part of the checkout, not of the package

from benchmarks import real  # noqa: E402

SHIPPED = (*names("statsmodels"), *names("scikit-learn"))
PAGE = ROOT / "docs" / "streaming-tables.md"
FEW = {"co2": 400}  # rows that the loops look at: enough for any of them, all where nothing is said


class Labels(NamedTuple):
    """The protocol's view of a series: X [n, d] and y [n], both on the burn-in's scale; y = labels * scale + level."""

    X: np.ndarray
    y: np.ndarray
    labels: np.ndarray
    burn_in: int


@functools.cache
def stream(name: str) -> Labels:
    series = load(name)
    X, y = (part[: FEW.get(name)] for part in series.read())
    start = y[: series.burn_in]
    return Labels(X, y, (y - start.mean()) / start.std(), series.burn_in)


def plain_errors(predictions: np.ndarray, y: np.ndarray, burn_in: int) -> tuple[float, float]:
    errors = [float(p) - float(truth) for p, truth in zip(predictions[burn_in:], y[burn_in:], strict=True)]
    return sum(map(abs, errors)) / len(errors), math.sqrt(sum(e * e for e in errors) / len(errors))


# -------------------------------------------------------------------------------------------------- the rows


def test_rows_of_a_series_with_gaps() -> None:
    series = load("co2")
    X, y = series.read()
    values = series.table["co2"].tolist()
    rows = [[values[t - lag] for lag in (1, 2, 52)] + [values[t]] for t in range(52, len(values))]
    rows = [row for row in rows if not any(math.isnan(x) for x in row)]
    columns = list(zip(*rows, strict=True))
    assert len(y) == len(rows) == 2104
    np.testing.assert_array_equal(y, columns[-1])
    for j in range(3):
        start = columns[j][: series.burn_in]
        level = sum(start) / len(start)
        spread = math.sqrt(sum((x - level) ** 2 for x in start) / len(start))
        np.testing.assert_allclose(X[:, j], [(x - level) / spread for x in columns[j]], rtol=1e-9, atol=1e-9)


def test_first_rows_by_hand() -> None:
    X, y = load("nile").read()
    np.testing.assert_array_equal(y[:3], [963, 1210, 1160])  # after 1120 and 1160
    scale = (X[1, 0] - X[0, 0]) / (963 - 1160)  # of lag 1, which is 1160 and then 963
    assert scale > 0
    np.testing.assert_allclose((X[2, 0] - X[1, 0]) / scale, 1210 - 963)
    np.testing.assert_allclose(X[:20].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(X[:20].std(0), 1)

    _, sst = load("elnino").read()  # months in a row: the year's first three follow its December
    np.testing.assert_array_equal(sst[:3], [24.19, 25.28, 25.60])


def test_growth_is_the_change_of_the_logarithm() -> None:
    _, y = load("growth").read()
    gdp = [float(x) for x in load("inflation").table["realgdp"]]
    np.testing.assert_allclose(y[0], 400 * math.log(gdp[5] / gdp[4]))  # four lags after the first change
    np.testing.assert_allclose(y[-1], 400 * math.log(gdp[-1] / gdp[-2]))


def test_the_control_is_shuffled_and_whole() -> None:
    series = load("diabetes")
    _, y = series.read()
    from sklearn.datasets import load_diabetes

    known: Any = load_diabetes()
    assert not np.array_equal(y, known.target)
    np.testing.assert_array_equal(np.sort(y), np.sort(known.target))
    np.testing.assert_array_equal(load("diabetes").read()[1], y)


@pytest.mark.parametrize("name", names("river"))
def test_rows_of_river(name: str) -> None:
    pytest.importorskip("river")
    series = load(name)
    X, y = series.read()
    assert X.shape == (len(y), len(series.features) + len(series.lags))
    assert np.isfinite(X).all()
    assert len(y) == len(series.table) - max(series.lags, default=0)
    np.testing.assert_allclose(X[: series.burn_in].mean(0), 0, atol=1e-9)


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="name='tides': pass one of 'co2'"):
        load("tides")
    with pytest.raises(ValueError, match="package='pandas': pass None, 'statsmodels' or 'scikit-learn' or 'river'"):
        names("pandas")
    assert set(SHIPPED) | set(names("river")) == set(names())


def test_a_series_of_river_without_river(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "river", None)
    with pytest.raises(ImportError, match="river's WaterFlow needs river: pip install river"):
        load("water")


# ---------------------------------------------------------------------------------- the protocol, cell by cell


def test_scores_by_hand() -> None:
    """Five rows 0 0 | 2 4 4 of burn-in 2, and forecasters that are told the answers."""
    table = pd.DataFrame({"x": [1.0, 3.0, 5.0, 7.0, 9.0], "y": [-1.0, 1.0, 2.0, 4.0, 4.0]})
    series = Series("small", "", table, "y", features=("x",), burn_in=2)
    seen: list[np.ndarray] = []

    def told(shift: float) -> real.Run:
        def run(X: np.ndarray, y: np.ndarray, burn_in: int) -> np.ndarray:
            assert burn_in == 2
            seen.append(X)
            return y + shift  # level 0, scale 1: no unit to undo

        return run

    def broken(X: np.ndarray, y: np.ndarray, burn_in: int) -> np.ndarray:
        raise np.linalg.LinAlgError("Singular matrix")

    rows = real.compare(
        series,
        lambda d: [
            real.Forecaster("one", [({}, told(1.0))]),
            real.Forecaster("best", [({"shift": s}, told(s)) for s in (2.0, 0.5, -3.0)]),
            real.Forecaster("broken", [({}, broken)]),
        ],
    )
    table_of = {row["forecaster"]: row for row in rows}
    np.testing.assert_allclose(seen[0][:, 0], [-1, 1, 3, 5, 7])  # mean 2, deviation 1
    # last value: 1 2 4 for 2 4 4; running mean: 0, 2/3, 6/4
    assert table_of["last value"]["MAE"] == pytest.approx(1.0)
    assert table_of["last value"]["RMSE"] == pytest.approx(math.sqrt(5 / 3))
    assert table_of["running mean"]["MAE"] == pytest.approx((2 + 10 / 3 + 2.5) / 3)
    assert (table_of["one"]["MAE"], table_of["one"]["RMSE"]) == pytest.approx((1.0, 1.0))
    assert table_of["one"]["skill"] == pytest.approx(1 - 1 / math.sqrt(5 / 3))
    assert table_of["best"]["setting"] == "shift 0.5"
    assert table_of["best"]["chosen"] == "best of 3"
    assert table_of["best"]["RMSE"] == pytest.approx(0.5)
    assert table_of["broken"]["RMSE"] == math.inf
    assert [row["forecaster"] for row in rows] == ["best", "one", "last value", "running mean", "broken"]
    assert [row["wins"] for row in rows] == ["overall", "as it comes", "", "", ""]
    # squared errors 1 4 0 less 1/4: mean 17/12, deviation sqrt(26)/3, three rows
    assert table_of["last value"]["t"] == pytest.approx(17 / 12 / (math.sqrt(26) / 3 / math.sqrt(3)))
    assert table_of["best"]["t"] == 0
    assert table_of["broken"]["t"] == math.inf


@pytest.mark.parametrize("name", SHIPPED)
def test_baselines(name: str) -> None:
    _, y, _, burn_in = stream(name)
    last = [0.0, *y[:-1]]
    mean = [0.0, *(sum(y[:t]) / t for t in range(1, len(y)))]
    for known, expected in zip(real.baselines(y).values(), (last, mean), strict=True):
        assert real.errors(known, y, burn_in) == pytest.approx(plain_errors(np.array(expected), y, burn_in), rel=1e-9)


@pytest.mark.parametrize("name", ["nile", "sunspots", "diabetes"])
def test_rls_is_ridge_on_all_rows_so_far(name: str) -> None:
    X, _, labels, burn_in = stream(name)
    expected = np.zeros(len(X))
    for t in range(burn_in, len(X)):
        expected[t] = Ridge(alpha=1.0).fit(X[:t], labels[:t]).predict(X[t : t + 1])[0]
    found = real.streaming("rls")(X, labels, burn_in)
    np.testing.assert_allclose(found[burn_in:], expected[burn_in:], atol=1e-8)


def test_one_setting_with_forgetting_is_the_weighted_regression() -> None:
    """The regularised rule of one bank setting, by a solve of [d + 1] numbers per row."""
    X, _, labels, burn_in = stream("nile")
    rate = real.bank("rls", X.shape[1])[8]["forgetting"]
    rows, d = np.concatenate([X, np.ones((len(X), 1))], 1), X.shape[1]
    penalty = np.diag([1.0] * d + [0.0])
    A, w, expected = penalty.copy(), np.zeros(d + 1), np.zeros(len(X))
    for t, x in enumerate(rows):
        expected[t] = x @ w
        A = rate * A + (1 - rate) * penalty + np.outer(x, x)
        w = w + np.linalg.pinv(A, hermitian=True) @ x * (labels[t] - x @ w)
    found = real.streaming("rls", forgetting=rate)(X, labels, burn_in)
    np.testing.assert_allclose(found[burn_in:], expected[burn_in:], atol=1e-8)


@pytest.mark.parametrize("name", ["nile", "inflation"])
def test_kernel_average_by_loops(name: str) -> None:
    X, _, labels, burn_in = stream(name)
    h = il.NadarayaWatsonRegressor(window=real.WINDOW).fit(X[:burn_in], labels[:burn_in]).bandwidth_
    found = real.kernel_average(X, labels, burn_in)
    for t in range(burn_in, len(X)):
        exponent = [-sum(((x - z) / s) ** 2 for x, z, s in zip(X[t], X[j], h, strict=True)) / 2 for j in range(t)]
        weights = [math.exp(e - max(exponent)) for e in exponent]
        expected = sum(w * v for w, v in zip(weights, labels[:t], strict=True)) / sum(weights)
        assert found[t] == pytest.approx(expected, abs=1e-9)


def test_stochastic_gradient_descent_row_by_row() -> None:
    X, _, labels, burn_in = stream("inflation")
    options: dict[str, Any] = {"learning_rate": "constant", "eta0": 0.01}
    model = SGDRegressor(random_state=0, **options)
    expected = np.zeros(len(X))
    for t in range(len(X)):
        expected[t] = model.predict(X[t : t + 1])[0] if t else 0.0
        model.partial_fit(X[t : t + 1], labels[t : t + 1])
    np.testing.assert_array_equal(real.sgd(**options)(X, labels, burn_in), expected)


def others_by_name() -> dict[str, real.Forecaster]:
    pytest.importorskip("river")
    pytest.importorskip("padasip")
    return {forecaster.name: forecaster for forecaster in real.others()}


def test_everyone_has_sixteen_settings() -> None:
    assert {name: len(each.settings) for name, each in others_by_name().items()} == dict.fromkeys(others_by_name(), 16)
    alone = [each for each in real.ours(3) if each.name.endswith("one setting")]
    assert [len(each.settings) for each in alone] == [16] * len(real.BANKS)


def test_normalised_lms_of_padasip() -> None:
    X, _, labels, burn_in = stream("nile")
    setting, run = others_by_name()["padasip FilterNLMS"].settings[9]
    w, expected = np.zeros(3), np.zeros(len(X))
    for t, x in enumerate(np.column_stack([X, np.ones(len(X))])):
        expected[t] = w @ x
        w = w + setting["mu"] * (labels[t] - expected[t]) * x / (0.001 + x @ x)
    np.testing.assert_allclose(run(X, labels, burn_in), expected, atol=1e-10)


def test_bayesian_regression_of_river_is_ridge_with_a_penalised_intercept() -> None:
    X, _, labels, burn_in = stream("sunspots")
    setting, run = others_by_name()["river BayesianLinearRegression"].settings[0]
    assert setting == {"smoothing": None, "alpha": 1.0}
    rows = np.column_stack([X, np.ones(len(X))])
    found = run(X, labels, burn_in)
    for t in range(burn_in, len(X)):
        w = np.linalg.solve(np.eye(4) + rows[:t].T @ rows[:t], rows[:t].T @ labels[:t])
        assert found[t] == pytest.approx(rows[t] @ w, abs=1e-8)


def test_nearest_neighbours_of_river() -> None:
    X, _, labels, burn_in = stream("sunspots")
    settings = others_by_name()["river KNNRegressor"].settings
    setting, run = next(each for each in settings if each[0] == {"n_neighbors": 5, "window": 50})
    found = run(X, labels, burn_in)
    for t in range(burn_in, len(X)):
        past = slice(max(0, t - setting["window"]), t)
        distances = np.sqrt(((X[past] - X[t]) ** 2).sum(1))
        near = np.argsort(distances, kind="stable")[:5]
        weights = 1 / distances[near]
        assert found[t] == pytest.approx(weights @ labels[past][near] / weights.sum(), abs=1e-8)


# ---------------------------------------------------------------------------------------------- what is said


class Cell(NamedTuple):
    chosen: str
    mae: float
    rmse: float
    bold: bool


def page() -> dict[str, dict[str, Cell]]:
    """The page's tables: series, then forecaster."""
    tables: dict[str, dict[str, Cell]] = {}
    name = ""
    for line in PAGE.read_text().splitlines():
        if heading := re.fullmatch(r"## `(\w+)`.*", line):
            name = heading[1]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if name and len(cells) == 7 and cells[0] not in ("forecaster", "---"):
            row = Cell(cells[1], float(cells[2]), float(cells[3]), cells[0].startswith("**"))
            tables.setdefault(name, {})[cells[0].strip("*")] = row
    return tables


@functools.cache
def measured(name: str) -> dict[str, dict[str, Any]]:
    """The table of a series: baselines and ours, but for the networks, which take long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real, "REPEATED", 0.0)  # no time is looked at
        rows = real.compare(load(name), lambda d: [each for each in real.ours(d) if "titans" not in each.name])
    return {row["forecaster"]: row for row in rows}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_page_has_the_numbers(name: str) -> None:
    said = page()[name]
    for forecaster, row in measured(name).items():
        assert said[forecaster].rmse == pytest.approx(row["RMSE"], rel=0.005), forecaster
        assert said[forecaster].mae == pytest.approx(row["MAE"], rel=0.005), forecaster
        assert said[forecaster].chosen.split(":")[0] == row["chosen"]


def test_the_page_has_every_table_and_marks_the_winners() -> None:
    tables = page()
    assert list(tables) == [*names(), "electricity"]
    lines = [set(table) for table in tables.values()]
    assert all(line == lines[0] for line in lines)
    for table in tables.values():
        errors = [cell.rmse for cell in table.values()]
        assert errors == sorted(errors)
        as_they_come = [name for name, cell in table.items() if cell.chosen == real.AS_IT_COMES]
        assert {name for name, cell in table.items() if cell.bold} == {next(iter(table)), as_they_come[0]}


@pytest.mark.parametrize("memory", ["rls", "kalman"])
@pytest.mark.parametrize("name", SHIPPED)
def test_a_bank_is_finite_and_close_to_its_best_setting(name: str, memory: str) -> None:
    series = load(name)
    X, y = series.read()
    assert np.isfinite(real.streaming(memory, forgetting="auto")(X, y, series.burn_in)).all()
    table = measured(name)
    assert table[f"{memory} auto"]["RMSE"] <= 1.05 * table[f"{memory}, one setting"]["RMSE"]


# series, the better forecaster, the worse one, and the least ratio of their errors that the page speaks of
CLAIMS = [
    ("co2", "kalman auto", "rls auto", 1.02),
    ("co2", "rls auto", "last value", 1.1),
    ("inflation", "kalman auto", "last value", 1.05),
    ("inflation", "longhorn, one setting", "kalman auto", 1.02),
    ("growth", "running mean", "last value", 1.1),
    ("growth", "rls, forgetting 1", "rls auto", 1.0),
    ("growth", "rls auto", "running mean", 1.02),
    ("sunspots", "rls, forgetting 1", "kalman auto", 1.0),
    ("sunspots", "rls, forgetting 1", "rls auto", 1.0),
    ("nile", "rls auto", "last value", 1.05),
    ("nile", "last value", "running mean", 1.05),
    ("elnino", "NadarayaWatsonRegressor, last 500 rows", "rls auto", 1.02),
    ("elnino", "rls auto", "last value", 1.8),
    ("diabetes", "rls, forgetting 1", "rls auto", 1.0),
    ("diabetes", "rls auto", "running mean", 1.3),
    ("chicks", "rls auto", "kalman auto", 1.01),
    ("airline", "kalman auto", "rls auto", 1.1),
    ("approval", "kalman auto", "last value", 1.01),
    ("approval", "last value", "rls auto", 1.2),
    ("stocks", "running mean", "rls auto", 1.02),
    ("stocks", "running mean", "kalman auto", 1.02),
    ("flares", "nadaraya_watson auto", "running mean", 1.05),
    ("flares", "running mean", "rls auto", 1.01),
    ("water", "rls, forgetting 1", "rls auto", 1.2),
    ("water", "last value", "kalman auto", 1.02),
]


@pytest.mark.parametrize(("name", "better", "worse", "ratio"), CLAIMS)
def test_who_wins(name: str, better: str, worse: str, ratio: float) -> None:
    if name not in SHIPPED:
        pytest.importorskip("river")
    table = measured(name)
    assert table[worse]["RMSE"] > ratio * table[better]["RMSE"]
