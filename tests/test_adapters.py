"""to_river: equal to predict_then_update on the same table, river's own checks, features that come and go."""

from __future__ import annotations

import copy
import pickle
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import LinearRegression, SGDRegressor

import innerloop as il
from innerloop.streaming.adapters import to_river

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("rls", {}),
    ("rls", {"forgetting": 0.97}),
    ("kalman", {"process_noise": 1e-3}),
    ("longhorn", {}),
]
IDS = [f"{name}-{'-'.join(map(str, options.values()))}" for name, options in SETTINGS]


@pytest.fixture
def river() -> Any:
    """river with the parts that the tests use; they are skipped without it."""
    for part in ("base", "checks", "compose", "datasets", "evaluate", "metrics", "preprocessing", "utils"):
        pytest.importorskip(f"river.{part}")
    return sys.modules["river"]


@pytest.fixture
def approval(river: Any) -> list[tuple[dict[str, float], float]]:
    """TrumpApproval, real polls, its columns to scale: a raw day number of 7e5 leaves least squares few digits."""
    rows = list(river.datasets.TrumpApproval().take(400))
    X = pd.DataFrame([x for x, _ in rows])
    X = (X - X.iloc[:50].mean()) / X.iloc[:50].std()
    records: list[Any] = X.to_dict("records")
    return [(x, y) for x, (_, y) in zip(records, rows, strict=True)]


def table(rows: list[tuple[dict[str, float], float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([list(x.values()) for x, _ in rows]), np.array([y for _, y in rows])


def run(model: Any, rows: list[tuple[dict[str, float], float]]) -> np.ndarray:
    predictions = []
    for x, y in rows:
        predictions.append(model.predict_one(x))
        model.learn_one(x, y)
    return np.array(predictions)


@pytest.mark.parametrize(("name", "options"), SETTINGS, ids=IDS)
def test_equal_to_the_table_at_once(approval: Any, name: str, options: dict[str, Any]) -> None:
    expected = il.StreamingRegressor(name, **options).predict_then_update(*table(approval))
    predictions = run(to_river(il.StreamingRegressor(name, **options)), approval)
    np.testing.assert_allclose(predictions, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("delay", [None, 5])
def test_progressive_val_score(river: Any, approval: Any, delay: int | None) -> None:
    from innerloop.streaming.evaluation import prequential

    rows, model = approval[:300], il.StreamingRegressor("rls", forgetting=0.97)
    score = river.evaluate.progressive_val_score(
        rows, to_river(model), river.metrics.MAE() + river.metrics.RMSE(), delay=delay
    )
    # river's labels that are k rows late arrive before row t + k is predicted, ours before row t + 1 + k
    result: Any = prequential(model, *table(rows), delay=delay - 1 if delay else 0)
    np.testing.assert_allclose(score.get(), [result.mae, result.rmse], rtol=1e-9)


def test_weights_come_through_progressive_val_score(river: Any, approval: Any) -> None:
    rows = approval[:100]
    weights = np.random.default_rng(0).uniform(0, 2, 100)
    weighted = [(x, y, {"w": w}) for (x, y), w in zip(rows, weights, strict=True)]
    model = to_river(SGDRegressor(random_state=0))
    river.evaluate.progressive_val_score(weighted, model, river.metrics.MAE())
    X, y = table(rows)
    expected: Any = SGDRegressor(random_state=0)
    for t in range(100):
        expected.partial_fit(X[t : t + 1], y[t : t + 1], sample_weight=weights[t : t + 1])
    np.testing.assert_allclose(model.fitted_.coef_, expected.coef_, rtol=1e-12)


def test_after_a_scaler_in_a_pipeline(river: Any) -> None:
    rows = list(river.datasets.TrumpApproval().take(200))
    pipeline = river.preprocessing.StandardScaler() | to_river(il.StreamingRegressor("kalman"))
    X, y = table(rows)
    expected, model = np.zeros(200), il.StreamingRegressor("kalman")
    for t in range(200):  # a row is predicted at the scale of the rows before it, and learned at its own
        for seen, learns in ((t, False), (t + 1, True)):
            past = X[:seen] if seen else X[:1]
            varies = np.ptp(past, 0) > 0
            row = np.where(varies, (X[t] - past.mean(0)) / np.where(varies, past.std(0), 1), 0)[None]
            if learns:
                model.partial_fit(row, y[t : t + 1])
            elif t:
                expected[t] = model.predict(row)[0]
    np.testing.assert_allclose(run(pipeline, rows), expected, rtol=0, atol=1e-8)
    fresh = pipeline.clone()
    assert fresh.predict_one(rows[0][0]) == 0
    np.testing.assert_allclose(run(fresh, rows), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("estimator", [il.StreamingRegressor("rls"), SGDRegressor(random_state=0)], ids=["rls", "sgd"])
def test_rivers_own_checks(river: Any, estimator: Any) -> None:
    random.seed(0)
    names = []
    for check in river.checks.yield_checks(to_river(estimator)):
        check(to_river(estimator))
        names.append(check.__name__)
    assert {"check_emerging_features", "check_clone_is_independent", "check_pickling"} <= set(names)


def test_what_river_asks_of_a_regressor(river: Any) -> None:
    model = to_river(il.StreamingRegressor("rls", forgetting=0.9))
    assert isinstance(model, river.base.Regressor)
    assert river.metrics.RMSE().works_with(model)
    assert not river.metrics.Accuracy().works_with(model)
    assert repr(model).split() == ["RiverRegressor", "(", "estimator=StreamingRegressor(forgetting=0.9)", ")"]


def test_clone_is_fresh_and_takes_other_parameters(river: Any, approval: Any) -> None:
    model = to_river(il.StreamingRegressor("rls", forgetting=0.9))
    first = run(model, approval[:40])
    np.testing.assert_array_equal(run(model.clone(), approval[:40]), first)
    other = model.clone({"estimator": il.StreamingRegressor("longhorn")})
    expected = il.StreamingRegressor("longhorn").predict_then_update(*table(approval[:40]))
    np.testing.assert_allclose(run(other, approval[:40]), expected, rtol=0, atol=1e-9)
    grid = {"estimator": [il.StreamingRegressor("rls", forgetting=f) for f in (0.9, 0.99)]}
    made = river.utils.expand_param_grid(model, grid)
    assert [m.estimator.forgetting for m in made] == [0.9, 0.99]


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.deepcopy,
        lambda model: pickle.loads(pickle.dumps(model)),
        lambda model: model.clone(include_attributes=True),
    ],
    ids=["deepcopy", "pickle", "clone with attributes"],
)
def test_a_copy_goes_on_alone(approval: Any, duplicate: Any) -> None:
    model = to_river(il.StreamingRegressor("rls"))
    run(model, approval[:40])
    twin = duplicate(model)
    before = model.predict_one(approval[40][0])
    rest = run(twin, approval[40:80])
    assert model.predict_one(approval[40][0]) == before
    np.testing.assert_array_equal(run(model, approval[40:80]), rest)


@pytest.mark.parametrize("named", [True, False])
def test_an_estimator_that_has_learned_goes_on(approval: Any, named: bool, recwarn: pytest.WarningsRecorder) -> None:
    X, y = table(approval[:80])
    names = list(approval[0][0])
    start: Any = pd.DataFrame(X[:40], columns=names) if named else X[:40]
    estimator = il.StreamingRegressor("rls").fit(start, y[:40])
    before = estimator.predict(start)
    rows = [({name: x[name] for name in reversed(names)}, t) for x, t in approval[40:80]] if named else approval[40:80]
    predictions = run(to_river(estimator), rows)
    expected = il.StreamingRegressor("rls").predict_then_update(X, y)[40:]
    np.testing.assert_allclose(predictions, expected, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(estimator.predict(start), before)
    assert to_river(estimator).clone().predict_one(approval[0][0]) == 0
    assert not len(recwarn)


def test_features_that_come_and_go(river: Any) -> None:
    model = to_river(SGDRegressor(random_state=0))
    twin: Any = SGDRegressor(random_state=0)
    model.predict_one({"z": 1.0})  # reading fixes no column
    steps: list[tuple[dict[str, float], list[float]]] = [
        ({"a": 1.0, "b": 2.0}, [1, 2]),
        ({"b": 3.0, "a": -1.0}, [-1, 3]),
        ({"b": 1.0}, [0, 1]),
        ({"c": 9.0, "a": 2.0}, [2, 0]),
        ({}, [0, 0]),
    ]
    for t, (x, row) in enumerate(steps):
        given = dict(x)
        if t:
            assert model.predict_one(x) == twin.predict([row])[0]
        model.learn_one(x, 1.0 + t)
        twin.partial_fit([row], [1.0 + t])
        assert x == given
    np.testing.assert_array_equal(model.fitted_.coef_, twin.coef_)


def test_before_any_label_it_predicts_zero(river: Any) -> None:
    for estimator in (il.StreamingRegressor("kalman"), SGDRegressor()):
        prediction = to_river(estimator).predict_one({"a": 3})
        assert prediction == 0.0
        assert isinstance(prediction, float)


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        ({"a": 1.0, "b": float("nan")}, 1.0, ValueError, r"x\['b'\]=nan: pass finite numbers"),
        ({"a": None, "b": 1.0}, 1.0, ValueError, r"x\['a'\]=nan"),
        ({"a": 1.0, "b": float("inf")}, float("nan"), ValueError, r"x\['b'\]=inf, y=nan"),
        ({"a": 1.0, "b": 2.0}, None, TypeError, "y=None: pass a number"),
        ({"a": 1.0, "b": 2.0}, {"u": 1.0}, TypeError, "y={'u': 1.0}"),
        ({"a": "red", "b": 2.0}, 1.0, ValueError, r"x\['a'\]='red': pass a number"),
        ([1.0, 2.0], 1.0, TypeError, r"x=\[1.0, 2.0\]: pass a dict"),
    ],
    ids=["nan", "None", "inf and nan", "no label", "labels", "word", "list"],
)
def test_a_row_that_is_refused_changes_nothing(
    river: Any, learned: bool, x: Any, y: Any, error: type[Exception], message: str
) -> None:
    model = to_river(il.StreamingRegressor("rls"))
    row = {"b": 1.0, "a": 0.5}
    if learned:
        model.learn_one(row, 2.0)
    before = model.predict_one(row)
    with pytest.raises(error, match=message):
        model.learn_one(x, y)
    assert model.predict_one(row) == before
    model.learn_one(row, 2.0)
    twin = to_river(il.StreamingRegressor("rls"))
    for _ in range(1 + learned):
        twin.learn_one(row, 2.0)
    assert model.predict_one({"a": 2.0, "b": 0.1}) == twin.predict_one({"a": 2.0, "b": 0.1})


def test_a_bad_query_is_named(river: Any) -> None:
    model = to_river(il.StreamingRegressor("rls"))
    model.learn_one({"a": 1.0, "b": 2.0}, 1.0)
    with pytest.raises(ValueError, match=r"x\['b'\]=nan: pass finite numbers"):
        model.predict_one({"a": 1.0, "b": float("nan")})
    with pytest.raises(ValueError, match=r"x\['b'\]='two': pass a number"):
        model.predict_one({"a": 1.0, "b": "two"})


def test_what_it_cannot_do_is_named(river: Any) -> None:
    class Unweighted(RegressorMixin, BaseEstimator):
        def partial_fit(self, X: Any, y: Any) -> Unweighted:
            return self

        def predict(self, X: Any) -> np.ndarray:
            return np.zeros(len(X))

    with pytest.raises(TypeError, match=r"LinearRegression\(\) has no partial_fit"):
        to_river(LinearRegression())
    with pytest.raises(TypeError, match=r"SGDRegressor.* has no partial_fit"):
        to_river(SGDRegressor)  # the class, not an instance
    with pytest.raises(ValueError, match="has learned 2 outputs"):
        to_river(il.StreamingRegressor("rls").fit(np.zeros((4, 1)), np.zeros((4, 2))))
    with pytest.raises(ValueError, match="at least one feature"):
        to_river(SGDRegressor()).learn_one({}, 1.0)
    with pytest.raises(TypeError, match=r"w=2.0: Unweighted.partial_fit takes no sample_weight"):
        to_river(Unweighted()).learn_one({"a": 1.0}, 1.0, w=2.0)


def test_without_river_it_says_what_is_missing() -> None:
    code = (
        "import sys; sys.modules['river'] = None\n"
        "from sklearn.linear_model import SGDRegressor\n"
        "from innerloop.streaming.adapters import to_river\n"
        "try: to_river(SGDRegressor())\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "to_river needs river: pip install river", done.stderr


def test_docstring_example(river: Any) -> None:
    import doctest

    from innerloop.streaming import adapters

    assert doctest.testmod(adapters).failed == 0
