"""``innerloop bench``: the speed claims, measured here. The benchmarks live in the source checkout.

A benchmark is a module in ``benchmarks/`` with ``NAME: str`` and ``run() -> list[dict]``, rows of equal keys; modules
without them are helpers.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.text import Text

from innerloop.cli.output import check_file_target, console, grid, one_line, table_console, write_json


def bench(
    name: Annotated[str | None, typer.Argument(help="One benchmark; without it, all of them.")] = None,
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Write the rows as JSON; - for stdout.")] = None,
) -> None:
    """Measure the speed claims and print them as tables (needs the source checkout)."""
    check_file_target(json)
    modules, missing = _benchmarks(_folder())
    if name is not None:
        if name in missing:
            raise ValueError(f"benchmark {name} cannot run here: {missing[name]}")
        if name not in modules:
            raise ValueError(f"no benchmark {name!r}; there are {', '.join(sorted({*modules, *missing})) or 'none'}")
        modules, missing = {name: modules[name]}, {}

    if not modules and not missing:
        raise ValueError("no benchmarks: the folder benchmarks/ has no module with NAME and run()")

    out, remarks = table_console(json), console(stderr=True)
    finished: list[dict[str, Any]] = []
    failed: list[str] = []
    interrupted = False
    for label, module in modules.items():
        try:
            with remarks.status(f"measuring {label}"):  # draws only on a terminal
                rows = module.run()
        except KeyboardInterrupt:
            interrupted = True
            break
        except ImportError as error:
            missing[label] = one_line(error)
            continue
        except Exception as error:  # a wrong result (benchmarks check it first) must not hide the other tables
            failed.append(label)
            remarks.print(Text(f"benchmark {label} failed: {type(error).__name__}: {one_line(error)}"))
            continue
        finished.append({"name": label, "rows": rows})
        _print(out, label, rows)
    for label, reason in missing.items():
        remarks.print(Text(f"skipped {label}: {reason}"))
    write_json({"benchmarks": finished}, json)
    if interrupted:
        raise KeyboardInterrupt
    if failed or not finished:
        raise typer.Exit(1)


def _folder() -> Path:
    """``benchmarks/`` beside ``src/``, where the source checkout has it."""
    import innerloop

    source = Path(innerloop.__file__).resolve().parents[1]
    folder = source.parent / "benchmarks"
    if source.name != "src" or not folder.is_dir():
        raise ValueError("benchmarks need the source checkout: clone the repository and pip install -e '.[bench]'")
    return folder


def _benchmarks(folder: Path) -> tuple[dict[str, ModuleType], dict[str, str]]:
    """The benchmarks by name, and those whose imports are missing with the reason."""
    if str(folder.parent) not in sys.path:
        sys.path.insert(0, str(folder.parent))
    modules: dict[str, ModuleType] = {}
    missing: dict[str, str] = {}
    for path in sorted(folder.glob("[!_]*.py")):
        try:
            module = importlib.import_module(f"{folder.name}.{path.stem}")
        except ImportError as error:
            missing[path.stem] = one_line(error)
            continue
        if hasattr(module, "NAME") and callable(getattr(module, "run", None)):
            modules[module.NAME] = module
    return modules, missing


def _print(out: Any, title: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    numbers = [key for key, value in rows[0].items() if isinstance(value, (int, float))]
    table = grid(tuple(rows[0]), numbers=numbers, title=title)
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    out.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
