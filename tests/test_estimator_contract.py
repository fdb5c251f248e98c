"""scikit-learn's own checks, and the tables, pipelines and searches that its users put together."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import innerloop as il

FADES = (
    "under forgetting a row of weight 2 is one row, after which the past fades once; two rows of weight 1 fade it twice"
)


def expected(estimator: Any) -> dict[str, str]:
    """Checks that must fail, and why."""
    exact = estimator.memory in ("rls", "nadaraya_watson") or estimator.process_noise == 0.0
    if exact and estimator.forgetting == 1.0:
        return {}
    why = FADES if estimator.forgetting == 0.9 else "the memory depends on the order of rows, and on a step per row"
    return {"check_sample_weight_equivalence_on_dense_data": why}


@parametrize_with_checks(
    [
        il.StreamingRegressor("rls"),
        il.StreamingRegressor("rls", forgetting=0.9),
        il.StreamingRegressor("kalman", process_noise=0.0),
        il.StreamingRegressor("longhorn"),
        il.StreamingRegressor("rls", forgetting="auto", bank=3),
        il.StreamingRegressor("rls", features="fourier"),
        il.StreamingRegressor("nadaraya_watson"),
        il.StreamingRegressor("rls", on_bad="skip"),
    ],
    expected_failed_checks=expected,
)
def test_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def stream(rows: int = 120, d: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, d))
    return X, X @ rng.normal(size=d) + 2 + 0.1 * rng.normal(size=rows)


def test_data_frames_keep_their_names() -> None:
    X, y = stream()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = il.StreamingRegressor().fit(frame, pd.Series(y))
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    plain = il.StreamingRegressor().fit(X, y).predict(X)
    np.testing.assert_allclose(model.predict(frame), plain, rtol=0, atol=1e-12)  # memory in another order: other sums
    with pytest.raises(ValueError, match="feature names"):
        model.partial_fit(frame[["b", "a", "c"]], y)
    polars = pytest.importorskip("polars")
    other = polars.DataFrame(dict(zip("abc", X.T, strict=True)))
    np.testing.assert_allclose(il.StreamingRegressor().fit(other, y).predict(other), plain, rtol=0, atol=1e-12)


def test_pipelines_and_searches() -> None:
    X, y = stream()
    pipe = make_pipeline(StandardScaler(), il.StreamingRegressor(forgetting=0.99)).fit(X, y)
    assert pipe.score(X, y) > 0.9
    scores = cross_val_score(pipe, X, y, cv=TimeSeriesSplit(4))
    assert scores.shape == (4,)
    assert scores.min() > 0.9
    search = GridSearchCV(il.StreamingRegressor(), {"penalty": [1e-3, 1e3]}, cv=TimeSeriesSplit(3)).fit(X, y)
    assert search.best_params_ == {"penalty": 1e-3}


@pytest.mark.parametrize(
    "options", [{}, {"forgetting": "auto", "bank": 4}, {"memory": "kalman"}, {"memory": "titans"}], ids=str
)
def test_pickles_and_files_go_on_where_they_stopped(options: dict[str, Any], tmp_path: Any) -> None:
    X, y = stream()
    whole = il.StreamingRegressor(**options)
    wanted = whole.predict_then_update(X, y)
    for copy in ("pickle", "file"):
        model = il.StreamingRegressor(**options).partial_fit(X[:50], y[:50])
        model.predict(X[:1])
        model.partial_fit(X[50:51], y[50:51])
        if copy == "pickle":
            data = pickle.dumps(model)
            assert b"rebuild_tensor" not in data, "weights are arrays in a pickle"
            other = pickle.loads(data)
        else:
            model.save(tmp_path / "model.safetensors")
            other = il.StreamingRegressor.load(tmp_path / "model.safetensors")
        assert other.get_params() == model.get_params()
        got = other.predict_then_update(X[51:], y[51:])
        np.testing.assert_allclose(got, wanted[51:], rtol=0, atol=1e-9)
        np.testing.assert_array_equal(got, model.predict_then_update(X[51:], y[51:]))
        assert other.n_samples_seen_ == len(X)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.safetensors"]


def test_an_unfitted_one_can_be_saved_and_a_wrong_file_is_named(tmp_path: Any) -> None:
    path = tmp_path / "fresh.safetensors"
    il.StreamingRegressor("kalman", process_noise=0.1).save(path)
    model = il.StreamingRegressor.load(path)
    assert model.process_noise == 0.1
    with pytest.raises(NotFittedError):
        model.predict(np.zeros((1, 2)))
    (tmp_path / "text").write_text("no tensors")
    for bad in (tmp_path / "text",):
        with pytest.raises(ValueError, match="no saved StreamingRegressor"):
            il.StreamingRegressor.load(bad)
    x = il.init_state(il.get("deltanet"), 1, 1, 2, 2)
    x.save(tmp_path / "state")
    with pytest.raises(ValueError, match="no saved StreamingRegressor"):
        il.StreamingRegressor.load(tmp_path / "state")
    fitted = PolynomialFeatures().fit(np.zeros((1, 2)))
    with pytest.raises(ValueError, match="features=PolynomialFeatures"):
        il.StreamingRegressor(features=fitted).save(tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_a_memory_value_is_a_regressor() -> None:
    X, y = stream(200)
    for memory, lr in ((il.get("gated_deltanet"), None), (il.get("titans", segment=4), 2e-3), (il.get("mesa"), None)):
        model = il.StreamingRegressor(memory, lr=lr)
        whole = model.predict_then_update(X, y)
        pieces = il.StreamingRegressor(memory, lr=lr)
        cut = np.concatenate([pieces.predict_then_update(X[a:b], y[a:b]) for a, b in ((0, 1), (1, 90), (90, 200))])
        np.testing.assert_allclose(cut, whole, atol=1e-9)
        assert np.abs(whole[100:] - y[100:]).mean() < np.abs(y[100:] - y[:100].mean()).mean()
        assert clone(model).memory is memory


def test_fitted_features() -> None:
    """A transformer, fitted before: as in a pipeline; it stays fitted in a clone."""
    X, y = stream()
    squares = PolynomialFeatures(2, include_bias=False).fit(X[:1])
    model = il.StreamingRegressor(features=squares)
    wanted = il.StreamingRegressor().fit(squares.transform(X), y)
    for m in (model, clone(model)):
        np.testing.assert_array_equal(m.fit(X, y).predict(X), wanted.predict(squares.transform(X)))
    assert model.coef_.shape == (9,)
    with pytest.raises(NotFittedError, match="features"):
        il.StreamingRegressor(features=PolynomialFeatures(2)).fit(X, y)
    with pytest.raises(ValueError, match="features='rbf'"):
        il.StreamingRegressor(features="rbf").fit(X, y)
    with pytest.raises(TypeError, match="features=3"):
        il.StreamingRegressor(features=3).fit(X, y)


def test_fourier_features_do_not_look_at_the_data() -> None:
    """And fit what a line cannot."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-3, 3, (600, 1))
    y = np.sin(2 * X[:, 0])
    model = il.StreamingRegressor(features="fourier", bandwidth=0.5, penalty=1e-3).fit(X, y)
    assert np.abs(model.predict(X) - y).max() < 0.02
    other = il.StreamingRegressor(features="fourier", bandwidth=0.5, penalty=1e-3).partial_fit(1e3 * X[:1], y[:1])
    other.partial_fit(X, y)
    assert model.coef_.shape == other.coef_.shape == (100,)
    assert np.abs(other.predict(X) - y).max() < 0.05
    seeds = [il.StreamingRegressor(features="fourier", random_state=s).fit(X, y).predict(X) for s in (0, 0, 1)]
    np.testing.assert_array_equal(seeds[0], seeds[1])
    assert not np.array_equal(seeds[0], seeds[2])
