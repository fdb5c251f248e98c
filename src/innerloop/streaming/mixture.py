"""One prediction from many: exponential weights over experts, with discounted losses and fixed share.

H experts (settings of one memory) predict V outputs of row t before its label is seen:

    mixed_t = sum_h w_t,h p_t,h                                         w_1,h = 1 / H
    e_t,h,v = (p_t,h,v - y_t,v)^2                                       squared errors, times the row's weight if any
    g_t     = min(1, (1 - SCALE_KEPT) (t - 1))^3                        first rows tell little about later errors
    S_t,h,v = SCALE_KEPT S_t-1,h,v + g_t e_t,h,v                        running sums
    N_t,h   = SCALE_KEPT N_t-1,h + g_t
    s_t,v   = min_h S_t,h,v / N_t,h                                     scale: the best expert's mean squared error
    l_t,h   = mean_v min(e_t,h,v / s_t,v, LARGEST)                      0 / 0 = 0; l_1,h = 0
    q_t,h   = (1 - SHARE) w_t,h + SHARE / H                             another expert may be the best from now on
    w_t+1,h ~ q_t,h^KEPT exp(-RATE l_t,h)                               sums to 1; j rows ago a loss counts KEPT^j

The loss has no unit: shifted labels and predictions, or ones in other units, give the same weights. With one output,
RATE 1/2 would make w the posterior under Gaussian noise of variance s; a little less measured better.

An expert may diverge. Weights are shared after the prediction, so that a hopeless expert has exp(-RATE LARGEST) of the
weight and not SHARE / H: its predictions may be huge. One that is right in most rows and absurd in some is not trusted
either: an expert whose mean squared error S / N, as it was before the row, exceeds LARGEST times the smallest of the
row's experts, in any output, has weight 0 in that row (unless all do).

Sources: exponential weights and fixed share, Herbster and Warmuth (1998), "Tracking the best expert", Machine Learning
32, 151-178; discounted losses, Cesa-Bianchi and Lugosi (2006), "Prediction, Learning, and Games", section 2.11, in the
form q^KEPT exp(-RATE l) of Chernov and Zhdanov (2010), "Prediction with expert advice under discounted loss",
arXiv:1005.1918. The scale is our own.

Measured. The constants were chosen once, on 496 runs, and then tried on 496 others: streams of 4000 rows, 4 or 8
columns, noise .1 to 1, fed to 16 settings of `rls` (1 - forgetting from 10^-4 to 10^-0.5, and forgetting 1) or `kalman`
(process noise 10^-8 to 1). RMSE of the mixture over that of the best single setting in hindsight, mean and worst:

    weights that stay                             1.001  1.005      Student's t noise, 2 degrees, no drift  1.002  1.007
    weights that walk .001 or .01 a row           1.001  1.006      the same, drift .02                     1.008  1.082
    weights that walk .05 or .2 a row             1.003  1.011      Student's t noise, 1.2 degrees          1.004  1.014
    weights that rotate                           1.002  1.021      walk 0, .05, 0, .2 by turns             0.972  1.009
    new weights every 1000 rows                   0.979  1.101      the first 100 rows of all               1.007  1.072

490 of the 496 are within 1.03. Of the others, four are decided by the ten or so rows after each of three jumps, and two
by single errors of a noise of infinite variance. To follow the setting of largest weight instead of the average is a
little worse (all: 1.0002 against 0.9988). On six real series of 100 to 2100 rows, after a burn-in, it was 0.99 to
1.04.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.signal import lfilter

RATE = 0.4  # learning rate of the relative loss
SHARE = 0.002  # part of the weight that is spread over all experts at every row
KEPT = 0.998  # part of every log weight that is kept per row: the losses' memory is 500 rows
SCALE_KEPT = 0.99  # the same of the scales: 100 rows
LARGEST = 1e3  # of a squared error relative to its scale: exp(-RATE LARGEST) is as good as zero, and not zero
FINITE = 1e150  # a larger number counts as not finite, since its square is not


class MixtureState(NamedTuple):
    """What a mixture knows after some rows: arrays, never written to.

    weights: [H], w of the next row; to mix with them, see `weigh`. squares: [H, V], S. rows: [H], N. learned: [], int,
    the rows that taught something.
    """

    weights: np.ndarray
    squares: np.ndarray
    rows: np.ndarray
    learned: np.ndarray


def start(experts: int, outputs: int) -> MixtureState:
    """The state before the first row: equal weights, nothing known of the scales."""
    for name, value in (("experts", experts), ("outputs", outputs)):
        if value < 1:
            raise ValueError(f"{name}={value}: pass an int >= 1")
    return MixtureState(np.full(experts, 1 / experts), np.zeros((experts, outputs)), np.zeros(experts), np.array(0))


def mix(
    state: MixtureState,
    predictions: np.ndarray,
    y: np.ndarray,
    counts: np.ndarray,
    *,
    weight: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, MixtureState]:
    """Mix the experts' predictions row by row and learn their weights from the labels, by the module's equations.

    Row t depends on labels before t only, and no result depends on how the rows are cut into calls.

    An expert with a prediction that is not finite (NaN, or beyond 1e150, in any output) has weight 0 in that row, and
    the weights of the others sum to 1. To it the row is a loss of LARGEST, which S and N do not see, so it starts
    again from SHARE / H once it is finite. A row in which no expert is finite is predicted as 0 with weights 0, and
    teaches nothing.

    Args:
        state: from `start` or from the last call; it stays as it is.
        predictions: [n, H, V], each made before its row was learned.
        y: [n, V]; only read in the rows that count.
        counts: [n], bool: the rows that have a label and are learned. The others are predicted only.
        weight: [n], >= 0, factors of the rows' squared errors (None: all 1). Only their ratios matter, and a row of
            weight 0 does not count.

    Returns:
        mixed [n, V]; the weights behind it [n, H]; the state after the last row.

    Raises:
        ValueError: a wrong shape or type, a label that counts and is not finite, a weight out of range.
    """
    p, y, learned, factor = _checked(state, predictions, y, counts, weight)
    usable = _finite(p)
    p = np.where(usable[..., None], p, 0.0)
    learned = learned & usable.any(-1)

    errors = p[learned] - y[learned][:, None]
    with np.errstate(over="ignore"):
        e = np.minimum(factor[learned, None, None] * errors**2, FINITE**2)
    g = np.minimum(1.0, (1 - SCALE_KEPT) * (state.learned + np.arange(len(e)))) ** 3
    S = _running(np.where(usable[learned, :, None], g[:, None, None] * e, 0.0), state.squares)
    N = _running(np.where(usable[learned], g[:, None], 0.0), state.rows)
    loss = _losses(e, _means(usable[learned], S[1:], N[1:]))
    w = _tracked(np.exp(-RATE * loss), state.weights)

    before = np.cumsum(learned) - learned  # rows learned before each row
    weights = _usable_weights(usable, w[before], S[before], N[before])
    after = MixtureState(w[-1].copy(), S[-1].copy(), N[-1].copy(), np.array(state.learned + len(e)))
    return np.einsum("nh,nhv->nv", weights, p), weights, after


def weigh(state: MixtureState, predictions: np.ndarray) -> np.ndarray:
    """Weights [n, H] that `mix` would give to the next rows, none of them learned yet.

    `state.weights` alone knows neither which experts are finite in a row nor which are trusted.

    Args:
        state: from `start` or `mix`.
        predictions: [n, H, any], or whatever else of the experts is to be mixed, say their coefficients.
    """
    p = np.asarray(predictions, np.float64)
    if p.ndim != 3 or p.shape[1] != len(state.weights):
        raise ValueError(f"predictions: shape {list(p.shape)}: wanted [n, {len(state.weights)}, any]")
    return _usable_weights(_finite(p), state.weights[None], state.squares[None], state.rows[None])


def _finite(p: np.ndarray) -> np.ndarray:
    """Experts whose predictions are finite in all outputs [n, H]."""
    return np.all(np.abs(p) <= FINITE, -1)  # false for NaN


def _usable_weights(usable: np.ndarray, w: np.ndarray, S: np.ndarray, N: np.ndarray) -> np.ndarray:
    """w [n, H] without the experts that are not finite or not trusted, scaled to sum 1."""
    weights = np.where(_trusted(usable, _means(usable, S, N)), w, 0.0)
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0)


def _means(usable: np.ndarray, S: np.ndarray, N: np.ndarray) -> np.ndarray:
    """Mean squared errors S / N [n, H, V], infinite for an expert that is not finite or never was."""
    known = (usable & (N > 0))[..., None]
    return np.where(known, S / np.where(known, N[..., None], 1.0), np.inf)


def _trusted(usable: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Experts that may have weight in a row [n, H]: finite, and not absurd in the rows before; else all finite ones."""
    trusted = usable & (means <= LARGEST * means.min(1, keepdims=True)).all(-1)
    return np.where(trusted.any(-1, keepdims=True), trusted, usable)


def _losses(e: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Losses less the row's smallest [n, H], so that the largest likelihood is 1."""
    s = means.min(1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = np.minimum(e / s, LARGEST)
    loss = np.where(np.isinf(means), LARGEST, np.where(e > 0, relative, 0.0)).mean(-1)
    return loss - loss.min(-1, keepdims=True)


def _running(x: np.ndarray, last: np.ndarray) -> np.ndarray:
    """z_0 = last and z_t = SCALE_KEPT z_t-1 + x_t along the first axis, [n + 1, ...]."""
    if not len(x):
        return last[None]
    z, _ = lfilter([1.0], [1.0, -SCALE_KEPT], x, axis=0, zi=SCALE_KEPT * last[None])
    return np.concatenate([last[None], np.asarray(z)])


def _tracked(likelihood: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Weights before each row and after the last [n + 1, H]; likelihood [n, H] is exp(-RATE loss).

    No q is below SHARE / H and no likelihood below exp(-RATE LARGEST): nothing underflows, no logarithms are needed.
    """
    n, H = likelihood.shape
    weights, q, ones = np.empty((n + 1, H)), np.empty(H), np.ones(H)
    weights[0] = w
    for row, now, after in zip(likelihood, weights[:-1], weights[1:], strict=True):
        np.multiply(now, 1 - SHARE, q)
        np.add(q, SHARE / H, q)
        np.power(q, KEPT, q)
        np.multiply(q, row, q)
        np.multiply(q, 1 / q.dot(ones), after)  # a dot product is the fastest sum of a short row
    return weights


def _checked(
    state: MixtureState, predictions: np.ndarray, y: np.ndarray, counts: np.ndarray, weight: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Predictions, labels, the rows to learn [n] and the factors of their squared errors [n]."""
    p, y, counts = np.asarray(predictions, np.float64), np.asarray(y, np.float64), np.asarray(counts)
    n, (H, V) = len(p), state.squares.shape
    factor = np.ones(n) if weight is None else np.asarray(weight, np.float64)
    for name, array, wanted in (
        ("predictions", p, (n, H, V)),
        ("y", y, (n, V)),
        ("counts", counts, (n,)),
        ("weight", factor, (n,)),
    ):
        if array.shape != wanted:
            raise ValueError(f"{name}: shape {list(array.shape)}: wanted {list(wanted)}")
    if counts.dtype != np.bool_:
        raise ValueError(f"counts: dtype {counts.dtype}: wanted bool")
    wrong = np.flatnonzero(counts & ~np.all(np.abs(y) <= FINITE, -1))
    if wrong.size:
        raise ValueError(f"y: row {wrong[0]} counts but holds {y[wrong[0]]}: wanted numbers within {FINITE:g}")
    wrong = np.flatnonzero(~((factor >= 0) & (factor < np.inf)))
    if wrong.size:
        raise ValueError(f"weight: {factor[wrong[0]]} in row {wrong[0]}: wanted a finite number >= 0")
    return p, y, counts & (factor > 0), factor
