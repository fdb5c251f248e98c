"""The API page: every public name, by the module it lives in, and every command; what is undocumented is an error."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import typer

import innerloop as il
from innerloop.cli.main import app

EXTRA = {"innerloop.testing": ("check_memory", "assert_close", "CHECKS", "TOLERANCES")}
"""Public names of modules beside the package's own `__all__`."""


def public() -> list[str]:
    """Every public name of the package, dunders apart."""
    return [name for name in il.__all__ if not name.startswith("_")]


def documented(member: Any) -> bool:
    """Whether a member has a docstring that somebody wrote (dataclasses and named tuples are given one)."""
    text = inspect.getdoc(member) or ""
    if inspect.isclass(member):
        text = member.__dict__.get("__doc__") or ""
        if text.startswith(f"{member.__name__}("):
            return False
    return bool(text.strip())


def members(owner: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that a class defines itself."""
    for name, member in vars(owner).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property | staticmethod | classmethod) or inspect.isfunction(member):
            yield name, getattr(owner, name) if isinstance(member, staticmethod | classmethod) else member


def undocumented(namespace: Any = il, names: list[str] | None = None) -> list[str]:
    """Public names, methods, properties, commands and options without a docstring or help text."""
    lacking: list[str] = []
    for name in public() if names is None else names:
        member = getattr(namespace, name)
        if not documented(member):
            lacking.append(name)
        if inspect.isclass(member):
            for method, value in members(member):
                inherited = any(documented(getattr(base, method, None)) for base in member.__mro__[1:-1])
                if not documented(value) and not inherited:
                    lacking.append(f"{name}.{method}")
    if names is None:
        lacking += [f"innerloop {missing}" for missing in commands_without_help()]
    return lacking


def commands() -> dict[str, Any]:
    """The program's commands by name."""
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def commands_without_help() -> Iterator[str]:
    """Commands and options that say nothing about themselves."""
    for name, command in commands().items():
        if not (command.help or "").strip():
            yield name
        for parameter in command.params:
            if parameter.name != "help" and not (getattr(parameter, "help", None) or "").strip():
                yield f"{name} {parameter.name}"


def home(name: str) -> str:
    """The module in which a public name is defined."""
    member = getattr(il, name)
    return getattr(member, "__module__", None) or il.__name__


def by_module() -> dict[str, list[str]]:
    """Public names by module, as the package lists its modules."""
    found: dict[str, list[str]] = {}
    for name in public():
        found.setdefault(home(name), []).append(name)
    order = ["core.dispatch", "core.registry", "core.explain", "core.memory", "core.state", "core.reference"]
    ranked = [f"{il.__name__}.{module}" for module in order]
    return {m: found[m] for m in sorted(found, key=lambda m: (ranked.index(m) if m in ranked else len(ranked), m))}


def title(module: str) -> str:
    """What a module's docstring calls it: the words before the first colon."""
    importlib.import_module(module)
    text = inspect.getdoc(sys.modules[module]) or module
    return " ".join(text.split("\n\n")[0].split(":")[0].split()).rstrip(".")


def command_block(name: str, command: Any) -> str:
    """What a command does and takes, as Markdown."""
    rows: list[str] = []
    for p in command.params:
        if p.name == "help":
            continue
        option = p.param_type_name == "option"
        label = ", ".join(p.opts) if option else (p.metavar or p.name.upper())
        value = f" {p.metavar}" if option and p.metavar else ""
        default = "" if p.default in (None, False, ()) or callable(p.default) else f" (default: `{p.default}`)"
        rows.append(f"| `{label}{value}` | {' '.join((p.help or '').split()).replace('|', chr(92) + '|')}{default} |")
    what = " ".join((command.help or "").split())
    return f"### innerloop {name}\n\n{what}\n\n| | |\n|---|---|\n" + "\n".join(rows)


def page() -> str:
    """The page. Raises ValueError that names every undocumented symbol."""
    lacking = undocumented()
    for module, names in EXTRA.items():
        callables = [n for n in names if callable(getattr(importlib.import_module(module), n))]
        lacking += undocumented(importlib.import_module(module), callables)
    if lacking:
        raise ValueError(f"undocumented: {', '.join(lacking)}")
    parts = [
        "---\nhide:\n  - navigation\n---\n\n# API",
        f"Every public name of `innerloop` {il.__version__}, and every command. Letters: B batch, T tokens, H heads, "
        "K key channels, V value channels, W window. Errors are `ValueError` or `TypeError` that name the argument.",
    ]
    for module, names in by_module().items():
        parts.append(f"## {title(module)}\n\n" + "\n\n".join(f"::: innerloop.{name}" for name in names))
    for module, names in EXTRA.items():
        parts.append(f"## {title(module)}\n\n" + "\n\n".join(f"::: {module}.{name}" for name in names))
    parts.append("## Commands\n\nEvery command takes `-h`; bad input prints one line on stderr and exits with 2.")
    parts += [command_block(name, command) for name, command in commands().items()]
    return "\n\n".join(parts) + "\n"
