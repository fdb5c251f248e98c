"""Test-time training on images: a network adapts to a camera that has changed, without labels.

    f(x) = gelu(x W_0 + b_0) W_1 + b_1       10 answers "which digit", 4 answers "turned by 0, 90, 180, 270 degrees"

Trained on both; at test time only the second question is asked, whose answer is known: we turned the image ourselves.
Its gradient moves the layer that both questions share. In the library's terms the network is a memory, training is
reading labelled images, and adapting is reading images whose ten class channels have a step size of 0
(`GradientStep(per="channel")`: the error of a channel is weighed by its step size before it goes backward).

    lr_t = rate / |x_t|^2         the step in units of the image's energy, the same in training and at test time
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

import innerloop as il

from ..look import Palette
from .experiment import Outcome, Picture, Row, Tick, claim, experiment, near
from .pairs import MODULE, recalled, stream

SIDE, CLASSES, TURNS, BATCH = 8, 10, 4, 32
TRAIN, TEST = 1200, 592  # of 1,797; whole mini-batches
EPOCHS, PASSES, RATE, CLASS_WEIGHT, LIGHT = 40, 20, 0.05, 4.0, 1.0
NETWORK = il.Memory(il.MLP(expansion=4, bias=True), il.L2(), il.Keep(), il.GradientStep(per="channel"), segment=BATCH)


class Images(NamedTuple):
    """Images [N, 64], the mean pixel of the training images taken off; digits [N]."""

    images: Tensor
    digits: Tensor


@cache
def data() -> tuple[Images, Images]:
    """scikit-learn's digits, shuffled once: to train on, and to test on."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    images, labels = torch.tensor(X / 16, dtype=torch.float32)[order], torch.tensor(y)[order]
    images = images - images[:TRAIN].mean()
    test = slice(TRAIN, TRAIN + TEST)
    return Images(images[:TRAIN], labels[:TRAIN]), Images(images[test], labels[test])


def turned(images: Tensor) -> tuple[Tensor, Tensor]:
    """Every image at four angles [4 N, 64], those of one image side by side; which angle [4 N]."""
    square = images.view(-1, SIDE, SIDE)
    four = torch.stack([torch.rot90(square, r, (1, 2)) for r in range(TURNS)], 1)
    return four.reshape(-1, SIDE**2), torch.arange(TURNS).repeat(len(images))


def read(state: il.State, images: Tensor, wanted: Tensor, weights: Tensor, rate: float) -> il.State:
    """The network after these images [N, 64], answers [N, 14], and what each answer's error weighs [N, 14]."""
    lr = rate / images.square().sum(-1, keepdim=True) * weights
    x = stream(images)
    return il.chunked(NETWORK, x, x, stream(wanted), il.Gates(lr=stream(lr)), state).state


def answers(angles: Tensor, digits: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Wanted answers [N, 14] and their weights: the digit is asked of upright images, and only where it is given."""
    which = torch.eye(TURNS)[angles]
    classes = torch.zeros(len(angles), CLASSES) if digits is None else torch.eye(CLASSES)[digits]
    upright = torch.zeros(len(angles)) if digits is None else CLASS_WEIGHT * (angles == 0)
    return torch.cat([classes, which], -1), torch.cat(
        [upright[:, None].expand(-1, CLASSES), torch.ones_like(which)], -1
    )


@cache
def trained() -> il.State:
    """The network after forty passes over the training images, each at four angles, with falling steps."""
    (images, digits), _ = data()
    x, angles = turned(images)
    wanted, weights = answers(angles, digits.repeat_interleave(TURNS))
    g = torch.Generator().manual_seed(0)
    state = il.init_state(NETWORK, 1, 1, SIDE**2, CLASSES + TURNS)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(x), generator=g)
        state = read(state, x[order], wanted[order], weights[order], RATE * (1 - epoch / EPOCHS))
    return state


def accuracy(state: il.State, images: Tensor) -> float:
    """Part of the test digits that are named rightly, seen as these images [592, 64]."""
    named = recalled(NETWORK, state, images)[:, :CLASSES].argmax(-1)
    return float((named == data()[1].digits).float().mean())


def adapted(images: Tensor, *, rate: float = RATE, shuffled: bool = False) -> list[il.State]:
    """The network before, and after each of twenty passes over unlabelled images; shuffled: told wrong angles."""
    x, angles = turned(images)
    if shuffled:
        angles = angles[torch.randperm(len(angles), generator=torch.Generator().manual_seed(1))]
    states = [trained()]
    for _ in range(PASSES):
        states.append(read(states[-1], x, *answers(angles), rate))
    return states


@experiment("A2", "Image test-time training", source=MODULE)
def rotation(tick: Tick) -> Outcome:
    """A network that names digits at .98 fails when the light changes; guessing how images are turned mends it.

    Every pixel is lighter by the whole range. The rotation task needs the digits' shape, so that what it does to the
    shared layer serves naming them too. With angles told at random the first pass helps as well: any error that the new
    light causes turns the layer away from it. Only the true angles go on helping.
    """
    tick("training, 40 passes")
    with torch.no_grad():
        clean, start = data()[1].images, trained()
        lit = clean + LIGHT
        tick("adapting, 20 passes")
        states = adapted(lit)
        curve = [accuracy(s, lit) for s in states]
        tick("told angles at random")
        blind = [accuracy(s, lit) for s in adapted(lit, shuffled=True)]
        tick("unchanged images, and half the rate")
        idle, slow = accuracy(adapted(clean)[-1], lit), accuracy(adapted(lit, rate=RATE / 2)[-1], lit)
        noisy = clean + 0.5 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(2))
        noise = [accuracy(s, noisy) for s in (start, adapted(noisy)[-1])]
        before, after = accuracy(start, clean), accuracy(states[-1], clean)
    rows: list[Row] = [
        near("accuracy, clean", before, 0.98, 0.015),
        near("accuracy, lit, before", curve[0], 0.11, 0.05),
        claim(
            "accuracy, lit, after one pass without labels", curve[1], "rises clearly (.53)", curve[1] > curve[0] + 0.35
        ),
        claim("accuracy, lit, after twenty", curve[-1], "> 0.7", curve[-1] > 0.7),
        claim("told angles at random, after twenty", blind[-1], "far below that", blind[-1] < curve[-1] - 0.25),
        claim("adapted to clean images instead", idle, "no help", idle < curve[0] + 0.05),
        claim("accuracy, clean, of the network adapted to light", after, "> 0.95: not forgotten", after > 0.95),
    ]
    notes = [
        "The source names neither corruption nor network. This is one hidden layer of 256, squared losses, and light "
        "of 1 on pixels in [0, 1]; subtracting each image's mean would mend that too, if one knew.",
        f"In one pass angles told at random help too ({blind[1]:.2f} against {curve[1]:.2f}): the new light is a "
        "constant direction of the input, and any error along it shrinks the layer's answer to it. Random angles then "
        f"spoil the network ({blind[-1]:.2f} after twenty passes); the true ones lead to {curve[-1]:.2f}.",
        f"It depends on the step: at half of it twenty passes lead to {slow:.2f}. And on the corruption: independent "
        f"noise of .5 on each pixel stays where it was ({noise[0]:.2f} to {noise[1]:.2f}).",
    ]

    def paint(figure: Any, palette: Palette) -> None:
        axes = figure.subplots()
        passes = range(PASSES + 1)
        axes.axhline(before, color=palette.soft, lw=1, ls="--")
        axes.annotate(
            "clean images",
            (PASSES, before),
            (0, -4),
            textcoords="offset points",
            ha="right",
            va="top",
            color=palette.soft,
        )
        axes.plot(passes, curve, "o-", ms=4, color=palette.lines[0], label="true angles")
        axes.plot(passes, blind, "s-", ms=4, color=palette.lines[1], label="angles at random")
        axes.set_xlabel("passes over 592 unlabelled test images")
        axes.set_ylabel("accuracy under new light")
        axes.set_title("Reading images, asked only how they are turned")
        axes.set_xticks(range(0, PASSES + 1, 5))
        axes.set_ylim(0, 1.02)
        axes.legend(loc="lower right")

    def show(figure: Any, palette: Palette) -> None:
        panels = figure.subplots(2, 8)
        shown = [clean[data()[1].digits == digit][0].view(SIDE, SIDE) for digit in (7, 2)]
        for column in range(8):
            turn = column % TURNS
            picture = torch.rot90(shown[column // TURNS], turn)
            for row, light in enumerate((0.0, LIGHT)):
                panel = panels[row, column]
                panel.imshow(
                    (picture + light).numpy(), cmap="gray", vmin=float(clean.min()), vmax=float(clean.max()) + LIGHT
                )
                panel.set_axis_off()
                if row == 0:
                    panel.set_title(f"{90 * turn}°", loc="center")
        figure.supylabel("new light      trained on", color=palette.soft, fontsize=11)

    return Outcome(rows, {"adaptation": Picture(paint, (7.2, 4.2)), "images": Picture(show, (8.0, 2.4))}, notes)
