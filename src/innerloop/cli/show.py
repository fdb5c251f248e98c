"""``innerloop show``: one memory, explained."""

from __future__ import annotations

import difflib
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from innerloop.cli.output import check_file_target, grid, table_console, write_json


def show(
    name: Annotated[str, typer.Argument(help="A memory's name; `innerloop list` has them.")],
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write it as JSON; - for stdout.")] = None,
) -> None:
    """Explain a memory: its equation, axes, paper, gates, cost, and which executor runs it."""
    import innerloop as il

    check_file_target(json)
    if name not in il.names():
        raise ValueError(_unknown(name, il.names()))
    explanation = il.explain(name)
    _print(table_console(json), explanation)
    write_json({**asdict(explanation), "axes": _words(explanation.axes)}, json)


def _unknown(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name.lower().replace("-", "_"), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else "`innerloop list` has their names"
    return f"no memory {name!r}; {hint}"


def _words(values: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in values.items()}


def _print(out: Console, it: Any) -> None:
    out.print(Text(it.name, style="bold"))
    out.print(Text(it.summary))
    _block(out, "equation", it.equation)
    facts = Table.grid(padding=(0, 3))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    rows = {
        **_words(it.axes),
        "order": it.order,
        "options": ", ".join(f"{key}={value!r}" for key, value in it.options.items()) or "none",
        "reference": " ".join(it.reference.split()),
        "departs": " ".join(it.departs.split()),
        "state floats": it.state_floats,
        "FLOPs per token": it.flops,
        "gradient": it.gradient,
        "in parallel": it.parallel,
        "executor": it.executor,
    }
    for key, value in rows.items():
        facts.add_row(key, Text(str(value)))
    out.print()
    out.print(facts)
    if it.gates:
        columns = ("gate", "letter", "shape", "range", "absent", "typical", "meaning")
        table = grid(columns)
        for gate in it.gates:
            cells = (gate.name, gate.letter, gate.shape, gate.range, gate.absent, gate.typical, gate.meaning)
            table.add_row(*(Text(_cell(cell)) for cell in cells))
        out.print()
        out.print(table)
    if it.declined:
        out.print(Text("the other executors decline:", style="dim"))
        for executor, reasons in it.declined.items():
            out.print(Padding(Text(f"{executor}: {'; '.join(reasons)}"), (0, 0, 0, 2)))


def _block(out: Console, title: str, text: str) -> None:
    out.print()
    out.print(Text(title, style="dim"))
    out.print(Padding(Text(str(text).strip("\n")), (0, 0, 0, 2)))


def _cell(value: Any) -> str:
    return "" if value is None else str(value)
