"""A griffe extension: lists of fields in docstrings become lists on the page.

Docstrings of this project say what a field is in lines like `per: "head" reads a gate [B, T, H]`, which Markdown would
run together into one paragraph.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ITEM = re.compile(r"^(?P<names>`?\w+`?(?:, `?\w+`?)*): (?P<text>.*)$")
SECTIONS = ("Args", "Returns", "Raises", "Yields", "Attributes", "Example", "Examples", "Note", "Departs", "Reference")


def listed(text: str) -> str:
    """Paragraphs whose every unindented line is `name: what it is` as Markdown lists."""
    return "\n\n".join(map(_paragraph, re.split(r"\n{2,}", text)))


def _paragraph(paragraph: str) -> str:
    lines = paragraph.split("\n")
    heads = [ITEM.match(line) for line in lines if line and not line.startswith(" ")]
    if not heads or not all(heads) or any(h and h["names"] in SECTIONS for h in heads):
        return _trailing(paragraph)
    out: list[str] = []
    for line in lines:
        match = ITEM.match(line)
        if match:
            names = ", ".join(f"`{name.strip('` ')}`" for name in match["names"].split(","))
            out.append(f"- {names}: {match['text']}")
        else:
            out.append("  " + line.strip())
    return "\n".join(out)


def _trailing(paragraph: str) -> str:
    """Items that follow ordinary lines of the same paragraph get a paragraph of their own."""
    lines = paragraph.split("\n")
    for i in range(1, len(lines)):
        rest = "\n".join(lines[i:])
        if ITEM.match(lines[i]) and not lines[i - 1].endswith(":"):
            made = _paragraph(rest) if ITEM.match(lines[i]) else rest
            if made.startswith("- "):
                return "\n".join(lines[:i]) + "\n\n" + made
    return paragraph


class FieldLists(griffe.Extension):
    """Rewrites every docstring as it is loaded."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for each object that griffe finds."""
        if obj.docstring:
            obj.docstring.value = listed(obj.docstring.value)
