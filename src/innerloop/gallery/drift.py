"""A regression whose truth drifts: what to forget, and how fast.

    w_t = (w_{t-1} + s N(0, I)) / |.|,     v_t = w_t . k_t + .1 N(0, 1),     k_t ~ N(0, I / d),     d = 8

Least squares on everything averages over places where the truth has been. Forgetting, an implicit step and a Kalman
filter follow it. With forgetting lambda near 1 two errors balance, that of the noise (deviation sigma) and that of the
lag behind a truth that walks on a sphere, in d - 1 directions:

    E |w - w_t|^2 = d^2 sigma^2 (1 - lambda) / 2 + (d - 1) s^2 / (2 (1 - lambda))
    least at 1 - lambda = s sqrt(d - 1) / (sigma d)
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import innerloop as il

from ..look import Palette
from .experiment import Outcome, Picture, Row, Tick, claim, digits, experiment, near

D, TOKENS, NOISE, SPEED, LAST, RIDGE = 8, 2000, 0.1, 0.03, 500, 1e-6
SPEEDS = (0.001, 0.0025, 0.006, 0.015, 0.04)
KEPT = 1 - np.logspace(-3, -0.3, 22)
LONG, BURN, STREAMS = 3000, 1000, 4


class Drift(NamedTuple):
    """A stream: truths [T, d], keys [T, d], values [T]."""

    truth: Tensor
    keys: Tensor
    values: Tensor


def draw(seed: int = 2, speed: float = SPEED, tokens: int = TOKENS) -> Drift:
    """The source's stream."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=D)
    w /= np.linalg.norm(w)
    truth, keys, values = np.empty((tokens, D)), np.empty((tokens, D)), np.empty(tokens)
    for t in range(tokens):
        w = w + speed * rng.normal(size=D)
        w /= np.linalg.norm(w)
        truth[t], keys[t] = w, rng.normal(size=D) / math.sqrt(D)
        values[t] = w @ keys[t] + NOISE * rng.normal()
    return Drift(*map(torch.from_numpy, (truth, keys, values)))


def weights(memory: il.Memory, stream: Drift, **gates: float | Tensor) -> Tensor:
    """The weights after each token, [T, d]: every head reads the same stream and answers for one coordinate."""
    T = len(stream.values)
    q = torch.eye(D, dtype=torch.float64).expand(1, T, D, D)
    k, v = stream.keys[None, :, None].expand(1, T, D, D), stream.values[None, :, None, None].expand(1, T, D, 1)
    made = {n: torch.as_tensor(g, dtype=torch.float64).view(1, -1, 1).expand(1, T, D) for n, g in gates.items()}
    return il.chunked(memory, q, k, v, il.Gates(**made)).output[0, ..., 0]


def bank_weights(stream: Drift, **options: Any) -> Tensor:
    """An automatic bank's weights after each of the last 500 rows [500, d]: before the next it is asked for each."""
    X, y = torch.cat([stream.keys, torch.zeros(1, D)]).numpy(), np.append(stream.values.numpy(), 0.0)
    early = il.StreamingRegressor(forgetting="auto", fit_intercept=False, **options).partial_fit(X[:-LAST], y[:-LAST])
    asked = (np.tile(axis, (LAST, 1)) for axis in np.eye(D))
    columns = [deepcopy(early).predict_then_update(X[-LAST:], y[-LAST:], query=q) for q in asked]
    return torch.from_numpy(np.stack(columns, 1))


def distances(w: Tensor, stream: Drift) -> Tensor:
    """How far the weights [n, d] are from the truth at the last n tokens, [n]."""
    return (w - stream.truth[-len(w) :]).norm(dim=-1)


@cache
def followers() -> dict[str, Tensor]:
    """Distance to the truth along the source's stream, by follower."""
    stream = draw()
    rls = il.get("rls", penalty=RIDGE)
    kalman = il.get("kalman", process_noise=SPEED**2, observation_noise=NOISE**2, prior_variance=1 / D)
    found = {
        "least squares": weights(rls, stream),
        "forgetting .95": weights(rls, stream, log_decay=math.log(0.95)),
        "implicit step": weights(il.get("longhorn"), stream, lr=1.0),
        "Kalman filter": weights(kalman, stream),
        "automatic bank": bank_weights(stream, penalty=RIDGE),
    }
    return {name: distances(w, stream) for name, w in found.items()}


class Speeds(NamedTuple):
    """RMS error of predictions before each row, noise apart.

    each: of each forgetting, over all streams [speeds, 22]. first, bank: on the first stream, of the best forgetting
    and of an automatic bank [speeds]. best: 1 - lambda of the least error, between the settings [speeds].
    """

    each: np.ndarray
    first: np.ndarray
    bank: np.ndarray
    best: np.ndarray


@cache
def speeds() -> Speeds:
    """How much to forget at each drift speed: all settings at once as rows of one batch, then the automatic bank."""
    memory = replace(il.get("rls", penalty=RIDGE), order="read-write")  # test, then train
    each, first, bank = [], [], []
    for i, speed in enumerate(SPEEDS):
        streams = [draw(10 * i + j, speed, LONG) for j in range(STREAMS)]
        truth, keys, values = (torch.stack(x) for x in zip(*streams, strict=True))
        clean = (truth * keys).sum(-1)  # [streams, T]
        n = len(KEPT)
        k, v = keys.repeat_interleave(n, 0)[:, :, None], values.repeat_interleave(n, 0)[..., None, None]
        fade = torch.from_numpy(np.log(KEPT)).repeat(STREAMS)[:, None, None].expand(STREAMS * n, LONG, 1)
        answers = il.chunked(memory, k, k, v, il.Gates(log_decay=fade)).output.view(STREAMS, n, LONG)
        squares = (answers - clean[:, None])[..., BURN:].square().mean(-1).numpy()
        each.append(np.sqrt(squares.mean(0)))
        first.append(math.sqrt(squares[0].min()))
        model = il.StreamingRegressor(forgetting="auto", fit_intercept=False, penalty=RIDGE)
        mixed = model.predict_then_update(keys[0].numpy(), values[0].numpy()) - clean[0].numpy()
        bank.append(math.sqrt(np.square(mixed[BURN:]).mean()))
    return Speeds(np.array(each), np.array(first), np.array(bank), np.array([bottom(e) for e in each]))


def bottom(error: np.ndarray) -> float:
    """1 - lambda of the least error: of the parabola through the five settings around it, in logarithms."""
    i = int(np.clip(error.argmin(), 2, len(error) - 3))
    near_it = slice(i - 2, i + 3)
    a, b, _ = np.polyfit(np.log(1 - KEPT)[near_it], np.log(error[near_it]), 2)
    return math.exp(-b / (2 * a))


def theory(speed: float) -> float:
    """The best 1 - lambda, for slow drift."""
    return speed * math.sqrt(D - 1) / (NOISE * D)


def distance(lost: float, speed: float) -> float:
    """The formula's distance to the truth with 1 - lambda = lost."""
    return math.sqrt(D**2 * NOISE**2 * lost / 2 + (D - 1) * speed**2 / (2 * lost))


@experiment("D7", "Regression under drift", source="Dive into Deep Learning 2e, section 12.6")
def drift(tick: Tick) -> Outcome:
    """Least squares on everything loses a truth that drifts; forgetting, an implicit step or a filter follow it."""
    tick("followers of one drifting stream")
    found = {name: float(d[-LAST:].mean()) for name, d in followers().items()}
    tick("forgetting against drift speed")
    speed = speeds()
    rows: list[Row] = [
        digits("mean distance, least squares", found["least squares"], ".99"),
        digits("mean distance, forgetting .95", found["forgetting .95"], ".29"),
        digits("mean distance, implicit step", found["implicit step"], ".30"),
        near("the formula's distance, forgetting .95", distance(0.05, SPEED), found["forgetting .95"], 0.02),
        near("mean distance, Kalman filter", found["Kalman filter"], distance(theory(SPEED), SPEED), 0.03),
        claim(
            "mean distance, automatic bank", found["automatic bank"], "less than forgetting .95, without being told",
            found["automatic bank"] < found["forgetting .95"],
        ),
    ]  # fmt: skip
    for s, best in zip(SPEEDS[:3], speed.best, strict=False):
        rows.append(near(f"best 1 - lambda, drift {s:g}", best, theory(s), 0.15 * theory(s)))
    for s, best in zip(SPEEDS[3:], speed.best[3:], strict=True):
        text = f"below {theory(s):.3f}, the formula's"
        rows.append(claim(f"best 1 - lambda, drift {s:g}", best, text, theory(s) / 2 < best < theory(s)))
    for s, ratio in zip(SPEEDS, speed.bank / speed.first, strict=True):
        rows.append(claim(f"automatic bank over the best setting, drift {s:g}", ratio, "< 1.2", ratio < 1.2))
    notes = [
        "Forgetting more lets the noise's part of the error grow and the lag's shrink. At the source's drift "
        f"{SPEED:g} the formula's best 1 - lambda is {theory(SPEED):.3f}: .95 forgets too little, at little cost.",
        "The formula is exact for slow drift. Where drift is fast the best window holds a few times d rows, and least "
        "squares on so few rows errs more than it says; less is then forgotten.",
        "The implicit step, with a fixed beta and no second moments, does as well as forgetting .95 as the keys are "
        "white. The Kalman filter is told both variances, the automatic bank nothing; it is furthest from the best "
        "setting where drift is slowest, as settings differ there by a hundredth of the noise.",
    ]
    figures = {"followers": Picture(paint_followers, (9.0, 4.0)), "speed": Picture(paint_speeds, (9.0, 4.0))}
    return Outcome(rows, figures, notes)


def smooth(x: Tensor, width: int = 50) -> np.ndarray:
    """The mean of the last `width` values."""
    return np.convolve(x.numpy(), np.full(width, 1 / width), "valid")


def paint_followers(figure: Any, palette: Palette) -> None:
    """Distance to the truth along the stream, and at its end."""
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    found = followers()
    colours = dict(zip(found, (palette.lines[i] for i in (4, 1, 0, 2, 3)), strict=True))
    for name in list(found)[:3]:
        left.plot(np.arange(49, TOKENS), smooth(found[name]), color=colours[name], label=name)
    left.set(xlabel="token", ylabel="distance to the truth", ylim=(0, 1.3), xlim=(0, TOKENS))
    left.set_title("mean of the last 50 tokens")
    left.legend(loc="upper left", ncols=3, fontsize=9, handlelength=1.2, columnspacing=1)
    means = {name: float(x[-LAST:].mean()) for name, x in found.items()}
    bars = right.barh(list(means), list(means.values()), color=list(colours.values()), height=0.6)
    right.bar_label(bars, [f"{x:.2f}" for x in means.values()], padding=3, color=palette.ink)
    right.invert_yaxis()
    right.grid(False)
    right.set(xlim=(0, 1.2), xticks=[], title="mean of the last 500 tokens")
    right.spines["bottom"].set_visible(False)


def paint_speeds(figure: Any, palette: Palette) -> None:
    """Error against forgetting for each speed; best forgetting against speed."""
    speed = speeds()
    left, right = figure.subplots(1, 2)
    for s, error, best, colour in zip(SPEEDS, speed.each, speed.best, palette.lines, strict=False):
        left.plot(1 - KEPT, error, color=colour)
        left.plot(best, error.min(), "o", color=colour, ms=6)
        left.text(1.1e-3, error[0] * 1.06, f"s = {s:g}", color=colour, fontsize=10)
    left.set(
        xscale="log", yscale="log", xlim=(1e-3, 0.5), ylim=(0.01, 0.5), xlabel="share forgotten per row, 1 - lambda",
        title="RMS error of predictions, noise apart",
    )  # fmt: skip
    left.set_yticks([0.01, 0.02, 0.05, 0.1, 0.2, 0.5])
    left.minorticks_off()
    right.plot(SPEEDS, [theory(s) for s in SPEEDS], color=palette.soft, ls="--", label="s sqrt(d - 1) / (sigma d)")
    for s, best, colour in zip(SPEEDS, speed.best, palette.lines, strict=False):
        right.plot(s, best, "o", color=colour, ms=7)
    right.set(xscale="log", yscale="log", xlabel="drift per row, s", title="best 1 - lambda")
    right.legend(loc="upper left")
    for axis in (left.xaxis, left.yaxis, right.xaxis, right.yaxis):
        axis.set_major_formatter("{x:g}")
