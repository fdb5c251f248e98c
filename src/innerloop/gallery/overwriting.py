"""Momentum and overwriting: Titans' rule with a matrix memory.

    U_t = eta U_{t-1} - theta grad |S_{t-1}^T k_t - v_t|^2,     S_t = (1 - alpha) S_{t-1} + U_t

Eight orthonormal keys are written R times each, with random values in random order; the memory is asked for the latest
value. A surprise is added again, eta times, at every later token, so that one write goes on growing after it was made,
and what should replace it takes away that much more. The delta rule (eta = alpha = 0, theta = 1/2) replaces exactly.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import innerloop as il

from ..look import Palette
from .experiment import Outcome, Picture, Row, Tick, below, claim, digits, experiment, near

KEYS, VALUES, D, REPEATS = 8, 32, 64, 50
WRITES = (1, 2, 4, 8)
THETA, ETA, ALPHA = 0.5, 0.9, 0.1
PRINTED = {1: "1.000", 2: "0.927", 4: "0.185", 8: "0.100"}
MOMENTA = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


class Writes(NamedTuple):
    """Repeats of one task: keys [B, 8, d], values [B, 32, d], which key and value is written when [B, 8 R]."""

    keys: Tensor
    values: Tensor
    key_ids: Tensor
    value_ids: Tensor

    @property
    def latest(self) -> Tensor:
        """The value last written at each key, [B, 8]."""
        B, T = self.key_ids.shape
        out = torch.zeros(B, KEYS, dtype=torch.long)
        for t in range(T):
            out[torch.arange(B), self.key_ids[:, t]] = self.value_ids[:, t]
        return out


def draw() -> dict[int, Writes]:
    """The source's tasks by R; one generator goes through all of them."""
    rng = np.random.default_rng(0)
    made: dict[int, Writes] = {}
    for R in WRITES:
        each: list[tuple[Any, Any, Any, Any]] = []
        for _ in range(REPEATS):
            ids, order = rng.integers(0, VALUES, KEYS * R), rng.permutation(KEYS * R)
            keys = np.linalg.qr(rng.normal(size=(D, KEYS)))[0].T
            values = rng.normal(size=(VALUES, D))
            values /= np.linalg.norm(values, axis=1, keepdims=True)
            each.append((keys, values, np.repeat(np.arange(KEYS), R)[order], ids[order]))
        made[R] = Writes(*(torch.from_numpy(np.stack(x)) for x in zip(*each, strict=True)))
    return made


def recall(memory: il.Memory, task: Writes, **gates: Tensor) -> Tensor:
    """Fraction of keys answered with the latest value, for gates [H] that are the same at every token: [H]."""
    H = len(next(iter(gates.values())))
    B, T = task.key_ids.shape

    def each(x: Tensor) -> Tensor:
        return x[:, :, None].expand(-1, -1, H, -1)

    k = each(torch.take_along_dim(task.keys, task.key_ids[..., None], 1))
    v = each(torch.take_along_dim(task.values, task.value_ids[..., None], 1))
    made = il.Gates(**{name: g.expand(B, T, H) for name, g in gates.items()})
    state = il.chunked(memory, k, k, v, made).state
    answers = il.read(memory, each(task.keys), state)  # [B, 8, H, d]
    chosen = torch.einsum("bjhd,bnd->bjhn", answers, task.values).argmax(-1)
    return (chosen == task.latest[..., None]).double().mean((0, 1))


def number(x: float) -> Tensor:
    """A gate of one head."""
    return torch.tensor([x], dtype=torch.float64)


def titans(task: Writes, momenta: tuple[float, ...], theta: float = THETA, alpha: float = ALPHA) -> Tensor:
    """Recall of Titans' rule for each momentum; the library's lr goes with half the loss, so it is 2 theta."""
    eta = torch.tensor(momenta, dtype=torch.float64)
    keep = torch.full_like(eta, math.log1p(-alpha))
    return recall(
        il.get("titans_linear"), task, lr=torch.full_like(eta, 2 * theta), momentum=eta, log_decay=keep
    )  # fmt: skip


@cache
def sweep() -> dict[int, Tensor]:
    """Recall for each momentum, by R."""
    return {R: titans(task, MOMENTA) for R, task in draw().items()}


@cache
def delta_rule() -> dict[int, float]:
    """Recall of the delta rule, by R."""
    return {R: float(recall(il.get("deltanet"), task, lr=number(1.0))) for R, task in draw().items()}


def echo(eta: float, tokens: int = 40) -> Tensor:
    """How much of one write the memory answers at each token after it [tokens], when nothing else comes to its key."""
    k = torch.zeros(1, tokens, 1, 2, dtype=torch.float64)
    k[:, 0, :, 0] = 1
    q = torch.zeros_like(k)
    q[..., 0] = 1
    v = torch.zeros(1, tokens, 1, 1, dtype=torch.float64)
    v[:, 0] = 1
    lr, keep, momentum = (number(x).expand(1, tokens, 1) for x in (2 * THETA, math.log1p(-ALPHA), eta))
    gates = il.Gates(lr=lr, log_decay=keep, momentum=momentum)
    return il.chunked(il.get("titans_linear"), q, k, v, gates).output.view(-1)


@experiment("D5", "Momentum against overwriting", source="Dive into Deep Learning 2e, section 12.6")
def overwriting(tick: Tick) -> Outcome:
    """Titans' momentum .9 and decay .1 lose a value that was overwritten; the delta rule replaces it exactly."""
    tick("Titans and the delta rule")
    tasks, swept, delta = draw(), sweep(), delta_rule()
    at = MOMENTA.index(ETA)
    rows: list[Row] = [
        digits(f"recall, {R} writes per key, momentum .9", float(swept[R][at]), PRINTED[R]) for R in WRITES
    ]
    rows += [near(f"recall, {R} writes per key, delta rule", delta[R], 1.0, 0.0) for R in WRITES]
    none, half, most = (float(swept[8][MOMENTA.index(eta)]) for eta in (0.0, 0.5, 0.95))
    rows += [
        near("recall, 8 writes per key, decay without momentum", none, 1.0, 0.0),
        claim("recall, 8 writes per key, momentum .5", half, "nearly everything", 0.95 < half < 1),
        claim("recall, 8 writes per key, momentum .95", most, "hardly more than chance (.031)", most < 0.1),
    ]
    tick("the echo of one write")
    peak, analytic = float(echo(ETA).max()), max((n + 1) * ETA**n for n in range(40))
    halved = titans(tasks[8], (ETA,), theta=THETA / 2)
    rows += [
        below("echo of one write against (n + 1) .9^n", abs(peak - analytic), 1e-12),
        claim("largest echo of one write", peak, "3.87 times what was written, 8 and 9 tokens later", 3.8 < peak < 3.9),
        claim(
            "recall, 8 writes per key, half the step", float(halved), "another number: the 1/2 of the loss matters",
            float(halved) > 0.5,
        ),
    ]  # fmt: skip
    notes = [
        "With the step .5 read on half the squared error the recalls are "
        + ", ".join(f"{float(titans(tasks[R], (ETA,), theta=THETA / 2)):.3f}" for R in WRITES)
        + ": the paper's equation (12) has no 1/2, its appendix C has one.",
        "Not the decay loses the values: without momentum the same decay recalls every latest value. Momentum adds a "
        "surprise again at every later token, so that one write grows to (n + 1) .9^n = 3.87 times itself; the next to "
        "that key takes all of this away at once and overshoots.",
        f"The memory is stable all the same: (memory, surprise) moves by a matrix of spectral radius {radius():.2f}.",
    ]
    return Outcome(rows, {"recall": Picture(paint_recall, (9.0, 4.0)), "echo": Picture(paint_echo, (7.0, 3.8))}, notes)


def radius() -> float:
    """Growth per token of the pair (memory, surprise) along a unit key that is written at every token."""
    lr, keep, momentum = (number(x).view(1, 1, 1) for x in (2 * THETA, math.log1p(-ALPHA), ETA))
    key = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    return float(il.stability(il.get("titans_linear"), key, il.Gates(lr, keep, momentum)).factor)


def paint_recall(figure: Any, palette: Palette) -> None:
    """Recall by writes per key, and by momentum."""
    swept, delta = sweep(), delta_rule()
    left, right = figure.subplots(1, 2, sharey=True)
    for name, values, colour in (
        ("delta rule", [delta[R] for R in WRITES], palette.lines[2]),
        ("decay .1, momentum .5", [float(swept[R][MOMENTA.index(0.5)]) for R in WRITES], palette.lines[0]),
        ("decay .1, momentum .9", [float(swept[R][MOMENTA.index(0.9)]) for R in WRITES], palette.lines[4]),
    ):
        left.plot(WRITES, values, "o-", color=colour, label=name, ms=5, lw=4 if name == "delta rule" else 1.6)
    left.set(xscale="log", xlabel="writes per key", ylabel="latest value recalled", ylim=(0, 1.05))
    left.set_xticks(WRITES, [str(R) for R in WRITES])
    left.minorticks_off()
    left.legend(loc="lower left")
    for R, colour in zip(WRITES, (palette.lines[2], palette.lines[0], palette.lines[1], palette.lines[4]), strict=True):
        right.plot(MOMENTA, swept[R], "o-", color=colour, ms=4, label=f"{R} write{'s' if R > 1 else ''} per key")
    right.set(xlabel="momentum (decay .1)")
    right.legend(loc="lower left")


def paint_echo(figure: Any, palette: Palette) -> None:
    """What the memory answers to a key after one write to it."""
    axes = figure.subplots()
    for eta, colour in zip((0.0, 0.5, 0.9), (palette.lines[2], palette.lines[0], palette.lines[4]), strict=True):
        axes.plot(echo(eta), color=colour, label=f"momentum {eta:g}")
    axes.axhline(1, color=palette.soft, lw=0.9, ls="--")
    axes.text(16, 1.04, "what was written", va="bottom", color=palette.soft)
    axes.set(xlabel="tokens after the write (decay .1)", ylabel="answer to its key", ylim=(0, 4.2), xlim=(0, 40))
    axes.legend(loc="upper right")
