"""The gallery's page: every experiment, run, beside what its source prints."""

from __future__ import annotations

import re

from innerloop import look
from innerloop.gallery import Experiment, experiments
from innerloop.gallery.experiment import Outcome

from .memories import cell

HEAD = """---
hide:
  - navigation
---

# Gallery

The experiments of the books, run with the library's own memories and estimators: each value beside the one its source
prints. `innerloop reproduce` lists them, `innerloop reproduce D3 W3 --out DIR` runs some, and exits with 1 when one no
longer holds.
"""


def number(value: object) -> str:
    """A value of a row, readable."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else cell(value)


FIGURE = re.compile(r"!\[([^\]]*)\]\(gallery:([^)]+)\)")


def picture(figure: str, words: str) -> str:
    """A figure, `ID-name`, for light and for dark pages."""
    return "\n".join(
        f"![{words}](assets/gallery/{figure}-{theme}.png#only-{theme}){{ loading=lazy }}" for theme in look.THEMES
    )


def with_figures(text: str, *, drawn: bool) -> str:
    """A page whose `![words](gallery:ID-name)` are figures; where the gallery is not drawn they are left out."""
    return FIGURE.sub(lambda m: picture(m[2], m[1]) if drawn else "", text)


def section(it: Experiment, outcome: Outcome | None) -> str:
    """An experiment; without an outcome only what it is."""
    parts = [f"## {it.id} {it.title}", " ".join(it.text.split()), f"Source: {it.source}."]
    if outcome is not None:
        rows = [
            f"| {cell(r.name)} | {number(r.value)} | {number(r.source)} | {'holds' if r.holds else '**differs**'} |"
            for r in outcome.rows
        ]
        parts.append("\n".join(["| value of | here | source | |", "|---|---:|---:|---|", *rows]))
        parts += [picture(f"{it.id}-{name}", f"{cell(it.title)}: {name}") for name in outcome.figures]
        parts += [f"!!! note\n    {cell(note)}" for note in outcome.notes]
    return "\n\n".join(parts)


def page(outcomes: dict[str, Outcome]) -> str:
    """The page, of those experiments that were run."""
    found = experiments()
    return HEAD + "\n" + "\n\n".join(section(it, outcomes.get(name)) for name, it in found.items()) + "\n"
