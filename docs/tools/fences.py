"""Code blocks of a page: found, run, and held against what the page says they print.

    python docs/tools/fences.py PAGE ...        runs each page in the current folder; exits 1 at the first difference

The blocks of a page share a namespace, from top to bottom. A `python` block

    with title="name.py"            is written to that file first, so that later blocks import it
    after <!-- no-run: reason -->   is not run
    after <!-- needs: a, b -->      is run where the modules a and b can be imported

and a `text` block with title="prints" right after it is what it must print.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

FENCE = re.compile(
    r"^(?P<indent>[ ]*)(?P<mark>`{3,})(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=indent)(?P=mark)[ ]*$", re.M | re.S
)
COMMENT = re.compile(r"<!--\s*(no-run|needs):\s*(.*?)\s*-->\s*\Z", re.S)
TITLE = re.compile(r'title="([^"]*)"')


@dataclass(frozen=True)
class Block:
    """A python block of a page. line: of its first line. prints: what it must print, None: anything."""

    code: str
    line: int
    title: str = ""
    no_run: str | None = None
    needs: tuple[str, ...] = ()
    prints: str | None = None


def blocks(text: str) -> list[Block]:
    """The python blocks of a page, in order.

    Raises ValueError for a block that is marked not to run without a reason.
    """
    found: list[Block] = []
    last = 0
    previous: Block | None = None  # the block that the text before this fence follows
    for match in FENCE.finditer(text):
        between, last = text[last : match.start()], match.end()
        language, _, rest = match["info"].strip().partition(" ")
        title = TITLE.search(rest)
        name = title[1] if title else ""
        body = textwrap.dedent(match["body"])
        line = text.count("\n", 0, match.start()) + 2
        if language == "text" and name == "prints":
            if previous is None or between.strip():
                raise ValueError(f"line {line}: prints what? it follows no python block")
            found[-1] = replace(previous, prints=body)
        previous = None
        if language != "python":
            continue
        comment = COMMENT.search(between)
        marks = {comment[1]: comment[2]} if comment else {}
        if marks.get("no-run") == "":
            raise ValueError(f"line {line}: a block that is not run needs a reason: <!-- no-run: why -->")
        needs = tuple(module.strip() for module in marks.get("needs", "").split(",") if module.strip())
        previous = Block(body, line, name, marks.get("no-run"), needs)
        found.append(previous)
    return found


def missing(block: Block) -> list[str]:
    """Modules that the block needs and that are not installed."""
    return [name for name in block.needs if importlib.util.find_spec(name) is None]


def run(text: str, source: str, folder: Path) -> Iterator[tuple[Block, str]]:
    """Run a page's blocks in order, files going to `folder`; yields each block that ran with what it printed.

    Raises AssertionError where a block prints something else than the page says, and whatever a block raises.
    """
    namespace: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks(text):
        if block.no_run is not None or missing(block):
            continue
        where = f"{source}, line {block.line}"
        if block.title.endswith(".py"):
            (folder / block.title).write_text(block.code, encoding="utf-8")
            continue  # a later block imports it
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * (block.line - 1) + block.code, source, "exec"), namespace)
        printed = out.getvalue()
        if block.prints is not None and plain(printed) != plain(block.prints):
            raise AssertionError(f"{where} prints\n{printed}\nbut the page says\n{block.prints}")
        yield block, printed


def plain(text: str) -> list[str]:
    """Lines without trailing blanks."""
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def main(pages: list[str]) -> int:
    """Run pages; 0 when all their blocks do what they say."""
    sys.path.insert(0, str(Path.cwd()))
    for page in pages:
        count = 0
        try:
            for _ in run(Path(page).read_text(encoding="utf-8"), page, Path.cwd()):
                count += 1
        except AssertionError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{page}: {count} blocks")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
