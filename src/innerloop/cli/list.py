"""``innerloop list``: the memories, a line each."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from innerloop.cli.output import STDOUT, check_file_target, grid, table_console, write_json

# The four axes speak for themselves; the rest is worth a word only where it is not the usual.
AXES = ("architecture", "objective", "retention", "learner")
USUAL = {"window": "1", "segment": "1", "apply": "token", "anchor": "previous"}


def list_memories(
    pattern: Annotated[str, typer.Argument(help="Part of a name, or a pattern such as '*delta*'.")] = "*",
    table: Annotated[
        bool, typer.Option("--table", help="The whole design space: both papers' axes, state, cost, paper.")
    ] = False,
    markdown: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the design space as a Markdown table; - for stdout.")
    ] = None,
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write the rows as JSON; - for stdout.")] = None,
) -> None:
    """List the memories: what each is, its axes, and what runs it."""
    import innerloop as il

    check_file_target(json)
    check_file_target(markdown, "--markdown")
    if markdown == STDOUT and json == STDOUT:
        raise ValueError("--markdown - and --json -: only one of them can have stdout")
    names = il.names(pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*")
    if not names:
        raise ValueError(f"no memory matches {pattern!r}; there are {', '.join(il.names())}")
    if table or markdown is not None:
        _design_space(names, markdown, json)
        return
    rows = [_row(il.explain(name)) for name in names]
    lines = grid(("name", "what", "axes", "executor"))
    for row in rows:
        cells = (row["name"], row["what"], _short(row["axes"]), row["executor"])
        lines.add_row(*(Text(cell) for cell in cells))
    table_console(json).print(lines)
    write_json(rows, json)


def _design_space(names: list[str], markdown: str | None, json: str | None) -> None:
    from innerloop import design_space
    from innerloop.core.files import write_atomic

    rows = [row for row in design_space.rows() if row["name"] in names]
    if markdown == STDOUT:
        print(design_space.markdown(rows), end="")
    else:
        shown = ("name", "architecture", "objective", "retention", "learner", "weights", "class", "solver")
        lines = grid([column.replace("architecture", "memory") for column in shown])
        for row in rows:
            lines.add_row(*(Text(row[column]) for column in shown))
        out = table_console(json)
        out.print(lines)
        out.print(
            Text("state, cost, executor, paper and departures: innerloop show NAME, --json, --markdown", style="dim")
        )
        if markdown is not None:
            write_atomic(markdown, design_space.markdown(rows))
    write_json(rows, json)


def _row(explanation: Any) -> dict[str, Any]:
    return {
        "name": explanation.name,
        "what": explanation.summary,
        "axes": {axis: str(value) for axis, value in explanation.axes.items()},
        "executor": explanation.executor,
    }


def _short(axes: dict[str, str]) -> str:
    """``Matrix, L2, Decay(per='channel'), GradientStep, anchor=retained``."""
    words = [value.removesuffix("()") for axis, value in axes.items() if axis in AXES]
    return ", ".join(words + [f"{a}={v}" for a, v in axes.items() if a not in AXES and USUAL.get(a) != v])
