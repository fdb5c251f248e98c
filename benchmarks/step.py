"""One token of `gated_deltanet` (B 1, H 4, 64 x 64): microseconds, uncompiled and under torch.compile, and growth.

python benchmarks/step.py
"""

from __future__ import annotations

import time
from typing import Any

import torch

import innerloop as il

NAME = "step"


def run(steps: int = 2000) -> list[dict[str, Any]]:
    """Microseconds per step, early and after many tokens: the cost must not grow."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    memory = il.get("gated_deltanet")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 4, 64, generator=generator) for _ in range(3))
    k = torch.nn.functional.normalize(k, dim=-1)
    gates = il.Gates(lr=torch.full((1, 4), 0.5), log_decay=torch.full((1, 4), -0.1))

    def plain(state: il.State) -> il.Result:
        return il.step(memory, q, k, v, gates, state)

    start = il.init_state(memory, 1, 4, 64, 64)
    expected = il.scan(
        memory, *(x[:, None] for x in (q, k, v)), il.Gates(*(g if g is None else g[:, None] for g in gates))
    )
    lines: list[dict[str, Any]] = []
    try:
        for label, function in (("uncompiled", plain), ("torch.compile", torch.compile(plain))):
            with torch.no_grad():
                result = function(start)
                error = float((result.output - expected.output[:, 0]).abs().max())
                if error > 1e-5:
                    raise AssertionError(f"{label}: step differs from scan by {error:.1e}")
                state, halves = result.state, []
                for _ in range(2):
                    began = time.perf_counter()
                    for _ in range(steps):
                        state = function(state).state
                    halves.append((time.perf_counter() - began) * 1e6 / steps)
            lines.append({"form": label, "us_first": f"{halves[0]:.0f}", f"us_after_{steps}": f"{halves[1]:.0f}"})
    finally:
        torch.set_num_threads(threads)
    return lines


if __name__ == "__main__":
    for line in run():
        print("  ".join(f"{key}={value}" for key, value in line.items()))
