"""Low precision against the float64 oracle on the same rounded inputs."""

from __future__ import annotations

import torch

from ..core.dispatch import read
from ..core.learner import GradientLearner
from ..core.memory import Memory
from ..core.preconditioned import Muon, Shampoo
from ..core.retention import KL
from .check import assert_same, body, check, chunks, outcome, scan, steps
from .gates import WORST, condition, not_compared, sensitivity
from .inputs import Draw, Inputs
from .tolerance import TOLERANCES


def _slack(memory: Memory, x: Inputs) -> float:
    """How many times the table's float32 error a row may make, where the mathematics asks for more than 1.

    - What the memory makes of a change in the last digit of its inputs is measured, `sensitivity`: an answer is no
      nearer than what it makes of some sixteen roundings on the way. More than 20 times the table would say nothing,
      and is an error of the draw.
    - Newton-Schulz raises a singular value near 0 by 3.4445^5 = 485 (and the same for "lact"): from a gradient of less
      than full rank it raises what rounding left there, 6e-8, to 3e-5 of the step.
    - Shampoo takes the root -1/4 on both sides of moments that start from 1e-6 I: where both are empty it raises
      rounding by 1e-6^(-1/2) = 1000, to 6e-5 of the step.
    - Under KL every unit averages its inputs by weights near 1/n, and a layer norm looks only at the differences of
      such averages, a quarter of them or less: rounding of the averages counts that many times.
    """
    table, digit = TOLERANCES[torch.float32].values, torch.finfo(torch.float32).eps / 2
    slack = 8.0 if isinstance(memory.learner, Muon | Shampoo) else 4.0 if isinstance(memory.retention, KL) else 1.0
    if (isinstance(memory.learner, GradientLearner) and not memory.learner.linear) or not memory.is_matrix:
        slack *= max(1.0, 16 * digit * sensitivity(memory, x) / table)
    assert slack < 8 * 20, f"float32 could be off by {slack * table:.0e}: the draw is too sensitive to say anything"
    return slack


def _against_oracle(memory: Memory, draw: Draw, dtype: torch.dtype) -> None:
    for tokens, decay in ((64, "typical"), (40, "-1e-3"), (40, "mixed")):
        x = draw(memory, tokens, start="memory", decay=decay)
        if not_compared(memory, decay) or condition(memory, x) > WORST:
            continue
        x = x.to(dtype, gates=torch.float32).to(
            torch.float64
        )  # rounded: q, k, v as the inputs, gates and state as float32
        wanted = outcome(scan, memory, x)
        slack = _slack(memory, x) if dtype == torch.float32 else 1.0
        for name, run in (("chunked", chunks(None)), ("chunked 16", chunks(16)), ("step", steps)):
            got = outcome(run, memory, x.to(dtype, gates=torch.float32))
            assert got.output.dtype == dtype, f"{name}: output is {got.output.dtype}, wanted {dtype}"
            assert_same(got, wanted, f"{name}, {dtype}, T={tokens}, log_decay {decay}", dtype=dtype, slack=slack)


@check
def float32_follows_the_oracle(memory: Memory, draw: Draw) -> None:
    """Values and gradients in float32."""
    _against_oracle(memory, draw, torch.float32)


@check
def bfloat16_follows_the_oracle(memory: Memory, draw: Draw) -> None:
    """Values and gradients with q, k, v in bfloat16 and gates in float32."""
    _against_oracle(memory, draw, torch.bfloat16)


@check
def autocast_ends_at_the_inputs(memory: Memory, draw: Draw) -> None:
    """Under autocast the state, the products with it and the solves stay in float32: every form answers as without."""
    x = draw(memory, 20, start="memory").to(torch.float32)
    for name, run in (("scan", scan), ("chunked", chunks(8)), ("step", steps)):
        state = x.state(memory)
        plain = run(memory, x, state)
        with torch.autocast("cpu", torch.bfloat16):
            cast = run(memory, x, state)
            answer = read(memory, x.q, cast.state)
        assert torch.equal(cast.output, plain.output), f"{name} under autocast: output"
        assert cast.state == plain.state, f"{name} under autocast: state"
        assert torch.equal(answer, read(memory, x.q, plain.state)), f"read after {name} under autocast"


@check
def state_is_kept_wide(memory: Memory, draw: Draw) -> None:
    """The state is float32 at least, outputs have the input's dtype, and small writes are not lost to a wide state."""
    for dtype, kept in (
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ):
        x = draw(memory, 10)
        small = x.to(dtype)
        for name, run in (("scan", scan), ("chunked", chunks(4)), ("step", steps)):
            result = run(memory, small, small.state(memory))
            assert result.output.dtype == dtype, f"{name}: output is {result.output.dtype}, wanted {dtype}"
            for entry, t in body(result.state).items():
                assert not t.is_floating_point() or t.dtype == kept, f"{name}, {dtype}: state {entry} is {t.dtype}"
    x = draw(memory, 6)
    wide = x.state(memory)
    result = chunks(4)(memory, x.to(torch.float32), wide)
    assert result.output.dtype == torch.float32
    for entry, t in body(result.state).items():
        assert not t.is_floating_point() or t.dtype == torch.float64, f"a float64 state went to {t.dtype} in {entry}"
