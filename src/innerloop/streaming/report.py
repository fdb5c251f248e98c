"""The comparison as one self-contained page: the winner, the pictures, the table; nothing is fetched from anywhere.

`write_report` leaves ``index.html`` (pictures embedded), the same pictures as PNG files and ``comparison.json`` in a
directory.  Every file appears whole or not at all: it is written beside its place and moved there.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path

from innerloop.core.files import write_atomic
from innerloop.streaming.plots import INK, draw
from innerloop.streaming.results import Comparison, format_number, format_options, format_skill
from innerloop.streaming.traces import Trace

CAPTIONS = {
    "predictions": "Each row was predicted before it was learned. Below: the last part of the stream, enlarged.",
    "error": "Error over time: the RMSE of a trailing window of rows, on a logarithmic scale. Lower is better.",
    "cumulative": "Cumulative error: the sum of absolute errors so far. The flatter curve is the better forecaster.",
    "drift": "What the best linear memory believed: the effect of one standard deviation of each feature, over time.",
    "weights": "How the automatic memory shared its trust among its settings, over time.",
}


def write_report(
    directory: str | Path, comparison: Comparison, traces: Sequence[Trace] = (), *, all_settings: bool = False
) -> Path:
    """Write the page, its pictures and the JSON into ``directory`` (made if needed); returns the page's path.

    ``traces`` (see `innerloop.streaming.traces.trace`) add the pictures of coefficients and of a bank's weights.
    Pictures that an earlier report left and this one has not are removed.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, dict[str, bytes]] = {}
    for name in CAPTIONS:
        themes = {theme: draw(name, comparison, traces, theme) for theme in INK}
        drawn = {theme: picture for theme, picture in themes.items() if picture is not None}
        if drawn:
            pictures[name] = drawn
    for name in CAPTIONS:
        if name in pictures:
            write_atomic(directory / f"{name}.png", pictures[name]["light"])
        else:
            (directory / f"{name}.png").unlink(missing_ok=True)
    text = json.dumps(comparison.to_dict(all_settings), indent=2, allow_nan=False) + "\n"
    write_atomic(directory / "comparison.json", text)
    page = directory / "index.html"  # last, so that a page never shows less than what lies beside it
    write_atomic(page, _page(comparison, pictures, all_settings))
    return page


# ---------------------------------------------------------------------------------------------- page


def _page(comparison: Comparison, pictures: dict[str, dict[str, bytes]], all_settings: bool) -> str:
    stream = comparison.stream
    figures = "\n".join(_figure(name, themes) for name, themes in pictures.items())
    notes = " ".join(html.escape(note) for note in comparison.notes(all_settings))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Which memory suits {html.escape(stream.target)}?</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<header>
<p class="kicker">innerloop compare · {html.escape(stream.source.name)}</p>
<h1>Which memory suits {html.escape(stream.target)}?</h1>
<p class="winner">{html.escape(comparison.sentence())}</p>
<p class="notes">Forecast from {html.escape(", ".join(stream.names))}. {notes}</p>
</header>
{figures}
{_table(comparison, all_settings)}
<p class="notes">{_closing(comparison)}</p>
</main>
</body>
</html>
"""


def _figure(name: str, themes: dict[str, bytes]) -> str:
    light, dark = (base64.b64encode(themes[theme]).decode() for theme in ("light", "dark"))
    caption = html.escape(CAPTIONS[name])
    return (
        f'<figure id="{name}"><picture>'
        f'<source media="(prefers-color-scheme: dark)" srcset="data:image/png;base64,{dark}">'
        f'<img alt="{caption}" src="data:image/png;base64,{light}"></picture>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _closing(comparison: Comparison) -> str:
    scheme = comparison.stream.scheme
    late = scheme.horizon - 1
    text = "Every row is predicted before it is learned. "
    if late:
        text += f"Labels arrive {late} row{'s' * (late > 1)} late, and the last value is the last one known by then. "
    text += "Skill is 1 − RMSE / RMSE of the last value: above 0 is better than repeating the last value. "
    if len(scheme.targets) > 1:
        text += "The skill of several targets is their mean. "
    call = f"prequential(model, X, y, delay={late})" if late else "model.predict_then_update(X, y)"
    if scheme.time:
        call = call.replace(", y", ", y, elapsed=elapsed")
    code = f"model = StreamingRegressor(name, **options); {call}"
    return f"{text}The options reproduce a line: <code>{code}</code>."


def _table(comparison: Comparison, all_settings: bool) -> str:
    targets = comparison.stream.scheme.targets
    scores = ("MAE", "RMSE") if len(targets) == 1 else tuple(f"RMSE {html.escape(target)}" for target in targets)
    head = ("forecaster", "options", *scores, "skill", "µs / row", "state floats")
    cells = "".join(f"<th{' class=number' if i > 1 else ''}>{text}</th>" for i, text in enumerate(head))
    rows = []
    for line in (*comparison.baselines, *comparison.memories(all_settings)):
        kind = " ".join(["best"] * (line is comparison.best) + ["baseline"] * line.is_baseline)
        errors = (line.mae, line.rmse) if len(targets) == 1 else tuple(score.rmse for score in line.each)
        numbers = [*map(format_number, errors), format_skill(line.skill)]
        numbers += [format_number(line.us_per_row), format_number(line.state_floats)]
        rows.append(
            f'<tr class="{kind}"><td>{html.escape(line.name)}</td><td>{html.escape(format_options(line.options))}</td>'
            + "".join(f"<td class=number>{number}</td>" for number in numbers)
            + "</tr>"
        )
    body = "\n".join(rows)
    return f'<div class="scroll"><table>\n<thead><tr>{cells}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


_STYLE = """
:root { --paper: #ffffff; --ink: #1c2128; --soft: #57606a; --line: #e4e7eb; --mark: #eaf4fb; --accent: #0072B2; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181d; --ink: #e3e7ec; --soft: #98a2ad; --line: #2a3038; --mark: #16293a; --accent: #4DA6DD; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { margin: 0 0 .75rem; font-size: 2rem; line-height: 1.2; overflow-wrap: anywhere; }
.kicker { margin: 0 0 .25rem; color: var(--soft); font-size: .85rem; }
.winner { margin: 0 0 .75rem; padding: .75rem 1rem; border-left: 4px solid var(--accent); background: var(--mark);
  font-size: 1.15rem; overflow-wrap: anywhere; }
.notes { color: var(--soft); font-size: .9rem; }
figure { margin: 2.25rem 0; }
img { display: block; width: 100%; height: auto; }
figcaption { margin-top: .25rem; color: var(--soft); font-size: .9rem; }
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .6rem; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
.number { text-align: right; }
.baseline td { color: var(--soft); }
tr.best td { background: var(--mark); color: var(--ink); font-weight: 650; }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .95em; }
"""
