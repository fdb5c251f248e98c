"""Every registered memory, every case, every check; and memories of a user's own, which no row names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import innerloop as il
from innerloop.core import registry
from innerloop.testing import CHECKS, SLOW, Draw, check_memory

torch.set_num_threads(1)

OWN = {
    "segment and momentum": il.Memory(il.Matrix(), il.L2(), il.Decay("head", toward="init"), il.Momentum(), segment=4),
    "window": il.Memory(il.Matrix(), il.L2(), il.Decay("channel"), il.GradientStep(), window=3),
    "window and segment": il.Memory(il.Matrix(), il.Dot(), il.Keep(), il.Momentum(0.5), window=2, segment=3),
    "longhorn toward init": il.Memory(il.Matrix(), il.L2(), il.Decay("head", toward="init"), il.Proximal()),
    "kda toward init": il.Memory(
        il.Matrix(), il.L2(), il.Decay("channel", toward="init"), il.GradientStep(), anchor="retained"
    ),
    "undecayed anchor per channel": il.Memory(il.Matrix(), il.L2(), il.Decay("channel"), il.GradientStep()),
    "hebbian momentum": il.Memory(il.Matrix(), il.Dot(), il.Decay("head"), il.Momentum(0.5)),
    "momentum, retained, toward init": il.Memory(
        il.Matrix(), il.L2(), il.Decay("head", toward="init"), il.Momentum(), anchor="retained"
    ),
    "gaussian local linear": il.Memory(il.Exemplars("gaussian", 1, 0.8), il.L2(), il.Keep(), il.Append()),
}


def _name(case: Any) -> str:
    return ",".join(f"{k}={v}" for k, v in dict(case).items())


def cells() -> list[Any]:
    members: list[tuple[str, il.Memory, tuple[il.Exemption, ...]]] = []
    for name in il.names():
        row = registry.entry(name)
        members += [(f"{name}({_name(case)})", row.build(**dict(case)), tuple(row.exemptions)) for case in row.cases]
    members += [(name, memory, ()) for name, memory in OWN.items()]
    made: list[Any] = []
    for label, memory, exemptions in members:
        exempt = {e.check: e.reason for e in exemptions}
        for check in CHECKS:
            marks = [pytest.mark.slow] if check in SLOW else []
            if check in exempt:
                marks.append(pytest.mark.xfail(strict=True, reason=exempt[check], raises=AssertionError))
            made.append(pytest.param(memory, check, id=f"{label}-{check}", marks=marks))
    return made


@pytest.mark.parametrize(("memory", "check"), cells())
def test_contract(memory: il.Memory, check: str) -> None:
    CHECKS[check](memory, Draw())


def test_check_memory_runs_names_and_values() -> None:
    ran = check_memory("linear_attention", checks=["json_round_trip"])
    assert ran == ["json_round_trip"]
    assert check_memory(OWN["window"], checks=["json_round_trip", "read_is_the_last_answer"])


def test_check_memory_names_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory whose learner cheats fails, and the message says where."""
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Forgetful(il.GradientStep):
        def update(self, problem: Any, gradient: Any, buffers: Any) -> Any:
            step, buffers = super().update(problem, gradient, buffers)
            return {n: s + 1e-6 * s.flip(0) for n, s in step.items()}, buffers  # mixes the batch

    memory = il.Memory(il.Matrix(), il.L2(), il.Keep(), Forgetful())
    with pytest.raises(AssertionError, match="rows_and_heads_are_independent: row"):
        check_memory(memory, checks=["rows_and_heads_are_independent"])
    with pytest.raises(ValueError, match="no check"):
        check_memory(memory, checks=["nonsense"])


def test_exempt_checks_must_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exemption is a strict expected failure: one that has become needless is an error too."""
    row = registry.entry("deltanet")
    stale = replace(row, exemptions=[il.Exemption("json_round_trip", "nothing is wrong with it")])
    monkeypatch.setitem(registry._entries, "deltanet", stale)
    with pytest.raises(AssertionError, match="stale"):
        check_memory("deltanet", checks=["json_round_trip"])

    def fails(memory: il.Memory, draw: Draw) -> None:
        raise AssertionError("as it must")

    monkeypatch.setitem(CHECKS, "json_round_trip", fails)
    check_memory("deltanet", checks=["json_round_trip"])
    with pytest.raises(AssertionError, match="as it must"):
        check_memory("kda", checks=["json_round_trip"])


def test_exemptions_are_reasoned_and_name_checks() -> None:
    for name in il.names():
        for exemption in registry.entry(name).exemptions:
            assert exemption.check in CHECKS, f"{name}: {exemption.check!r} is no check"
            assert len(exemption.reason) > 20, f"{name}: say why {exemption.check!r} cannot pass"
