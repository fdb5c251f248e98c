"""Checkpointing: a function of tensors whose backward pass computes it again instead of keeping what lies between.

The forward pass runs without a graph, so that only the arguments stay. (Hooks on every saved tensor, the other way to
do it, cost more here than the second forward pass itself.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Tree = Mapping[str, Mapping[str, Tensor]]


def recomputed(function: Callable[[Tree], Tree], arguments: Tree) -> Tree:
    """`function(arguments)`, groups of tensors by name both; differentiable once."""
    leaves = [x for group in arguments.values() for x in group.values()]
    shape: list[tuple[str, str]] = []

    def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
        supply = iter(tensors)
        found = function({name: {n: next(supply) for n in group} for name, group in arguments.items()})
        shape[:] = [(name, n) for name, group in found.items() for n in group]
        return tuple(x for group in found.values() for x in group.values())

    results: Any = _Recomputed.apply(flat, *leaves)  # pyright: ignore
    out: dict[str, dict[str, Tensor]] = {}
    for (name, n), x in zip(shape, results, strict=True):
        out.setdefault(name, {})[n] = x
    return out


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: Callable[..., tuple[Tensor, ...]], *leaves: Tensor) -> tuple[Tensor, ...]:
        ctx.flat = flat
        ctx.save_for_backward(*leaves)
        ctx.set_materialize_grads(False)
        # an argument that comes out unchanged must come out as another tensor, or it would lose its own history
        return tuple(x.view_as(x) for x in flat(*leaves))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        needed = ctx.needs_input_grad[1:]
        leaves = [x.detach().requires_grad_(need) for x, need in zip(ctx.saved_tensors, needed, strict=True)]
        with torch.enable_grad():
            results = ctx.flat(*leaves)
        pairs = [(x, g) for x, g in zip(results, grads, strict=True) if g is not None and x.requires_grad]
        wanted = [x for x, need in zip(leaves, needed, strict=True) if need]
        found = iter(torch.autograd.grad([x for x, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True))
        return None, *(next(found) if need else None for need in needed)
