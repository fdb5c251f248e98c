"""The library against numpy loops that share nothing with it (`independent.py`), and against hand-worked numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch

import innerloop as il
from independent import HAND_CASES, ROWS, check_by_hand
from independent_deep import DEEP_HAND_CASES, DEEP_ROWS, Answer, Call, check_deep_by_hand, descend
from independent_deep_cases import MORE, OTHERS
from innerloop.core import registry
from innerloop.testing import Draw, assert_close
from innerloop.testing.check import body, chunks, scan, steps
from innerloop.testing.inputs import Inputs

torch.set_num_threads(1)

RUNS = {"scan": scan, "chunked": chunks(None), "chunked 4": chunks(4), "step": steps}
CASES = [(name, dict(case)) for name in ROWS for case in registry.entry(name).cases]
DEEP_CASES = [
    (name, options)
    for name in DEEP_ROWS
    for options in [*(dict(case) for case in registry.entry(name).cases), *MORE[name]]
]
ORDERS = pytest.mark.parametrize("order", ["write-read", "read-write"])
NO_PRIOR = (
    "mesa",
    "nadaraya_watson",
    "softmax_attention",
    "local_linear_attention",
)  # their penalty pulls to 0, if any
INDEPENDENT_OF = {"momentum": "buffers/S"}  # where the state keeps what the numpy loop calls so


def test_every_row_has_an_independent_form() -> None:
    assert set(ROWS) | set(DEEP_ROWS) == set(il.names())
    assert not set(ROWS) & set(DEEP_ROWS)
    by_hand = {case[0] for case in HAND_CASES + DEEP_HAND_CASES}
    assert by_hand == set(il.names()), "every row is worked out by hand at least once"


def _gates(x: Inputs, b: int, h: int) -> dict[str, Any]:
    return {name: g[b, :, h].numpy() for name, g in x.gates._asdict().items() if g is not None}


@ORDERS
@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda x: str(x))
def test_rows(name: str, options: dict[str, Any], order: Any) -> None:
    """Outputs and final memories, random gates and initial memories, several seeds."""
    memory = replace(il.get(name, **options), order=order)
    plain = {n: value for n, value in options.items() if n != "decay"}
    for seed, tokens, start in ((0, 14, "zero"), (1, 9, "memory"), (2, 30, "zero")):
        x = Draw(seed=seed)(memory, tokens, start="zero")
        S0 = None
        if start == "memory" and name not in NO_PRIOR and options.get("rule") != "static":
            S0 = torch.randn(2, 2, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
            # a prior mean of Ridge: gram I (its factor, see Inputs, is 0), moment I S0
            prior = isinstance(memory.learner, il.Ridge)
            x = replace(x, start={"gram": torch.zeros(1, 1, 4, 4), "moment": S0} if prior else {"S": S0})
        for what, run in RUNS.items():
            result = run(memory, x, x.state(memory))
            for b in range(2):
                for h in range(2):
                    more = {} if S0 is None else {"S0": S0[b, h].numpy()}
                    q, k, v = (t[b, :, h].numpy() for t in (x.q, x.k, x.v))
                    wanted, final = ROWS[name](q, k, v, _gates(x, b, h), order, **plain, **more)
                    assert_close(result.output[b, :, h], torch.from_numpy(wanted), f"{what}, seed {seed}")
                    after = body(result.state)
                    for entry, value in final.items():
                        mine = after[INDEPENDENT_OF.get(entry, f"memory/{entry}")][b, h]
                        assert_close(mine, torch.from_numpy(value), f"{what}, seed {seed}: final {entry}")


@pytest.mark.parametrize(
    ("name", "options", "scalars"),
    [
        ("rls", {}, ["penalty"]),
        ("rls", {"rule": "static"}, ["penalty"]),
        ("rls", {"rule": "regularized"}, ["penalty"]),
        ("rls", {"rule": "directional"}, ["penalty"]),
        ("mesa", {}, ["penalty"]),
        ("kalman", {}, ["process_noise", "prior_variance", "observation_noise"]),
        ("nadaraya_watson", {}, ["bandwidth"]),
        ("local_linear_attention", {}, ["penalty"]),
    ],
)
def test_overridden_scalars(name: str, options: dict[str, Any], scalars: list[str]) -> None:
    """A tensor in `initial` is a setting of its own per batch row and head, and per channel where the axis says so."""
    memory = il.get(name, **options)
    x = Draw(seed=3)(memory, 20, start="parameters")
    x = replace(x, start={n: 3 * x.start[n] for n in scalars})
    for what, run in RUNS.items():
        output = run(memory, x, x.state(memory)).output
        for b in range(2):
            for h in range(2):
                settings = {n: t[b, h].numpy() if t.ndim == 3 else float(t[b, h]) for n, t in x.start.items()}
                q, k, v = (t[b, :, h].numpy() for t in (x.q, x.k, x.v))
                wanted, _ = ROWS[name](q, k, v, _gates(x, b, h), memory.order, **options, **settings)
                assert_close(output[b, :, h], torch.from_numpy(wanted), what)


@pytest.mark.parametrize("index", range(len(HAND_CASES)), ids=lambda i: f"{i}-{HAND_CASES[i][0]}")
def test_by_hand(index: int) -> None:
    """Numbers worked out on paper, held against the numpy loop and against every form of the library."""
    check_by_hand(*HAND_CASES[index])
    name, q, k, v, wanted, *rest = HAND_CASES[index]
    gates, options, final = (dict(x) for x in (*rest, *({},) * (3 - len(rest))))
    q, k, v, wanted = (torch.tensor(np.reshape(np.asarray(x, float), (len(x), -1))) for x in (q, k, v, wanted))
    order, S0, head = options.pop("order", "write-read"), options.pop("S0", None), options.pop("head", 0)
    decays = "log_decay" in gates and name in ("longhorn", "efla")
    memory = replace(il.get(name, **options, **({"decay": True} if decays else {})), order=order)

    def lift(x: Any) -> torch.Tensor:  # one batch row; as many heads as the case's head needs, all alike
        x = torch.as_tensor(np.asarray(x, float))
        return x[None, :, None].expand(1, x.shape[0], head + 1, *x.shape[1:])

    given = il.Gates(**{n: lift(g) for n, g in gates.items()})
    start = {} if S0 is None else {"S": torch.as_tensor(np.asarray(S0, float))[None, None]}
    x = Inputs(lift(q), lift(k), lift(v), given, start)
    for what, run in RUNS.items():
        result = run(memory, x, x.state(memory))
        assert_close(result.output[0, :, head], wanted, what)
        after = body(result.state)
        for entry, value in final.items():
            mine = after[INDEPENDENT_OF.get(entry, f"memory/{entry}")][0, head]
            assert_close(mine.flatten(), torch.as_tensor(np.ravel(np.asarray(value, float))), f"{what}: final {entry}")


@pytest.mark.parametrize("index", range(len(DEEP_HAND_CASES)), ids=lambda i: f"{i}-{DEEP_HAND_CASES[i][0]}")
def test_deep_by_hand(index: int) -> None:
    """The deep rows' numbers worked out on paper, likewise."""
    check_deep_by_hand(*DEEP_HAND_CASES[index])
    name, q, k, v, wanted, start, *rest = DEEP_HAND_CASES[index]
    gates, options, final = (dict(x) for x in (*rest, *({},) * (3 - len(rest))))
    q, k, v, wanted = (torch.tensor(np.reshape(np.asarray(x, float), (len(x), -1))) for x in (q, k, v, wanted))
    memory = il.get(name, **options)
    if name in ("moneta", "yaad", "memora"):  # no option for the width, which on paper is K
        memory = replace(memory, architecture=replace(memory.architecture, expansion=1))

    def lift(x: Any) -> torch.Tensor:  # one batch row, one head
        return torch.as_tensor(np.asarray(x, float))[None, :, None]

    given = il.Gates(**{n: lift(g) for n, g in gates.items()})
    made = {n: torch.as_tensor(np.asarray(w, float))[None, None] for n, w in start.items()}
    x = Inputs(lift(q), lift(k), lift(v), given, made)
    for what, run in RUNS.items():
        result = run(memory, x, x.state(memory))
        assert_close(result.output[0, :, 0], wanted, what)
        after = body(result.state)
        for entry, value in final.items():
            mine = after[entry].flatten()
            assert_close(mine, torch.as_tensor(np.ravel(np.asarray(value, float))), f"{what}: {entry}", scale=1e-12)


def _inputs(memory: il.Memory, seed: int, tokens: int, K: int, V: int, gated: bool) -> Inputs:
    """Random arguments, weights and gates, step sizes small enough for what is compared to stay near 1."""
    rng = np.random.default_rng(seed)
    head = (2, tokens, 2)
    last = {"lr": (V,) if memory.rate_per == "channel" else (3,) * bool(memory.architecture.rates)}
    last["log_decay"] = (K,) if getattr(memory.retention, "per", "head") == "channel" else ()
    gates = {n: rng.uniform(0.05, 0.95, head + {"window": (memory.window,), **last}.get(n, ())) for n in memory.reads}
    size = 0.1 / memory.window
    gates = {n: size * g if n == "lr" else -0.3 * g if n.endswith("log_decay") else g for n, g in gates.items()}
    if not gated:
        gates = {"lr": gates["lr"]}
    start = {
        n: rng.normal(size=(2, 2, *s)) / (s[0] ** 0.5 if len(s) == 2 else 1) for n, s in memory.shapes(K, V).items()
    }
    q, k, v = rng.normal(size=(*head, K)), rng.normal(size=(*head, K)) / K**0.5, rng.normal(size=(*head, V))
    tensor = torch.from_numpy
    given = il.Gates(**{n: tensor(g) for n, g in gates.items()})
    return Inputs(tensor(q), tensor(k), tensor(v), given, {n: tensor(w) for n, w in start.items()})


def _compare(memory: il.Memory, x: Inputs, oracle: Callable[[Call], Answer], what: str, scale: float = 0.0) -> None:
    wanted = {}
    for b, h in np.ndindex(2, 2):
        gates = {n: g[b, :, h].numpy() for n, g in x.gates._asdict().items() if g is not None}
        start = {n: w[b, h].numpy() for n, w in x.start.items()}
        q, k, v = (t[b, :, h].numpy() for t in (x.q, x.k, x.v))
        wanted[b, h] = oracle(Call(q, k, v, gates, start, memory.order))
        assert abs(wanted[b, h][0]).max(initial=0) < 1e4, f"{what}: a comparison of what grows compares rounding"
    for how, run in RUNS.items():
        result = run(memory, x, x.state(memory))
        after = body(result.state)
        for (b, h), (outputs, final) in wanted.items():
            assert_close(result.output[b, :, h], torch.from_numpy(outputs), f"{what}, {how}")
            for entry, value in final.items():
                mine = after[entry][b, h].reshape(value.shape)  # a bias's buffer may be a matrix of one row
                assert_close(mine, torch.as_tensor(value), f"{what}, {how}: final {entry}", scale=scale)


CALLS = [(0, 13, 4, 3, True), (1, 10, 3, 5, True), (2, 16, 3, 3, False)]


@ORDERS
@pytest.mark.parametrize(("name", "options"), DEEP_CASES, ids=str)
def test_deep_rows(name: str, options: dict[str, Any], order: Any) -> None:
    """Random gates and weights; K above, below and at V; segments that end and segments that do not; absent gates."""
    memory = replace(il.get(name, **options), order=order)
    for seed, *sizes in CALLS:
        x = _inputs(memory, seed, *sizes)
        _compare(memory, x, lambda call: DEEP_ROWS[name](call, **options), f"seed {seed}")


@ORDERS
@pytest.mark.parametrize("name", OTHERS)
def test_memories_that_are_no_row(name: str, order: Any) -> None:
    memory, equation = OTHERS[name]
    memory = replace(memory, order=order)
    absent = {"lr": 1.0, "log_decay": 0.0, "momentum": 0.9, "delta": getattr(memory.objective, "delta", 1.0)}

    def oracle(call: Call) -> Answer:
        gate = {n: np.full(len(call.q), value) for n, value in absent.items()} | dict(call.gates)
        return descend(call, gate, **equation)

    for seed, *sizes in CALLS:
        _compare(memory, _inputs(memory, seed, *sizes), oracle, f"seed {seed}")


@pytest.mark.parametrize("name", DEEP_ROWS)
def test_edges(name: str) -> None:
    """Zero keys, step sizes of 0, momentum 0, and one token that forgets everything."""
    options = dict(registry.entry(name).cases[-1])
    memory = il.get(name, **options)
    x = _inputs(memory, 5, 12, 4, 3, True)
    gates, k = {n: g.clone() for n, g in x.gates._asdict().items() if g is not None}, x.k.clone()
    k[:, 1::3] = 0
    for gate, tokens, value in (
        ("lr", slice(0, None, 4), 0.0), ("momentum", slice(1, None, 3), 0.0), ("log_decay", 6, -torch.inf),
        ("precond_log_decay", 4, -torch.inf),
    ):  # fmt: skip
        if gate in gates:
            gates[gate][:, tokens] = value
    x = replace(x, k=k, gates=il.Gates(**gates))
    _compare(memory, x, lambda call: DEEP_ROWS[name](call, **options), "edges", scale=1e-3)


@pytest.mark.parametrize("name", ["ttt_linear", "ttt_mlp", "titans", "moneta", "atlas", "lact", "adam_memory"])
def test_default_weights(name: str) -> None:
    """Normal of variance 1 / fan in (TTT: .02^2), from numpy's generator 0, layer by layer, the same for the batch."""
    memory = il.get(name)
    state = il.init_state(memory, 2, 3, 4, 5, dtype=torch.float64)
    rng = np.random.default_rng(0)
    for entry, shape in memory.shapes(4, 5).items():
        wanted = np.zeros((1, 3, *shape))
        if len(shape) == 2 and entry != "S":
            std = 0.02 if name.startswith("ttt") else 1 / sqrt(shape[0])
            wanted = std * rng.standard_normal((1, 3, *shape))
        elif entry == "norm_weight":
            wanted = wanted + 1
        elif entry == "feature_coefficients":
            wanted = wanted + np.array([1, 1, 1 / 2])
        assert_close(state.memory[entry], torch.from_numpy(np.repeat(wanted, 2, 0)), f"{name}: {entry}")
