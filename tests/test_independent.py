"""The library against numpy loops that share nothing with it (`independent.py`), and against hand-worked numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import innerloop as il
from independent import HAND_CASES, ROWS, check_by_hand
from innerloop.core import registry
from innerloop.testing import Draw, assert_close
from innerloop.testing.check import body, chunks, scan, steps
from innerloop.testing.inputs import Inputs

torch.set_num_threads(1)

RUNS = {"scan": scan, "chunked": chunks(None), "chunked 4": chunks(4), "step": steps}
CASES = [(name, dict(case)) for name in il.names() for case in registry.entry(name).cases]
NO_PRIOR = (
    "mesa",
    "nadaraya_watson",
    "softmax_attention",
    "local_linear_attention",
)  # their penalty pulls to 0, if any
INDEPENDENT_OF = {"momentum": "buffers/S"}  # where the state keeps what the numpy loop calls so


def test_every_row_has_an_independent_form() -> None:
    assert set(ROWS) == set(il.names())
    assert {case[0] for case in HAND_CASES} == set(il.names()), "every row is worked out by hand at least once"


def _gates(x: Inputs, b: int, h: int) -> dict[str, Any]:
    return {name: g[b, :, h].numpy() for name, g in x.gates._asdict().items() if g is not None}


@pytest.mark.parametrize("order", ["write-read", "read-write"])
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
