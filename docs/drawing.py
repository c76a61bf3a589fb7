"""How the figures of the concepts look: one width, one palette, text as text, the same bytes each time.

They stand on white, so that they are legible on light and dark pages. On the column of a phone, 331
pixels, their text is still 9 pixels high. Color is never the only difference.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from trtcal.reporting.charts import DPI
from trtcal.reporting.svg import ACCENT, INK, MUTED, PAPER

BLUE, BROWN, GREEN, GRAY = ACCENT, "#8a3b12", "#1a6e3c", "#eef1f4"
PALE_BLUE, PALE_BROWN = "#dcebfb", "#fbe6d9"
WIDTH = 5.2
FONT, SMALL = 11.0, 10.0
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "trtcal",
    "font.family": "sans-serif",
    "font.size": FONT,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def drawn(height: float, draw: Callable[[Figure], None]) -> str:
    """Return what `draw` puts on a figure of that height, in inches, as an SVG document."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor=PAPER)
        FigureCanvasSVG(figure)
        draw(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def plain_axes(figure: Figure, left: float = 0.0, width: float = 1.0) -> Axes:
    """Return axes without a frame, on which one unit is one inch, y downwards."""
    axes = figure.add_axes((left, 0.0, width, 1.0))
    axes.set(xlim=(0, width * WIDTH), ylim=(figure.get_figheight(), 0))
    axes.axis("off")
    return axes


def box(axes: Axes, place: tuple[float, float], text: str, width: float, fill: str = GRAY) -> None:
    """Draw a box around its middle, with one or more lines of text in it."""
    height = 0.19 * (text.count("\n") + 1) + 0.07
    x, y = place
    corner = (x - width / 2, y - height / 2)
    edge = {GRAY: MUTED, PALE_BLUE: BLUE, PALE_BROWN: BROWN}.get(fill, MUTED)
    style = "round,pad=0,rounding_size=0.06"
    axes.add_patch(FancyBboxPatch(corner, width, height, style, fc=fill, ec=edge, lw=1))
    axes.text(x, y, text, ha="center", va="center", fontsize=SMALL, linespacing=1.15)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], is_int8: bool) -> None:
    """Draw an edge: thick and blue where INT8 flows, thin and gray where float does."""
    color, width = (BLUE, 2.4) if is_int8 else (MUTED, 1.0)
    shape = {"arrowstyle": "-|>", "color": color, "lw": width, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=shape)


def beside(
    axes: Axes, sides: tuple[float, float], ends: tuple[float, float], is_int8: bool
) -> None:
    """Draw an edge beside a column, from the side of one box at `ends[0]` to one at `ends[1]`."""
    color, width = (BLUE, 2.4) if is_int8 else (MUTED, 1.0)
    far = max(sides) + 0.28
    axes.plot([sides[0], far, far], [ends[0], *ends], color=color, lw=width)
    arrow(axes, (far, ends[1]), (sides[1], ends[1]), is_int8)
