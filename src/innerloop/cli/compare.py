"""``innerloop compare``: which memory suits my stream? Test-then-train over every row, baselines first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from innerloop.cli.output import (
    check_directory_target,
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
    from innerloop.streaming.results import Comparison

DEMO_REPORT = Path("innerloop-report")
ALL = "all"


def compare(
    data: Annotated[
        Path | None,
        typer.Argument(metavar="[DATA]", help="A CSV or Parquet file; without it, the weekly CO2 record of Mauna Loa."),
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="A,B", help="The column to forecast, or several.")] = None,
    features: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Columns to forecast from; default: every other column of numbers."),
    ] = None,
    lags: Annotated[
        str | None, typer.Option(metavar="1,2,52", help="Past values of the target to forecast from, in rows.")
    ] = None,
    horizon: Annotated[
        int,
        typer.Option(metavar="ROWS", help="How far ahead: 1 forecasts the row itself, 2 the row after it, and so on."),
    ] = 1,
    memories: Annotated[
        str | None,
        typer.Option(metavar="rls,kalman", help="Default: all but the automatic ones; `all`: these too."),
    ] = None,
    forgetting: Annotated[
        str | None,
        typer.Option(metavar="auto", help="`auto` adds each memory's automatic line: a bank of settings, mixed."),
    ] = None,
    burn_in: Annotated[
        int, typer.Option(metavar="ROWS", help="The first rows: they set the features' scale and are not scored.")
    ] = 50,
    time: Annotated[
        str | None,
        typer.Option(metavar="COL", help="A column of dates or numbers: memories forget by the time that passes."),
    ] = None,
    all_settings: Annotated[
        bool, typer.Option("--all", help="Show every setting of each memory, not the best one only.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write a page with pictures here; without DATA, ./innerloop-report by default."
        ),
    ] = None,
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write the numbers as JSON; - for stdout.")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Save the run here as it goes; run again, it continues. Removed at the end."),
    ] = None,
) -> None:
    """Which memory suits my stream? Predict every row, then learn it, with each memory and two baselines."""
    from innerloop.streaming import survey
    from innerloop.streaming.comparison import MEMORIES, check_memories
    from innerloop.streaming.comparison import compare as run_comparison
    from innerloop.streaming.pieces import open_source

    if forgetting not in (None, "auto"):
        raise ValueError(f"--forgetting {forgetting}: pass auto, or leave it out: the usual rates are tried anyway")
    everything = memories == ALL
    names = MEMORIES if everything else check_memories(split(memories, "--memories"))
    targets, columns, past = split(target, "--target"), split(features, "--features"), split_rows(lags, "--lags")
    inputs = [data] if data else []
    check_file_target(json, inputs=inputs)
    check_file_target(checkpoint, "--checkpoint", inputs=inputs, piped=False)
    if report is None and data is None:
        report = DEMO_REPORT
    check_directory_target(report)
    if data is None:  # the options also apply to the default stream, so that its lags can be played with
        source = survey.default_source()
        targets, past = targets or [survey.DEFAULT_TARGET], survey.DEFAULT_LAGS if past is None else past
        time = time or survey.DEFAULT_TIME
    else:
        source = open_source(data)

    with progress_bar(source.unit, source.size) as progress:
        stream = survey.build_stream(
            source,
            targets,
            features=columns,
            lags=past or [],
            horizon=horizon,
            burn_in=burn_in,
            time=time,
            tell=lambda done: progress("reading", done),
        )
        result = run_comparison(
            stream,
            names,
            automatic=everything or forgetting == "auto",
            progress=progress,
            checkpoint=checkpoint,
        )

    out = table_console(json)
    _print(out, result, all_settings)
    write_json(result.to_dict(all_settings), json)
    if report is not None:
        page = _report(report, result, all_settings)
        console(stderr=True).print(f"report: {page}", markup=False)
    if not result.complete:  # what was finished is printed and written; the exit code says that it is not all
        if checkpoint is not None:
            console(stderr=True).print("the same command continues from here", markup=False)
        raise KeyboardInterrupt


def _report(folder: Path, result: Comparison, all_settings: bool) -> Path:
    from innerloop.streaming.report import write_report
    from innerloop.streaming.traces import trace, traced_lines

    source = result.stream.source
    with progress_bar(source.unit, source.size) as progress:
        traces = [trace(result, line, lambda done: progress("drawing", done)) for line in traced_lines(result)]
    return write_report(folder, result, traces, all_settings=all_settings)


def _print(out: Console, result: Comparison, all_settings: bool) -> None:
    from innerloop.streaming.results import format_number, format_options, format_skill

    targets = result.stream.scheme.targets
    scores = ("MAE", "RMSE") if len(targets) == 1 else tuple(f"RMSE\n{target}" for target in targets)
    numbers = (*scores, "skill", "us/row", "state\nfloats")
    table = grid(("forecaster", "options", *numbers), numbers=numbers)
    memories = result.memories(all_settings)
    for line in (*result.baselines, *memories):
        errors = (line.mae, line.rmse) if len(targets) == 1 else tuple(score.rmse for score in line.each)
        costs = (format_number(line.us_per_row), format_number(line.state_floats))
        cells = (line.name, format_options(line.options), *map(format_number, errors), format_skill(line.skill), *costs)
        style = "bold green" if line is result.best else "dim" if line.is_baseline else ""
        # Text, not markup: a name may hold square brackets.
        table.add_row(*(Text(cell) for cell in cells), style=style, end_section=line is result.baselines[-1])
    out.print(table)
    whole = not out.is_terminal  # a sentence in a pipe stays on its line
    out.print(Text(result.sentence(), style="bold"), soft_wrap=whole)
    for note in result.notes(all_settings):
        out.print(Text(note, style="dim"), soft_wrap=whole)
