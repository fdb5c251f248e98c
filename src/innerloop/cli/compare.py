"""``innerloop compare``: which memory suits my stream? Test-then-train over every row, baselines first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from innerloop.cli.output import (
    check_directory_target,
    check_file_target,
    console,
    grid,
    split,
    table_console,
    write_json,
)

if TYPE_CHECKING:
    from innerloop.streaming import comparison as scores
    from innerloop.streaming.table import Stream

DEMO_REPORT = Path("innerloop-report")


def compare(
    data: Annotated[
        Path | None,
        typer.Argument(metavar="[DATA.csv]", help="A CSV file; without it, the weekly CO2 record of Mauna Loa."),
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="COL", help="The column to forecast.")] = None,
    features: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Columns to forecast from; default: every other column of numbers."),
    ] = None,
    lags: Annotated[
        str | None, typer.Option(metavar="1,2,52", help="Past values of the target to forecast from, in rows.")
    ] = None,
    memories: Annotated[str | None, typer.Option(metavar="rls,kalman", help="Default: all of them.")] = None,
    burn_in: Annotated[
        int, typer.Option(metavar="ROWS", help="The first rows: they set the features' scale and are not scored.")
    ] = 50,
    time: Annotated[
        str | None, typer.Option(metavar="COL", help="A column of dates, for the pictures' axis only.")
    ] = None,
    all_settings: Annotated[
        bool, typer.Option("--all", help="Show every setting of each memory, not the best one only.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write a page with pictures here; without DATA.csv, ./innerloop-report by default."
        ),
    ] = None,
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write the numbers as JSON; - for stdout.")] = None,
) -> None:
    """Which memory suits my stream? Predict every row, then learn it, with each memory and two baselines."""
    from innerloop.streaming.comparison import check_memories
    from innerloop.streaming.comparison import compare as run_comparison
    from innerloop.streaming.report import write_report

    names = check_memories(split(memories, "--memories"))
    stream = _stream(data, target, split(features, "--features"), _lags(lags), burn_in, time)
    if report is None and data is None:
        report = DEMO_REPORT
    check_file_target(json, inputs=[data] if data else [])
    check_directory_target(report)

    with _bar() as progress:
        result = run_comparison(stream, names, progress=progress)

    out = table_console(json)
    _print(out, result, all_settings)
    if report is not None:
        page = write_report(report, result, all_settings=all_settings)
        console(stderr=True).print(f"report: {page}", markup=False)
    write_json(result.to_dict(all_settings), json)
    if result.unfinished:  # what was finished is printed and written; the exit code says that it is not all
        raise KeyboardInterrupt


def _stream(
    data: Path | None,
    target: str | None,
    features: list[str] | None,
    lags: list[int] | None,
    burn_in: int,
    time: str | None,
) -> Stream:
    from innerloop.streaming import table

    if data is None:
        # The options also apply to the default stream, so that its lags can be played with.
        return table.build_stream(
            table.default_table(),
            target or table.DEFAULT_TARGET,
            features=features,
            lags=table.DEFAULT_LAGS if lags is None else lags,
            burn_in=burn_in,
            time=time or table.DEFAULT_TIME,
            source="weekly CO2 at Mauna Loa",
        )
    return table.build_stream(
        table.read_table(data),
        target,
        features=features,
        lags=lags or [],
        burn_in=burn_in,
        time=time,
        source=data.name,
    )


def _lags(text: str | None) -> list[int] | None:
    items = split(text, "--lags")
    if items is None:
        return None
    try:
        return [int(item) for item in items]
    except ValueError:
        raise ValueError(f"--lags {text!r} must be whole numbers of rows, e.g. 1,2,52") from None


@contextmanager
def _bar() -> Iterator[scores.Progress | None]:
    """A bar over the memories on stderr; nothing at all when stderr is not a terminal."""
    err = console(stderr=True)
    if not err.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total)


def _print(out: Console, result: scores.Comparison, all_settings: bool) -> None:
    from innerloop.streaming.comparison import format_number, format_options, format_skill

    numbers = ("MAE", "RMSE", "skill", "us/row", "state\nfloats")
    table = grid(("forecaster", "options", *numbers), numbers=numbers)
    memories = result.memories(all_settings)
    for line in (*result.baselines, *memories):
        errors = (format_number(line.mae), format_number(line.rmse), format_skill(line.skill))
        costs = (format_number(line.us_per_row), format_number(line.state_floats))
        cells = (line.name, format_options(line.options), *errors, *costs)
        style = "bold green" if line is result.best else "dim" if line.is_baseline else ""
        # Text, not markup: a name may hold square brackets.
        table.add_row(*(Text(cell) for cell in cells), style=style, end_section=line is result.baselines[-1])
    out.print(table)
    whole = not out.is_terminal  # a sentence in a pipe stays on its line
    out.print(Text(result.sentence(), style="bold"), soft_wrap=whole)
    for note in result.notes(all_settings):
        out.print(Text(note, style="dim"), soft_wrap=whole)
