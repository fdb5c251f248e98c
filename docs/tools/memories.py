"""One page per memory, and the page that lists them and says what the pictures show."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import innerloop as il
from innerloop import look
from innerloop.core import registry

from . import design, probe

CODE_SEGMENT = 16


def code(name: str) -> str:
    """The three forms of a memory, as the page prints them."""
    memory = il.get(name)
    short = memory.segment > CODE_SEGMENT
    options = f", segment={CODE_SEGMENT}" if short else ""
    note = f"  # the row's own: {memory.segment}" if short else ""
    return textwrap.dedent(f'''\
        The oracle: the equation, token by token.

        ```python
        import torch
        import innerloop as il

        memory = il.get("{name}"{options}){note}
        torch.manual_seed(0)
        q, k, v = torch.randn(3, 2, 40, 4, 8, dtype=torch.float64)  # [batch, tokens, heads, channels]
        gates = il.default_gates(memory, 2, 40, 4, 8, dtype=torch.float64)

        output, state, _ = il.scan(memory, q, k, v, gates)
        print(tuple(output.shape))
        ```

        ```text title="prints"
        (2, 40, 4, 8)
        ```

        The same function, many tokens at once:

        ```python
        fast, after, _ = il.chunked(memory, q, k, v, gates)
        print(torch.allclose(fast, output, atol=1e-10))
        ```

        ```text title="prints"
        True
        ```

        One token at a time, as when generating:

        ```python
        state = il.init_state(memory, 2, 4, 8, 8, dtype=torch.float64)
        for t in range(40):
            now = il.Gates(*(None if gate is None else gate[:, t] for gate in gates))
            token, state, _ = il.step(memory, q[:, t], k[:, t], v[:, t], now, state)
        print(torch.allclose(token, output[:, -1], atol=1e-10))
        ```

        ```text title="prints"
        True
        ```
        ''')


def cell(text: object) -> str:
    """Text for a cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def literal(text: object) -> str:
    """The same, as code."""
    return f"`{cell(text)}`" if str(text).strip() else ""


def gates_table(it: il.Explanation) -> str:
    """What each token may say about its write."""
    if not it.gates:
        return "None: every pair is kept as it came."
    rows = [
        f"| `{g.name}` | {g.meaning} | {literal(g.letter)} | `{g.shape}` | `{g.range}` | {literal(g.absent)} "
        f"| {literal(g.typical)} |"
        for g in it.gates
    ]
    head = "| gate | meaning | the paper's letter | shape | range | absent | typical |\n|---|---|---|---|---|---|---|"
    return "\n".join([head, *rows])


def broken(equation: str) -> str:
    """An equation with a line for each of its parts, which a docstring sets side by side."""
    return re.sub(r"([,;])[ ]{2,}(?=\S)", r"\1\n", equation)


def axes_table(place: design.Place) -> str:
    """The axes of the value, and in words."""
    it = place.explanation
    words = {name: place.axes[name] for name in design.MIRAS}
    rows = [f"| {axis} | {literal(value)} | {words.get(axis, '')} |" for axis, value in it.axes.items()]
    rows.append(f"| order | {literal(it.order)} | |")
    rows += [f"| {title.lower()} | | {place.axes[axis]} |" for axis, title in design.REGRESSION.items()]
    return "\n".join(["| axis | value | in words |", "|---|---|---|", *rows])


def caption(it: probe.Behaviour) -> str:
    """With which gates and segment the picture is drawn."""
    drawn: list[str] = []
    if it.lr is not None:
        drawn.append(f"`lr = {it.lr:.3g}`")
    if it.log_decay is not None:
        drawn.append(f"`log_decay = {it.log_decay:.3g}`")
    if it.segment is not None:
        drawn.append(f"`segment = {it.segment}`")
    with_ = f"Drawn with {', '.join(drawn)}. " if drawn else ""
    return f"{with_}Grey: the other memories. [What the panels show](index.md#the-standard-stream)."


def page(name: str, it: probe.Behaviour | None) -> str:
    """The Markdown of a memory's page; without a behaviour there is no picture."""
    place = design.place(name)
    e = place.explanation
    row = registry.entry(name)
    options = ", ".join(f"`{key}={value!r}`" for key, value in row.options.items()) or "none"
    declined = [f"- `{executor}`: {'; '.join(reasons)}" for executor, reasons in e.declined.items()]
    parts = [
        f"# {name}\n\n{e.summary}",
        f"```text\n{broken(e.equation)}\n```",
        f"{cell(row.fields['Axes'])}\n\n**Reference.** {cell(e.reference)}\n\n**Departs.** {cell(e.departs)}",
    ]
    if it is not None:
        seen = f"Recall by age, norm, response to an overwrite and to an outlier of {name}"
        pictures = [
            f"![{seen}](../assets/memories/{name}-{theme}.png#only-{theme}){{ loading=lazy }}" for theme in look.THEMES
        ]
        parts.append("## On the standard stream\n\n" + "\n".join(pictures) + f"\n\n{caption(it)}")
    parts += [
        f'## Axes\n\n{axes_table(place)}\n\nOptions of `il.get("{name}", ...)`: {options}.',
        f"## Gates\n\n{gates_table(e)}",
        f"## In code\n\n{code(name)}",
        f"## Cost\n\n| what | how |\n|---|---|\n| state | {literal(e.state_floats)} floats per head |\n"
        f"| cost | {cell(e.flops)} FLOPs per token and head; c tokens per tile |\n"
        f"| gradient | {cell(e.gradient)} |\n| in parallel | {cell(e.parallel)} |\n| executor | `{e.executor}` |",
    ]
    if declined:
        parts.append("Asked before it, and why they decline:\n\n" + "\n".join(declined))
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """The list of all memories, and what the standard stream is."""
    parts = [
        "# The memories",
        f"{len(il.names())} published memories, each a value of the same equation. The same list to filter: "
        "[the design space](../table.md). In the terminal: `innerloop list`, `innerloop show NAME`.",
    ]
    rows = design.places()
    for family, what in design.FAMILIES.items():
        members = [p for p in rows if p.family == family]
        lines = [f"| [`{p.name}`]({p.name}.md) | {cell(p.explanation.summary)} |" for p in members]
        parts.append(f"## {family}\n\n{what}\n\n| name | what |\n|---|---|\n" + "\n".join(lines))
    parts.append((Path(__file__).parents[1] / "memories" / "_stream.md").read_text(encoding="utf-8").strip())
    return "\n\n".join(parts) + "\n"
