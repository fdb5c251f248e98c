"""The registry: a published memory is one function in `memories/`, decorated by `@named`.

The docstring carries four fields, Equation, Axes, Reference and Departs; layers, command line, documentation and the
contract suite all read what is registered here.
"""

from __future__ import annotations

import fnmatch
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .memory import Memory

FIELDS = ("Equation", "Axes", "Reference", "Departs")


@dataclass(frozen=True)
class Exemption:
    """A check of the contract suite that a row cannot pass, and why; it runs as a strict expected failure."""

    check: str
    reason: str


@dataclass(frozen=True)
class Entry:
    """A registered row: its function, its docstring's fields, its test cases and what its paper calls the gates."""

    name: str
    build: Callable[..., Memory]
    summary: str
    fields: Mapping[str, str]
    letters: Mapping[str, str]
    cases: Sequence[Mapping[str, Any]]
    exemptions: Sequence[Exemption] = field(default_factory=tuple[Exemption, ...])

    @property
    def options(self) -> dict[str, Any]:
        """Keyword options of the row and their defaults."""
        return {name: p.default for name, p in inspect.signature(self.build).parameters.items()}


_entries: dict[str, Entry] = {}
_loaded = False


def named(
    *,
    letters: Mapping[str, str] | None = None,
    cases: Sequence[Mapping[str, Any]] = ({},),
    exemptions: Sequence[Exemption] = (),
) -> Callable[[Callable[..., Memory]], Callable[..., Memory]]:
    """Register a row under its function's name.

    Args:
        letters: what the paper calls each gate, `{"lr": "beta"}`.
        cases: options that the contract suite runs, besides every order and gate regime.
        exemptions: checks that the row cannot pass, each with its reason.

    Raises:
        ValueError: a field is missing in the docstring, an option has no default, or the name is taken.
    """

    def register(build: Callable[..., Memory]) -> Callable[..., Memory]:
        name = build.__name__
        summary, parts = _parse(name, inspect.getdoc(build) or "")
        for option, parameter in inspect.signature(build).parameters.items():
            if parameter.default is inspect.Parameter.empty:
                raise ValueError(f"memory {name!r}: option {option!r} has no default: give it the paper's value")
        if name in _entries and _entries[name].build.__module__ != build.__module__:
            raise ValueError(f"memory {name!r} is registered already, by {_entries[name].build.__module__}")
        _entries[name] = Entry(name, build, summary, parts, dict(letters or {}), tuple(cases), tuple(exemptions))
        return build

    return register


def names(pattern: str = "*") -> list[str]:
    """Names of the registered memories that match a shell pattern, sorted."""
    _load()
    return sorted(fnmatch.filter(_entries, pattern))


def entry(name: str) -> Entry:
    """The registered row. ValueError names the close ones when there is no such row."""
    _load()
    if name not in _entries:
        import difflib

        close = difflib.get_close_matches(str(name), list(_entries), 3, 0.5)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"one of {', '.join(sorted(_entries))}"
        raise ValueError(f"name={name!r} is no memory: {hint}")
    return _entries[name]


def get(name: str, **options: Any) -> Memory:
    """The memory registered under `name`, with the row's options.

    Raises:
        ValueError: an unknown name or option.
    """
    row = entry(name)
    unknown = sorted(set(options) - set(row.options))
    if unknown:
        raise ValueError(f"{name}({unknown[0]}=...) is no option: {name} takes {sorted(row.options) or 'none'}")
    return row.build(**options)


def name_of(memory: Memory) -> str | None:
    """The row whose default value, or one of whose cases, is this memory (None: a memory of the user's own)."""
    _load()
    for row in _entries.values():
        if any(row.build(**dict(case)) == memory for case in ({}, *row.cases)):
            return row.name
    return None


def _load() -> None:
    """Import every file of `innerloop.memories` once: adding a memory is adding a file."""
    global _loaded
    if not _loaded:
        package = importlib.import_module("innerloop.memories")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"innerloop.memories.{module.name}")
        _loaded = True


def _parse(name: str, doc: str) -> tuple[str, dict[str, str]]:
    """The summary line and the four fields, each from its label to the next label."""
    label = re.compile(rf"^({'|'.join(FIELDS)}):[ ]*", re.MULTILINE)
    marks = list(label.finditer(doc))
    parts: dict[str, str] = {}
    for mark, after in zip(marks, [*marks[1:], None], strict=True):
        text = doc[mark.end() : after.start() if after else len(doc)]
        parts[mark.group(1)] = inspect.cleandoc(text).strip()
    missing = [f for f in FIELDS if not parts.get(f)]
    if missing:
        raise ValueError(f"memory {name!r}: its docstring lacks the field {missing[0]!r}: it needs {', '.join(FIELDS)}")
    return doc.strip().splitlines()[0], parts
