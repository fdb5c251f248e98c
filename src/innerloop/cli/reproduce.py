"""``innerloop reproduce``: the books' experiments, run here, beside what their sources print."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from innerloop.cli.output import (
    check_directory_target,
    check_file_target,
    console,
    grid,
    one_line,
    table_console,
    write_json,
)

if TYPE_CHECKING:
    from innerloop.gallery import Experiment
    from innerloop.gallery.experiment import Outcome

OUT = Path("innerloop-gallery")


def reproduce(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID ... | all]", help="Which ones; without any, list them.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the figures go, light and dark.")] = OUT,
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write the results as JSON; - for stdout.")] = None,
) -> None:
    """Run the experiments of the books with the library's memories, and hold each value against its source's."""
    from innerloop.gallery import experiments

    known = experiments()
    check_file_target(json)
    if not ids:
        _list(known, json)
        return
    chosen = _chosen(ids, known)
    check_directory_target(out)

    stdout, remarks = table_console(json), console(stderr=True)
    results: list[dict[str, Any]] = []
    failed: list[str] = []
    interrupted = False
    for number, name in enumerate(chosen, 1):
        it = known[name]
        began = time.perf_counter()
        try:
            with remarks.status(f"{number} of {len(chosen)}: {it.id} {it.title}") as status:  # on a terminal only

                def tick(what: str, status: Any = status, it: Experiment = it, number: int = number) -> None:
                    status.update(f"{number} of {len(chosen)}: {it.id} {it.title}: {what}")

                outcome = it.run(tick)
                figures = _draw(it, outcome, out)
        except KeyboardInterrupt:
            interrupted = True
            break
        except Exception as error:  # one that fails must not hide the others
            failed.append(name)
            remarks.print(Text(f"{name} failed: {type(error).__name__}: {one_line(error)}"))
            results.append({"id": it.id, "title": it.title, "rows": [], "figures": [], "holds": False})
            continue
        _print(stdout, it, outcome, time.perf_counter() - began)
        if not outcome.holds:
            failed.append(name)
        rows = [{"name": r.name, "value": r.value, "source": r.source, "holds": r.holds} for r in outcome.rows]
        results.append({"id": it.id, "title": it.title, "rows": rows, "figures": figures, "holds": outcome.holds})
    _summary(stdout, results, failed, out)
    write_json(results, json)
    if interrupted:
        raise KeyboardInterrupt
    if failed:
        raise typer.Exit(1)


def _chosen(ids: list[str], known: dict[str, Experiment]) -> list[str]:
    if any(name.lower() == "all" for name in ids):
        return list(known)
    wanted = [name.upper() for name in ids]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"no experiment {', '.join(map(repr, unknown))}; there are {', '.join(known)}, or all")
    return list(dict.fromkeys(wanted))


def _list(known: dict[str, Experiment], json: str | None) -> None:
    table = grid(("id", "title", "source"))
    for it in known.values():
        table.add_row(*(Text(cell) for cell in (it.id, it.title, it.source)))
    table_console(json).print(table)
    write_json([{"id": it.id, "title": it.title, "source": it.source, "text": it.text} for it in known.values()], json)


def _draw(it: Experiment, outcome: Outcome, out: Path) -> list[str]:
    """Write the figures, each for a light and a dark page; the names of the files."""
    from innerloop import look
    from innerloop.core.files import write_atomic

    written: list[str] = []
    for name, picture in outcome.figures.items():
        for theme in look.THEMES:
            file = out / f"{it.id}-{name}{'' if theme == 'light' else '-dark'}.png"
            out.mkdir(parents=True, exist_ok=True)
            write_atomic(file, look.png(picture.paint, theme, size=picture.size))
            written.append(str(file))
    return written


def _print(out: Any, it: Experiment, outcome: Outcome, seconds: float) -> None:
    out.print(Text(f"{it.id}  {it.title}", style="bold"), Text(f"{it.source}; {seconds:.1f} s", style="dim"))
    short = all(len(_cell(cell)) <= 24 for row in outcome.rows for cell in (row.value, row.source))
    table = grid(("value of", "here", "source", ""), numbers=("here", "source") if short else ())  # numbers never wrap
    for row in outcome.rows:
        mark = Text("holds", style="green") if row.holds else Text("differs", style="bold red")
        table.add_row(Text(row.name), Text(_cell(row.value)), Text(_cell(row.source)), mark)
    out.print(table)
    for note in outcome.notes:
        out.print(Text(f"Note: {note}", style="dim"))
    if outcome.notes:
        out.print()


def _summary(out: Any, results: list[dict[str, Any]], failed: list[str], folder: Path) -> None:
    if len(results) > 1:
        lost = f"; not: {', '.join(failed)}" if failed else ""
        out.print(Text(f"{len(results) - len(failed)} of {len(results)} experiments hold{lost}.", style="bold"))
    if any(result["figures"] for result in results):
        console(stderr=True).print(Text(f"figures: {folder}"))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
