"""The mixture of experts: its equations row by row, what it must not depend on, and how close it comes to the best."""

from __future__ import annotations

import math

import numpy as np
import pytest

from innerloop.streaming.mixture import KEPT, LARGEST, RATE, SCALE_KEPT, SHARE, MixtureState, mix, start, weigh


def by_hand(
    p: np.ndarray, y: np.ndarray, counts: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The module's equations in plain Python: mixed [n, V], weights [n, H], losses [n, H] (NaN in rows not learned)."""
    n, H, V = p.shape
    w = [1 / H] * H
    S = [[0.0] * V for _ in range(H)]
    N = [0.0] * H
    row = 0
    mixed, weights, losses = np.zeros((n, V)), np.zeros((n, H)), np.full((n, H), np.nan)
    for t in range(n):
        able = [h for h in range(H) if all(math.isfinite(x) and abs(x) <= 1e150 for x in p[t, h])]
        seen = [h for h in able if N[h] > 0]
        least = [min((S[h][v] / N[h] for h in seen), default=math.inf) for v in range(V)]
        sane = [h for h in seen if all(S[h][v] / N[h] <= LARGEST * least[v] for v in range(V))] or able
        total = sum(w[h] for h in sane)
        for h in sane:
            weights[t, h] = w[h] / total
            mixed[t] += weights[t, h] * p[t, h]
        if not (counts[t] and weight[t] > 0 and able):
            continue
        e = {h: [weight[t] * (p[t, h, v] - y[t, v]) ** 2 for v in range(V)] for h in able}
        row += 1
        g = min(1.0, (1 - SCALE_KEPT) * (row - 1)) ** 3
        for h in range(H):
            N[h] = SCALE_KEPT * N[h] + (g if h in able else 0.0)
            for v in range(V):
                S[h][v] = SCALE_KEPT * S[h][v] + (g * e[h][v] if h in able else 0.0)
        if row == 1:
            losses[t] = 0.0
            continue
        for h in able:
            parts = []
            for v in range(V):
                s = min(S[g][v] / N[g] for g in able)
                parts.append(0.0 if e[h][v] == 0 else LARGEST if s == 0 else min(e[h][v] / s, LARGEST))
            losses[t, h] = sum(parts) / V
        for h in set(range(H)) - set(able):
            losses[t, h] = LARGEST
        smallest = min(losses[t, h] for h in able)
        q = [(1 - SHARE) * x + SHARE / H for x in w]
        u = [q[h] ** KEPT * math.exp(-RATE * (losses[t, h] - smallest)) for h in range(H)]
        w = [x / sum(u) for x in u]
    return mixed, weights, losses


def noisy(rows: int = 300, experts: int = 5, outputs: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels [n, V] and predictions [n, H, V] with errors of different sizes, the best expert changing in between."""
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(rows, outputs)).cumsum(0)
    size = np.linspace(0.5, 2.0, experts)[None, :, None] * np.ones((rows, 1, 1))
    size[rows // 2 :] = size[rows // 2 :, ::-1]
    return y[:, None] + size * rng.normal(size=(rows, experts, outputs)), y


def all_rows(y: np.ndarray) -> np.ndarray:
    return np.ones(len(y), bool)


def rmse(prediction: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.sqrt(((prediction - y) ** 2).mean(0))


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("case", ["plain", "gaps", "weighted", "diverging", "exact"])
def test_the_equations_row_by_row(case: str, outputs: int) -> None:
    p, y = noisy(outputs=outputs)
    rng = np.random.default_rng(1)
    counts, weight = all_rows(y), np.ones(len(y))
    if case == "gaps":
        counts = rng.random(len(y)) < 0.6
        y[~counts] = np.nan
    elif case == "weighted":
        weight = rng.integers(0, 4, len(y)) / 2
    elif case == "diverging":
        p[100:200, 0] = np.nan
        p[120:, 1, -1] = 10.0 ** np.arange(100, 280)
        p[10:20] = np.inf
    elif case == "exact":
        p[:, 2], p[50:60, 0] = y, y[50:60]
        p[200:, 2] += 0.1
    mixed, weights, _ = mix(start(5, outputs), p, y, counts, weight=weight if case == "weighted" else None)
    want_mixed, want_weights, _ = by_hand(p, y, counts, weight)
    np.testing.assert_allclose(weights, want_weights, rtol=0, atol=1e-12)
    np.testing.assert_allclose(mixed, want_mixed, rtol=1e-12, atol=1e-12 * np.abs(y[counts]).max())
    assert weights[0] == pytest.approx([0.2] * 5)
    assert weights[-1].max() > 0.3  # the rows taught something


def test_three_rows_worked_out() -> None:
    # the first row does not count; in the second, squared errors are 1 and 4, so the scale is 1 and the losses 1 and 4
    p, y = np.array([[[9.0], [5.0]], [[1.0], [2.0]], [[1.0], [0.0]]]), np.zeros((3, 1))
    mixed, weights, _ = mix(start(2, 1), p, y, all_rows(y))
    odds = math.exp(3 * RATE)
    first = odds / (1 + odds)
    np.testing.assert_allclose(weights, [[0.5, 0.5], [0.5, 0.5], [first, 1 - first]], rtol=1e-14)
    np.testing.assert_allclose(mixed, [[7.0], [1.5], [first]], rtol=1e-14)


@pytest.mark.parametrize("cuts", [[1, 2, 3], [0, 0, 150, 150], [299], list(range(1, 300))], ids=["1", "2", "3", "4"])
def test_cuts_change_nothing(cuts: list[int]) -> None:
    p, y = noisy()
    p[40:80, 3] = np.nan
    counts, weight = np.arange(len(y)) % 7 > 0, np.random.default_rng(2).random(len(y))
    mixed, weights, state = mix(start(5, 2), p, y, counts, weight=weight)
    now, parts = start(5, 2), []
    for a, b in zip([0, *cuts], [*cuts, len(y)], strict=True):
        m, w, now = mix(now, p[a:b], y[a:b], counts[a:b], weight=weight[a:b])
        parts.append((m, w))
    np.testing.assert_allclose(np.concatenate([m for m, _ in parts]), mixed, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.concatenate([w for _, w in parts]), weights, rtol=1e-12, atol=1e-15)
    for a, b in zip(now, state, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("t", [0, 1, 150, 299])
def test_a_row_depends_on_labels_before_it_only(t: int) -> None:
    p, y = noisy()
    other = y.copy()
    other[t:] = -3 * y[t:] + 1
    a, b = mix(start(5, 2), p, y, all_rows(y)), mix(start(5, 2), p, other, all_rows(y))
    np.testing.assert_array_equal(a[0][: t + 1], b[0][: t + 1])
    np.testing.assert_array_equal(a[1][: t + 1], b[1][: t + 1])
    assert t == 299 or np.abs(a[1] - b[1]).max() > 1e-3


@pytest.mark.parametrize("unit", [1e12, 1e-12, 1e140, 1e-140, -1.0])
def test_units_change_nothing(unit: float) -> None:
    p, y = noisy()
    mixed, weights, _ = mix(start(5, 2), p, y, all_rows(y))
    scaled = mix(start(5, 2), p * [unit, 1.0], y * [unit, 1.0], all_rows(y))  # each output has a unit of its own
    np.testing.assert_allclose(scaled[1], weights, rtol=0, atol=1e-11)
    np.testing.assert_allclose(scaled[0] / [unit, 1.0], mixed, rtol=0, atol=1e-11)


def test_a_shift_changes_nothing() -> None:
    p, y = noisy()
    mixed, weights, _ = mix(start(5, 2), p, y, all_rows(y))
    shifted = mix(start(5, 2), p + 1024.0, y + 1024.0, all_rows(y))
    np.testing.assert_allclose(shifted[1], weights, rtol=0, atol=1e-9)
    np.testing.assert_allclose(shifted[0] - 1024, mixed, rtol=0, atol=1e-9)


def test_the_order_of_experts_and_a_repeated_output_change_nothing() -> None:
    p, y = noisy(outputs=1)
    mixed, weights, _ = mix(start(5, 1), p, y, all_rows(y))
    turned = mix(start(5, 1), p[:, ::-1], y, all_rows(y))
    np.testing.assert_allclose(turned[1][:, ::-1], weights, rtol=0, atol=1e-12)
    thrice = mix(start(5, 3), p.repeat(3, -1), y.repeat(3, -1), all_rows(y))
    np.testing.assert_allclose(thrice[1], weights, rtol=0, atol=1e-12)
    np.testing.assert_allclose(thrice[0], mixed.repeat(3, -1), rtol=0, atol=1e-12)


def test_rows_that_do_not_count_are_predicted_only() -> None:
    p, y = noisy()
    _, weights, state = mix(start(5, 2), p[:100], y[:100], all_rows(y[:100]))
    mixed, later, after = mix(state, p[100:], np.full_like(y[100:], np.nan), np.zeros(200, bool))
    np.testing.assert_allclose(later, np.broadcast_to(state.weights, later.shape), rtol=1e-15)
    np.testing.assert_allclose(mixed, np.einsum("h,nhv->nv", state.weights, p[100:]), rtol=0, atol=1e-12)
    for a, b in zip(after, state, strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.abs(later[0] - weights[0]).max() > 0.01


def test_weigh_gives_the_weights_of_the_next_row() -> None:
    p, y = noisy()
    p[150::9, 4] *= 1e30
    p[200::5, 2, 1] = np.nan
    _, weights, _ = mix(start(5, 2), p, y, all_rows(y))
    state = start(5, 2)
    for t in range(len(y)):
        np.testing.assert_allclose(weigh(state, p[t : t + 1]), weights[t : t + 1], rtol=1e-12, atol=1e-15)
        _, _, state = mix(state, p[t : t + 1], y[t : t + 1], np.ones(1, bool))
    assert (weights[160:, 4] == 0).all()
    coefficients = np.ones((1, 5, 7))
    coefficients[0, 0, 3] = np.inf
    now = weigh(state, coefficients)[0]
    assert now[0] == now[4] == 0
    assert now.sum() == pytest.approx(1)
    with pytest.raises(ValueError, match=r"predictions: shape \[1, 4, 2\]: wanted \[n, 5, any\]"):
        weigh(state, p[:1, 1:])


def test_weights_of_rows_matter_by_ratio_and_zero_is_no_row() -> None:
    p, y = noisy()
    weight = np.random.default_rng(3).integers(0, 3, len(y)).astype(float)
    one = mix(start(5, 2), p, y, all_rows(y), weight=weight)
    for other in (
        mix(start(5, 2), p, y, all_rows(y), weight=1e6 * weight),
        mix(start(5, 2), p, y, weight > 0, weight=weight),
    ):
        np.testing.assert_allclose(other[1], one[1], rtol=0, atol=1e-12)
    assert np.abs(mix(start(5, 2), p, y, all_rows(y))[1] - one[1]).max() > 0.01


def test_exact_experts_are_safe() -> None:
    p, y = noisy()
    mixed, weights, _ = mix(start(5, 2), y[:, None].repeat(5, 1), y, all_rows(y))  # all exactly right
    np.testing.assert_allclose(mixed, y, rtol=1e-14)
    np.testing.assert_allclose(weights, 0.2, rtol=1e-14)
    p[:, 3] = y  # one exactly right
    mixed, weights, _ = mix(start(5, 2), p, y, all_rows(y))
    assert (weights[2:, 3] > 1 - SHARE).all()
    p[:, 3, 1], p[:, 1, 1] = p[:, 1, 1], y[:, 1]  # each of two in one output
    mixed, weights, _ = mix(start(5, 2), p, y, all_rows(y))
    assert np.isfinite(mixed).all()
    assert (weights[2:, [1, 3]].sum(1) > 1 - SHARE).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_a_diverged_expert_does_no_harm_and_may_come_back(bad: float) -> None:
    p, y = noisy(rows=600)
    p[:, 0] = y + 0.1 * np.random.default_rng(4).normal(size=y.shape)  # by far the best
    gone = p.copy()
    gone[200:400, 0] = bad
    mixed, weights, state = mix(start(5, 2), gone, y, all_rows(y))
    assert np.isfinite(mixed).all()
    assert all(np.isfinite(a).all() for a in state)
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-14)
    assert weights[199, 0] > 0.9
    assert (weights[200:400, 0] == 0).all()
    assert 0 < weights[400, 0] < 1e-9
    assert (weights[405:, 0] > 0.9).all()
    others = mix(start(4, 2), gone[200:400, 1:], y[200:400], all_rows(y[200:400]))[0]
    assert (rmse(mixed[200:400], y[200:400]) < 1.05 * rmse(others, y[200:400])).all()


@pytest.mark.parametrize("rows", ["every", "some"])
def test_an_expert_that_explodes_while_finite_does_no_harm(rows: str) -> None:
    p, y = noisy(rows=400)
    rng = np.random.default_rng(7)
    p[:, 0] = y + 0.1 * rng.normal(size=y.shape)  # by far the best in most rows
    wild = np.arange(400) >= 100 if rows == "every" else (np.arange(400) >= 100) & (np.arange(400) % 6 == 0)
    p[wild, 0] += 10.0 ** np.linspace(0, 149, wild.sum())[:, None]
    mixed, weights, state = mix(start(5, 2), p, y, all_rows(y))
    assert weights[99, 0] > 0.9
    assert (weights[130:, 0] < 1e-100).all()
    assert all(np.isfinite(a).all() for a in state)
    others = mix(start(4, 2), p[:, 1:], y, all_rows(y))[0]
    assert (rmse(mixed[130:], y[130:]) < 1.05 * rmse(others[130:], y[130:])).all()


def test_the_only_finite_expert_is_the_prediction() -> None:
    p, y = noisy(rows=40)
    for t in range(20, 40):
        p[t, np.arange(5) != t % 5] = np.nan  # another one each row, all of them fresh from NaN
    mixed, weights, _ = mix(start(5, 2), p, y, all_rows(y))
    turn = np.arange(20, 40)
    np.testing.assert_allclose(mixed[20:], p[turn, turn % 5], rtol=1e-14)
    np.testing.assert_allclose(weights[turn, turn % 5], 1, rtol=1e-14)


def test_without_a_finite_expert_the_prediction_is_zero_and_nothing_is_learned() -> None:
    p, y = noisy(rows=30)
    gone = p.copy()
    gone[10:20] = np.nan
    mixed, weights, _ = mix(start(5, 2), gone, y, all_rows(y))
    assert (mixed[10:20] == 0).all()
    assert (weights[10:20] == 0).all()
    kept = np.r_[0:10, 20:30]
    short = mix(start(5, 2), p[kept], y[kept], all_rows(y[kept]))
    np.testing.assert_allclose(weights[kept], short[1], rtol=1e-13)


def test_regret_is_bounded() -> None:
    """Discounted log loss of the mixture against that of any expert, and of any expert for each of two stretches.

    With Z_t = sum_g q_t,g^KEPT exp(-RATE l_t,g), q_t+1,h >= (1 - SHARE) q_t,h^KEPT exp(-RATE l_t,h) / Z_t and also
    q_t+1,h >= SHARE / H; taking logarithms and unrolling with q_T+1,h <= 1 gives the two bounds.
    """
    p, y = noisy(rows=400, outputs=1)
    _, weights, _ = mix(start(5, 1), p, y, all_rows(y))
    losses = by_hand(p, y, all_rows(y), np.ones(len(y)))[2]
    T, half = len(y), len(y) // 2
    worth = KEPT ** np.arange(T - 1, -1, -1.0)
    q = (1 - SHARE) * weights + SHARE / 5
    mixture = -np.log((q**KEPT * np.exp(-RATE * losses)).sum(1))
    step = -math.log1p(-SHARE)
    for h in range(5):
        assert worth @ mixture <= worth @ (RATE * losses[:, h] + step) + KEPT**T * math.log(5) + 1e-9
        late = worth[half:]
        bound = late @ (RATE * losses[half:, h] + step) + KEPT**half * math.log(5 / SHARE)
        assert late @ mixture[half:] <= bound + 1e-9
    assert worth @ mixture < worth @ (RATE * losses.mean(1)) - 10  # and the weights do better than equal ones


@pytest.mark.parametrize(("worse", "rows"), [(3.0, 8), (1.5, 25)], ids=["clear", "close"])
def test_it_tracks_the_best_expert_of_each_stretch(worse: float, rows: int) -> None:
    rng = np.random.default_rng(5)
    n, H = 12000, 16
    y = rng.normal(size=(n, 1))
    size = np.full((n, H), 2 * worse)
    turn = np.arange(n) // 1000 % 2
    best = np.where(turn, 11, 4)
    size[:, [4, 11]] = worse
    size[np.arange(n), best] = 1.0
    p = y[:, None] + (size * rng.normal(size=(n, H)))[..., None]
    mixed, weights, _ = mix(start(H, 1), p, y, all_rows(y))
    own = weights[np.arange(n), best].reshape(-1, 1000)
    assert np.median((own > 0.5).argmax(1)) <= rows  # after a change
    assert own[:, 50:].mean() > 0.97
    assert rmse(mixed, y) < 1.03  # that of knowing the best is 1
    assert rmse(p[:, 4], y) > 1.2


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e9])
def test_a_first_row_far_off_is_soon_forgotten(offset: float) -> None:
    rng = np.random.default_rng(8)
    y = offset + rng.normal(size=(200, 1))
    p = y[:, None] + np.array([1.0, 3.0, 3.0, 3.0])[:, None] * rng.normal(size=(200, 4, 1))
    p[0] = 0.0  # what a fresh regressor predicts
    _, weights, _ = mix(start(4, 1), p, y, all_rows(y))
    assert (weights[:2] == 0.25).all()
    assert weights[30:, 0].mean() > 0.95


def rls_with_forgetting(X: np.ndarray, y: np.ndarray, forgetting: np.ndarray) -> np.ndarray:
    """Predictions [n, S, H] of least squares with forgetting f, A <- f A + (1 - f) I, then the row; X [n, S, d]."""
    n, S, d = X.shape
    f = forgetting[None, :, None, None]
    A = np.broadcast_to(np.eye(d), (S, len(forgetting), d, d)).copy()
    w = np.zeros((S, len(forgetting), d))
    out = np.empty((n, S, len(forgetting)))
    for t in range(n):
        x = X[t][:, None]
        out[t] = (w * x).sum(-1)
        A = f * A + (1 - f) * np.eye(d) + x[..., None] * x[..., None, :]
        gain = np.linalg.solve(A, np.broadcast_to(x, w.shape)[..., None])[..., 0]
        w = w + gain * (y[t][:, None] - out[t])[..., None]
    return out


STREAMS = [
    "none",
    "slow",
    "medium",
    "fast",
    "very fast",
    "rotation",
    "abrupt",
    "by turns",
    "heavy tails",
    "heavy, slow",
]


def drifting(rng: np.random.Generator, n: int, d: int = 4, noise: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """X [n, S, d] and y [n, S] = x^T w_t + noise of the streams named above."""
    S, rows = len(STREAMS), np.arange(n)
    walk = np.zeros((n, S))
    for name, size in (("slow", 0.001), ("medium", 0.01), ("fast", 0.05), ("very fast", 0.2), ("heavy, slow", 0.02)):
        walk[:, STREAMS.index(name)] = size
    walk[rows % 1000 == 0, STREAMS.index("abrupt")] = 1.0
    walk[:, STREAMS.index("by turns")] = np.array([0, 0.05, 0, 0.2])[rows // 1000 % 4]
    w = rng.normal(size=(1, S, d)) + (walk[..., None] * rng.normal(size=(n, S, d))).cumsum(0)
    turn = 0.01 * rows
    w[:, STREAMS.index("rotation"), :2] = np.stack([np.cos(turn), np.sin(turn)], -1)
    errors = rng.normal(size=(n, S))
    for name in ("heavy tails", "heavy, slow"):
        errors[:, STREAMS.index(name)] = rng.standard_t(2, size=n)
    X = rng.normal(size=(n, S, d))
    return X, (X * w).sum(-1) + noise * errors


@pytest.mark.parametrize("seed", [0, 1])
def test_within_three_percent_of_the_best_setting_in_hindsight(seed: int) -> None:
    n = 4000
    X, y = drifting(np.random.default_rng([6, seed]), n)
    p = rls_with_forgetting(X, y, np.append(1 - np.logspace(-4, -0.5, 15), 1.0))
    spread = 0.0
    for i, name in enumerate(STREAMS):
        mixed, _, _ = mix(start(16, 1), p[:, i, :, None], y[:, i, None], all_rows(y))
        single = rmse(p[:, i], y[:, i, None])
        assert rmse(mixed, y[:, i, None]) <= 1.03 * single.min(), name
        early = slice(0, 100)
        assert rmse(mixed[early], y[early, i, None]) <= 1.15 * rmse(p[early, i], y[early, i, None]).min(), name
        spread = max(spread, single.max() / single.min())
    assert spread > 3  # the settings differ, so that the wrong one would not do


def test_inputs_and_state_stay_as_they_are() -> None:
    p, y = noisy()
    counts, weight = all_rows(y), np.ones(len(y))
    state = mix(start(5, 2), p[:50], y[:50], counts[:50])[2]
    given = [a.copy() for a in (p, y, counts, weight, *state)]
    for a in (p, y, counts, weight, *state):
        a.flags.writeable = False
    mix(state, p, y, counts, weight=weight)
    for a, b in zip((p, y, counts, weight, *state), given, strict=True):
        np.testing.assert_array_equal(a, b)


def test_no_rows() -> None:
    state = mix(start(5, 2), *noisy(), np.ones(300, bool))[2]
    mixed, weights, after = mix(state, np.zeros((0, 5, 2)), np.zeros((0, 2)), np.zeros(0, bool))
    assert (mixed.shape, weights.shape) == ((0, 2), (0, 5))
    assert isinstance(after, MixtureState)
    for a, b in zip(after, state, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"predictions": np.zeros((4, 2, 2))}, r"predictions: shape \[4, 2, 2\]: wanted \[4, 3, 2\]"),
        ({"y": np.zeros(4)}, r"y: shape \[4\]: wanted \[4, 2\]"),
        ({"counts": np.ones(3, bool)}, r"counts: shape \[3\]: wanted \[4\]"),
        ({"counts": np.ones(4)}, "counts: dtype float64: wanted bool"),
        ({"y": np.array([[0, 1], [np.nan, 0], [0, 0], [0, 0]])}, "y: row 1 counts but holds"),
        ({"y": np.array([[0, 1], [0, 0], [0, 1e200], [0, 0]])}, "y: row 2 counts but holds"),
        ({"weight": np.ones((4, 1))}, r"weight: shape \[4, 1\]: wanted \[4\]"),
        ({"weight": np.array([1, 1, 1, -1.0])}, "weight: -1.0 in row 3"),
        ({"weight": np.array([1, np.inf, 1, 1])}, "weight: inf in row 1"),
    ],
    ids=["predictions", "y", "counts", "type", "nan", "huge", "shape", "negative", "infinite"],
)
def test_refusals(change: dict[str, np.ndarray], message: str) -> None:
    given = {
        "predictions": np.zeros((4, 3, 2)),
        "y": np.zeros((4, 2)),
        "counts": np.ones(4, bool),
        "weight": np.ones(4),
    }
    given |= change
    weight = given.pop("weight")
    with pytest.raises(ValueError, match=message):
        mix(start(3, 2), **given, weight=weight)


@pytest.mark.parametrize("sizes", [(0, 1), (3, 0), (-1, 2)], ids=["experts", "outputs", "negative"])
def test_a_mixture_needs_experts_and_outputs(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="pass an int >= 1"):
        start(*sizes)
