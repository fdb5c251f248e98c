"""The design-space table: generated from values, complete, and what the papers print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import innerloop as il
from innerloop import design_space
from innerloop.cli.main import main
from innerloop.gallery import experiments


def test_every_memory_has_a_row_without_gaps() -> None:
    table = design_space.rows()
    assert [row["name"] for row in table] == il.names()
    for row in table:
        assert all(row[column] for column in design_space.COLUMNS), row["name"]


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("retnet", {"retention": "fixed decay per head", "weights": "geometric, fixed", "solver": "one explicit step"}),
        ("rls", {"retention": "decay of evidence per head", "learner": "exact least squares", "class": "linear"}),
        ("atlas", {"architecture": "MLP of polynomial features", "objective": "squared loss, over the last 4 tokens"}),
        ("local_linear_attention", {"class": "local linear", "weights": "dot-product kernel around the query"}),
        ("lact", {"architecture": "gated MLP", "solver": "one step per segment", "retention": "rows keep their norms"}),
    ],
)
def test_words_of_some_rows(name: str, axes: dict[str, str]) -> None:
    got = design_space.axes(il.get(name))
    assert {key: got[key] for key in axes} == axes


def test_a_memory_of_ones_own_is_described() -> None:
    memory = il.Memory(il.MLP(1), il.Lp(2.5), il.Decay("head", toward="init"), il.GradientStep(num_steps=3))
    words = design_space.axes(memory)
    assert words["retention"] == "decay per head, toward the start"
    assert words["solver"] == "3 explicit steps"


def test_the_command(capsys: Any, tmp_path: Any) -> None:
    assert main(["list", "ttt", "--table", "--json", str(tmp_path / "t.json")]) == 0
    assert "ttt_mlp" in capsys.readouterr().out
    rows = json.loads((tmp_path / "t.json").read_text())
    assert [row["name"] for row in rows] == ["ttt_linear", "ttt_mlp"]
    assert main(["list", "rls", "--markdown", "-"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("| name | architecture |")
    assert out[2].startswith("| rls | matrix |")
    assert len(out) == 3
    assert main(["list", "--markdown", "-", "--json", "-"]) == 2


def test_the_papers_table() -> None:
    outcome = experiments()["M"].run(lambda what: None)
    assert outcome.holds
    assert outcome.value("memories in the table") == len(il.names())


def test_reproduce_lists_refuses_and_runs(capsys: Any, tmp_path: Any) -> None:
    assert main(["reproduce"]) == 0
    assert "D1" in capsys.readouterr().out
    assert main(["reproduce", "Q7"]) == 2
    assert "no experiment 'Q7'" in capsys.readouterr().err
    path = tmp_path / "r.json"
    assert main(["reproduce", "m", "D1", "--out", str(tmp_path / "figures"), "--json", str(path)]) == 0
    assert "2 of 2 experiments hold" in capsys.readouterr().out
    results = json.loads(path.read_text())
    assert [result["id"] for result in results] == ["M", "D1"]
    assert all(set(result) == {"id", "title", "rows", "figures", "holds"} for result in results)
    assert all(set(row) == {"name", "value", "source", "holds"} for result in results for row in result["rows"])
    figures = [name for result in results for name in result["figures"]]
    assert figures
    for name in figures:
        assert Path(name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_reproduce_says_when_one_does_not_hold(monkeypatch: Any, capsys: Any, tmp_path: Any) -> None:
    from innerloop.gallery import experiment

    def fails(tick: Any) -> Any:
        raise RuntimeError("no such luck")

    def differs(tick: Any) -> Any:
        return experiment.Outcome([experiment.near("pi", 3.0, 3.14159, 1e-3)])

    for name, run in (("D8", fails), ("D9", differs)):
        it = experiment.Experiment(name, "a title", "a source", run, "")
        monkeypatch.setitem(experiment._experiments, name, it)
    assert main(["reproduce", "D8", "D9", "--out", str(tmp_path)]) == 1
    out = capsys.readouterr()
    assert "D8 failed: RuntimeError: no such luck" in out.err
    assert "differs" in out.out
    assert "0 of 2 experiments hold; not: D8, D9" in out.out
