"""How every picture of the project looks: one style, told apart by colour-blind readers, on light and dark pages."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Theme = Literal["light", "dark"]
THEMES: tuple[Theme, Theme] = ("light", "dark")
# Okabe & Ito's palette; the dark page lifts the deep ones, which would sink into the background, and has the palette's
# yellow for its pale blue.
COLOURS = {
    "light": ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9"),
    "dark": ("#4DA6DD", "#E69F00", "#1FB88F", "#DD94BC", "#EE7733", "#F0E442"),
}
INK = {
    "light": {"paper": "#ffffff", "ink": "#1c2128", "soft": "#656d76", "grid": "#e4e7eb"},
    "dark": {"paper": "#14181d", "ink": "#e3e7ec", "soft": "#98a2ad", "grid": "#2a3038"},
}


@dataclass(frozen=True)
class Palette:
    """The colours of a theme."""

    theme: Theme

    @property
    def lines(self) -> tuple[str, ...]:
        """Colours of curves, in order."""
        return COLOURS[self.theme]

    @property
    def ink(self) -> str:
        """Of text, and of what the others are held against (truth, data)."""
        return INK[self.theme]["ink"]

    @property
    def soft(self) -> str:
        """Of axes, and of what stands in the background."""
        return INK[self.theme]["soft"]

    @property
    def paper(self) -> str:
        """Of the page."""
        return INK[self.theme]["paper"]

    @property
    def heat(self) -> str:
        """A sequential colour map that starts at the page's own shade."""
        return "Blues" if self.theme == "light" else "viridis"


Painter = Callable[[Any, Palette], None]
"""Draws onto a matplotlib Figure."""


def style(theme: Theme) -> dict[str, Any]:
    """matplotlib's settings."""
    from cycler import cycler

    ink = INK[theme]
    return {
        "font.family": "sans-serif", "font.size": 11, "text.color": ink["ink"],
        "axes.edgecolor": ink["soft"], "axes.labelcolor": ink["ink"], "axes.facecolor": ink["paper"],
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
        "axes.titlesize": 11, "axes.titlelocation": "left", "axes.titlecolor": ink["soft"],
        "grid.color": ink["grid"], "grid.linewidth": 0.8, "xtick.color": ink["soft"], "ytick.color": ink["soft"],
        "legend.frameon": False, "legend.fontsize": 10, "lines.linewidth": 1.6, "lines.solid_capstyle": "round",
        "axes.prop_cycle": cycler(color=COLOURS[theme]),
    }  # fmt: skip


def png(painter: Painter, theme: Theme, *, size: tuple[float, float] = (8.0, 4.2)) -> bytes:
    """The picture that a painter draws, as PNG; no display, no global state."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    palette = Palette(theme)
    with mpl.rc_context(style(theme)):
        figure = Figure(figsize=size, dpi=144, facecolor=palette.paper, layout="constrained")
        FigureCanvasAgg(figure)
        painter(figure, palette)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", facecolor=palette.paper, metadata={"Software": None})
    return buffer.getvalue()
