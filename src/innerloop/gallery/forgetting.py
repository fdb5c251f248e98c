"""Forgetting bounds a Hebbian memory and keeps it fresh.

    S_t = (1 - a) S_{t-1} + k_t v_t^T,     a = 0, .1, .3         |k| = 1,  v ~ N(0, I), 16 channels

Without forgetting the memory is a sum of random outer products: its norm grows with the root of their number, and so
does the noise under every recall. With it the norm settles: E |S|^2 = E |v|^2 / (1 - (1 - a)^2), and a pair's own part
is (1 - a)^age. Three heads of `mamba2`, one for each a, read the stream.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

import innerloop as il

from ..look import Palette
from .experiment import Outcome, Picture, Row, Tick, claim, experiment, near
from .pairs import MODULE, relative_error, unit

TOKENS, D = 120, 16
FORGETTING = (0.0, 0.1, 0.3)
RECENT, OLD = (0, 5), (40, 45)  # ages, in tokens
MEMORY = il.get("mamba2")


@cache
def pairs() -> tuple[Tensor, Tensor]:
    """The source's stream, keys and values [120, 16]: a key, then its value, pair by pair."""
    g = torch.Generator().manual_seed(2)
    drawn = [(unit(torch.randn(D, generator=g)), torch.randn(D, generator=g)) for _ in range(TOKENS)]
    return torch.stack([k for k, _ in drawn]), torch.stack([v for _, v in drawn])


def written(keys: Tensor, values: Tensor) -> il.Result:
    """What three heads make of streams [B, T, 16]; info: the memory's norm after every token."""
    B, T = keys.shape[:2]
    k, v = (x[:, :, None].expand(B, T, len(FORGETTING), D) for x in (keys, values))
    kept = torch.tensor([1 - a for a in FORGETTING]).log().expand(B, T, len(FORGETTING))
    return il.chunked(MEMORY, k, k, v, il.Gates(log_decay=kept), info=("memory_norm",))


def recall_by_age(state: il.State, keys: Tensor) -> Tensor:
    """Answers [B, heads, ages, 16] to the keys of a stream, the newest first."""
    B, T = keys.shape[:2]
    asked = keys.flip(1)[:, :, None].expand(B, T, len(FORGETTING), D)
    return il.read(MEMORY, asked, state).transpose(1, 2)


@cache
def streams() -> tuple[Tensor, Tensor]:
    """A hundred more of the kind, [100, 120, 16], for means."""
    g = torch.Generator().manual_seed(5)
    return tuple(torch.randn(100, TOKENS, D, generator=g) for _ in range(2))  # type: ignore[return-value]


@experiment("N4", "Forgetting bounds the memory", source=MODULE)
def forgetting(tick: Tick) -> Outcome:
    """Without forgetting the norm grows with the writes; with it it settles, and recent pairs are recalled better.

    The price is the past: what is forty tokens old is gone. Silence scores 1; without forgetting every pair, new or
    old, is recalled worse than that, since the others' noise is more than twice the answer.
    """
    tick("the source's stream")
    keys, values = pairs()
    result = written(keys[None], values[None])
    assert result.info is not None
    norms = result.info["memory_norm"][0]  # [T, heads]
    answers = recall_by_age(result.state, keys[None])[0]
    newest_first = values.flip(0)
    rows: list[Row] = []
    for h, a in enumerate(FORGETTING):
        recent, old = (
            relative_error(answers[h, slice(*age)], newest_first[slice(*age)]) for age in (RECENT, OLD)
        )  # fmt: skip
        second, first = float(norms[TOKENS // 2 :, h].max()), float(norms[: TOKENS // 2, h].max())
        end = float(norms[-1, h])
        if a == 0:
            rows += [
                near("forgetting 0: norm at the end, against sqrt(120 * 16)", end, math.sqrt(TOKENS * D), 4.4),
                claim("forgetting 0: error of the last 5", recent, f"no better than 40 ago, {old:.2f}", recent >= old),
            ]
            continue
        bound = math.sqrt(D / (1 - (1 - a) ** 2))
        rows += [
            near(f"forgetting {a:g}: norm at the end, against 4 / sqrt(1 - {1 - a:g}^2)", end, bound, 0.25 * bound),
            claim(f"forgetting {a:g}: largest norm, tokens 61 to 120", second, f"bounded: first half {first:.2f}",
                  second < 1.25 * first),
            claim(f"forgetting {a:g}: error of the last 5", recent, f"below 40 ago, {old:.2f}", recent < old),
        ]  # fmt: skip
    tick("a hundred streams")
    k, v = streams()
    many = written(unit(k), v)
    assert many.info is not None
    v = v.flip(1)[:, None]
    by_age = ((recall_by_age(many.state, unit(k)) - v).norm(dim=-1) / v.norm(dim=-1)).mean(0)  # [heads, ages]
    mean_norms = many.info["memory_norm"].mean(0)
    notes = [
        "'Bounded' is meant of the mean: the norm settles around sqrt(E |v|^2 / (1 - (1 - a)^2)), "
        + " and ".join(f"{math.sqrt(D / (1 - (1 - a) ** 2)):.1f} at a = {a:g}" for a in FORGETTING[1:])
        + ", while without forgetting it is sqrt(16 t).",
        "Old pairs are not dim under forgetting, they are lost: forty tokens back, an error of "
        f"{float(by_age[1, 40:45].mean()):.2f} and {float(by_age[2, 40:45].mean()):.2f} is above silence's 1: the "
        "noise of newer pairs. The last pair is recalled best at "
        f"a = .3, the last five together at a = .1 ({float(by_age[1, :5].mean()):.2f} against "
        f"{float(by_age[2, :5].mean()):.2f}; means of a hundred streams).",
    ]

    def paint(figure: Any, palette: Palette) -> None:
        size, age = figure.subplots(1, 2)
        for h, a in enumerate(FORGETTING):
            size.plot(range(1, TOKENS + 1), norms[:, h], color=palette.lines[h], label=f"forgetting {a:g}")
            size.plot(range(1, TOKENS + 1), mean_norms[:, h], color=palette.lines[h], lw=0.9, ls="--")
            age.plot(range(60), by_age[h, :60], color=palette.lines[h])
        size.set_xlabel("pairs written")
        size.set_ylabel("norm of the memory")
        size.set_title("Norm (dashed: mean of 100 streams)")
        size.legend(loc="upper left")
        age.axhline(1, color=palette.soft, lw=1, ls="--")
        age.annotate("silence", (59, 1), (0, -4), textcoords="offset points", ha="right", va="top", color=palette.soft)
        age.set_xlabel("age of the pair, in tokens")
        age.set_ylabel("relative error of recall")
        age.set_title("Recall by age, mean of 100 streams")
        age.set_ylim(bottom=0)

    return Outcome(rows, {"forgetting": Picture(paint, (9.0, 4.2))}, notes)
