"""Momentum on the implicit tracker: does a remembered surprise help to follow a truth that moves?

    U_t = eta U_{t-1} + eps_t k_t (v_t - w_{t-1} . k_t),     w_t = w_{t-1} + U_t,     eps_t = beta / (1 + beta |k_t|^2)

is Titans' rule with Longhorn's step size: eta = 0 is the implicit step. The truth walks at random, or turns steadily in
a fixed plane. Keys are independent, so the mean square of the error obeys a linear recursion: with e = w - truth and
(a, b, c) the means of (e.e, e.U, U.U), g1 = E eps |k|^2 / d, g2 = E eps^2 |k|^4 / d,

    a' = (1 - 2 g1 + g2) a + 2 eta (1 - g1) b + eta^2 c
    b' =       (g2 - g1) a +  eta (1 - 2 g1) b + eta^2 c
    c' =             g2  a -        2 eta g1 b + eta^2 c

whose largest eigenvalue says whether the tracker is stable: not so for eta = .9 at beta = 1.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

import innerloop as il

from ..look import Palette
from .drift import LAST, TOKENS, D, Drift, distances, draw, weights
from .experiment import Outcome, Picture, Row, Tick, below, claim, experiment, near

MOMENTA = (0.0, 0.5, 0.9)
TURN = 0.03  # radians per token
BETAS = np.logspace(-1.75, 1.25, 13)


@cache
def streams() -> dict[str, Drift]:
    """The source's random walk, and a steady rotation under the same keys and noise."""
    walk = draw()
    angle = TURN * torch.arange(TOKENS, dtype=torch.float64)
    truth = torch.zeros(TOKENS, D, dtype=torch.float64)
    truth[:, 0], truth[:, 1] = angle.cos(), angle.sin()
    noise = walk.values - (walk.truth * walk.keys).sum(-1)
    return {"random walk": walk, "rotation": Drift(truth, walk.keys, (truth * walk.keys).sum(-1) + noise)}


def step_sizes(keys: Tensor, beta: float) -> Tensor:
    """Longhorn's effective step at each token, [T]."""
    return beta / (1 + beta * keys.square().sum(-1))


def tracked(stream: Drift, eta: float, beta: float) -> float:
    """Mean distance to the truth over the last 500 tokens."""
    w = weights(il.get("titans_linear"), stream, lr=step_sizes(stream.keys, beta), momentum=eta)
    return float(distances(w, stream)[-LAST:].mean())


def extrapolated(stream: Drift, eta: float, beta: float) -> float:
    """The same where the implicit step starts from the extrapolated memory w + eta (w - w_{t-1}), as Nesterov would."""
    memory, lr = il.get("longhorn"), torch.tensor([[beta]], dtype=torch.float64)
    state = il.init_state(memory, 1, 1, D, 1, dtype=torch.float64)
    last, out = state.memory["S"], []
    for k, v in zip(stream.keys, stream.values, strict=True):
        S = state.memory["S"]
        ahead, last = replace(state, memory={"S": S + eta * (S - last)}), S
        state = il.step(memory, k.view(1, 1, D), k.view(1, 1, D), v.view(1, 1, 1), il.Gates(lr=lr), ahead).state
        out.append(state.memory["S"].view(D))
    return float(distances(torch.stack(out), stream)[-LAST:].mean())


@cache
def sweep() -> dict[str, np.ndarray]:
    """Mean distance by stream, [momenta, betas]."""
    return {
        name: np.array([[tracked(stream, eta, beta) for beta in BETAS] for eta in MOMENTA])
        for name, stream in streams().items()
    }


def growth(eta: float, beta: float) -> float:
    """Factor per token of the error's mean square, by the recursion above; its two averages over the stream's keys."""
    keys = streams()["random walk"].keys
    pull = step_sizes(keys, beta) * keys.square().sum(-1)
    g1, g2 = float(pull.mean()) / D, float(pull.square().mean()) / D
    step = [
        [1 - 2 * g1 + g2, 2 * eta * (1 - g1), eta**2],
        [g2 - g1, eta * (1 - 2 * g1), eta**2],
        [g2, -2 * eta * g1, eta**2],
    ]
    return float(np.abs(np.linalg.eigvals(np.array(step))).max())


def border(eta: float) -> float:
    """The beta beyond which the mean square grows, by bisection."""
    low, high = 1e-3, 1e3
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if growth(eta, middle) < 1 else (low, middle)
    return low


@experiment("X5", "Momentum on the implicit tracker", source="Dive into Deep Learning 2e, section 12.6, exercises")
def momentum(tick: Tick) -> Outcome:
    """At beta = 1, momentum .5 hurts under a random walk, helps under a steady rotation, and .9 diverges under both."""
    rows: list[Row] = []
    for name, stream in streams().items():
        tick(name)
        none, half, most = (tracked(stream, eta, 1.0) for eta in MOMENTA)
        rows.append(Row(f"{name}: distance, beta 1, momentum 0", none, None, True))
        better = name == "rotation"
        rows += [
            claim(
                f"{name}: distance, beta 1, momentum .5", half, "smaller" if better else "larger",
                half < none if better else half > none,
            ),
            claim(f"{name}: distance, beta 1, momentum .9", most, "diverges", not most < 1e6),
        ]  # fmt: skip
    plain = float(distances(weights(il.get("longhorn"), draw(), lr=1.0), draw())[-LAST:].mean())
    rows.append(below("momentum 0 against Longhorn", abs(plain - rows[0].value), 1e-12))  # pyright: ignore
    tick("momentum and step size")
    for name, found in sweep().items():
        none, half, most = found.min(1)
        rows += [
            Row(f"{name}: distance at the best beta, momentum 0", none, None, True),
            near(f"{name}: distance at the best beta, momentum .5", half, none, 0.05 * none),
            claim(f"{name}: distance at the best beta, momentum .9", most, "larger", most > none),
        ]
    tick("stability")
    repeated = il.stability(
        il.get("titans_linear"), draw().keys.view(1, TOKENS, 1, D),
        il.Gates(
            lr=step_sizes(draw().keys, 1.0).view(1, TOKENS, 1),
            momentum=torch.full((1, TOKENS, 1), 0.9, dtype=torch.float64),
        ),
    )  # fmt: skip
    edge = border(0.9)
    rows += [
        claim(f"growth of the mean square, momentum {eta:g}", growth(eta, 1.0), text, holds(growth(eta, 1.0)))
        for eta, text, holds in (
            (0.0, "< 1", lambda x: x < 1), (0.5, "< 1", lambda x: x < 1), (0.9, "> 1", lambda x: x > 1),
        )
    ]  # fmt: skip
    rows.append(claim("momentum .9: largest beta that is stable", edge, "below .5", 0.1 < edge < 0.5))
    largest = float(repeated.factor.max())
    rows.append(claim("the same, each key repeated for ever", largest, "< 1: misleading", largest < 1))
    ahead = extrapolated(draw(), 0.9, 1.0)
    rows.append(claim("momentum .9, step from the extrapolated memory", ahead, "diverges too", not ahead < 1e6))
    notes = [
        "The source leaves open where momentum enters. Here the surprise is taken at the memory before it moves on, as "
        "Titans has it; an implicit step from the extrapolated memory behaves alike.",
        "Momentum is mostly a longer step: 1 / (1 - eta) times beta. With beta chosen for each momentum, .5 gains next "
        "to nothing, also under rotation, and .9 loses.",
        "An implicit step is stable at any beta; with momentum it is not. Each key by itself, repeated, is stable at "
        f"momentum .9, which is what `stability` says; over independent keys the mean square grows past {edge:.2f}.",
    ]
    return Outcome(rows, {"momentum": Picture(paint, (9.0, 4.0))}, notes)


def paint(figure: Any, palette: Palette) -> None:
    """Distance against beta for each momentum, under both motions."""
    axes = figure.subplots(1, 2, sharey=True)
    colours = (palette.lines[2], palette.lines[0], palette.lines[4])
    edge = border(0.9)
    for axis, (name, found) in zip(axes, sweep().items(), strict=True):
        for eta, row, colour in zip(MOMENTA, found, colours, strict=True):
            shown = np.isfinite(row) & (row < 5)
            axis.plot(BETAS[shown], row[shown], "o-", ms=4, color=colour, label=f"momentum {eta:g}")
        axis.axvline(edge, color=colours[2], lw=0.9, ls="--")
        axis.set(xscale="log", ylim=(0, 1.5), xlabel="beta", title=name)
        axis.xaxis.set_major_formatter("{x:g}")
    axes[0].text(edge * 1.1, 1.42, "momentum .9 diverges", color=colours[2], va="center")
    axes[0].set_ylabel("distance to the truth")
    axes[1].legend(loc="upper right")
