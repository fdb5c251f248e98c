"""`innerloop forecast`: against the estimator itself, continued files against whole ones, and bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from innerloop.cli.main import run
from innerloop.streaming import pieces
from innerloop.streaming.checkpoint import pack, unpack
from innerloop.streaming.forecasting import FORM, Forecaster

BURN_IN = 20


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


def make(num: int = 160) -> pd.DataFrame:
    """Irregular days, two features, holes everywhere, and an end whose targets are not known yet."""
    rng = np.random.default_rng(7)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.cumsum(rng.choice([1, 1, 1, 2, 5], size=num)), unit="D")
    frame = pd.DataFrame({"day": days.strftime("%Y-%m-%d"), "a": rng.normal(size=num), "b": rng.normal(3, 2, size=num)})
    frame["y"] = np.linspace(1, -1, num) * frame["a"] + 0.3 * frame["b"] + 2 + 0.1 * rng.normal(size=num)
    frame["z"] = 3 * frame["b"] + rng.normal(size=num)
    frame.loc[[30, 31, 90, *range(num - 3, num)], "y"] = np.nan
    frame.loc[60, "b"] = np.nan
    frame["word"] = "w"
    return frame


@pytest.fixture
def frame(tmp_path: Path) -> pd.DataFrame:
    frame = make()
    frame.to_csv(tmp_path / "all.csv", index=False)
    return frame


USUAL = ["--target", "y", "--features", "a,b", "--burn-in", str(BURN_IN)]


def assert_refused(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err
    for word in words:
        assert word in outcome.err


def files(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


# ------------------------------------------------------------------------------------------ numbers


def test_every_row_is_forecast_by_what_was_known(cli: Cli, frame: pd.DataFrame, tmp_path: Path) -> None:
    """Against regressions that are fitted anew before each row."""
    outcome = cli("forecast", "all.csv", *USUAL, "--lags", 1, "--out", "p.csv", "--json", "s.json")
    assert outcome.code == 0
    assert outcome.err == "predictions: p.csv\n"
    found = pd.read_csv(tmp_path / "p.csv")
    assert list(found.columns) == ["row", "target", "prediction", "std"]
    np.testing.assert_array_equal(found["row"], np.arange(1, 161))
    np.testing.assert_array_equal(found["target"], frame["y"])

    raw = np.column_stack([frame["a"], frame["b"], frame["y"].shift(1)])
    y = frame["y"].to_numpy()
    pair = np.isfinite(raw).all(1) & np.isfinite(y)
    head = raw[pair][:BURN_IN]
    X = (raw - head.mean(0)) / head.std(0)
    expected = np.full(160, np.nan)
    for t in np.flatnonzero(np.isfinite(raw).all(1)):
        known = np.flatnonzero(pair[:t])
        expected[t] = Ridge(alpha=1.0).fit(X[known], y[known]).predict(X[t : t + 1])[0] if len(known) else 0.0
    np.testing.assert_allclose(found["prediction"], expected, rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(found["std"].notna(), np.isfinite(expected))

    errors = (expected - y)[pair][BURN_IN:]
    summary = json.loads((tmp_path / "s.json").read_text())
    assert summary["data"] == {
        "rows": 160,
        "learned": int(pair.sum()),
        "forecast": int(np.isfinite(expected).sum()),
        "scored": len(errors),
        "targets": ["y"],
        "features": ["a", "b", "y[t-1]"],
        "horizon": 1,
    }
    (score,) = summary["scores"]
    assert score["mae"] == pytest.approx(np.abs(errors).mean())
    assert score["rmse"] == pytest.approx(np.sqrt((errors**2).mean()))
    last = np.diff(y[pair])[BURN_IN - 1 :]
    assert score["last_value_rmse"] == pytest.approx(np.sqrt((last**2).mean()))


def test_the_numbers_are_those_of_compare(cli: Cli, frame: pd.DataFrame, tmp_path: Path) -> None:
    shared = ["--target", "y", "--lags", "1,3", "--time", "day", "--burn-in", BURN_IN]
    lines = json.loads(cli("compare", "all.csv", *shared, "--memories", "kalman", "--json", "-").out)["memories"]
    options = ",".join(f"{name}={value}" for name, value in lines[0]["options"].items())
    arguments = [*shared, "--memory", "kalman", "--options", options, "--out", "p.csv", "--json", "-"]
    summary = json.loads(cli("forecast", "all.csv", *arguments).out)
    assert summary["scores"][0]["rmse"] == pytest.approx(lines[0]["rmse"], rel=1e-9)
    assert summary["model"]["name"] == "kalman"


@pytest.mark.parametrize("memory", ["rls", "longhorn"])
def test_a_horizon_forecasts_beyond_the_end(cli: Cli, frame: pd.DataFrame, tmp_path: Path, memory: str) -> None:
    cli("forecast", "all.csv", *USUAL, "--lags", 1, "--horizon", 3, "--memory", memory, "--out", "p.csv")
    found = pd.read_csv(tmp_path / "p.csv")
    np.testing.assert_array_equal(found["forecast_row"], np.arange(3, 163))
    np.testing.assert_array_equal(found["target"], frame["y"].shift(-2))
    raw = np.column_stack([frame["a"], frame["b"], frame["y"].shift(1)])
    y = frame["y"].shift(-2).to_numpy()
    pair = np.isfinite(raw).all(1) & np.isfinite(y)
    head = raw[pair][:BURN_IN]
    X = (raw - head.mean(0)) / head.std(0)
    expected, w, taught = np.full(160, np.nan), np.zeros(4), 0
    Z = np.column_stack([X, np.ones(160)])
    for t in range(160):
        known = np.flatnonzero(pair[: max(0, t - 2)])
        for s in known[taught:]:
            w += (y[s] - Z[s] @ w) * Z[s] / (1 + Z[s] @ Z[s])
        taught = len(known)
        if np.isfinite(X[t]).all():
            fit = Ridge(alpha=1.0).fit(X[known], y[known]).predict(X[t : t + 1])[0] if len(known) else 0.0
            expected[t] = fit if memory == "rls" else Z[t] @ w
    np.testing.assert_allclose(found["prediction"], expected, rtol=1e-7, atol=1e-9)
    assert ("std" in found) == (memory == "rls")


def test_a_memory_that_diverges_has_no_score_and_says_so(cli: Cli, frame: pd.DataFrame, tmp_path: Path) -> None:
    outcome = cli("forecast", "all.csv", *USUAL, "--memory", "deltanet", "--options", "lr=1e3", "--out", "p.csv")
    found = pd.read_csv(tmp_path / "p.csv")["prediction"]
    wild = ~np.isfinite(found) & frame["b"].notna()
    first = int(np.flatnonzero(wild)[0]) + 1
    assert f"deltanet diverged: from row {first} on" in outcome.out
    cli("forecast", "all.csv", *USUAL, "--memory", "deltanet", "--options", "lr=1e3", "--out", "p.csv", "--json", "s")
    summary = json.loads((tmp_path / "s").read_text())
    assert summary["diverged"] == first
    assert summary["data"]["forecast"] == 159
    assert summary["scores"][0]["rmse"] is None
    assert summary["scores"][0]["last_value_rmse"] > 0


def test_several_targets(cli: Cli, frame: pd.DataFrame, tmp_path: Path) -> None:
    cli("forecast", "all.csv", "--target", "y,z", "--features", "a,b", "--burn-in", BURN_IN, "--out", "p.csv")
    found = pd.read_csv(tmp_path / "p.csv")
    assert list(found.columns) == ["row", *(f"{part}_{t}" for t in "yz" for part in ("target", "prediction", "std"))]
    cli("forecast", "all.csv", *USUAL, "--out", "one.csv")
    one = pd.read_csv(tmp_path / "one.csv")
    np.testing.assert_allclose(found["prediction_y"], one["prediction"], rtol=1e-9)
    np.testing.assert_array_equal(found["target_z"], frame["z"])


# ------------------------------------------------------------------------------------------ going on


VARIANTS = {
    "rls": [],
    "late": ["--horizon", "4", "--lags", "1,7"],
    "kalman by time": ["--memory", "kalman", "--time", "day", "--lags", "2"],
    "auto": ["--forgetting", "auto", "--time", "day", "--horizon", "2", "--lags", "1"],
    "longhorn": ["--memory", "longhorn", "--forgetting", "0.98", "--time", "day"],
    "kernel": ["--memory", "nadaraya_watson", "--options", "window=30", "--horizon", "2"],
    "momentum": ["--memory", "titans_linear", "--options", "lr=0.01, momentum=0.5", "--lags", "1"],
}


@pytest.mark.parametrize("cut", [45, 93, 158])
@pytest.mark.parametrize("variant", VARIANTS)
def test_two_files_are_one(cli: Cli, frame: pd.DataFrame, tmp_path: Path, variant: str, cut: int) -> None:
    frame[:cut].to_csv(tmp_path / "first.csv", index=False)
    frame[cut:].to_csv(tmp_path / "second.csv", index=False)
    options = [*USUAL, *VARIANTS[variant]]
    for args in (
        ["all.csv", *options, "--out", "p.csv", "--save", "all.model"],
        ["first.csv", *options, "--out", "p1.csv", "--save", "first.model"],
        ["second.csv", "--model", "first.model", "--out", "p2.csv", "--save", "second.model"],
    ):
        outcome = cli("forecast", *args)
        assert outcome.code == 0, outcome.err
    whole, first, second = (pd.read_csv(tmp_path / name) for name in ("p.csv", "p1.csv", "p2.csv"))
    both = pd.concat([first, second], ignore_index=True)
    for name in whole.columns.difference(["target"]):
        if name == "time":
            assert list(both[name]) == list(whole[name])
        else:
            np.testing.assert_allclose(both[name], whole[name], rtol=1e-8, atol=1e-9, err_msg=name)
    known = both["target"].notna()  # a target that the second file brings is not in the first one's lines
    np.testing.assert_array_equal(both["target"][known], whole["target"][known])
    ends = [Forecaster.load(tmp_path / name) for name in ("all.model", "second.model")]
    assert ends[0].rows == ends[1].rows == 160
    assert ends[0].lessons == ends[1].lessons
    np.testing.assert_array_equal(ends[0].reader.past, ends[1].reader.past)


def test_pieces_change_nothing(cli: Cli, frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ["forecast", "all.csv", *USUAL, "--lags", 3, "--horizon", 3, "--time", "day"]
    cli(*args, "--out", "p.csv", "--json", "s.json")
    monkeypatch.setattr(pieces, "PIECE", 2)  # fewer rows than are waiting for their targets
    cli(*args, "--out", "q.csv", "--json", "t.json")
    one, other = (pd.read_csv(tmp_path / name) for name in ("p.csv", "q.csv"))
    pd.testing.assert_frame_equal(one, other, rtol=1e-8)
    first, second = (json.loads((tmp_path / name).read_text()) for name in ("s.json", "t.json"))
    assert first["data"] == second["data"]
    assert first["scores"][0]["rmse"] == pytest.approx(second["scores"][0]["rmse"])


@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize("torn", [b"", b"999,1.5,"])
def test_an_interrupted_run_goes_on(
    cli: Cli, frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, torn: bytes
) -> None:
    monkeypatch.setattr(pieces, "PIECE", 32)
    args = ["forecast", "all.csv", *USUAL, "--lags", 1, "--horizon", 2, "--time", "day", "--forgetting", 0.97]
    cli(*args, "--out", "p.csv", "--save", "whole.model")
    real, calls = Forecaster.advance, iter(range(100))

    def interrupted(self: Forecaster, frame: pd.DataFrame) -> pd.DataFrame:
        if next(calls) == call:
            raise KeyboardInterrupt
        return real(self, frame)

    monkeypatch.setattr(Forecaster, "advance", interrupted)
    more = [*args, "--out", "q.csv", "--save", "again.model", "--checkpoint", "mark"]
    outcome = cli(*more)
    assert (outcome.code, outcome.err) == (130, "the same command continues from here\ninterrupted\n")
    assert not (tmp_path / "q.csv").exists()
    with (tmp_path / "q.csv.partial").open("ab") as file:  # a killed run may have written more than it noted
        file.write(torn)
    assert_refused(cli(*more[:-6], "--out", "r.csv", "--checkpoint", "mark"), "belongs to a run with another output")
    assert cli(*more).code == 0
    assert (tmp_path / "q.csv").read_bytes() == (tmp_path / "p.csv").read_bytes()
    assert not (tmp_path / "mark").exists()
    assert not (tmp_path / "q.csv.partial").exists()
    one, other = (Forecaster.load(tmp_path / name) for name in ("whole.model", "again.model"))
    np.testing.assert_array_equal(one.model.coef_, other.model.coef_)


def test_an_interruption_without_checkpoint_leaves_nothing(
    cli: Cli, frame: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE", 32)
    real, calls = Forecaster.advance, iter(range(100))

    def interrupted(self: Forecaster, frame: pd.DataFrame) -> pd.DataFrame:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return real(self, frame)

    monkeypatch.setattr(Forecaster, "advance", interrupted)
    before = files(tmp_path)
    assert cli("forecast", "all.csv", *USUAL, "--out", "p.csv", "--save", "m").code == 130
    assert files(tmp_path) == before


# ------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "no target: name the column to forecast with --target"),
        (["--target", "q"], "no column 'q'; the columns are day, a, b, y, z, word"),
        (["--target", "y", "--features", "word"], "the feature 'word' is not a number in row 1: 'w'"),
        (["--target", "y", "--memory", "lstm"], "memory='lstm': pass one of 'rls'"),
        (["--target", "y", "--forgetting", "much"], "--forgetting much: pass auto or a number"),
        (["--target", "y", "--forgetting", "1.5"], "forgetting=1.5: pass a number in (0, 1]"),
        (["--target", "y", "--options", "rate=1"], "--options 'rate=1': write name=value"),
        (["--target", "y", "--options", "penalty"], "--options 'penalty': write name=value"),
        (["--target", "y", "--options", "penalty=many"], "penalty='many': pass a number"),
        (["--target", "y", "--memory", "kalman", "--forgetting", "0.9"], "kalman does not read it"),
        (["--target", "y", "--burn-in", "500"], "too few rows"),
        (["--target", "y", "--time", "word"], "the time 'word' is not a date in row 1: 'w'"),
        (["--target", "y", "--out", "all.csv"], "--out all.csv would overwrite the input"),
        (["--target", "y", "--out", "./all.csv"], "would overwrite the input"),
        (["--target", "y", "--save", "all.csv"], "--save all.csv would overwrite the input"),
        (["--target", "y", "--out", "none/p.csv"], "there is no directory none"),
        (["--target", "y", "--out", "-"], "--out - would be stdout"),
        (["--target", "y", "--out", "x", "--save", "./x"], "--out and --save name the same file"),
        (["--target", "y", "--model", "m"], "--target: the saved model has decided that; leave it out with --model"),
        (["--model", "none"], "none: no such file or directory"),
        (["--model", "all.csv"], "all.csv is no innerloop forecast"),
    ],
)
def test_bad_requests(cli: Cli, frame: pd.DataFrame, tmp_path: Path, args: list[str], message: str) -> None:
    before = files(tmp_path)
    given = args if {"--out", "--save"} & set(args) else [*args, "--out", "p.csv", "--save", "m.model"]
    assert_refused(cli("forecast", "all.csv", *given), message)
    assert files(tmp_path) == before


def test_nothing_to_write_is_refused(cli: Cli, frame: pd.DataFrame) -> None:
    assert_refused(cli("forecast", "all.csv", "--target", "y"), "nothing to write")
    assert_refused(cli("forecast", "none.csv", "--target", "y", "--out", "p.csv"), "none.csv: no such file")


def test_another_file_and_a_damaged_model(cli: Cli, frame: pd.DataFrame, tmp_path: Path) -> None:
    cli("forecast", "all.csv", *USUAL, "--time", "day", "--save", "m.model")
    model = tmp_path / "m.model"
    frame[["day", "a", "y"]].to_csv(tmp_path / "less.csv", index=False)
    more = ["--model", "m.model", "--out", "p.csv"]
    assert_refused(cli("forecast", "less.csv", *more), "no column 'b'; the columns are day, a, y")
    assert_refused(cli("forecast", "all.csv", *more), "the time 'day' goes backwards in row 1: 2024-01-06")
    pd.DataFrame({"day": ["2030-01-01"], "a": ["x"], "b": [1], "y": [2]}).to_csv(tmp_path / "word.csv", index=False)
    assert_refused(cli("forecast", "word.csv", *more), "the feature 'a' is not a number in row 1: 'x'")
    assert_refused(cli("forecast", "all.csv", "--model", "m.model", "--save", "m.model"), "would overwrite the input")
    assert not list(tmp_path.glob("p.csv*"))

    data = model.read_bytes()
    bundle = unpack(FORM, model)
    damaged = {
        "cut": data[:-20],
        "empty": b"",
        "text": b"not a model",
        "other": pack("innerloop checkpoint 1", {}, {}, {}),
        "no model": pack(FORM, bundle.arrays, {}, bundle.meta),
        "bad model": pack(FORM, bundle.arrays, {"model": [b"x"]}, bundle.meta),
        "no arrays": pack(FORM, {}, bundle.parts, bundle.meta),
        "no scheme": pack(FORM, bundle.arrays, bundle.parts, {"burn_in": 3}),
        "odd scheme": pack(FORM, bundle.arrays, bundle.parts, {**bundle.meta, "scheme": {"targets": 3, "colour": 1}}),
    }
    for content in damaged.values():
        model.write_bytes(content)
        assert_refused(cli("forecast", "all.csv", *more), "m.model")
    assert not list(tmp_path.glob("p.csv*"))
