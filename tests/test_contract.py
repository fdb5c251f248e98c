"""Every registered memory, every case, every check; and memories of a user's own, which no row names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import innerloop as il
from innerloop.core import registry
from innerloop.core.learner import GradientLearner
from innerloop.core.reference import Result
from innerloop.testing import CHECKS, SLOW, Draw, check_memory
from innerloop.testing.check import assert_same, chunks, outcome, scan, steps
from innerloop.testing.inputs import Inputs

torch.set_num_threads(1)

OWN: dict[str, il.Memory] = {
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
    # options of the deep memories, several to a memory: each learner, retention and objective meets a segment
    "residual, norm, bias, step per channel, toward init": il.Memory(
        il.MLP(1, 2, "silu", bias=True, norm=True, residual=True),
        il.L2(),
        il.Decay("head", toward="init"),
        il.Momentum(per="channel"),
        segment=3,
    ),
    "running mean, read before write, robust loss": il.Memory(
        il.MLP(1, 2, residual=True),
        il.Robust(0.5),
        il.Keep(),
        il.GradientStep(average=True),
        segment=4,
        order="read-write",
    ),
    "running mean without a segment": il.Memory(il.Matrix(), il.L2(), il.Keep(), il.GradientStep(average=True)),
    "clipped gradient": il.Memory(il.MLP(1), il.L2(), il.Decay(), il.GradientStep(max_norm=0.5), segment=4),
    "clipped momentum over a window": il.Memory(
        il.Matrix(), il.L2(), il.Decay("head", toward="init"), il.Momentum(max_norm=0.5), window=3, segment=4
    ),
    "clipped delta rule": il.Memory(
        il.Matrix(), il.L2(), il.Decay("channel"), il.GradientStep(max_norm=0.5), anchor="retained"
    ),
    "three steps": il.Memory(il.MLP(1), il.L2(), il.Decay(), il.GradientStep(num_steps=3)),
    "two steps of a matrix per channel": il.Memory(
        il.Matrix(), il.L2(), il.Decay(), il.GradientStep(num_steps=2, per="channel"), anchor="retained"
    ),
    "token by token, retained, toward init": il.Memory(
        il.MLP(1, bias=True), il.L2(), il.Decay("head", toward="init"), il.Momentum(), anchor="retained"
    ),
    "window, Huber with a gate, rows of one norm, Muon at the end": il.Memory(
        il.MLP(1), il.Huber(1.0, "coordinate"), il.RowNorm(), il.Muon(3), window=2, segment=4, apply="segment"
    ),
    "rows of one norm token by token": il.Memory(il.MLP(1), il.L2(), il.RowNorm(), il.GradientStep(), segment=3),
    "AdaGrad at the end, Huber by norm": il.Memory(
        il.MLP(1), il.Huber(1.0, "norm"), il.Decay("head", toward="init"), il.AdaGrad(), segment=4, apply="segment"
    ),
    "Adam with biases in a segment": il.Memory(il.MLP(1, bias=True), il.L2(), il.Keep(), il.Adam(), segment=3),
    "Shampoo of a gated network at the end": il.Memory(
        il.SwiGLU(1), il.L2(), il.Decay("head", toward="init"), il.Shampoo(), segment=3, apply="segment"
    ),
    "gated network, window and momentum": il.Memory(
        il.SwiGLU(1), il.L2(), il.Decay(), il.Momentum(), window=2, segment=4
    ),
    "shrunk and cut at the end": il.Memory(
        il.MLP(1), il.L2(), il.ElasticNet(0.02, 0.05), il.Momentum(), segment=4, apply="segment"
    ),
    "shrunk and cut, lp loss": il.Memory(il.Matrix(), il.Lp(2.5), il.ElasticNet(), il.GradientStep(), segment=3),
    "dual variable of a matrix, window": il.Memory(
        il.Matrix(), il.L2(), il.Lq(3.0, "corrected"), il.GradientStep(), window=2, segment=3
    ),
    "simplex at the end, momentum": il.Memory(
        il.Matrix(), il.L2(), il.KL(), il.Momentum(0.5), segment=3, apply="segment"
    ),
    "features of a matrix": il.Memory(
        il.Features(il.polynomial(2)), il.L2(), il.Decay(), il.GradientStep(), anchor="retained"
    ),
    "features of a least-squares fit": il.Memory(il.Features(il.fourier(6)), il.L2(), il.Decay(), il.Ridge()),
    "features of a network, running mean": il.Memory(
        il.Features(il.fourier(5), il.MLP(1, norm=True)), il.L2(), il.Keep(), il.GradientStep(average=True), segment=4
    ),
    "preconditioned features in a segment": il.Memory(
        il.Features(il.polynomial(2)), il.L2(), il.Decay(), il.Diagonal(), segment=4
    ),
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
            costly = check in SLOW or (label in OWN and check.startswith(("compiled", "float32")))
            marks = [pytest.mark.slow] if costly else []
            if check in exempt:
                marks.append(pytest.mark.xfail(strict=True, reason=exempt[check], raises=AssertionError))
            made.append(pytest.param(memory, check, id=f"{label}-{check}", marks=marks))
    return made


@pytest.mark.parametrize(("memory", "check"), cells())
def test_contract(memory: il.Memory, check: str) -> None:
    CHECKS[check](memory, Draw())


SERVED = [name for name in il.names() if isinstance(il.get(name).learner, GradientLearner)]


@pytest.mark.parametrize("name", SERVED)
def test_prefill_decode_prefill_is_one_pass(name: str) -> None:
    """37 tokens, then one by `step`, then 90 more: the row as it is registered, whatever its segment."""
    memory = il.get(name)
    x = Draw(heads=1, key_dim=2)(memory, 128, start="memory")

    def served(memory: il.Memory, x: Inputs, state: il.State) -> Result:
        first = chunks(None)(memory, x.tokens(0, 37), state)
        one = steps(memory, x.tokens(37, 38), first.state)
        last = chunks(None)(memory, x.tokens(38, 128), one.state)
        return Result(torch.cat([first.output, one.output, last.output], 1), last.state)

    assert_same(outcome(served, memory, x), outcome(scan, memory, x), "prefill, decode, prefill")


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
