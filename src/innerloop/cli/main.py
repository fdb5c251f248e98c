"""``innerloop``: the program. Commands are functions in their own files; this one names them and handles failure.

Bad input of any kind prints one line, ``error: ...``, on stderr and exits with 2; an interruption exits with 130.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from innerloop._version import __version__
from innerloop.cli.bench import bench
from innerloop.cli.compare import compare
from innerloop.cli.forecast import forecast
from innerloop.cli.list import list_memories
from innerloop.cli.output import print_error
from innerloop.cli.reproduce import reproduce
from innerloop.cli.show import show

BAD_INPUT = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

app = typer.Typer(
    name="innerloop",
    help="Sequence memories that learn while they read.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"innerloop {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command("list")(list_memories)
app.command("show")(show)
app.command("compare")(compare)
app.command("forecast")(forecast)
app.command("reproduce")(reproduce)
app.command("bench")(bench)


def main(args: Sequence[str] | None = None) -> int:
    """Run the program on ``args`` (default: the command line) and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a letter of a column name gets a "?", not a traceback.
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")
    try:
        arguments = None if args is None else list(args)
        code = typer.main.get_command(app)(args=arguments, prog_name="innerloop", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, less) left. Point stdout elsewhere, or the interpreter complains while it shuts down.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        code = INTERRUPTED
    except (ValueError, OSError) as error:
        print_error(error)
        return BAD_INPUT
    except Exception as error:
        # Usage errors and aborts: click's classes, which typer re-exports or carries its own copy of, by version.
        if type(error).__name__ == "Abort":
            code = INTERRUPTED
        elif hasattr(error, "format_message"):
            print_error(error.format_message())
            return BAD_INPUT
        else:
            raise
    if code == INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def run(args: Sequence[str] | None = None) -> NoReturn:
    """The console script's entry point."""
    sys.exit(main(args))


if __name__ == "__main__":
    run()
