"""``innerloop list``: the memories, a line each."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from innerloop.cli.output import check_file_target, grid, table_console, write_json

# The four axes speak for themselves; the rest is worth a word only where it is not the usual.
AXES = ("architecture", "objective", "retention", "learner")
USUAL = {"window": "1", "segment": "1", "apply": "token", "anchor": "previous"}


def list_memories(
    pattern: Annotated[str, typer.Argument(help="Part of a name, or a pattern such as '*delta*'.")] = "*",
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write the rows as JSON; - for stdout.")] = None,
) -> None:
    """List the memories: what each is, its axes, and what runs it."""
    import innerloop as il

    check_file_target(json)
    names = il.names(pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*")
    if not names:
        raise ValueError(f"no memory matches {pattern!r}; there are {', '.join(il.names())}")
    rows = [_row(il.explain(name)) for name in names]
    table = grid(("name", "what", "axes", "executor"))
    for row in rows:
        cells = (row["name"], row["what"], _short(row["axes"]), row["executor"])
        table.add_row(*(Text(cell) for cell in cells))
    table_console(json).print(table)
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
