"""The executor of everything: the oracle itself."""

from __future__ import annotations

from ..core import reference
from ..core.checks import Call
from ..core.memory import Memory
from ..core.reference import Result

SUMMARY = "token by token"


def why_not(memory: Memory, call: Call | None = None) -> list[str]:
    """It always applies."""
    return []


def run(memory: Memory, call: Call, chunk_size: int | None) -> Result:
    """`scan`: chunk sizes change nothing."""
    return reference.scan(memory, call.q, call.k, call.v, call.gates, call.state, call.mask, call.reset, call.info)


def step(memory: Memory, call: Call) -> Result:
    """One token of `scan`."""
    return run(memory, call, None)


def flops(memory: Memory) -> str:
    """Per token and head, without the gradient's bookkeeping."""
    return "forward and backward of the memory at its anchor, token by token"
