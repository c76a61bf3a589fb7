"""The report's charts: accuracy against latency or alone, and histograms with the ranges on them.

They are legible without color: the reference is a diamond, measured latencies are filled marks and
estimated ones hollow, with a dashed interval; methods differ by their dashes. The same data give the
same bytes. Counts are on a logarithmic scale, since what a range cuts off is rare.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from calibrators.imports import MATPLOTLIB, without_file
from trtcal.reporting.engines import View
from trtcal.reporting.placing import (
    Array,
    Box,
    Label,
    Line,
    Obstacles,
    Place,
    around,
    beside,
    place,
)
from trtcal.reporting.scale import Axis, Reach, axis_of
from trtcal.reporting.svg import ACCENT, INK, LINE, MUTED, PAPER, REFERENCE, tidy
from trtcal.reporting.text import between, milliseconds, number, shorten, visible, width_em
from trtcal.reporting.text import figure as figure_text

with without_file(MATPLOTLIB):
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
    from matplotlib.transforms import IdentityTransform

Style = dict[str, Any]
"""What matplotlib knows a line, a mark or a text by."""

DPI = 72  # one unit of a drawing is one point
NAMES_SHOWN = 12  # beyond this many points, labels are numbers
NAME_LENGTH = 34
NAME_LENGTHS = (NAME_LENGTH, 24, 16)  # of labels, the longest that have room
RINGS, FAR_RINGS = 20, 70  # how far from its point a name, and a number, is tried
MARK_HALF = 6.0
LABEL_SPACE = 6.0  # of a label, more than its text
ZIGZAG = 3.0  # half the width of the mark of a broken axis
LINES = 1.25  # of a font's size: the height of a line of text
MARGIN = 9.0  # pixels at the right of the points
VALUES = 66.0  # pixels for the figures beside rows
DASHES = ((), (5, 2), (1.5, 1.5), (5, 2, 1, 2), (8, 3), (3, 1, 1, 1, 1, 1))
DOTTED, DASHED = (0, (1, 2)), (0, (3, 2))
FRONT_STYLE: Style = {"color": MUTED, "linewidth": 1.2, "linestyle": (0, (6, 2.5))}
LIMIT_STYLE: Style = {"linewidth": 1.2, "linestyle": DOTTED, "gid": "limit"}
ABOUT = "about"
P50 = "median latency p50 on this machine"
FRONT = "Pareto front: no other point is both faster and more accurate"
STYLE: Any = {
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 1.0,
    "grid.color": LINE,
    "lines.linewidth": 1.0,
    "legend.frameon": False,
    "legend.labelcolor": MUTED,
    **{f"axes.spines.{side}": False for side in ("top", "left", "right")},
    **{f"{axis}tick.color": MUTED for axis in "xy"},
    "xtick.bottom": False,
    "ytick.left": False,
    **{f"{axis}tick.major.pad": 6 for axis in "xy"},
}


@dataclass(frozen=True)
class Layout:
    """A size that drawings have, in pixels; a page shows the one that its screen has room for.

    A chart has its points from `left` to `right`, under its `head`; `names` is the width of names
    beside rows. Histograms are `columns` panels of a size beside each other. `prefix` begins the ids of
    what is drawn so.
    """

    width: float
    left: float
    right: float
    height: float
    head: float
    names: float
    panel: Place
    columns: int
    font: float
    small: float
    prefix: str = ""

    def drawing(self) -> AbstractContextManager[None]:
        """Return the context in which matplotlib has this layout."""
        own: Any = {"font.size": self.font, "svg.hashsalt": f"{self.prefix}trtcal"}
        return mpl.rc_context(STYLE | own)

    def figure(self, height: float) -> Figure:
        """Return an empty figure."""
        figure = Figure(figsize=(self.width / DPI, height / DPI), dpi=DPI)
        FigureCanvasSVG(figure)
        return figure

    def saved(self, figure: Any, name: str, *texts: str, tooltips: Mapping[str, str]) -> str:
        """Return a figure as SVG for a page, whose points the keyboard reaches."""
        buffer = io.StringIO()
        with warnings.catch_warnings():
            # A name may hold letters that matplotlib's own font lacks; the reader's browser has them.
            warnings.filterwarnings("ignore", message=r"Glyph \d+", category=UserWarning)
            figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
        reached = [each for each in tooltips if each.startswith(f"{self.prefix}point-")]
        title, description = texts
        name = f"{self.prefix}{name}"
        return tidy(buffer.getvalue(), title, description, tooltips, name, reached)


WIDE = Layout(720.0, 52.0, 705.0, 280.0, 40.0, 240.0, (240.0, 140.0), 3, 12.0, 10.5)
NARROW = Layout(331.0, 46.0, 322.0, 240.0, 44.0, 145.0, (331.0, 150.0), 1, 12.5, 12.0, "narrow-")
LAYOUTS = (WIDE, NARROW)


@dataclass(frozen=True)
class Drawing:
    """A chart as SVG; parts of it that were replaced are flagged for its note."""

    source: str = field(repr=False)
    is_broken: bool
    is_numbered: bool = False


@dataclass(frozen=True)
class Point:
    """One variant: latency in milliseconds, accuracy in the chart's unit, each with its interval.

    `accuracy` is None for a reference that has none (SQNR against itself is infinite). `evidence` is
    what the latency is: a median that was measured, a sum of layers, or an estimate (`about`).
    """

    number: int
    name: str
    latency_ms: float
    latency_interval: Reach
    accuracy: float | None
    accuracy_interval: Reach | None = None
    is_reference: bool = False
    evidence: str = "p50"

    @property
    def label(self) -> str:
        """The name as it is shown."""
        return shorten(visible(self.name), NAME_LENGTH)

    @property
    def color(self) -> str:
        """The color of its mark and its intervals."""
        return REFERENCE if self.is_reference else ACCENT

    @property
    def style(self) -> Style:
        """The style of its mark, and of its latency's interval as a line."""
        return {
            "marker": "D" if self.is_reference else "o",
            "markersize": 8 if self.is_reference else 8.5,
            "markerfacecolor": PAPER if self.evidence == ABOUT else self.color,
            "markeredgewidth": 1.6,
            "color": self.color,
            "linestyle": DASHED if self.evidence == ABOUT else "-",
        }


@dataclass(frozen=True)
class Chart:
    """What is drawn: the points, what their accuracies and latencies are, and the accuracy to hold.

    `limit` is that accuracy with its words.
    """

    points: Sequence[Point]
    measure: str
    unit: str
    across: str = P50
    limit: tuple[float, str] | None = None

    @property
    def known(self) -> list[tuple[Point, float]]:
        """The points whose accuracy is known, with that."""
        return [(point, point.accuracy) for point in self.points if point.accuracy is not None]

    @property
    def axis(self) -> Axis:
        """The axis of accuracy, with the limit on it unless it is far from all points."""
        reaches = [(accuracy, *(point.accuracy_interval or ())) for point, accuracy in self.known]
        axis = axis_of(reaches)
        if self.limit and axis.is_near(self.limit[0]):
            return axis_of([*reaches, (self.limit[0],)])
        return axis

    def tooltip(self, point: Point) -> str:
        """Return a point's name and accuracy in a line."""
        name = visible(point.name) + (" (reference)" if point.is_reference else "")
        interval = _interval(point.accuracy_interval)
        return f"{name}: {self.measure} {number(point.accuracy)} {self.unit}{interval}"


def pareto_front(points: Sequence[Place]) -> list[int]:
    """Return the indexes of the (latency, accuracy) that no other one beats, by rising latency."""

    def beaten(point: Place) -> bool:
        return any(each[0] <= point[0] and each[1] >= point[1] and each != point for each in points)

    front = [index for index, point in enumerate(points) if not beaten(point)]
    return sorted(front, key=lambda index: points[index])


def accuracy_against_latency(chart: Chart, layout: Layout = WIDE) -> Drawing:
    """Return the drawing of accuracy against latency."""
    with layout.drawing():
        plot = _Plot(chart, layout)
        has_numbers = plot.draw()
        front = ", ".join(visible(plot.known[index][0].name) for index in plot.front)
        description = (
            f"Each of the {len(plot.known)} points is a model. The vertical axis is "
            f"{chart.measure}, the horizontal axis the {chart.across}, both with intervals. On the "
            f"Pareto front: {front or 'none'}.{_broken('vertical', plot.y)}"
            f"{_broken('horizontal', plot.x)} The table Variants has the numbers."
        )
        tooltips = {f"{layout.prefix}pareto-front": FRONT}
        for point, _ in plot.known:
            latency = f"{milliseconds(point.latency_ms)} ms{_interval(point.latency_interval, 3)}"
            words = f"{chart.tooltip(point)}; {point.evidence} {latency}"
            tooltips[f"{layout.prefix}point-{point.number}"] = words
        texts = (f"{chart.measure} against latency", description)
        source = layout.saved(plot.axes.figure, "chart", *texts, tooltips=tooltips)
    return Drawing(source, bool(plot.x.breaks or plot.y.breaks), has_numbers)


class _Plot:
    """Accuracy against latency on axes, and what its labels leave visible, in pixels."""

    def __init__(self, chart: Chart, layout: Layout) -> None:
        self.chart, self.layout, self.known, font = chart, layout, chart.known, layout.font
        times = [(point.latency_ms, *point.latency_interval) for point in chart.points]
        self.x, self.y = axis_of(times, may_be_log=True), chart.axis
        foot = _wrapped(f"{chart.across} (ms), lower is better", self.x, layout)
        keys, columns = _keys(self.known), layout.columns + 1
        bottom = (3.2 + LINES * (foot.count("\n") + 1) + 1.6 * -(-len(keys) // columns)) * font
        self.frame = Box(layout.left, bottom, layout.right, bottom + layout.height)
        self.axes = _axes_in(layout.figure(self.frame.top + layout.head), self.frame)
        self.fixed = _set_axis(self.axes, self.y, font, is_up=True)
        self.fixed += _set_axis(self.axes, self.x, font)
        _write_head(self.axes, chart, self.y, layout)
        _write(self.axes, (self.frame.right, bottom - 2.2 * font), foot, ha="right", va="top")
        _add_legend(self.axes, keys, font - 1, columns, (layout.left, 4.0), "lower left")
        self.axes.grid(axis="y", linewidth=0.8)
        places = [(point.latency_ms, accuracy) for point, accuracy in self.known]
        self.front, self.anchors = pareto_front(places), [self._at(*each) for each in places]
        self.boxes = [Box.around(*anchor, MARK_HALF) for anchor in self.anchors]
        self.bars = [bar for each in self.known for bar in self._bars(*each)]
        self.steps = [*self._steps()]
        self.fixed += [(*start, *end) for start, end in pairwise(self.steps)]

    def _at(self, ms: float, accuracy: float) -> Place:
        x, y = self.axes.transData.transform((ms, accuracy))
        return float(x), float(y)

    def _bars(self, point: Point, accuracy: float) -> tuple[Line, Line]:
        """Return the intervals of a point as a line across and a line up."""
        (left, right), ms = point.latency_interval, point.latency_ms
        low, high = point.accuracy_interval or (accuracy, accuracy)
        across = (*self._at(left, accuracy), *self._at(right, accuracy))
        return across, (*self._at(ms, low), *self._at(ms, high))

    def _steps(self) -> Iterator[Place]:
        """Yield the corners of the front's line, which ends at the right."""
        corners = [self.anchors[index] for index in self.front]
        ends = [*corners[1:], (self.frame.right, 0.0)]
        for (x, y), (after, _) in zip(corners, ends, strict=False):
            yield from ((x, y), (after, y))

    def _lines(self) -> Iterator[tuple[Line, str, str]]:
        """Yield the lines of the limit and of a reference without accuracy, with text and color."""
        limit, frame = self.chart.limit, self.frame
        if limit and self.y.shows(limit[0]):
            _, y = self._at(self.x.ends[0], limit[0])
            yield (frame.left, y, frame.right, y), limit[1], MUTED
        for point in self.chart.points:
            if point.is_reference and point.accuracy is None:
                x, _ = self._at(point.latency_ms, self.y.ends[0])
                yield (x, frame.bottom, x, frame.top), "FP32", REFERENCE

    def draw(self) -> bool:
        """Draw everything on the axes; return whether points bear numbers."""
        prefix = self.layout.prefix
        _stroke(self.axes, self.steps, gid=f"{prefix}pareto-front", **FRONT_STYLE)
        lines = [*self._lines()]
        self.fixed += [line for line, _, _ in lines]
        for line, text, color in lines:
            _stroke(self.axes, line, color=color, **LIMIT_STYLE)
            for words, has_bars in ((text, True), (text.partition(":")[0], True), (text, False)):
                near = [beside(line, _size(words, self.layout.font))]
                labels = self._place(near, is_line=True, has_bars=has_bars)
                if all(labels):
                    self._write([words], labels, color)
                    break
        for (point, _), bar in zip(self.known, self.bars[1::2], strict=True):
            _stroke(self.axes, bar, color=point.color, gid="bar")
        for point, accuracy in self.known:
            low, high = point.latency_interval
            times, gid = (low, point.latency_ms, high), f"{prefix}point-{point.number}"
            self.axes.plot(times, [accuracy] * 3, gid=gid, markevery=[1], **point.style)
        return self._draw_labels()

    def _draw_labels(self) -> bool:
        """Write names beside the points if all have room, else numbers; return whether numbers."""
        numbers, font = [str(point.number) for point, _ in self.known], self.layout.font
        tries = [(numbers, FAR_RINGS, True), (numbers, FAR_RINGS, False)]
        if len(self.known) <= NAMES_SHOWN:
            names = [[shorten(p.label, length) for p, _ in self.known] for length in NAME_LENGTHS]
            tries = [*((each, RINGS, True) for each in names), *tries]
        for texts, rings, has_bars in tries:
            pairs = zip(self.anchors, texts, strict=True)
            near = [around(anchor, _size(text, font), rings) for anchor, text in pairs]
            labels = self._place(near, is_line=False, has_bars=has_bars)
            if all(labels):
                break
        self._write(texts, labels, INK)
        return texts == numbers

    def _place(self, near: Sequence[Array], *, is_line: bool, has_bars: bool) -> list[Label | None]:
        """Return where labels near the points have room, or one near a line."""
        obstacles = Obstacles(self.boxes, [*self.fixed, *self.bars * has_bars])
        return place([None] if is_line else self.anchors, near, self.frame, obstacles)

    def _write(self, texts: Sequence[str], labels: Sequence[Label | None], color: str) -> None:
        for text, label in zip(texts, labels, strict=True):
            if label and label.leader:
                _stroke(self.axes, label.leader, color=MUTED, lw=0.7, gid="leader", zorder=1.5)
            if label:
                self.boxes.append(label.box)
                at = (label.box.left + LABEL_SPACE / 2, label.box.bottom + 0.3 * self.layout.font)
                _write(self.axes, at, text, color=color, gid="label")


def _keys(known: Sequence[tuple[Point, float]]) -> dict[str, Style]:
    """Return what the marks are, as a legend says it."""
    keys: dict[str, Style] = {}
    for point, _ in sorted(
        known, key=lambda each: (each[0].is_reference, each[0].evidence == ABOUT)
    ):
        kind = "estimated" if point.evidence == ABOUT else "measured"
        keys["FP32" if point.is_reference else kind] = {**point.style, "linestyle": "none"}
    return {**keys, "Pareto front": FRONT_STYLE}


def accuracy_of_each(chart: Chart, layout: Layout = WIDE) -> Drawing:
    """Return the drawing of accuracy alone: a row for each variant, the best first."""
    font, row, axis = layout.font, 2.1 * layout.font, chart.axis
    order = sorted(
        chart.points, key=lambda each: (each.accuracy is not None, -(each.accuracy or 0))
    )
    frame = Box(layout.names, 2.2 * font, layout.width - VALUES, 2.2 * font + row * len(order))
    with layout.drawing():
        axes = _axes_in(layout.figure(frame.top + layout.head + 1.5 * font), frame)
        axes.set(ylim=(len(order) - 0.5, -0.5), yticks=[])
        _set_axis(axes, axis, font)
        axes.grid(axis="x", linewidth=0.8)
        _write_head(axes, chart, axis, layout)
        if chart.limit and axis.shows(chart.limit[0]):
            _draw_limit(axes, *chart.limit, layout)
        for place_, point in enumerate(order):
            _draw_row(axes, chart, point, place_, layout)
        description = (
            f"A row for each of {len(order)} models, the best first: {chart.measure} with its "
            f"interval.{_broken('horizontal', axis)} The table Variants has the numbers."
        )
        tooltips = {
            f"{layout.prefix}point-{point.number}": chart.tooltip(point) for point, _ in chart.known
        }
        texts = (f"{chart.measure} of each variant", description)
        source = layout.saved(axes.figure, "chart", *texts, tooltips=tooltips)
    return Drawing(source, bool(axis.breaks))


def _draw_limit(axes: Axes, value: float, text: str, layout: Layout) -> None:
    axes.axvline(value, color=MUTED, **LIMIT_STYLE)
    half, (x, _) = _size(text, layout.font)[0] / 2, axes.transData.transform((value, 0.0))
    at = (min(max(float(x), half), layout.width - half), axes.bbox.y1 + 0.5 * layout.font)
    _write(axes, at, text, color=MUTED, ha="center")


def _draw_row(axes: Axes, chart: Chart, point: Point, row: int, layout: Layout) -> None:
    y = float(axes.transData.transform((0.0, row))[1]) - 0.35 * layout.font
    text, color = point.label, INK
    if point.is_reference:
        text, color = f"{text} (FP32)", REFERENCE
    name = _fitting(text, (layout.names - 14) / layout.font)
    _write(axes, (layout.names - 10, y), name, color=color, ha="right")
    value = number(point.accuracy) + f" {chart.unit}" * (point.accuracy is not None)
    _write(axes, (layout.width - 4, y), value, ha="right")
    if point.accuracy is not None:
        low, high = point.accuracy_interval or (point.accuracy, point.accuracy)
        gid, style = f"{layout.prefix}point-{point.number}", replace(point, evidence="p50").style
        axes.plot((low, point.accuracy, high), [row] * 3, gid=gid, markevery=[1], **style)


def _fitting(text: str, room: float) -> str:
    lengths = range(len(text), 2, -1)
    return next((s for s in (shorten(text, n) for n in lengths) if width_em(s) <= room), text)


def _axes_in(figure: Figure, frame: Box) -> Axes:
    size = figure.bbox.size
    low, high = np.divide(frame[:2], size), np.divide(frame[2:], size)
    axes = figure.add_axes((*low, *(high - low)))
    axes.patch.set_visible(False)  # the page is its background
    return axes


def _set_axis(axes: Axes, axis: Axis, font: float, *, is_up: bool = False) -> list[Line]:
    """Show an axis with its labels and breaks; return the lines beside the breaks."""
    drawn, name = (axes.yaxis, "y") if is_up else (axes.xaxis, "x")
    axes.set(**{f"{name}scale": axis.scale(drawn), f"{name}lim": axis.ends})
    side, end = int(is_up), axes.bbox.x1 + MARGIN

    def spot(tick: float) -> tuple[float, float]:
        """Return where a label is, and how much room it takes around."""
        return float(axes.transData.transform((tick, tick))[side]), _size(_plain(tick), font)[side]

    def has_room(ticks: list[float]) -> bool:
        pairs = pairwise(sorted(map(spot, ticks)))
        return all(after - at >= (own + other) / 2 for (at, own), (after, other) in pairs)

    ticks = axis.ticks(has_room)
    if not is_up:
        ticks = [tick for tick in ticks if spot(tick)[0] + spot(tick)[1] / 2 < end]
    drawn.set(major_locator=FixedLocator(ticks), minor_locator=NullLocator())
    drawn.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
    drawn.set_tick_params(labelsize=font - 0.5)
    return [line for share in axis.breaks for line in _draw_break(axes, share, is_up=is_up)]


def _draw_break(axes: Axes, share: float, *, is_up: bool) -> Iterator[Line]:
    """Draw a zigzag line across the axes; yield the lines beside it."""
    (low, high), (start, end) = axes.bbox.intervalx, axes.bbox.intervaly
    if is_up:
        low, high, start, end = start, end, low, high
    side, turn = low + share * (high - low), (1, -1)[is_up]
    way = enumerate(np.arange(start, end, 2 * ZIGZAG))
    zigzag = [(side + ZIGZAG * (-1) ** count, at)[::turn] for count, at in way]
    _stroke(axes, zigzag, color=MUTED, gid="break")
    for edge in (side - ZIGZAG, side + ZIGZAG):
        yield (*(edge, start)[::turn], *(edge, end)[::turn])


def _stroke(axes: Axes, places: Any, **style: Any) -> None:
    """Draw a line through places in pixels."""
    xs, ys = np.reshape(places, (-1, 2)).T
    axes.add_line(Line2D(xs, ys, transform=IdentityTransform(), **style))


def _write(axes: Axes, at: Place, text: str, **style: Any) -> None:
    """Write a text whose base line starts at a place in pixels."""
    axes.text(*at, text, transform=IdentityTransform(), **style)


def _write_head(axes: Axes, chart: Chart, axis: Axis, layout: Layout) -> None:
    """Write the title of the axis of accuracy over it."""
    text = _wrapped(f"{chart.measure} ({chart.unit}), higher is better", axis, layout)
    _write(axes, (8.0, axes.figure.bbox.height - 0.5 * layout.font), text, va="top")


def _wrapped(text: str, axis: Axis, layout: Layout) -> str:
    """Return the title of an axis, in as many lines as it needs."""
    text += "; broken axis" if axis.breaks else ""
    return "\n".join(textwrap.wrap(text, int(layout.width / (0.62 * layout.font))))


def _add_legend(
    axes: Axes, keys: Mapping[str, Style], size: float, columns: int, at: Place, corner: str
) -> None:
    """Say what marks and lines are, with a corner of the legend at a place in pixels."""
    placing: Any = {
        "loc": corner,
        "bbox_to_anchor": at,
        "bbox_transform": IdentityTransform(),
        "fontsize": size,
    }
    placing |= {"borderpad": 0, "borderaxespad": 0, "handletextpad": 0.4, "columnspacing": 1.2}
    # A label that begins with _ would be left out.
    handles = [Line2D([], [], label=f" {words}", **style) for words, style in keys.items()]
    axes.figure.legend(handles=handles, ncols=columns, handlelength=1.8, **placing)


def _size(text: str, font: float) -> Place:
    return width_em(text) * font + LABEL_SPACE, font * LINES


def _plain(value: float) -> str:
    return f"{value:.6g}".replace("-", "\u2212")


def _interval(interval: Reach | None, digits: int = 2) -> str:
    return f" ({between(*interval, digits)})" if interval else ""


def _broken(name: str, axis: Axis) -> str:
    why = "because a value far off would squeeze the others"
    return f" The {name} axis is broken, {why}." if axis.breaks else ""


def draw_histograms(tensors: Sequence[View], methods: Sequence[str], layout: Layout = WIDE) -> str:
    """Return the drawing of these tensors' magnitudes; each is one of the report's with its bars."""
    rows, columns = -(-len(tensors) // layout.columns), 2 * layout.columns
    width, height = layout.panel
    top = rows * height + 8 + 1.6 * layout.small * -(-len(methods) // columns)
    begin = f"{layout.prefix}histogram-"
    with layout.drawing():
        figure = layout.figure(top)
        for place_, tensor in enumerate(tensors):
            row, column = divmod(place_, layout.columns)
            left, bottom = column * width + 8, (rows - row - 1) * height + 24
            axes = _axes_in(figure, Box(left, bottom, left + width - 24, bottom + height - 50))
            _draw_histogram(axes, f"{begin}{place_}", tensor, methods, layout.small)
        styles = {visible(method): _style_of(order) for order, method in enumerate(methods)}
        _add_legend(axes, styles, layout.small + 0.5, columns, (8.0, top - 4), "upper left")
        tooltips = {f"{begin}{place_}": _tooltip(tensor) for place_, tensor in enumerate(tensors)}
        about = f"{len(tensors)} tensors: counts of magnitudes, and the ranges chosen for each."
        texts = ("Histograms and ranges", about)
        return layout.saved(figure, "histograms", *texts, tooltips=tooltips)


def _draw_histogram(
    axes: Axes, gid: str, tensor: View, methods: Sequence[str], size: float
) -> None:
    bars, top = np.log1p(tensor["bars"]), tensor["observed"]
    edges = np.linspace(0.0, top, len(bars) + 1)
    axes.stairs(bars, edges, fill=True, color=LINE, edgecolor=MUTED, linewidth=0.6, gid=gid)
    for row in tensor["ranges"]:
        axes.axvline(min(row["amax"], top), **_style_of(methods.index(row["method"])))
    axes.set(xlim=(0.0, top * 1.02), ylim=(0.0, float(bars.max()) * 1.05 or 1.0), yticks=[])
    axes.set_xticks([0.0, top / 2, top], [figure_text(each) for each in (0.0, top / 2, top)])
    axes.tick_params(labelsize=size)
    name = shorten(visible(tensor["name"]), NAME_LENGTH)
    _write(axes, (axes.bbox.x0, axes.bbox.y1 + 9), name, fontsize=size + 0.5)


def _style_of(order: int) -> Style:
    """Return how the lines of a method are drawn."""
    color, dashes = (ACCENT, REFERENCE)[order % 2], DASHES[order % len(DASHES)]
    return {"color": color, "linewidth": 1.6, "linestyle": (0, dashes) if dashes else "-"}


def _tooltip(tensor: View) -> str:
    ranges = (f"{visible(row['method'])} {figure_text(row['amax'])}" for row in tensor["ranges"])
    largest = figure_text(tensor["observed"])
    return f"{visible(tensor['name'])}: largest {largest}; {', '.join(ranges)}"
