"""The standard stream: one sequence for every memory, and four pictures of what a memory makes of it.

320 tokens of 16 channels, 24 sequences at once. Keys point anywhere and are sqrt(16) long, as `default_gates` takes
them to be; values are standard normal. Two things happen:

    token 87, 151    the same key comes twice, with another value the second time: an overwrite
    token 215        the value is twenty times too large: an outlier; a twin of the stream has the plain value there

Gates are `default_gates`, but for the step size and the decay where a row reads them: of 25 step sizes and three
decays, those that recall the last 32 pairs of other streams best. Recall is the cosine of the answer and the value,
which no scale of a memory's answers changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import innerloop as il
from innerloop.core.architecture import Exemplars
from innerloop.core.learner import GradientLearner
from innerloop.core.solvers import GradientFlow, Proximal
from innerloop.look import THEMES, Palette, png

TOKENS, CHANNELS, STREAMS = 320, 16, 24
WRITTEN, OVERWRITTEN, OUTLIER = 87, 151, 215  # none at the border of a segment of 16 or 64
LARGE = 20.0
AGES = 128
RECENT = 32
FACTORS = [2.0**power for power in range(-12, 13)]
DECAYS = [0.0, -0.005, -0.02]
LONGEST_SEGMENT = 64


@dataclass(frozen=True)
class Behaviour:
    """What a memory did: recall [ages] with its spread (two rows), norm [tokens], answers to the overwritten key by
    their cosine with the old and the new value [tokens], and the relative change of answers after the outlier.

    lr, log_decay: as chosen, None where the row has none to choose. segment: drawn with, where the row's own is longer.
    """

    name: str
    recall: np.ndarray
    spread: np.ndarray
    norm: np.ndarray
    old: np.ndarray
    new: np.ndarray
    change: np.ndarray
    lr: float | None
    log_decay: float | None
    segment: int | None


@dataclass(frozen=True)
class Stream:
    """k, v [B, T, 1, 16] of B sequences."""

    k: Tensor
    v: Tensor


def stream(seed: int, count: int = STREAMS) -> Stream:
    """Sequences with the overwrite in them, before the outlier."""
    generator = torch.Generator().manual_seed(seed)
    k = torch.randn(count, TOKENS, 1, CHANNELS, generator=generator)
    v = torch.randn(count, TOKENS, 1, CHANNELS, generator=generator)
    k = torch.nn.functional.normalize(k, dim=-1) * CHANNELS**0.5
    k[:, OVERWRITTEN] = k[:, WRITTEN]
    return Stream(k, v)


def probed(name: str) -> tuple[il.Memory, int | None]:
    """The row, with a segment that ends a few times within the stream; that segment, where it is not the row's own."""
    memory = il.get(name)
    if memory.segment <= LONGEST_SEGMENT:
        return memory, None
    return il.get(name, segment=LONGEST_SEGMENT), LONGEST_SEGMENT


def gates(memory: il.Memory, batch: int, lr: Tensor | None, log_decay: Tensor | None) -> il.Gates:
    """Default gates, with another step size and decay [1 or batch] where they are given."""
    usual = il.default_gates(memory, batch, TOKENS, 1, CHANNELS)

    def filled(gate: Tensor, values: Tensor) -> Tensor:
        return torch.ones_like(gate) * values.reshape(-1, *(1,) * (gate.ndim - 1))

    if lr is not None:
        usual = usual._replace(lr=filled(usual.lr, lr))
    if log_decay is not None:
        usual = usual._replace(log_decay=filled(usual.log_decay, log_decay))
    return usual


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Over the last axis; 0 where one of them is 0."""
    return torch.nn.functional.cosine_similarity(a, b, dim=-1)


def part(x: il.Gates, first: int, last: int) -> il.Gates:
    """The gates of tokens first..last-1."""
    return il.Gates(*(None if g is None else g[:, first:last] for g in x))


def tuned(memory: il.Memory) -> tuple[Tensor | None, Tensor | None]:
    """The step size and the decay, [1] each, that recall the last 32 pairs of two other streams best.

    None: the row reads no such gate, or, of the step size, it solves exactly, forgets how long a step was, or writes
    what no cosine tells from its multiples.
    """
    usual = il.default_gates(memory, 1, 1, 1, CHANNELS)
    hebbian = memory.is_matrix and isinstance(memory.objective, il.Dot)
    unsized = getattr(memory.learner, "weighs_inside", False)  # orthogonalised afterwards
    steps = isinstance(memory.learner, GradientLearner | Proximal | GradientFlow) and not (hebbian or unsized)
    sizes = [usual.lr.flatten()[0].item() * factor for factor in FACTORS] if steps else []
    decays = DECAYS if usual.log_decay is not None else []
    if not sizes and not decays:
        return None, None
    tried = torch.tensor([(lr, decay) for lr in sizes or [1.0] for decay in decays or [0.0]])
    s = stream(seed=1, count=2)
    k, v = (x[:, :OUTLIER].repeat(len(tried), 1, 1, 1) for x in (s.k, s.v))
    lr, decay = tried.repeat_interleave(2, 0).unbind(1)
    given = part(gates(memory, len(k), lr if sizes else None, decay if decays else None), 0, OUTLIER)
    state = il.chunked(memory, k, k, v, given).state
    answers = il.read(memory, k[:, -RECENT:], state)
    scores = cosine(answers, v[:, -RECENT:]).reshape(len(tried), -1).mean(1)
    scores = torch.where(torch.isfinite(scores), scores, torch.full_like(scores, -1.0))
    best = tried[int(scores.argmax())]
    return best[:1] if sizes else None, best[1:] if decays else None


def behaviour(name: str) -> Behaviour:
    """Run the standard stream through a registered memory."""
    memory, segment = probed(name)
    lr, decay = tuned(memory)
    s = stream(seed=0)
    query = stream(seed=2).k[:, :1].expand(-1, TOKENS, -1, -1)
    outlier = s.v.clone()
    outlier[:, OUTLIER] *= LARGE

    # three runs side by side: the overwritten key is asked at every token; a fixed query, without and with the outlier
    q = torch.cat([s.k[:, WRITTEN : WRITTEN + 1].expand(-1, TOKENS, -1, -1), query, query])
    k, v = torch.cat([s.k, s.k, s.k]), torch.cat([s.v, s.v, outlier])
    given = gates(memory, len(k), lr, decay)
    kernel = isinstance(memory.architecture, Exemplars)
    info = () if kernel else ("memory_norm",)
    before = slice(0, OUTLIER)
    first = il.chunked(memory, q[:, before], k[:, before], v[:, before], part(given, 0, OUTLIER), info=info)
    after = slice(OUTLIER, TOKENS)
    rest = il.chunked(
        memory, q[:, after], k[:, after], v[:, after], part(given, OUTLIER, TOKENS), first.state, info=info
    )
    output = torch.cat([first.output, rest.output], 1)
    asked, plain, struck = output.split(STREAMS)

    ages = [age for age in range(AGES) if OUTLIER - 1 - age not in (WRITTEN, OVERWRITTEN)]
    at = torch.tensor([OUTLIER - 1 - age for age in ages])
    recall = torch.full((STREAMS, AGES), float("nan"))
    answers = il.read(memory, k[:, at], first.state)[:STREAMS]
    recall[:, ages] = cosine(answers, s.v[:, at])[..., 0]
    if kernel:  # what it holds are the pairs themselves
        norm = (s.k.square() + s.v.square()).sum((-1, -2)).cumsum(1).sqrt()
    else:
        assert first.info is not None
        assert rest.info is not None
        norm = torch.cat([first.info["memory_norm"], rest.info["memory_norm"]], 1)[:STREAMS, :, 0]
    moved = (struck - plain)[:, OUTLIER:].square().sum((0, 2, 3)).sqrt()
    size = plain[:, OUTLIER:].square().sum((0, 2, 3)).sqrt()
    known = recall[:, ages]
    spread = np.full((2, AGES), np.nan)
    spread[:, ages] = torch.quantile(known, torch.tensor([0.1, 0.9]), dim=0).numpy()
    return Behaviour(
        name,
        recall=recall.mean(0).numpy(),
        spread=spread,
        norm=norm.mean(0).numpy(),
        old=cosine(asked, s.v[:, WRITTEN : WRITTEN + 1])[..., 0].mean(0).numpy(),
        new=cosine(asked, s.v[:, OVERWRITTEN : OVERWRITTEN + 1])[..., 0].mean(0).numpy(),
        change=(moved / size).numpy(),
        lr=None if lr is None else lr.item(),
        log_decay=None if decay is None else decay.item(),
        segment=segment,
    )


def paint(it: Behaviour, others: list[Behaviour]) -> Any:
    """The painter of a memory's four panels, with all the other memories in the background of two of them."""

    def draw(figure: Any, palette: Palette) -> None:
        (recall, norm), (overwrite, outlier) = figure.subplots(2, 2)
        main, second = palette.lines[0], palette.lines[1]
        faint: dict[str, Any] = {"color": palette.soft, "linewidth": 0.7, "alpha": 0.35}

        age = np.arange(AGES)
        for other in others:
            known = np.isfinite(other.recall)
            recall.plot(age[known], smooth(other.recall[known]), **faint)
        known = np.isfinite(it.recall)
        low, high = it.spread[:, known]
        recall.fill_between(age[known], smooth(low), smooth(high), color=main, alpha=0.15, linewidth=0)
        recall.plot(age[known], smooth(it.recall[known]), color=main, linewidth=2.4)
        recall.set(title="recall by age", xlabel="tokens since the pair was written", xlim=(0, AGES - 8))
        recall.set(ylim=(-0.35, 1.04), ylabel="cosine of answer and value")

        norm.plot(np.arange(1, TOKENS + 1), it.norm, color=main, linewidth=2.4)
        mark(norm, OUTLIER, palette)
        norm.annotate("outlier", (OUTLIER, 1), (-4, -3), xycoords=("data", "axes fraction"), ha="right", va="top",
                      textcoords="offset points", color=palette.soft)  # fmt: skip
        norm.set(title="norm of the memory", xlabel="token", xlim=(0, TOKENS), ylim=(0, 1.12 * np.nanmax(it.norm)))

        token = np.arange(TOKENS) - OVERWRITTEN
        for when in (WRITTEN - OVERWRITTEN, 0):
            mark(overwrite, when, palette)
        overwrite.plot(token, it.old, color=second, linewidth=2.4, linestyle=(0, (4, 1.2)), label="the old value")
        overwrite.plot(token, it.new, color=main, linewidth=2.4, label="the new value")
        overwrite.set(title="answer to a key that is written twice", xlabel="tokens since the second write")
        overwrite.set(xlim=(-84, OUTLIER - OVERWRITTEN), ylim=(-0.35, 1.04), ylabel="cosine with")
        overwrite.legend(loc="lower left", ncols=2, borderaxespad=0.1)

        since = np.arange(TOKENS - OUTLIER)
        for other in others:
            outlier.plot(since, floor(other.change), **faint)
        outlier.plot(since, floor(it.change), color=main, linewidth=2.4)
        outlier.set(title="change of other answers by an outlier", xlabel="tokens since the outlier", yscale="log")
        outlier.set(xlim=(0, TOKENS - OUTLIER - 1), ylim=(FLOOR, 30), ylabel="relative")
        outlier.set_yticks([0.001, 0.01, 0.1, 1, 10], labels=["0.1 %", "1 %", "10 %", "100 %", "1000 %"])
        outlier.minorticks_off()

    return draw


FLOOR = 1e-3


def floor(change: np.ndarray) -> np.ndarray:
    """At least what the axis shows: nothing at all has no logarithm."""
    return np.maximum(change, FLOOR)


def smooth(curve: np.ndarray, width: int = 5) -> np.ndarray:
    """A running mean over neighbouring ages, shorter at the ends (the newest pair stays itself)."""
    reach = [min(i, width // 2, len(curve) - 1 - i) for i in range(len(curve))]
    return np.array([curve[i - r : i + r + 1].mean() for i, r in enumerate(reach)])


def mark(axes: Any, where: float, palette: Palette) -> None:
    """A line at an event."""
    axes.axvline(where, color=palette.soft, linewidth=1, linestyle=":")


SIZE = (9.2, 6.2)


def pictures(behaviours: dict[str, Behaviour], name: str) -> dict[str, bytes]:
    """The picture of a memory by theme, as PNG."""
    painter = paint(behaviours[name], [b for other, b in behaviours.items() if other != name])
    return {theme: png(painter, theme, size=SIZE) for theme in THEMES}
