"""What the commands share: where text goes, how lists are read, and JSON that is written whole or not at all.

Results go to stdout; progress, remarks and errors go to stderr.  With ``--json -`` stdout carries the JSON alone and
the tables move to stderr.  A command refuses bad input by raising ``ValueError`` or ``OSError``; `innerloop.cli.main`
turns it into one line and exit code 2.
"""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

STDOUT = "-"
PIPED_WIDTH = 120  # a pipe has no width; rich would assume 80 columns and wrap the options


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """rich would exit at once; the program has one place for that."""
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr as they are now (a test or a caller may have replaced them)."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPED_WIDTH
    return _Console(file=stream, width=width, highlight=False, soft_wrap=False)


def table_console(json_target: str | None) -> Console:
    """Where a command's tables go: stdout, unless the JSON wants it for itself."""
    return console(stderr=json_target == STDOUT)


def print_error(error: BaseException | str) -> None:
    """One line on stderr, whatever the message held; no markup, no wrapping, no box."""
    print("error:", one_line(error), file=sys.stderr)


def one_line(error: BaseException | str) -> str:
    """The message without line breaks; an ``OSError`` as its file and the system's reason."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror.lower()}"
    return " ".join(str(error).split()) or type(error).__name__


def split(text: str | None, option: str) -> list[str] | None:
    """``a,b`` as ``["a", "b"]``; a name with a comma may be quoted. An empty item raises ``ValueError``."""
    if text is None:
        return None
    items = [item.strip() for item in next(csv.reader([text], skipinitialspace=True), [])]
    if not items or not all(items):
        raise ValueError(f"{option} {text!r} has an empty name; separate names with single commas")
    return items


def split_rows(text: str | None, option: str) -> list[int] | None:
    """``1,2,52`` as numbers of rows."""
    items = split(text, option)
    if items is None:
        return None
    try:
        return [int(item) for item in items]
    except ValueError:
        raise ValueError(f"{option} {text!r} must be whole numbers of rows, e.g. 1,2,52") from None


@contextmanager
def progress_bar(unit: str, total: int) -> Generator[Callable[[str, int], None]]:
    """``tell(what, done)`` of a bar on stderr over a file's bytes or a table's rows; silent where that is no terminal.

    The bar begins anew when less is done than before: the next pass over the data. A ``what`` of "" changes no name.
    """
    err = console(stderr=True)
    if not err.is_terminal:
        yield lambda what, done: None
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description:<16}"), BarColumn(), amount, TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=total)
        before = 0

        def tell(what: str, done: int) -> None:
            nonlocal before
            if done < before:
                bar.reset(task)
            before = done
            bar.update(task, completed=done, description=what or None)

        yield tell


def grid(headers: Sequence[str], *, numbers: Sequence[str] = (), title: str | None = None) -> Table:
    """An empty table in the house style; columns named in ``numbers`` are right-aligned.

    On a narrow terminal the first column (the name) and numbers with a one-word header stay whole; the others wrap.
    """
    from rich import box

    table = Table(
        title=title,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        collapse_padding=True,
        pad_edge=False,
    )
    for index, header in enumerate(headers):
        number = header in numbers
        table.add_column(
            header,
            justify="right" if number else "left",
            no_wrap=index == 0 or (number and " " not in header),
            overflow="fold",
        )
    return table


# ---------------------------------------------------------------------------------------------- targets


def check_file_target(
    target: str | None, option: str = "--json", *, inputs: Sequence[Path] = (), piped: bool = True
) -> None:
    """Refuse a file that could not be written, before the work whose result it is to hold.

    ``inputs`` are files that it must not replace; ``piped``: whether ``-`` means stdout.
    """
    if target is None or (target == STDOUT and piped):
        return
    path = Path(target)
    if target == STDOUT:
        raise ValueError(f"{option} - would be stdout, where it cannot go; name a file")
    if not target or path.is_dir():
        raise ValueError(f"{option} {target!r} is not a file name" + (": it is a directory" if target else ""))
    if not path.parent.is_dir():
        raise ValueError(f"{option} {target}: there is no directory {path.parent}")
    if any(path.exists() and other.exists() and path.samefile(other) for other in inputs):
        raise ValueError(f"{option} {target} would overwrite the input")
    # The file is replaced, not opened, so that its directory is what has to be writable.
    if not os.access(path.parent, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise ValueError(f"{option} {target} is not writable")


def check_directory_target(target: Path | None, option: str = "--report") -> None:
    """Refuse a directory that could not be made or written to."""
    if target is None:
        return
    nearest = target
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise ValueError(f"{option} {target}: {nearest} is a file, not a directory")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f"{option} {target}: {nearest} is not writable")


def write_json(value: Mapping[str, Any] | Sequence[Any], target: str | None) -> None:
    """Write JSON to a file (atomically), to stdout for ``-``, or nowhere for None."""
    if target is None:
        return
    text = json.dumps(_plain(value), indent=2, allow_nan=False)
    if target == STDOUT:
        print(text)
        return
    from innerloop.core.files import write_atomic

    write_atomic(target, text + "\n")


def _plain(value: Any) -> Any:
    """JSON values of anything: an undefined number is null, a number of numpy or torch is a number."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "_asdict"):  # a NamedTuple
        return _plain(value._asdict())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return _plain(value.item()) if hasattr(value, "item") else str(value)
