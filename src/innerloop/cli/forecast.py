"""``innerloop forecast``: one memory on one stream; predictions of every row, and a model for the next file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from innerloop.cli.output import (
    check_file_target,
    console,
    grid,
    progress_bar,
    split,
    split_rows,
    table_console,
    write_json,
)

if TYPE_CHECKING:
    from innerloop.streaming.checkpoint import Bundle, Checkpoint
    from innerloop.streaming.forecasting import Forecaster, Forecasts
    from innerloop.streaming.pieces import Source

Tell = Callable[[str, int], None]


def forecast(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A CSV or Parquet file.")],
    target: Annotated[str | None, typer.Option(metavar="A,B", help="The column to forecast, or several.")] = None,
    features: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Columns to forecast from; default: every other column of numbers."),
    ] = None,
    lags: Annotated[
        str | None, typer.Option(metavar="1,2,52", help="Past values of the target to forecast from, in rows.")
    ] = None,
    horizon: Annotated[
        int | None,
        typer.Option(metavar="ROWS", help="How far ahead: 1 (default) forecasts the row itself, 2 the row after it."),
    ] = None,
    memory: Annotated[str | None, typer.Option(metavar="NAME", help="Default: rls.")] = None,
    forgetting: Annotated[
        str | None, typer.Option(metavar="auto|0.99", help="Fraction of the evidence kept per row; auto mixes a bank.")
    ] = None,
    options: Annotated[
        str | None,
        typer.Option(metavar="process_noise=1e-05", help="Options of the memory, as `innerloop compare` prints them."),
    ] = None,
    burn_in: Annotated[
        int | None,
        typer.Option(metavar="ROWS", help="The first rows (50): they set the features' scale and are not scored."),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(metavar="COL", help="A column of dates or numbers: memories forget by the time that passes."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="FILE", help="Continue a saved model: DATA goes on where its data ended.")
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write the predictions as CSV.")] = None,
    save: Annotated[str | None, typer.Option(metavar="FILE", help="Save the model, for --model later.")] = None,
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write a summary as JSON; - for stdout.")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Save the run here as it goes; run again, it continues. Removed at the end."),
    ] = None,
) -> None:
    """Forecast every row of a file with one memory, learn it, and save the model for the next file.

    Rows without a target, at the end or between, are forecast and not learned.
    """
    from innerloop.streaming.checkpoint import Checkpoint
    from innerloop.streaming.forecasting import Forecaster, Forecasts
    from innerloop.streaming.pieces import open_source

    _check_targets(data, model, {"--out": out, "--save": save, "--json": json, "--checkpoint": checkpoint})
    made = {
        "--target": target,
        "--features": features,
        "--lags": lags,
        "--horizon": horizon,
        "--memory": memory,
        "--forgetting": forgetting,
        "--options": options,
        "--burn-in": burn_in,
        "--time": time,
    }
    settled = [name for name, value in made.items() if value is not None]
    if model is not None and settled:
        raise ValueError(f"{', '.join(settled)}: the saved model has decided that; leave it out with --model")

    source = open_source(data)
    with progress_bar(source.unit, source.size) as tell:
        if model is None:
            forecaster, digest = _start(source, made, tell)
        else:
            forecaster = Forecaster.load(model)
            digest = hashlib.blake2b(Path(model).read_bytes(), digest_size=16).hexdigest()
        began = forecaster.lessons
        burn_in_left = max(0, forecaster.burn_in - began)
        lines = Forecasts(out, forecaster.scheme, burn_in_left)
        given = forecaster.model.get_params(deep=False)
        key = {
            "command": "forecast",
            "data": [data.name, data.stat().st_size, data.stat().st_mtime_ns],
            "model": digest,
            "options": {name: repr(value) for name, value in given.items()},
            "output": out,
        }
        mark = Checkpoint(checkpoint, key)
        forecaster = _run(source, forecaster, lines, mark, tell)
        lines.close()
    if save is not None:
        forecaster.save(save)
    mark.remove()
    summary = _summary(forecaster, lines, began)
    _print(json, summary, forecaster, {"predictions": out, "model": save})
    write_json(summary, json)


def _check_targets(data: Path, model: str | None, targets: dict[str, str | None]) -> None:
    inputs = [data, *([Path(model)] if model else [])]
    taken: dict[Path, str] = {}
    for option, name in targets.items():
        check_file_target(name, option, inputs=inputs, piped=option == "--json")
        if name is None or (name == "-" and option == "--json"):
            continue
        other = taken.setdefault(Path(name).resolve(), option)
        if other != option:
            raise ValueError(f"{other} and {option} name the same file, {name}")
    if targets["--out"] is None and targets["--save"] is None:
        raise ValueError("nothing to write: name a file for the predictions with --out, or for the model with --save")


def _start(source: Source, made: dict[str, Any], tell: Tell) -> tuple[Forecaster, str]:
    """A fresh forecaster of the file, and what identifies it."""
    from innerloop.streaming.forecasting import Forecaster
    from innerloop.streaming.survey import DEFAULT_BURN_IN, build_stream

    name = made["--memory"] or "rls"
    given = _options(made["--options"])
    if made["--forgetting"] is not None:
        given["forgetting"] = _forgetting(made["--forgetting"])
    stream = build_stream(
        source,
        split(made["--target"], "--target"),
        features=split(made["--features"], "--features"),
        lags=split_rows(made["--lags"], "--lags") or [],
        horizon=1 if made["--horizon"] is None else made["--horizon"],
        burn_in=DEFAULT_BURN_IN if made["--burn-in"] is None else made["--burn-in"],
        time=made["--time"],
        tell=lambda done: tell("reading", done),
    )
    return Forecaster.start(stream, name, given), f"{stream.digest} {stream.scheme}"


def _forgetting(text: str) -> float | str:
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--forgetting {text}: pass auto or a number in (0, 1], e.g. 0.99") from None


def _options(text: str | None) -> dict[str, Any]:
    """``forgetting=0.95, penalty=1`` as keywords."""
    from innerloop.streaming.settings import Setting

    found: dict[str, Any] = {}
    for item in split(text, "--options") or []:
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or name not in Setting.__dataclass_fields__:
            known = ", ".join(Setting.__dataclass_fields__)
            raise ValueError(f"--options {item!r}: write name=value, separated by commas; the names are {known}")
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return {"True": True, "False": False, "None": None}.get(text, text)


def _run(source: Source, forecaster: Forecaster, lines: Forecasts, mark: Checkpoint, tell: Tell) -> Forecaster:
    """Every piece of the file; an interruption leaves the checkpoint, or nothing."""
    from innerloop.streaming.forecasting import Forecaster

    done = 0

    def read(bytes_read: int) -> None:
        nonlocal done
        done = bytes_read

    begun = 0
    if (bundle := mark.load()) is not None:
        begun = bundle.meta["pieces"]
        forecaster = Forecaster.from_bundle(_part(bundle, "model"))
        lines.restore(_part(bundle, "lines"))
    finished = False
    try:
        for number, frame in enumerate(source.pieces(read)):
            if number >= begun:
                lines.add(forecaster.advance(frame))
                tell(str(forecaster.model.memory), done)
                _save(mark, number + 1, forecaster, lines)
        finished = True
    finally:
        if not finished and mark.path is None:
            lines.discard()
        elif not finished and mark.path is not None and mark.path.exists():
            console(stderr=True).print("the same command continues from here", markup=False)
    return forecaster


def _save(mark: Checkpoint, pieces: int, forecaster: Forecaster, lines: Forecasts) -> None:
    if mark.path is None:
        return
    bundles = {"model": forecaster.to_bundle(), "lines": lines.to_bundle()}
    arrays = {f"{name}/{key}": a for name, bundle in bundles.items() for key, a in bundle.arrays.items()}
    parts = {f"{name}/{key}": p for name, bundle in bundles.items() for key, p in bundle.parts.items()}
    mark.save(arrays, parts, {"pieces": pieces, **{name: bundle.meta for name, bundle in bundles.items()}})


def _part(bundle: Bundle, name: str) -> Bundle:
    from innerloop.streaming.checkpoint import Bundle as Whole

    start = f"{name}/"
    arrays = {key.removeprefix(start): array for key, array in bundle.arrays.items() if key.startswith(start)}
    parts = {key.removeprefix(start): part for key, part in bundle.parts.items() if key.startswith(start)}
    return Whole(arrays, parts, bundle.meta[name])


def _summary(forecaster: Forecaster, lines: Forecasts, began: int) -> dict[str, Any]:
    scheme, model = forecaster.scheme, forecaster.model
    return {
        "data": {
            "rows": lines.rows,
            "learned": forecaster.lessons - began,
            "forecast": lines.forecast,
            "scored": lines.scored,
            "targets": list(scheme.targets),
            "features": list(scheme.names),
            "horizon": scheme.horizon,
        },
        "model": {"name": model.memory, "options": _changed(model), "rows": forecaster.rows},
        "scores": lines.scores(),
    } | ({"diverged": lines.diverged} if lines.diverged else {})


def _changed(model: Any) -> dict[str, Any]:
    usual = type(model)().get_params(deep=False)
    return {name: value for name, value in model.get_params(deep=False).items() if value != usual[name]}


def _print(json: str | None, summary: dict[str, Any], forecaster: Forecaster, written: dict[str, str | None]) -> None:
    from innerloop.streaming.results import format_number, format_options, format_skill

    out = table_console(json)
    numbers = ("MAE", "RMSE", "last value's\nRMSE", "skill")
    table = grid(("target", *numbers), numbers=numbers)
    for score in summary["scores"]:
        cells = (format_number(score["mae"]), format_number(score["rmse"]), format_number(score["last_value_rmse"]))
        table.add_row(Text(score["target"]), *cells, format_skill(score["skill"]))
    out.print(table)
    data, model = summary["data"], summary["model"]
    options = {name: value for name, value in model["options"].items() if name != "memory"}
    name = f"{model['name']}({format_options(options)})" if options else model["name"]
    ahead = f", {data['horizon']} rows ahead" if data["horizon"] > 1 else ""
    text = (
        f"{name}: {data['rows']:,} rows, {data['forecast']:,} forecast{ahead}, {data['learned']:,} learned, "
        f"{data['scored']:,} scored."
    )
    out.print(Text(text), soft_wrap=not out.is_terminal)
    if "diverged" in summary:
        text = f"{model['name']} diverged: from row {summary['diverged']:,} on its predictions are no numbers; "
        text += "take longhorn, rls or kalman."
        out.print(Text(text, style="bold"), soft_wrap=not out.is_terminal)
    for what, path in written.items():
        if path is not None:
            console(stderr=True).print(f"{what}: {path}", markup=False)
