"""The report's drawings as SVG: accuracy against latency, and histograms with the ranges on them.

They are legible without colour: the reference is a diamond, variants on the Pareto front are filled
circles, the others hollow ones; methods differ by their dashes. The same data give the same bytes.
Counts are on a logarithmic scale, since what a range cuts off is rare.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from calibrators.imports import MATPLOTLIB, without_file
from trtcal.reporting.engines import View
from trtcal.reporting.svg import GAP, Box, place, tidy
from trtcal.reporting.text import between, milliseconds, number, shorten, visible, width_em
from trtcal.reporting.text import figure as figure_text

with without_file(MATPLOTLIB):
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

INK, MUTED, LINE = "#1f2328", "#59636e", "#d5dae0"
ACCENT, REFERENCE, PAPER = "#0b5cad", "#8a3b12", "#ffffff"

DPI = 72  # one unit of the drawing is one point
NAMES_SHOWN = 12  # beyond this many points, labels are numbers
LOG_RATIO = 20.0
MARKER_HALF = 5.0
LABEL_SPACE = 6.0  # between labels side by side
NAME_LENGTH = 34
LEGEND = 3  # methods beside each other over one column
DASHES = ((1.0, 0.0), (5, 2), (1.5, 1.5), (5, 2, 1, 2), (8, 3), (3, 1, 1, 1, 1, 1))


@dataclass(frozen=True)
class Layout:
    """A size that drawings have, in inches; a page shows the one that its screen has room for.

    `frame` is where the axes stand in the chart, as shares of it; a panel is one histogram. `prefix`
    begins the ids of what is drawn so.
    """

    chart: tuple[float, float]
    frame: tuple[float, float, float, float]
    panel: tuple[float, float]
    columns: int
    font: float
    small: float
    prefix: str = ""

    def drawing(self) -> AbstractContextManager[None]:
        """Return the context in which matplotlib has this layout."""
        return mpl.rc_context(
            {
                "svg.hashsalt": f"{self.prefix}trtcal",
                "svg.fonttype": "none",
                "font.size": self.font,
                "legend.fontsize": self.small,
            }
        )


WIDE = Layout((10.0, 4.8), (0.065, 0.13, 0.915, 0.76), (3.4, 1.9), 3, 10.0, 8.5)
NARROW = Layout((4.6, 4.4), (0.13, 0.14, 0.84, 0.74), (4.6, 2.1), 1, 12.5, 12.0, "narrow-")
LAYOUTS = (WIDE, NARROW)
P50 = "median latency p50"


@dataclass(frozen=True)
class Point:
    """One variant: latency in milliseconds, accuracy in the chart's unit, each with its interval.

    `accuracy` is None for a reference that has none (SQNR against itself is infinite). `evidence` is
    what the latency is: a median that was measured, a sum of layers, or an estimate.
    """

    number: int
    name: str
    latency_ms: float
    latency_interval: tuple[float, float]
    accuracy: float | None
    accuracy_interval: tuple[float, float] | None = None
    is_reference: bool = False
    evidence: str = "p50"


Drawn = list[tuple[Point, float]]
"""Points with the accuracy at which they stand."""


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indexes of the (latency, accuracy) that no other one beats, by rising latency."""

    def beaten(point: tuple[float, float]) -> bool:
        return any(each[0] <= point[0] and each[1] >= point[1] and each != point for each in points)

    front = [index for index, point in enumerate(points) if not beaten(point)]
    return sorted(front, key=lambda index: points[index])


def accuracy_against_latency(
    points: Sequence[Point], measure: str, unit: str, layout: Layout = WIDE, across: str = P50
) -> str:
    """Return the chart as an SVG document; `measure` and `unit` name the accuracy axis.

    `across` names the latencies.
    """
    drawn = [(point, point.accuracy) for point in points if point.accuracy is not None]
    places = [(point.latency_ms, accuracy) for point, accuracy in drawn]
    front = pareto_front(places)
    steps = [places[index] for index in front]
    with layout.drawing():
        figure = Figure(figsize=layout.chart, dpi=DPI)
        FigureCanvasSVG(figure)
        axes = figure.add_axes(layout.frame)
        _set_limits(axes, points)
        _style(axes, measure, unit, across)
        _draw_front(axes, steps, layout)
        _draw_points(axes, drawn, {drawn[index][0].number for index in front}, layout)
        _draw_bare_reference(axes, points)
        _draw_labels(axes, drawn, _front_boxes(axes, steps))
        source = saved(figure)
    tooltips = {_gid(point, layout): tooltip(point, measure, unit) for point, _ in drawn}
    meaning = "Pareto front: no other point is both faster and more accurate"
    texts = (f"{measure} against latency", _description(drawn, front, measure, across))
    reached, name = {*tooltips}, f"{layout.prefix}chart"
    tooltips[f"{layout.prefix}pareto-front"] = meaning
    return tidy(source, *texts, tooltips, name, reached)


def tooltip(point: Point, measure: str, unit: str) -> str:
    """Return a point's numbers in a line."""
    name = visible(point.name) + (" (reference)" if point.is_reference else "")
    figure = f"{measure} {number(point.accuracy)} {unit}{_interval(point.accuracy_interval)}"
    latency = f"{milliseconds(point.latency_ms)} ms{_interval(point.latency_interval, 3)}"
    return f"{name}: {figure}; {point.evidence} {latency}"


def _interval(interval: tuple[float, float] | None, digits: int = 2) -> str:
    return f" ({between(*interval, digits)})" if interval else ""


def _description(drawn: Drawn, front: Sequence[int], measure: str, across: str) -> str:
    names = ", ".join(visible(drawn[index][0].name) for index in front)
    return (
        f"Each of the {len(drawn)} points is a model. The vertical axis is {measure}, the horizontal "
        f"axis the {across}, both with intervals. On the Pareto front: {names or 'none'}. "
        "The table Variants has the numbers."
    )


def _gid(point: Point, layout: Layout) -> str:
    return f"{layout.prefix}point-{point.number}"


def _font() -> float:
    return float(mpl.rcParams["font.size"])


def saved(figure: Figure) -> str:
    """Return a figure as matplotlib writes it, without a date."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        # A name may hold letters that matplotlib's own font lacks; the reader's browser has them.
        warnings.filterwarnings("ignore", message=r"Glyph \d+", category=UserWarning)
        figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    return buffer.getvalue()


def _set_limits(axes: Axes, points: Sequence[Point]) -> None:
    across = [value for point in points for value in (point.latency_ms, *point.latency_interval)]
    up = [point.accuracy for point in points if point.accuracy is not None]
    up += [value for point in points for value in point.accuracy_interval or ()]
    low, high = (min(across), max(across)) if across else (0.0, 1.0)
    if low > 0 and high / low > LOG_RATIO:
        axes.set_xscale("log")
        axes.set_xlim(low / (high / low) ** 0.08, high * (high / low) ** 0.15)
    else:
        axes.set_xlim(*_padded(low, high, 0.08, 0.18))
    axes.set_ylim(*_padded(min(up, default=0.0), max(up, default=1.0), 0.12, 0.12))


def _padded(low: float, high: float, before: float, after: float) -> tuple[float, float]:
    """Return limits with room at both ends, also where all values are equal."""
    span = high - low or max(abs(high) * 0.1, 1e-3)
    return low - span * before, high + span * after


def _draw_baseline(axes: Axes) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)


def _style(axes: Axes, measure: str, unit: str, across: str) -> None:
    _draw_baseline(axes)
    axes.grid(True, axis="y", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, labelsize=_font() - 0.5, length=0, pad=6)
    _set_ticks(axes)
    better = f"{measure} ({unit}), higher is better"
    left = -axes.get_position().x0 / axes.get_position().width
    axes.text(0.85 * left, 1.06, better, transform=axes.transAxes, color=INK)
    axes.text(
        *(1.0, -0.145, f"{across} (ms), lower is better"),
        transform=axes.transAxes,
        parse_math=False,
        color=INK,
        ha="right",
    )


def _set_ticks(axes: Axes) -> None:
    plain = FuncFormatter(lambda value, _: f"{value:.6g}".replace("-", "\u2212"))
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        if axis.get_scale() == "log":
            values = LogLocator(subs=(1.0, 2.0, 5.0)).tick_values(*limits)
        else:
            values = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(*limits)
        inside = [float(value) for value in values if limits[0] <= value <= limits[1]]
        axis.set_major_locator(FixedLocator(inside))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(plain)


def _draw_front(axes: Axes, front: Sequence[tuple[float, float]], layout: Layout) -> None:
    if not front:
        return
    across, up = [point[0] for point in front], [point[1] for point in front]
    ends = [*across, axes.get_xlim()[1]], [*up, up[-1]]
    (line,) = axes.plot(*ends, color=ACCENT, linewidth=1.2, drawstyle="steps-post")
    line.set_dashes((4, 3))
    line.set_gid(f"{layout.prefix}pareto-front")


def _draw_points(axes: Axes, drawn: Drawn, front: set[int], layout: Layout) -> None:
    for point, accuracy in drawn:
        _draw_bars(axes, point, accuracy)
    for point, accuracy in drawn:
        color = REFERENCE if point.is_reference else ACCENT
        axes.plot(
            *([point.latency_ms], [accuracy]),
            gid=_gid(point, layout),
            marker="D" if point.is_reference else "o",
            markersize=8 if point.is_reference else 8.5,
            markerfacecolor=color if point.number in front else PAPER,
            markeredgecolor=color,
            markeredgewidth=1.6,
            linestyle="none",
        )


def _draw_bars(axes: Axes, point: Point, accuracy: float) -> None:
    color = REFERENCE if point.is_reference else ACCENT
    axes.plot(point.latency_interval, [accuracy] * 2, color=color, linewidth=1.0, alpha=0.65)
    if point.accuracy_interval:
        across = [point.latency_ms] * 2
        axes.plot(across, point.accuracy_interval, color=color, linewidth=1.0, alpha=0.65)


def _draw_bare_reference(axes: Axes, points: Sequence[Point]) -> None:
    for point in points:
        if point.is_reference and point.accuracy is None:
            axes.axvline(point.latency_ms, color=REFERENCE, linewidth=1.2, dashes=(1, 2))
            axes.text(
                *(point.latency_ms, axes.get_ylim()[1], f" {_name(point)} (FP32 reference)"),
                color=REFERENCE,
                va="top",
                parse_math=False,
            )


def _name(point: Point) -> str:
    return shorten(visible(point.name), NAME_LENGTH)


def _draw_labels(axes: Axes, drawn: Drawn, front: Iterable[Box]) -> None:
    named = len(drawn) <= NAMES_SHOWN
    texts = [_name(point) if named else str(point.number) for point, _ in drawn]
    anchors = [_on_paper(axes, point.latency_ms, accuracy) for point, accuracy in drawn]
    sizes = [(width_em(text) * _font() + LABEL_SPACE, _font() * 1.25) for text in texts]
    markers = [Box.around(*anchor, MARKER_HALF) for anchor in anchors]
    bars = [box for point, accuracy in drawn for box in _bar_boxes(axes, point, accuracy)]
    frame = axes.bbox
    bounds = Box(frame.x0, frame.y0 + 2, frame.x1, frame.y1)
    boxes = place(anchors, sizes, bounds, markers, [*bars, *front])
    for text, anchor, box in zip(texts, anchors, boxes, strict=True):
        if box is not None:
            _draw_label(axes, text, anchor, box)


def _draw_label(axes: Axes, text: str, anchor: tuple[float, float], box: Box) -> None:
    inverse = axes.transData.inverted()
    x, y = inverse.transform((box.left + LABEL_SPACE / 2, box.bottom + _font() * 0.3))
    axes.text(x, y, text, color=INK, parse_math=False, gid="label")
    nearest = (min(max(anchor[0], box.left), box.right), min(max(anchor[1], box.bottom), box.top))
    if math.dist(anchor, nearest) > 2.5 * GAP:
        ends = [inverse.transform(anchor), inverse.transform(nearest)]
        axes.plot(*zip(*ends, strict=True), color=MUTED, linewidth=0.7, zorder=1.5)


def _on_paper(axes: Axes, x: float, y: float) -> tuple[float, float]:
    across, up = axes.transData.transform((x, y))
    return float(across), float(up)


def _front_boxes(axes: Axes, front: Sequence[tuple[float, float]]) -> Iterator[Box]:
    corners = [_on_paper(axes, *point) for point in front]
    ends = [*corners[1:], *[(float(axes.bbox.x1), y) for _, y in corners[-1:]]]
    for (x, y), (next_x, next_y) in zip(corners, ends, strict=True):
        yield Box(x, y - 1, next_x, y + 1)
        yield Box(next_x - 1, y, next_x + 1, next_y)


def _bar_boxes(axes: Axes, point: Point, accuracy: float) -> Iterator[Box]:
    low, high = point.latency_interval
    left, right = _on_paper(axes, low, accuracy), _on_paper(axes, high, accuracy)
    yield Box(left[0], left[1] - 1, right[0], right[1] + 1)
    if point.accuracy_interval:
        bottom, top = (_on_paper(axes, point.latency_ms, end) for end in point.accuracy_interval)
        yield Box(bottom[0] - 1, bottom[1], top[0] + 1, top[1])


def draw_histograms(tensors: Sequence[View], methods: Sequence[str], layout: Layout = WIDE) -> str:
    """Return the drawing of these tensors' magnitudes; each is one of the report's with its bars."""
    rows, beside = -(-len(tensors) // layout.columns), LEGEND * layout.columns
    head = 0.05 + 0.3 * -(-len(methods) // beside)
    size = (layout.panel[0] * layout.columns, layout.panel[1] * rows + head)
    with layout.drawing():
        figure = Figure(figsize=size, dpi=DPI)
        FigureCanvasSVG(figure)
        for place, tensor in enumerate(tensors):
            row, column = divmod(place, layout.columns)
            left = (column * layout.panel[0] + 0.12) / size[0]
            bottom = (size[1] - head - (row + 1) * layout.panel[1] + 0.32) / size[1]
            width, height = (layout.panel[0] - 0.34) / size[0], (layout.panel[1] - 0.72) / size[1]
            axes = figure.add_axes((left, bottom, width, height))
            _draw_histogram(axes, f"{layout.prefix}histogram-{place}", tensor, methods)
        _legend(figure, methods, size, beside)
        source = saved(figure)
    begin = f"{layout.prefix}histogram-"
    tooltips = {f"{begin}{place}": _tooltip(tensor) for place, tensor in enumerate(tensors)}
    description = f"{len(tensors)} tensors: counts of magnitudes, and the ranges chosen for each."
    title = "Histograms and ranges"
    return tidy(source, title, description, tooltips, f"{layout.prefix}histograms")


def _draw_histogram(axes: Axes, gid: str, tensor: View, methods: Sequence[str]) -> None:
    bars, top = np.log1p(tensor["bars"]), tensor["observed"]
    edges = np.linspace(0.0, top, len(bars) + 1)
    axes.stairs(bars, edges, fill=True, color=LINE, edgecolor=MUTED, linewidth=0.6, gid=gid)
    for row in tensor["ranges"]:
        order = methods.index(row["method"])
        color = REFERENCE if order % 2 else ACCENT
        dashes = DASHES[order % len(DASHES)]
        axes.axvline(min(row["amax"], top), color=color, linewidth=1.6, dashes=dashes)
    axes.set_xlim(0.0, top * 1.02)
    axes.set_ylim(0.0, float(bars.max()) * 1.05 or 1.0)
    _draw_baseline(axes)
    axes.yaxis.set_major_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator([0.0, top / 2, top]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: figure_text(value)))
    axes.tick_params(colors=MUTED, labelsize=_small(), length=2)
    axes.text(
        *(0.0, 1.1, shorten(visible(tensor["name"]), NAME_LENGTH)),
        transform=axes.transAxes,
        color=INK,
        fontsize=_small() + 0.5,
        parse_math=False,
    )


def _small() -> float:
    return float(mpl.rcParams["legend.fontsize"])


def _legend(figure: Figure, methods: Sequence[str], size: tuple[float, float], in_row: int) -> None:
    for order, method in enumerate(methods):
        color = REFERENCE if order % 2 else ACCENT
        row, column = divmod(order, in_row)
        left, height = 0.012 + column * 1.5 / size[0], 1 - (0.13 + 0.3 * row) / size[1]
        ends = [left, left + 0.35 / size[0]], [height, height]
        dashes = DASHES[order % len(DASHES)]
        figure.add_artist(mpl.lines.Line2D(*ends, color=color, linewidth=1.6, dashes=dashes))
        figure.text(
            *(left + 0.42 / size[0], height, visible(method)),
            color=INK,
            fontsize=_small() + 0.5,
            va="center",
            parse_math=False,
        )


def _tooltip(tensor: View) -> str:
    ranges = ", ".join(f"{visible(r['method'])} {figure_text(r['amax'])}" for r in tensor["ranges"])
    return f"{visible(tensor['name'])}: largest {figure_text(tensor['observed'])}; {ranges}"
