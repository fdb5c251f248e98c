"""The pictures of a comparison, light and dark. A panel for each target; at most `PANELS` of them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from innerloop import look
from innerloop.look import COLOURS, INK
from innerloop.streaming.results import Comparison, Line, format_options
from innerloop.streaming.traces import Trace

MEMORY_ORDER = ("rls", "kalman", "deltanet", "longhorn", "titans_linear", "nadaraya_watson")
PANELS = 4  # targets that are drawn
# Errors up to these multiples of the least one share the frame of their picture; a curve that leaves it says so.
CUMULATIVE_FRAME = 3.0
ERROR_FRAME = 100.0
LEGEND_WIDTH = 130  # letters, line samples included
LEAVING = "     (↑ leaves the picture)"
COEFFICIENTS = 8  # those that matter most are drawn
SETTINGS = 11  # of a bank that get their own colour: the ones that were trusted most; the rest is one grey


def draw(name: str, comparison: Comparison, traces: Sequence[Trace], theme: look.Theme) -> bytes | None:
    """One picture as PNG, or None where there is nothing to draw.

    name: "predictions", "error", "cumulative", "drift" or "weights"; theme: "light" or "dark".
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    painter, height = {
        "predictions": (_draw_predictions, 7.2),
        "error": (_draw_error, 4.6),
        "cumulative": (_draw_cumulative, 4.6),
        "drift": (_draw_drift, 4.6),
        "weights": (_draw_weights, 4.2),
    }[name]
    panels = 1 if name == "weights" else min(PANELS, len(comparison.stream.scheme.targets))
    with mpl.rc_context(_style(theme)):  # the object interface: no global state, no display
        figure = Figure(figsize=(10, height + (panels - 1) * 3.0), dpi=144, facecolor=INK[theme]["paper"])
        FigureCanvasAgg(figure)
        if not painter(figure, comparison, traces, theme):
            return None
        figure.set_layout_engine("constrained", h_pad=0.08, w_pad=0.08)
        buffer = io.BytesIO()
        form = {"format": "png", "facecolor": INK[theme]["paper"], "metadata": {"Software": None}}
        figure.savefig(buffer, **form, pil_kwargs={"compress_level": 2})  # a tenth larger than usual, and soon done
    return buffer.getvalue()


def _style(theme: look.Theme) -> dict[str, Any]:
    return {**look.style(theme), "text.parse_math": False}  # a column may be called "price_$"


# ---------------------------------------------------------------------------------------------- scores


def _draw_predictions(figure: Any, comparison: Comparison, traces: Sequence[Trace], theme: str) -> bool:
    scores, targets = comparison.scores, comparison.stream.scheme.targets
    one = len(targets) == 1
    shown = min(PANELS, len(targets))
    grid = figure.subplots(2, 1) if one else figure.subplots(shown, 2, width_ratios=(1.6, 1))
    titles = (f"the {scores.scored:,} scored rows", f"the last {len(scores.zoom_x):,} rows")
    zoom = _axis(comparison, scores.zoom_x)
    whole = _axis(comparison, scores.x.points())
    for v in range(shown):
        pair = grid if one else grid[v]
        for axes, title, close in zip(pair, titles, (False, True), strict=True):
            x = zoom if close else whole
            truth = scores.zoom_truth[v] if close else scores.truth.points(v)
            # A thick truth stays visible as a dark rim around a good forecast.
            axes.plot(x, truth, color=INK[theme]["ink"], linewidth=2.2 if close else 3.0, label="truth")
            for line in _shown_forecasts(comparison):
                look = _look(line, theme) | {"linewidth": 1.4 if close else 1.0, "label": line.label}
                if close:
                    look |= {"marker": "o", "markersize": 2.6}
                values = scores.zoom_predictions[line.index, v] if close else scores.predictions.points(line.index, v)
                axes.plot(x, values, **look)
            _frame_truth(axes, truth)
            if v == 0 or one:
                axes.set_title(title)
            if one or not close:
                axes.set_ylabel(_short(targets[v]))
            axes.margins(x=0.01)
            _few_dates(axes, comparison, narrow=not one)
    for axes in [grid[-1]] if one else grid[-1]:
        axes.set_xlabel(_axis_name(comparison))
    handles, labels = (grid[1] if one else grid[0, 1]).get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3)
    return True


def _shown_forecasts(comparison: Comparison) -> list[Line]:
    """The last value beneath, the best memory above it."""
    best = next((line for line in comparison.memories() if not line.diverged), None)
    return [comparison.last_value, *([best] if best else [])]


def _frame_truth(axes: Any, y: np.ndarray) -> None:
    """The truth fills the frame: one wild prediction must not flatten the picture."""
    low, high = float(np.nanmin(y)), float(np.nanmax(y))
    margin = 0.12 * (high - low) or abs(high) * 0.05 or 1.0
    if np.isfinite(margin):
        axes.set_ylim(low - margin, high + margin)


def _draw_error(figure: Any, comparison: Comparison, traces: Sequence[Trace], theme: str) -> bool:
    scores = comparison.scores
    x = _axis(comparison, scores.x.points())
    axes, leaving = None, False
    for v, axes in _panels(figure, comparison):
        curves = []
        for line in _curves(comparison):
            rolling = scores.rolling.points(line.index, v)
            curves.append((line, np.where(rolling > 0, rolling, np.nan)))
        highest = [float(np.nanmax(rolling, initial=0.0)) for _, rolling in curves]
        least = min((high for high in highest if high > 0), default=0.0)
        top = max((high for high in highest if high <= ERROR_FRAME * least), default=0.0)
        for (line, rolling), high in zip(curves, highest, strict=True):
            leaves = 0.0 < top < high
            leaving |= leaves
            # Far outside, a curve has no shape that is worth the digits.
            values = np.where(rolling > 10.0 * top, 10.0 * top, rolling) if leaves else rolling
            axes.plot(x, values, **_look(line, theme), label=f"{line.label} ↑" if leaves else line.label)
        axes.set_yscale("log")
        if top > 0:
            axes.set_ylim(top=1.5 * top)
        _plain_log_ticks(axes)
        axes.set_ylabel(f"RMSE of the last {scores.window} rows")
        _few_dates(axes, comparison)
    axes.set_xlabel(_axis_name(comparison) + (LEAVING if leaving else ""))
    _legend_above(figure, axes)
    return True


def _draw_cumulative(figure: Any, comparison: Comparison, traces: Sequence[Trace], theme: str) -> bool:
    scores = comparison.scores
    x = _axis(comparison, scores.x.points())
    axes, leaving = None, False
    for v, axes in _panels(figure, comparison):
        totals = [(line, float(scores.absolute[line.index, v])) for line in _curves(comparison)]
        # The frame belongs to the forecasters that compete.
        least = min((total for _, total in totals), default=0.0)
        top = 1.08 * max((total for _, total in totals if total <= CUMULATIVE_FRAME * least), default=0.0)
        for line, total in totals:
            leaves = 0.0 < top < total
            leaving |= leaves
            label = f"{line.label} ↑" if leaves else line.label
            axes.plot(x, scores.cumulative.points(line.index, v), **_look(line, theme), label=label)
        if top > 0:
            axes.set_ylim(0, top)
        axes.set_ylabel("sum of |error|")
        _few_dates(axes, comparison)
    axes.set_xlabel(_axis_name(comparison) + (LEAVING if leaving else ""))
    _legend_above(figure, axes)
    return True


def _panels(figure: Any, comparison: Comparison) -> Iterator[tuple[int, Any]]:
    """A panel for each target, named when there are several."""
    targets = comparison.stream.scheme.targets
    shown = min(PANELS, len(targets))
    for v, axes in enumerate(figure.subplots(shown, 1, squeeze=False)[:, 0]):
        axes.margins(x=0.01)
        if len(targets) > 1:
            axes.set_title(_short(targets[v], 60))
        yield v, axes


def _curves(comparison: Comparison) -> list[Line]:
    """Baselines, then the best line of each memory that has a score, the best drawn last (on top)."""
    best: dict[str, Line] = {}  # fixed or automatic: twice as many curves would be a thicket
    for line in comparison.memories():
        if not line.diverged:
            best.setdefault(line.name, line)
    memories = list(best.values())
    baselines = [line for line in comparison.baselines if line.rmse is not None]
    return [*baselines, *reversed(memories)]


def _look(line: Line, theme: str) -> dict[str, Any]:
    if line.is_baseline:
        return {"color": INK[theme]["soft"], "linestyle": "--" if line.name == "last_value" else ":"}
    colours = COLOURS[theme]
    place = MEMORY_ORDER.index(line.name) if line.name in MEMORY_ORDER else sum(map(ord, line.name))
    # A memory's automatic line shares its colour.
    return {"color": colours[place % len(colours)]} | ({"linestyle": "-."} if "auto" in line.options.values() else {})


def _legend_above(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    handles, labels = handles[::-1], labels[::-1]  # drawn last is best: listed first
    figure.legend(handles, labels, loc="outside upper left", ncols=_legend_columns(labels, 3))


def _legend_columns(labels: Sequence[str], most: int) -> int:
    """As many columns as fit the figure's width; a column is as wide as its longest label."""
    for count in range(most, 1, -1):
        rows = -(-len(labels) // count)
        widths = [max(map(len, labels[first : first + rows])) + 8 for first in range(0, len(labels), rows)]
        if sum(widths) <= LEGEND_WIDTH:
            return count
    return 1


def _plain_log_ticks(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=9))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


# ---------------------------------------------------------------------------------------------- traces


def _draw_drift(figure: Any, comparison: Comparison, traces: Sequence[Trace], theme: str) -> bool:
    found = next((trace for trace in traces if trace.coefficients is not None and len(trace.x) > 1), None)
    if found is None or found.coefficients is None:
        return False
    names = comparison.stream.names
    # The features that ever mattered most, over all targets, in their own order.
    size = np.abs(found.coefficients).max((0, 1))
    chosen = sorted(np.argsort(-size, kind="stable")[:COEFFICIENTS])
    colours = (*COLOURS[theme], INK[theme]["ink"], INK[theme]["soft"])
    axes = None
    for v, axes in _panels(figure, comparison):
        for place, feature in enumerate(chosen):
            values = found.coefficients[:, v, feature]
            axes.plot(_axis(comparison, found.x), values, color=colours[place], label=_short(names[feature]))
        axes.axhline(0.0, color=INK[theme]["soft"], linewidth=0.8, zorder=1)
        axes.set_ylabel(f"effect on {_short(comparison.stream.scheme.targets[v])}")
        _few_dates(axes, comparison)
    rest = f"     ({len(chosen)} of {len(names)} features)" if len(chosen) < len(names) else ""
    axes.set_xlabel(_axis_name(comparison) + rest)
    handles, labels = axes.get_legend_handles_labels()
    ncols = _legend_columns(labels, 4)
    figure.legend(handles, labels, loc="outside upper left", ncols=ncols, title=found.line.label, alignment="left")
    return True


def _draw_weights(figure: Any, comparison: Comparison, traces: Sequence[Trace], theme: str) -> bool:
    import matplotlib as mpl

    found = next((trace for trace in traces if trace.weights is not None and len(trace.x) > 1), None)
    if found is None or found.weights is None:
        return False
    weights = found.weights
    chosen = sorted(np.argsort(-weights.mean(0), kind="stable")[:SETTINGS])
    layers, labels = weights[:, chosen], [_short(format_options(found.settings[s]), 40) for s in chosen]
    shades = mpl.colormaps["viridis"](np.linspace(0.12, 0.95, len(chosen)))
    colours = [tuple(shade) for shade in shades]
    if len(chosen) < weights.shape[1]:
        layers = np.column_stack([layers, 1.0 - layers.sum(1)])
        labels.append(f"the other {weights.shape[1] - len(chosen)}")
        colours.append(INK[theme]["grid"])
    axes = figure.subplots()
    axes.stackplot(_axis(comparison, found.x), layers.T, labels=labels, colors=colours, linewidth=0)
    axes.set_ylim(0, 1)
    axes.margins(x=0)
    axes.set_ylabel("weight")
    axes.set_xlabel(_axis_name(comparison))
    _few_dates(axes, comparison)
    ncols = _legend_columns(labels, 4)
    figure.legend(loc="outside upper left", ncols=ncols, title=found.line.label, alignment="left")
    return True


# ---------------------------------------------------------------------------------------------- axes


def _axis(comparison: Comparison, x: np.ndarray) -> np.ndarray:
    if not comparison.stream.dates:
        return x
    return np.where(np.isnan(x), np.datetime64("NaT"), (np.nan_to_num(x) * 1e6).round().astype("datetime64[us]"))


def _axis_name(comparison: Comparison) -> str:
    if comparison.stream.scheme.time is None:
        return "row"
    return "date" if comparison.stream.dates else "time"


def _few_dates(axes: Any, comparison: Comparison, narrow: bool = False) -> None:
    """Dates that say as much as is needed, and do not overlap."""
    if comparison.stream.dates:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(maxticks=5 if narrow else 9)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    elif narrow:
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(5))


def _short(text: str, limit: int = 24) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
