"""The gallery's experiments with an outer loop or a second task, A1 and A2, against plain loops and autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import innerloop as il
from innerloop.gallery import outer_loop, rotation
from innerloop.gallery.experiment import Outcome
from innerloop.look import THEMES, png


@pytest.fixture(scope="module")
def trained_projections() -> Outcome:
    return outer_loop.outer_loop(lambda told: None)


@pytest.fixture(scope="module")
def adapted_network() -> Outcome:
    return rotation.rotation(lambda told: None)


def delta_rule_error(outer: outer_loop.Projections, names: torch.Tensor, contents: torch.Tensor) -> torch.Tensor:
    """The outer loss written out: the delta rule token by token, then the questions."""
    errors = []
    for a, b in zip(names, contents, strict=True):
        S = torch.zeros(16, 16, dtype=a.dtype)
        x = torch.cat([a, b], -1)
        for token in x:
            k = token @ outer["key"]
            k = k / k.norm()
            S = S + outer["log_lr"].exp() * torch.outer(k, token @ outer["value"] - k @ S)
        q = a @ outer["query"][:16]
        answers = (q / q.norm(dim=-1, keepdim=True)) @ S
        errors.append((answers - b).square().sum(-1))
    return torch.stack(errors).mean()


def test_outer_gradient_passes_through_every_inner_update() -> None:
    outer = {n: p.double().requires_grad_() for n, p in outer_loop.drawn(torch.Generator().manual_seed(3)).items()}
    names, contents = (x.double() for x in outer_loop.sequences(4, torch.Generator().manual_seed(4)))
    ours = outer_loop.error(il.get("deltanet"), outer, names, contents)
    plain = delta_rule_error(outer, names, contents)
    assert ours.item() == pytest.approx(plain.item(), abs=1e-12)
    for mine, other in zip(
        torch.autograd.grad(ours, list(outer.values())), torch.autograd.grad(plain, list(outer.values())), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-11)


def test_outer_loop_holds(trained_projections: Outcome) -> None:
    assert [row.name for row in trained_projections.rows if not row.holds] == []
    outer, curve = outer_loop.trained("deltanet")
    held_out = outer_loop.sequences(outer_loop.HELD_OUT, torch.Generator().manual_seed(1))
    again = delta_rule_error(outer, *(x[:100] for x in held_out))
    assert float(again) == pytest.approx(curve[-1], abs=0.03)  # a hundred of the five hundred sequences
    names, contents = np.split(outer["key"].numpy() ** 2, 2)
    assert names.sum() > 9 * contents.sum()


def test_a_share_by_hand() -> None:
    projection = torch.cat([torch.full((16, 2), 3.0), torch.full((16, 2), 1.0)])
    assert outer_loop.share_of_names(projection) == pytest.approx(0.9)


def test_images_are_turned_as_arrays_are() -> None:
    image = torch.arange(64.0)
    four, angles = rotation.turned(image[None])
    assert angles.tolist() == [0, 1, 2, 3]
    for turned, angle in zip(four, angles, strict=True):
        np.testing.assert_array_equal(turned.reshape(8, 8), np.rot90(image.reshape(8, 8).numpy(), int(angle)))


def test_reading_a_batch_is_one_gradient_step() -> None:
    (images, digits), _ = rotation.data()
    x, angles = rotation.turned(images[:8])
    wanted, weights = rotation.answers(angles, digits[:8].repeat_interleave(4))
    assert weights[:, :10].sum() == 8 * 10 * rotation.CLASS_WEIGHT  # upright images only
    before = il.init_state(rotation.NETWORK, 1, 1, 64, 14)
    after = rotation.read(before, x, wanted, weights, 0.05)
    names = ("weight_0", "bias_0", "weight_1", "bias_1")
    parts = [before.memory[n][0, 0].clone().requires_grad_() for n in names]
    answers = F.gelu(x @ parts[0] + parts[1]) @ parts[2] + parts[3]
    lr = 0.05 / x.square().sum(-1)
    (lr * (weights * (answers - wanted).square()).sum(-1) / 2).sum().backward()
    for name, part in zip(names, parts, strict=True):
        assert part.grad is not None
        torch.testing.assert_close(after.memory[name][0, 0], (part - part.grad).detach(), rtol=1e-4, atol=1e-6)


def test_adapting_moves_what_is_shared_and_never_the_class_head() -> None:
    _, (images, _) = rotation.data()
    x, angles = rotation.turned(images[:64] + 1.0)
    before = il.init_state(rotation.NETWORK, 1, 1, 64, 14)
    after = rotation.read(before, x, *rotation.answers(angles), 0.05)
    assert torch.equal(after.memory["weight_1"][..., :10], before.memory["weight_1"][..., :10])
    assert torch.equal(after.memory["bias_1"][..., :10], before.memory["bias_1"][..., :10])
    assert not torch.equal(after.memory["weight_0"], before.memory["weight_0"])


@pytest.mark.slow
def test_rotation_holds(adapted_network: Outcome) -> None:
    assert [row.name for row in adapted_network.rows if not row.holds] == []
    train, test = rotation.data()
    assert not {tuple(x) for x in train.images.tolist()} & {tuple(x) for x in test.images.tolist()}
    assert adapted_network.value("accuracy, lit, after twenty") > adapted_network.value("accuracy, lit, before") + 0.4


@pytest.mark.slow
def test_pictures_are_drawn_for_both_pages(trained_projections: Outcome, adapted_network: Outcome) -> None:
    for outcome in (trained_projections, adapted_network):
        for picture in outcome.figures.values():
            drawn = [png(picture.paint, theme, size=picture.size) for theme in THEMES]
            assert all(image.startswith(b"\x89PNG") for image in drawn)
            assert drawn[0] != drawn[1]
