"""Features in front of a matrix: keys and queries are mapped, and the matrix memory behind them is run as it is.

m(x) = S^T phi(x):   the same memory without the map, on phi(q) and phi(k)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from ..core.architecture import Matrix
from ..core.checks import Call
from ..core.features import Features
from ..core.memory import Memory
from ..core.reference import Result, split


def on_features(run: Callable[..., Result]) -> Callable[..., Result]:
    """`run(memory, call, ...)` of a `Matrix`, for `Features(map, Matrix())` too."""

    @wraps(run)
    def mapped(memory: Memory, call: Call, *rest: Any) -> Result:
        if not isinstance(memory.architecture, Features):
            return run(memory, call, *rest)
        embed = memory.architecture.embed
        held, constants = split(memory, call.state.memory)
        initial, fresh = split(memory, call.state.initial)

        def features(parameters: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            k = embed(parameters, call.k.transpose(1, 2)).transpose(1, 2)
            # queries that are the keys themselves stay so: executors use it
            return k if call.q is call.k else embed(parameters, call.q.transpose(1, 2)).transpose(1, 2), k

        q, k = features(constants)
        if call.reset is not None and any(fresh[n] is not constants[n] for n in constants):
            # a reset restores the outer parameters too
            after = (call.reset.cumsum(1) > 0)[:, :, None, None]
            q, k = (torch.where(after, new, old) for new, old in zip(features(fresh), (q, k), strict=True))
            constants = {n: _choose(call.reset.any(1), fresh[n], x) for n, x in constants.items()}
        inner = replace(memory, architecture=Matrix())
        state = replace(call.state, kind=inner, memory=held, initial=initial)
        result = run(inner, call._replace(q=q, k=k, state=state), *rest)
        after_call = replace(
            result.state, kind=memory, memory={**result.state.memory, **constants}, initial=call.state.initial
        )
        return Result(result.output, after_call, result.info)

    return mapped


def _choose(flag: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(flag.reshape(-1, *(1,) * (no.ndim - 1)), yes, no)
