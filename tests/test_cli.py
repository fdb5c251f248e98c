"""The program as its users meet it: exit codes, one-line errors, what lands on stdout, and what is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import innerloop as il
from innerloop._version import __version__
from innerloop.cli.main import run


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Call the program in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def call(*args: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            run([str(arg) for arg in args])
        return Outcome(int(exit_.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    lines = ["day,x,y,word"]
    for day in range(90):
        x = rng.normal()
        lines.append(f"2024-{1 + day // 28:02d}-{1 + day % 28:02d},{x},{2 * x + 1 + 0.1 * rng.normal()},w{day}")
    path = tmp_path / "data.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def files(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def assert_refused(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err
    assert "│" not in outcome.err
    for word in words:
        assert word in outcome.err


# ------------------------------------------------------------------------------------------ the program


def test_version_and_help(cli: Cli) -> None:
    assert cli("--version") == Outcome(0, f"innerloop {__version__}\n", "")
    for args in ((), ("--help",), ("-h",)):
        outcome = cli(*args)
        assert outcome.code == 0
        assert all(command in outcome.out for command in ("list", "show", "compare", "forecast", "bench"))
    assert "--target" in cli("compare", "--help").out


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["predict"], "predict"),
        (["compare", "--colour", "red"], "--colour"),
        (["compare", "--burn-in", "many"], "--burn-in"),
        (["compare", "--target"], "--target"),
        (["compare", "a.csv", "b.csv"], "b.csv"),
        (["show"], "name"),
    ],
)
def test_usage_errors_are_one_line(cli: Cli, tmp_path: Path, args: list[str], word: str) -> None:
    assert_refused(cli(*args), word)
    assert files(tmp_path) == {}


@pytest.mark.parametrize("module", ["innerloop", "innerloop.cli"])
def test_python_m(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "show", "no_such_memory"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: no memory 'no_such_memory'")
    assert done.stderr.count("\n") == 1


def test_interruption_exits_with_130(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(pattern: str = "*") -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(il, "names", interrupt)
    assert cli("list") == Outcome(130, "", "interrupted\n")


def test_a_closed_pipe_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([sys.executable, "-m", "innerloop", "list"], stdout=write, stderr=-1, check=False)
    finally:
        os.close(write)
    assert done.returncode == 141
    assert done.stderr == b""


# ------------------------------------------------------------------------------------------ list, show


def test_list(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("list")
    assert outcome.code == 0
    assert all(name in outcome.out for name in il.names())
    rows = json.loads(cli("list", "delta", "--json", "-").out)
    assert [row["name"] for row in rows] == [name for name in il.names() if "delta" in name]
    assert all(list(row) == ["name", "what", "axes", "executor"] for row in rows)
    assert all(row["what"] and row["executor"] and isinstance(row["axes"], dict) for row in rows)
    cli("list", "*delta*", "--json", "rows.json")
    assert json.loads((tmp_path / "rows.json").read_text()) == rows
    assert_refused(cli("list", "lstm*"), "no memory matches 'lstm*'")


def test_show_every_memory(cli: Cli) -> None:
    for name in il.names():
        outcome = cli("show", name, "--json", "-")
        assert outcome.code == 0
        shown = json.loads(outcome.out)
        assert shown["name"] == name
        assert shown["equation"]
        assert shown["reference"]
        assert shown["executor"]
        assert {gate["name"] for gate in shown["gates"]} == {gate.name for gate in il.explain(name).gates}
        text = cli("show", name).out
        assert text.startswith(name)
        assert "state floats" in text


def test_show_suggests_close_names(cli: Cli) -> None:
    assert_refused(cli("show", "delta-net"), "no memory 'delta-net'", "did you mean deltanet")
    assert_refused(cli("show", "zzzz"), "no memory 'zzzz'", "innerloop list")


# ------------------------------------------------------------------------------------------ compare


def test_compare_prints_and_writes(cli: Cli, data: Path, tmp_path: Path) -> None:
    outcome = cli("compare", data, "--target", "y", "--time", "day", "--report", "page", "--json", "numbers.json")
    assert outcome.code == 0
    result = json.loads((tmp_path / "numbers.json").read_text())
    assert result["data"] == {"rows": 90, "target": "y", "features": ["x"], "dropped": 0}
    assert result == json.loads((tmp_path / "page" / "comparison.json").read_text())
    for line in result["memories"]:
        assert line["name"] in outcome.out
    assert "last_value" in outcome.out
    assert "forecasts y best" in outcome.out
    assert "Left out, not numbers: word." in outcome.out
    assert outcome.err == f"report: {Path('page', 'index.html')}\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.csv", "numbers.json", "page"]


def test_json_to_stdout_is_alone_there(cli: Cli, data: Path, tmp_path: Path) -> None:
    args = ["compare", data, "--target", "y", "--memories", "rls,deltanet", "--lags", "1, 2", "--all", "--json", "-"]
    outcome = cli(*args)
    result = json.loads(outcome.out)
    assert [line["name"] for line in result["memories"]].count("rls") == 6
    assert {line["name"] for line in result["memories"]} == {"rls", "deltanet"}
    assert result["data"]["features"] == ["x", "y[t-1]", "y[t-2]"]
    assert result["best"] == {key: result["memories"][0][key] for key in ("name", "options")}
    assert [p.name for p in tmp_path.iterdir()] == ["data.csv"]


def test_the_demo_writes_its_report_by_default(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("compare", "--memories", "longhorn")
    assert outcome.code == 0
    assert [p.name for p in tmp_path.iterdir()] == ["innerloop-report"]
    result = json.loads((tmp_path / "innerloop-report" / "comparison.json").read_text())
    assert result["data"]["target"] == "co2"
    assert len(result["data"]["features"]) == 3


BAD_TABLES = {
    "empty": ("", "is empty"),
    "header only": ("day,x,y\n", "has a header but no rows"),
    "duplicate": ("x,y,x\n1,2,3\n", "has column 'x' more than once; its columns are x, y, x"),
    "missing": ("x,z\n1,2\n", "no column 'y'; the columns are x, z"),
    "separator": ("x|y\n1|2\n", "one column, 'x|y'; separate columns with commas, semicolons or tabs"),
    "mixed separators": ("x,y\n1;2\n3;4\n", "the header is separated by a comma but the first row by a semicolon"),
    "ragged": ("x,y\n1,2\n1,2,3\n", "is not a table with 2 columns separated by a comma"),
    "word": ("x,y\n1,2\n1,high\n", "the target 'y' is not a number in row 2: 'high'"),
    "infinite": ("x,y\n1,2\n1,inf\n", "the target 'y' is infinite in row 2: inf"),
    "infinite feature": ("x,y\n-inf,2\n1,3\n", "the feature 'x' is infinite in row 1: -inf"),
    "too few": ("x,y\n1,2\n2,3\n", "too few rows: 2 complete, and a burn-in of 50 needs at least 51"),
    "constant": ("x,y\n" + "".join(f"{row},5\n" for row in range(60)), "the target 'y' is constant (5 in every row)"),
    "bom": ("\ufeffx,y\n1,2\n", "too few rows: 1 complete"),
    "binary": ("\0\0\0", "is a binary file"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables(cli: Cli, tmp_path: Path, case: str) -> None:
    text, message = BAD_TABLES[case]
    (tmp_path / "bad.csv").write_text(text, encoding="utf-8")
    before = files(tmp_path)
    assert_refused(cli("compare", "bad.csv", "--target", "y", "--report", "out", "--json", "out.json"), message)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "no target: name the column to forecast with --target; the columns are day, x, y, word"),
        (["--target", "z"], "no column 'z'; the columns are day, x, y, word"),
        (["--target", "word"], "the target 'word' is not a number in row 1: 'w0'"),
        (["--target", "y", "--features", "x,q"], "no column 'q'; the columns are day, x, y, word"),
        (["--target", "y", "--features", "x,,"], "--features 'x,,' has an empty name"),
        (["--target", "y", "--features", "x,y"], "the target 'y' cannot be a feature too"),
        (["--target", "y", "--features", "word"], "the feature 'word' is not a number in row 1: 'w0'"),
        (["--target", "y", "--lags", "0"], "lag 0 would be the target itself"),
        (["--target", "y", "--lags=-1"], "lag -1 would look into the future"),
        (["--target", "y", "--lags", "1,two"], "--lags '1,two' must be whole numbers"),
        (["--target", "y", "--lags", "89"], "too few rows"),
        (["--target", "y", "--burn-in", "0"], "a burn-in of 0 rows"),
        (["--target", "y", "--burn-in", "90"], "too few rows: 90 complete"),
        (["--target", "y", "--time", "word"], "the time 'word' is not a date in row 1: 'w0'"),
        (["--target", "y", "--memories", "rls,lstm"], "no memory 'lstm' to compare; there are rls, kalman"),
        (["--target", "y", "--json", "none/out.json"], "there is no directory none"),
        (["--target", "y", "--json", "."], "it is a directory"),
        (["--target", "y", "--json", "data.csv"], "would overwrite the input"),
        (["--target", "y", "--checkpoint", "data.csv"], "--checkpoint data.csv would overwrite the input"),
        (["--target", "y", "--checkpoint", "none/mark"], "there is no directory none"),
        (["--target", "y", "--checkpoint", "old"], "old is no innerloop checkpoint"),
        (["--target", "y", "--horizon", "0"], "a horizon of 0 rows"),
        (["--target", "y", "--forgetting", "0.9"], "--forgetting 0.9: pass auto"),
        (["--target", "y,z"], "no column 'z'; the columns are day, x, y, word"),
        (["--target", "x,y"], "nothing to forecast from"),
        (["--target", "y", "--report", "data.csv"], "data.csv is a file, not a directory"),
        (["--target", "y", "--report", "data.csv/deep/er"], "data.csv is a file, not a directory"),
    ],
)
def test_bad_requests(cli: Cli, data: Path, tmp_path: Path, args: list[str], message: str) -> None:
    (tmp_path / "old").write_text("something else")
    before = files(tmp_path)
    targets = [] if "--json" in args or "--report" in args else ["--json", "out.json", "--report", "out"]
    assert_refused(cli("compare", data.name, *args, *targets), message)
    assert files(tmp_path) == before


def test_missing_file_and_directory(cli: Cli, tmp_path: Path) -> None:
    assert_refused(cli("compare", "none.csv", "--target", "y"), "none.csv: no such file or directory")
    assert_refused(cli("compare", tmp_path, "--target", "y"), "is a directory")


def test_bad_targets_are_found_before_the_work(cli: Cli, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from innerloop.streaming.lanes import Settings

    def never(*args: Any) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr(Settings, "advance", never)
    assert_refused(cli("compare", data, "--target", "y", "--json", "none/out.json"))
    assert_refused(cli("compare", data, "--target", "y", "--report", data))


def test_an_interrupted_comparison_leaves_what_was_finished_and_goes_on(
    cli: Cli, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from innerloop.streaming import pieces
    from innerloop.streaming.lanes import Settings

    monkeypatch.setattr(pieces, "PIECE", 30)
    args = ["compare", data, "--target", "y", "--memories", "rls,kalman", "--json", "out.json", "--burn-in", 20]
    cli(*args)
    whole = json.loads((tmp_path / "out.json").read_text())
    real, calls = Settings.advance, iter(range(100))

    def sixth_is_interrupted(self: Any, events: Any) -> Any:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return real(self, events)

    monkeypatch.setattr(Settings, "advance", sixth_is_interrupted)
    outcome = cli(*args, "--checkpoint", "mark")
    assert outcome.code == 130
    assert "Interrupted after row 60 of 90." in outcome.out
    assert outcome.err == "the same command continues from here\ninterrupted\n"
    assert json.loads((tmp_path / "out.json").read_text())["data"]["scored"] == 40
    assert (tmp_path / "mark").exists()

    assert cli(*args, "--checkpoint", "mark").code == 0
    assert not (tmp_path / "mark").exists()
    again = json.loads((tmp_path / "out.json").read_text())
    for result in (whole, again):
        for line in result["memories"]:
            del line["us_per_row"]
    assert again == whole


def test_all_memories_horizon_and_several_targets(cli: Cli, data: Path, tmp_path: Path) -> None:
    args = ["--target", "y,x", "--lags", "1,2", "--horizon", "3", "--time", "day", "--report", "page", "--json", "-"]
    outcome = cli("compare", data, *args, "--memories", "all")
    assert outcome.code == 0
    result = json.loads(outcome.out)
    assert result["data"]["target"] == ["y", "x"]
    assert result["data"]["horizon"] == 3
    automatic = [line["name"] for line in result["memories"] if line["options"] == {"forgetting": "auto"}]
    assert {"rls", "kalman", "longhorn"} <= set(automatic)
    assert [part["name"] for part in result["baselines"][0]["targets"]] == ["y", "x"]
    assert (tmp_path / "page" / "drift.png").exists()


@pytest.mark.parametrize(("unit", "amount"), [("bytes", "1.5/3.0 MB"), ("rows", "1500000/3000000")])
def test_the_bar_counts_what_was_read(monkeypatch: pytest.MonkeyPatch, unit: str, amount: str) -> None:
    import io

    from rich.console import Console

    from innerloop.cli import output

    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(output, "console", lambda stderr: terminal)
    with output.progress_bar(unit, 3_000_000) as tell:
        tell("reading", 3_000_000)
        tell("rls", 0)  # the next pass
        tell("", 1_500_000)
    text = screen.getvalue()
    assert "rls" in text
    assert amount in text
    before = len(text)
    monkeypatch.setattr(output, "console", lambda stderr: Console(file=screen))
    with output.progress_bar(unit, 3) as tell:  # a file, a pipe: nothing is drawn
        tell("rls", 2)
    assert len(screen.getvalue()) == before


def test_parquet(cli: Cli, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pandas as pd

    pd.read_csv(data).to_parquet(tmp_path / "data.parquet")
    results = []
    for name in ("data.csv", "data.parquet"):
        result = json.loads(cli("compare", name, "--target", "y", "--memories", "rls", "--json", "-").out)
        results.append((result["data"], [line["rmse"] for line in result["memories"]]))
    assert results[0][0] == results[1][0]
    assert results[0][1] == pytest.approx(results[1][1])


# ------------------------------------------------------------------------------------------ bench


@pytest.fixture
def benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with small benchmarks of its own, under a name that no other module has."""
    import innerloop.cli.bench as bench

    folder = tmp_path / "checkout" / "small_benchmarks"
    folder.mkdir(parents=True)
    (folder / "helper.py").write_text("ROWS = [{'case': 'a', 'us': 1.23456}, {'case': '[b]', 'us': float('nan')}]\n")
    (folder / "fast.py").write_text("from small_benchmarks.helper import ROWS\nNAME = 'fast'\ndef run(): return ROWS\n")
    (folder / "wrong.py").write_text("NAME = 'wrong'\ndef run(): raise AssertionError('not equal')\n")
    (folder / "extra.py").write_text("import no_such_package\nNAME = 'extra'\n")
    monkeypatch.setattr(bench, "_folder", lambda: folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    for module in [name for name in sys.modules if name.startswith("small_benchmarks")]:
        del sys.modules[module]


def test_bench(cli: Cli, benchmarks: Path, tmp_path: Path) -> None:
    outcome = cli("bench", "fast", "--json", "rows.json")
    assert outcome.code == 0
    assert "1.235" in outcome.out
    assert "[b]" in outcome.out
    expected = [{"name": "fast", "rows": [{"case": "a", "us": 1.23456}, {"case": "[b]", "us": None}]}]
    assert json.loads((tmp_path / "rows.json").read_text()) == {"benchmarks": expected}


def test_bench_goes_on_after_a_failure_and_says_so(cli: Cli, benchmarks: Path) -> None:
    outcome = cli("bench")
    assert outcome.code == 1
    assert "1.235" in outcome.out
    assert "benchmark wrong failed: AssertionError: not equal" in outcome.err
    assert "skipped extra: No module named 'no_such_package'" in outcome.err
    assert_refused(cli("bench", "extra"), "benchmark extra cannot run here")
    assert_refused(cli("bench", "slow"), "no benchmark 'slow'; there are extra, fast, wrong")


def test_bench_needs_the_source_checkout(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(il, "__file__", str(tmp_path / "site-packages" / "innerloop" / "__init__.py"))
    assert_refused(cli("bench"), "benchmarks need the source checkout")
