"""The comparison as one self-contained page: the winner, the pictures, the table; nothing is fetched from anywhere.

`write_report` leaves ``index.html`` (pictures embedded), the same pictures as PNG files and ``comparison.json`` in a
directory.  Every file appears whole or not at all: it is written beside its place and moved there.
"""

from __future__ import annotations

import base64
import html
import io
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from innerloop.streaming.comparison import Comparison, Line, format_number, format_options, format_skill
from innerloop.streaming.table import Stream

# Okabe & Ito's palette: told apart by colour-blind readers. A memory keeps its colour from report to report; the dark
# page lifts the deep ones, which would sink into the background, and has the palette's yellow for its pale blue.
COLOURS = {
    "light": ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9"),
    "dark": ("#4DA6DD", "#E69F00", "#1FB88F", "#DD94BC", "#EE7733", "#F0E442"),
}
INK = {
    "light": {"paper": "#ffffff", "ink": "#1c2128", "soft": "#656d76", "grid": "#e4e7eb"},
    "dark": {"paper": "#14181d", "ink": "#e3e7ec", "soft": "#98a2ad", "grid": "#2a3038"},
}
MEMORY_ORDER = ("rls", "kalman", "deltanet", "longhorn", "titans_linear", "nadaraya_watson")
MAX_POINTS = 4000  # a curve with more is thinned to the extremes of each pixel column: same picture, smaller file
ZOOM_ROWS = 150
CUMULATIVE_FRAME = 3.0  # totals up to this multiple of the least one share the frame of the cumulative picture

CAPTIONS = {
    "predictions": "Each row was predicted before it was learned. Below: the last part of the stream, enlarged.",
    "error": "Error over time: the RMSE of a trailing window of rows, on a logarithmic scale. Lower is better.",
    "cumulative": "Cumulative error: the sum of absolute errors so far. The flatter curve is the better forecaster.",
}


def write_report(directory: str | Path, comparison: Comparison, *, all_settings: bool = False) -> Path:
    """Write the page, its pictures and the JSON into ``directory`` (made if needed); returns the page's path."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    pictures = {name: {theme: _picture(name, comparison, theme) for theme in INK} for name in CAPTIONS}
    for name, themes in pictures.items():
        write_atomic(directory / f"{name}.png", themes["light"])
    text = json.dumps(comparison.to_dict(all_settings), indent=2, allow_nan=False) + "\n"
    write_atomic(directory / "comparison.json", text)
    page = directory / "index.html"  # last, so that a page never shows less than what lies beside it
    write_atomic(page, _page(comparison, pictures, all_settings))
    return page


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Write a file whole or not at all: into a temporary file beside it, then moved into its place."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


# ---------------------------------------------------------------------------------------------- pictures


def _picture(name: str, comparison: Comparison, theme: str) -> bytes:
    """One PNG. The object interface of matplotlib: no global state, no display."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ink = INK[theme]
    style: dict[str, Any] = {
        "font.family": "sans-serif",
        "font.size": 11,
        "axes.edgecolor": ink["soft"],
        "axes.labelcolor": ink["ink"],
        "axes.facecolor": ink["paper"],
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
        "axes.titlecolor": ink["soft"],
        "grid.color": ink["grid"],
        "grid.linewidth": 0.8,
        "xtick.color": ink["soft"],
        "ytick.color": ink["soft"],
        "text.color": ink["ink"],
        "legend.frameon": False,
        "legend.fontsize": 10,
        "lines.linewidth": 1.6,
        "lines.solid_capstyle": "round",
        "text.parse_math": False,  # a column may be called "price_$"
    }
    draw = {"predictions": _draw_predictions, "error": _draw_error, "cumulative": _draw_cumulative}[name]
    with mpl.rc_context(style):
        figure = Figure(figsize=(10, 7.2 if name == "predictions" else 4.6), dpi=144, facecolor=ink["paper"])
        FigureCanvasAgg(figure)
        draw(figure, comparison, theme)
        figure.set_layout_engine("constrained", h_pad=0.08, w_pad=0.08)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", facecolor=ink["paper"], metadata={"Software": None})
    return buffer.getvalue()


def _draw_predictions(figure: Any, comparison: Comparison, theme: str) -> None:
    stream = comparison.stream
    zoom = slice(max(stream.burn_in, stream.rows - ZOOM_ROWS), stream.rows)
    whole = slice(stream.burn_in, stream.rows)
    titles = (f"the {stream.rows - stream.burn_in:,} scored rows", f"the last {zoom.stop - zoom.start:,} rows")
    x, axis = _axis(stream)
    above, below = figure.subplots(2, 1)
    for axes, part, title in zip((above, below), (whole, zoom), titles, strict=True):
        close = part is zoom
        # A thick truth stays visible as a dark rim around a good forecast.
        _plot(axes, x[part], stream.y[part], color=INK[theme]["ink"], linewidth=2.2 if close else 3.0, label="truth")
        for line in _shown_forecasts(comparison):
            look = _look(line, theme) | {"linewidth": 1.4 if close else 1.0, "label": line.label}
            if close:
                look |= {"marker": "o", "markersize": 2.6}
            _plot(axes, x[part], line.predictions[part], **look)
        _frame_truth(axes, stream.y[part])
        axes.set_title(title)
        axes.set_ylabel(_short(stream.target))
        axes.margins(x=0.01)
    below.set_xlabel(axis)
    handles, labels = below.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3)


def _shown_forecasts(comparison: Comparison) -> list[Line]:
    """The last value beneath, the best memory above it."""
    best = next((line for line in comparison.memories() if not line.diverged), None)
    return [comparison.last_value, *([best] if best else [])]


def _frame_truth(axes: Any, y: np.ndarray) -> None:
    """The truth fills the frame: one wild prediction must not flatten the picture."""
    low, high = float(np.min(y)), float(np.max(y))
    margin = 0.12 * (high - low) or abs(high) * 0.05 or 1.0
    if np.isfinite(margin):
        axes.set_ylim(low - margin, high + margin)


def _draw_error(figure: Any, comparison: Comparison, theme: str) -> None:
    stream = comparison.stream
    scored = stream.rows - stream.burn_in
    window = max(1, min(100, scored // 10))
    axes = figure.subplots()
    x, axis = _axis(stream)
    for line in _curves(comparison):
        squares = _errors(line, stream) ** 2
        rolling = np.sqrt(_trailing_mean(squares, window))
        _plot(axes, x[stream.burn_in :], np.where(rolling > 0, rolling, np.nan), **_look(line, theme), label=line.label)
    axes.set_yscale("log")
    _plain_log_ticks(axes)
    axes.set_ylabel(f"RMSE of the last {window} rows")
    axes.set_xlabel(axis)
    axes.margins(x=0.01)
    _legend_above(figure, axes)


def _draw_cumulative(figure: Any, comparison: Comparison, theme: str) -> None:
    stream = comparison.stream
    axes = figure.subplots()
    x, axis = _axis(stream)
    totals = [(line, np.cumsum(np.abs(_errors(line, stream)))) for line in _curves(comparison)]
    # The frame belongs to the forecasters that compete; a curve that leaves it says so in the legend.
    least = min((total[-1] for _, total in totals), default=0.0)
    top = 1.08 * max((total[-1] for _, total in totals if total[-1] <= CUMULATIVE_FRAME * least), default=0.0)
    leaving = False
    for line, total in totals:
        leaves = 0.0 < top < total[-1]
        leaving |= bool(leaves)
        label = f"{line.label} ↑" if leaves else line.label
        _plot(axes, x[stream.burn_in :], total, **_look(line, theme), label=label)
    if top > 0:
        axes.set_ylim(0, top)
    axes.set_ylabel("sum of |error|")
    axes.set_xlabel(f"{axis}     (↑ leaves the picture)" if leaving else axis)
    axes.margins(x=0.01)
    _legend_above(figure, axes)


def _curves(comparison: Comparison) -> list[Line]:
    """Baselines, then the best setting of each memory that has a score, the best drawn last (on top)."""
    memories = [line for line in comparison.memories() if not line.diverged]
    baselines = [line for line in comparison.baselines if line.rmse is not None]
    return [*baselines, *reversed(memories)]


def _look(line: Line, theme: str) -> dict[str, Any]:
    if line.is_baseline:
        return {"color": INK[theme]["soft"], "linestyle": "--" if line.name == "last_value" else ":"}
    colours = COLOURS[theme]
    place = MEMORY_ORDER.index(line.name) if line.name in MEMORY_ORDER else sum(map(ord, line.name))
    return {"color": colours[place % len(colours)]}


def _legend_above(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside upper left", ncols=3)  # drawn last is best: listed first


def _plain_log_ticks(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=9))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _axis(stream: Stream) -> tuple[np.ndarray, str]:
    """The time column if it goes forward, else row numbers: rows are in file order whatever their dates say."""
    time = stream.time
    if time is not None and not (np.isnat(time) if time.dtype.kind == "M" else np.isnan(time)).any():
        steps = np.diff(time)
        if (steps >= np.zeros(1, dtype=steps.dtype)).all():
            return time, "date" if time.dtype.kind == "M" else "time"
    return np.arange(1, stream.rows + 1), "row"


def _errors(line: Line, stream: Stream) -> np.ndarray:
    return line.predictions[stream.burn_in :] - stream.y[stream.burn_in :]


def _trailing_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last ``window`` values; undefined until a quarter of them is there, since a few say nothing."""
    import pandas as pd

    # pandas adds compensated: a difference of running sums would leave the huge first errors in all later ones.
    return pd.Series(values).rolling(window, min_periods=-(-window // 4)).mean().clip(lower=0.0).to_numpy()


def _plot(axes: Any, x: np.ndarray, y: np.ndarray, **look: Any) -> None:
    bins = MAX_POINTS // 2
    if len(y) > MAX_POINTS:
        edges = np.linspace(0, len(y), bins + 1).astype(int)
        keep = []
        for low, high in itertools.pairwise(edges):
            part = np.nan_to_num(y[low:high])
            keep += sorted({low + int(part.argmin()), low + int(part.argmax())})
        x, y = x[keep], y[keep]
    axes.plot(x, y, **look)


def _short(text: str, limit: int = 24) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


# ---------------------------------------------------------------------------------------------- page


def _page(comparison: Comparison, pictures: dict[str, dict[str, bytes]], all_settings: bool) -> str:
    stream = comparison.stream
    figures = "\n".join(_figure(name, themes, comparison) for name, themes in pictures.items())
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
<p class="kicker">innerloop compare · {html.escape(stream.source)}</p>
<h1>Which memory suits {html.escape(stream.target)}?</h1>
<p class="winner">{html.escape(comparison.sentence())}</p>
<p class="notes">Forecast from {html.escape(", ".join(stream.names))}. {notes}</p>
</header>
{figures}
{_table(comparison, all_settings)}
<p class="notes">Every row is predicted before it is learned. Skill is 1 − RMSE / RMSE of the last value: above 0 is
better than repeating the last value. The options reproduce a line:
<code>StreamingRegressor(name, **options).predict_then_update(X, y)</code>.</p>
</main>
</body>
</html>
"""


def _figure(name: str, themes: dict[str, bytes], comparison: Comparison) -> str:
    light, dark = (base64.b64encode(themes[theme]).decode() for theme in ("light", "dark"))
    caption = html.escape(CAPTIONS[name])
    return (
        f'<figure id="{name}"><picture>'
        f'<source media="(prefers-color-scheme: dark)" srcset="data:image/png;base64,{dark}">'
        f'<img alt="{caption}" src="data:image/png;base64,{light}"></picture>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _table(comparison: Comparison, all_settings: bool) -> str:
    head = ("forecaster", "options", "MAE", "RMSE", "skill", "µs / row", "state floats")
    cells = "".join(f"<th{' class=number' if i > 1 else ''}>{text}</th>" for i, text in enumerate(head))
    rows = []
    for line in (*comparison.baselines, *comparison.memories(all_settings)):
        kind = " ".join(["best"] * (line is comparison.best) + ["baseline"] * line.is_baseline)
        numbers = [format_number(line.mae), format_number(line.rmse), format_skill(line.skill)]
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
