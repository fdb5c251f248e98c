"""The leak: a kernel whose width is learned on errors of points that vote on themselves ends as a table of the data.

    E(w) = mean_i (f(x_i) - y_i)^2,   f(x_i) = sum_j p_ij y_j  with p_ii included

As w = 1 / sigma grows, p_ii goes to 1 and E to 0, its infimum, which no finite w attains: descent has nowhere to stop.
What it tends to is the nearest neighbour. Leaving one out takes the vote away, and the same descent settles.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from ..look import Palette
from .bandwidth import SOURCE, descend, table, training_error, true_error
from .experiment import Outcome, Picture, Row, Tick, claim, experiment

STEPS = 1000
HONEST_STEPS = 300
SHOWN = (5, 100, STEPS)


@experiment("X3", "The leak: points that vote on themselves", source=SOURCE + ", exercise")
def leak(tick: Tick) -> Outcome:
    """Without leaving one out w grows and grows, the training error goes to 0 and the error against the truth rises."""
    data = table()
    data = replace(data, x=data.x.double(), y=data.y.double(), queries=data.queries.double(), truth=data.truth.double())
    leaky = descend(data, STEPS, leave_one_out=False)
    tick("descent with its own votes")
    honest = descend(data, HONEST_STEPS, leave_one_out=True)
    tick("descent without")

    rows: list[Row] = []
    path = [1.0, *(w for _, w in leaky)]
    steps = torch.tensor(path, dtype=torch.float64)
    training = training_error(data, steps, leave_one_out=False).tolist()
    truth = true_error(data, steps).tolist()
    grows, falls = increasing(path), increasing([-e for e in training])
    for step in SHOWN:
        rows.append(claim(f"w after {step} steps", path[step], "grows", grows))
    for step in SHOWN:
        rows.append(claim(f"training error after {step} steps", training[step], "falls", falls))
    best = min(range(len(truth)), key=truth.__getitem__)
    worse = 0 < best < SHOWN[1] and increasing(truth[best:])
    rows.append(Row(f"error against the truth, at best (step {best})", truth[best], None, worse))
    for step in SHOWN[1:]:
        rows.append(claim(f"error against the truth after {step} steps", truth[step], "gets worse", worse))

    widths = torch.logspace(-1, 3, 81, dtype=torch.float64)
    curves = {
        "training error": training_error(data, widths, leave_one_out=False).tolist(),
        "leave-one-out error": training_error(data, widths, leave_one_out=True).tolist(),
        "error against the truth": true_error(data, widths).tolist(),
    }
    tick("all widths")
    down = all(b <= a for a, b in pairwise(curves["training error"])) and curves["training error"][-1] < 1e-12
    rows.append(claim("training error at w = 1000", curves["training error"][-1], "goes to 0", down))
    nearest = data.y[(data.queries[:, None] - data.x).abs().argmin(1)]
    copied = (nearest - data.truth).square().mean().item()
    end = curves["error against the truth"][-1]
    rows.append(claim("error against the truth there", end, "the nearest neighbour's", abs(end - copied) < 1e-9))
    settled = abs(honest[-1][1] - honest[-2][1]) < 1e-4
    rows.append(claim(f"w after {HONEST_STEPS} steps that leave one out", honest[-1][1], "settles", settled))
    notes = [
        f"The training error falls at every step of the descent and at every width of the sweep, but slowly: after "
        f"{STEPS} steps of rate 0.5 w is {path[-1]:.1f} and the error {training[-1]:.2f}, since the gradient fades "
        f"like exp(-w^2 gap^2) as the neighbours lose their votes. The sweep shows where it is going.",
    ]

    def descents(figure: Any, palette: Palette) -> None:
        left, right = figure.subplots(1, 2)
        steps = range(len(path))
        left.plot(steps[1:], path[1:], color=palette.lines[4], linewidth=2)
        left.plot(steps[1 : HONEST_STEPS + 1], [w for _, w in honest], color=palette.lines[0], linewidth=2)
        left.annotate("with its own vote", (60, path[60]), (-6, 10), color=palette.lines[4], **BESIDE, ha="right")
        left.annotate("leaving one out", (60, honest[60][1]), (6, -18), color=palette.lines[0], **BESIDE)
        left.set(yscale="log", xlabel="step", title="w = 1 / sigma")
        left.set_yticks([1, 2, 5, 10, 20], labels=["1", "2", "5", "10", "20"])
        right.plot(steps[1:], training[1:], color=palette.lines[1], linewidth=2, label="training error")
        right.plot(steps[1:], truth[1:], color=palette.ink, linewidth=2, label="error against the truth")
        right.set(ylim=(0, None), xlabel="step", title="with its own vote")
        right.legend(loc="upper right")
        for axes in (left, right):
            axes.set(xscale="log", xlim=(1, STEPS))
            axes.set_xticks([1, 10, 100, 1000], labels=["1", "10", "100", "1000"])
            axes.minorticks_off()

    def limit(figure: Any, palette: Palette) -> None:
        axes = figure.subplots()
        colours = (palette.lines[1], palette.lines[0], palette.ink)
        for (name, curve), colour, height in zip(curves.items(), colours, (0.27, 1.52, 0.96), strict=True):
            axes.plot(widths, curve, color=colour, linewidth=2)
            axes.text(900, height, name, color=colour, ha="right")
        axes.axvspan(1, path[-1], color=palette.lines[4], alpha=0.12, linewidth=0)
        axes.text(1.1, 1.62, f"{STEPS} steps with its own vote", color=palette.lines[4])
        axes.set(xscale="log", xlim=(0.1, 1000), ylim=(0, None), xlabel="w = 1 / sigma", ylabel="error")
        axes.set_xticks([0.1, 1, 10, 100, 1000], labels=["0.1", "1", "10", "100", "1000"])
        axes.minorticks_off()

    return Outcome(rows, {"descent": Picture(descents, (10, 4)), "limit": Picture(limit)}, notes)


BESIDE: dict[str, Any] = {"textcoords": "offset points"}


def increasing(values: list[float]) -> bool:
    """Whether each is larger than the one before."""
    return all(a < b for a, b in pairwise(values))
