"""Two parts of Atlas: steps made orthogonal by Newton-Schulz, and losses over a window of pairs (the Omega rule).

    X_0 = G / |G|_F,     X <- a X + b (X X^T) X + c (X X^T)^2 X,     (a, b, c) = (3.4445, -4.7750, 2.0315)

acts on each singular value alone, s <- a s + b s^3 + c s^5, and draws them towards 1 from both sides.

    M_t  from M_{t-1}:  80 steps of .15 on  (1/c) sum_{t-c<i<=t} |M^T k_i - v_i|^2

With c = 1 every token overwrites what it shares with the ones before. The windows stand side by side as heads of one
memory with a window of eight: `gates.window` says how many pairs each head looks at. The library's loss has a half in
front, so that `lr` is twice the rate.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

import innerloop as il

from ..look import Palette
from .experiment import Outcome, Picture, Tick, below, claim, digits, experiment
from .pairs import MODULE, relative_error, unit

D, TOKENS, RANK, STEPS, RATE = 16, 8, 5, 80, 0.15
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


@cache
def gradient() -> Tensor:
    """An ill-conditioned matrix [16, 16]; the source seeds PyTorch's own generator."""
    return torch.randn(D, D, generator=torch.Generator().manual_seed(3)) @ torch.diag(torch.linspace(0.1, 3, D))


@cache
def pairs() -> tuple[Tensor, Tensor]:
    """Eight unit keys in a space of five dimensions and their values, [8, 16], pair by pair."""
    g = torch.Generator().manual_seed(4)
    basis = unit(torch.randn(RANK, D, generator=g))
    drawn = [(unit(torch.randn(RANK, generator=g) @ basis), torch.randn(D, generator=g)) for _ in range(TOKENS)]
    return torch.stack([k for k, _ in drawn]), torch.stack([v for _, v in drawn])


def omega() -> Tensor:
    """Answers [8, 8, 16] to all keys after the last token, by window 1, ..., 8."""
    keys, values = pairs()
    memory = il.Memory(il.Matrix(), il.L2(), il.Keep(), il.GradientStep(num_steps=STEPS), window=TOKENS)
    shape = (1, TOKENS, TOKENS, D)  # as many heads as tokens
    k, v = (x[None, :, None].expand(shape) for x in (keys, values))
    ages, windows = torch.arange(TOKENS), torch.arange(1, TOKENS + 1)
    present = torch.minimum(windows, ages[:, None] + 1)  # [T, H]: the first tokens have no more pairs than that
    gamma = (ages < present[..., None]) / present[..., None]
    gates = il.Gates(lr=torch.full(shape[:3], 2 * RATE), window=gamma[None])
    state = il.chunked(memory, k, k, v, gates).state
    return il.read(memory, k, state)[0].transpose(0, 1)


def mapped(s: Tensor, steps: int) -> Tensor:
    """What Newton-Schulz makes of singular values, by the polynomial alone."""
    a, b, c = NEWTON_SCHULZ
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    return s


@experiment("N6", "Newton-Schulz and the Omega window", source=MODULE)
def orthogonal(tick: Tick) -> Outcome:
    """Five Newton-Schulz steps bring singular values from [.09, 17.73] to [.69, 1.14]; a longer window recalls better.

    Not even the best matrix recalls eight values by keys in five dimensions: how far a window can help has a floor.
    """
    tick("Newton-Schulz")
    G = gradient()
    values = [torch.linalg.svdvals(il.newton_schulz(G, n)) for n in range(9)]
    raw, five = torch.linalg.svdvals(G), values[5]
    by_hand = mapped(values[0].double(), 5).sort(descending=True).values
    s = torch.logspace(-3, 0, 2001, dtype=torch.float64)
    range_ = mapped(s[s >= 0.01], 5)
    tick("windows")
    keys, wanted = pairs()
    answers = omega()
    errors = [relative_error(x, wanted) for x in answers]
    fit = torch.linalg.pinv(keys, rtol=1e-5) @ wanted  # of rank 5
    floor = relative_error(keys @ fit, wanted)
    last = [float((x[-1] - wanted[-1]).norm() / wanted[-1].norm()) for x in answers]
    rows = [
        digits("smallest singular value before", float(raw.min()), ".09"),
        digits("largest singular value before", float(raw.max()), "17.73"),
        digits("smallest after five steps", float(five.min()), ".69"),
        digits("largest after five steps", float(five.max()), "1.14"),
        below("singular values against the polynomial alone", float((five - by_hand).abs().max()), 1e-4),
        claim("six, seven, eight steps: smallest, largest",
              f"{min(float(x.min()) for x in values[6:]):.2f}, {max(float(x.max()) for x in values[6:]):.2f}",
              "never settles at 1", max(float((x - 1).abs().max()) for x in values[6:]) > 0.1),
        digits("mean recall error, window 1", errors[0], ".87"),
        digits("mean recall error, window 8", errors[-1], ".65"),
        claim("mean recall error, least squares", floor, "below window 8", floor < errors[-1]),
    ]  # fmt: skip
    notes = [
        "These coefficients do not make a matrix orthogonal. They reach the neighbourhood of 1 fast and stay in it: "
        f"singular values of [.01, 1] end in [{float(range_.min()):.2f}, {float(range_.max()):.2f}] after five steps, "
        "and further steps move them about in there. The 1.14 comes from a value below .01 after division by the norm "
        f"({float(values[0].min()):.4f}); 'lact' coefficients come closer to 1.",
        "The window helps as a whole, not pair by pair: "
        + ", ".join(f"{e:.2f}" for e in errors)
        + f" for c = 1, ..., 8. The newest pair is answered ever worse ({last[0]:.2f} to {last[-1]:.2f}), since eight "
        f"values cannot be had from keys in five dimensions; the floor is {floor:.2f}.",
    ]

    def paint(figure: Any, palette: Palette) -> None:
        spectrum, window = figure.subplots(1, 2)
        spectrum.axhspan(0.68, 1.14, color=palette.soft, alpha=0.18, lw=0)
        for i in range(D):
            spectrum.plot(
                range(9), [float(mapped(values[0][i], n)) for n in range(9)], "-", lw=1.1, color=palette.lines[0]
            )
        spectrum.axvline(5, color=palette.soft, lw=1, ls="--")
        spectrum.set_yscale("log")
        spectrum.set_yticks((0.01, 0.1, 1), ("0.01", "0.1", "1"))
        spectrum.set_xlabel("Newton-Schulz steps")
        spectrum.set_ylabel("singular value")
        spectrum.set_title("Sixteen singular values")
        window.plot(range(1, TOKENS + 1), errors, "o-", color=palette.lines[0], label="all eight pairs")
        window.plot(range(1, TOKENS + 1), last, "s-", color=palette.lines[1], label="the newest pair")
        window.axhline(floor, color=palette.soft, lw=1, ls="--")
        window.annotate(
            "least squares, all pairs", (1, floor), (0, -4), textcoords="offset points", va="top", color=palette.soft
        )
        window.set_xlabel("window of the loss, in tokens")
        window.set_ylabel("relative error of recall")
        window.set_title("Omega rule, after eight tokens")
        window.legend(loc="upper right")
        window.set_ylim(0, 1.2)

    return Outcome(rows, {"newton-schulz-and-window": Picture(paint, (9.0, 4.2))}, notes)
