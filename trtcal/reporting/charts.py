"""The report's charts: accuracy against latency, or accuracy alone where latencies are not known.

They are legible without color: the reference is a diamond, measured latencies are filled marks and
estimated ones hollow, with a dashed interval. The same data give the same drawing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from trtcal.reporting.drawing import WIDE, Drawing, Group, Layout, Mark, Shape, Stroke, Text
from trtcal.reporting.placing import Box, Label, Line, Obstacles, Place, beside, place, positions
from trtcal.reporting.scale import Axis, Reach, axis_of
from trtcal.reporting.text import between, milliseconds, number, shorten, visible, width_em

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
ABOUT = "about"
P50 = "median latency p50 on this machine"
FRONT = "Pareto front: no other point is both faster and more accurate"


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

    def mark(self, at: Place, *, is_full: bool = True) -> Mark:
        """Return its mark."""
        return Mark(at, self.color, self.is_reference, is_full)

    @property
    def color(self) -> str:
        """The color of its mark and its intervals."""
        return "reference" if self.is_reference else "accent"


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

    def axis(self, start: float, end: float) -> Axis:
        """Return the axis of accuracy, with the limit on it unless it is far from all points."""
        reaches = [(accuracy, *(point.accuracy_interval or ())) for point, accuracy in self.known]
        axis = axis_of(reaches, start, end)
        if self.limit and axis.is_near(self.limit[0]):
            return axis_of([*reaches, (self.limit[0],)], start, end)
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
    plot = _Plot(chart, layout)
    frame, font = layout.frame, layout.font
    texts, labels = plot.labels()
    foot = [*_below(f"{chart.across} (ms), lower is better", plot.x, layout)]
    legend = [*_legend(chart, layout, foot[-1].at[1] + 1.8 * font)]
    front = ", ".join(visible(plot.known[index][0].name) for index in plot.front)
    description = (
        f"Each of the {len(plot.known)} points is a model. The vertical axis is {chart.measure}, the "
        f"horizontal axis the {chart.across}, both with intervals. On the Pareto front: "
        f"{front or 'none'}.{_broken('vertical', plot.y)}{_broken('horizontal', plot.x)} "
        "The table Variants has the numbers."
    )
    shapes: list[Shape | Group] = [
        *_grid_up(plot.y, frame, font),
        *_grid_across(plot.x, frame, font, is_drawn=False),
        *_head(f"{chart.measure} ({chart.unit}), higher is better", plot.y, layout),
        *foot,
        *legend,
        *plot.line_shapes(),
        *(shape for each in zip(labels, texts, strict=True) for shape in _label(*each, font)),
        Group(f"{layout.prefix}pareto-front", FRONT, [Stroke(plot.steps, *FRONT_LINE)], False),
        *plot.groups(),
    ]
    names = (f"{layout.prefix}chart", f"{chart.measure} against latency", description)
    height = max(shape.at[1] for shape in legend if isinstance(shape, Text)) + font
    is_broken = bool(plot.x.breaks or plot.y.breaks)
    return Drawing(*names, layout.width, height, shapes, is_broken, texts == plot.numbers)


FRONT_LINE = ("muted", "front", 1.2, "7 3")


class _Plot:
    """Where everything is in a chart of accuracy against latency."""

    def __init__(self, chart: Chart, layout: Layout) -> None:
        self.chart, self.layout, self.known = chart, layout, chart.known
        self.names = [point.label for point, _ in self.known]
        self.numbers = [str(point.number) for point, _ in self.known]
        frame = layout.frame
        times = [(point.latency_ms, *point.latency_interval) for point in chart.points]
        self.x = axis_of(times, frame.left, frame.right, may_be_log=True)
        self.y = chart.axis(frame.bottom, frame.top)
        places = [(point.latency_ms, accuracy) for point, accuracy in self.known]
        self.front = pareto_front(places)
        self.anchors = [(self.x.at(ms), self.y.at(accuracy)) for ms, accuracy in places]
        self.bars = [self._bars(*known) for known in zip(self.known, self.anchors, strict=True)]
        self.steps = [*self._steps()]
        self.lines = [*self._lines(chart)]
        for place_, line in enumerate(self.lines):
            self.lines[place_] = self._labelled(line)

    def _bars(self, known: tuple[Point, float], at: Place) -> tuple[Line, Line]:
        """Return the intervals of a point as a line across and a line up."""
        point, accuracy = known
        left, right = map(self.x.at, point.latency_interval)
        low, high = map(self.y.at, point.accuracy_interval or (accuracy, accuracy))
        return (left, at[1], right, at[1]), (at[0], low, at[0], high)

    def _steps(self) -> Iterator[Place]:
        """Yield the corners of the front's line, which ends at the right."""
        corners = [self.anchors[index] for index in self.front]
        ends = [*corners[1:], (self.layout.frame.right, 0.0)]
        for (x, y), (after, _) in zip(corners, ends, strict=False):
            yield from ((x, y), (after, y))

    def obstacles(self, *, has_bars: bool = True) -> Obstacles:
        """Return what labels leave visible."""
        frame = self.layout.frame
        boxes = [Box.around(*at, MARK_HALF) for at in self.anchors]
        boxes += [line.label[1] for line in self.lines if line.label]
        lines = [(*start, *end) for start, end in pairwise(self.steps)]
        for y in (y + side for y in self.y.breaks for side in (-ZIGZAG, ZIGZAG)):
            lines.append((frame.left, y, frame.right, y))
        for x in (x + side for x in self.x.breaks for side in (-ZIGZAG, ZIGZAG)):
            lines.append((x, frame.top, x, frame.bottom))
        lines += [bar for both in self.bars for bar in both if has_bars]
        return Obstacles((*boxes,), (*lines, *(each.line for each in self.lines)))

    def _lines(self, chart: Chart) -> Iterator[_Labelled]:
        """Yield the line of the limit, and that of a reference without accuracy, without labels."""
        frame = self.layout.frame
        if chart.limit and self.y.shows(chart.limit[0]):
            y = self.y.at(chart.limit[0])
            yield _Labelled((frame.left, y, frame.right, y), (chart.limit[1], "limit"), "muted")
        for point in chart.points:
            if point.is_reference and point.accuracy is None:
                x = self.x.at(point.latency_ms)
                yield _Labelled((x, frame.top, x, frame.bottom), ("FP32",), "reference")

    def _labelled(self, line: _Labelled) -> _Labelled:
        """Return a line with the first of its texts that has room beside it, over bars at worst."""
        tries = [
            (text, box)
            for text in line.texts
            for box in beside(line.line, _size(text, self.layout.font))
            if self.layout.frame.holds(box)
        ]
        strict, loose = self.obstacles(), self.obstacles(has_bars=False)
        free = (each for every in (strict, loose) for each in tries if every.leave(each[1]))
        return replace(line, label=next(free, None))

    def labels(self) -> tuple[list[str], list[Label | None]]:
        """Return the points' texts with their places: names if all have room, else numbers."""
        tries = [(self.numbers, FAR_RINGS, True), (self.numbers, FAR_RINGS, False)]
        if len(self.known) <= NAMES_SHOWN:
            names = [[shorten(name, length) for name in self.names] for length in NAME_LENGTHS]
            tries = [*((each, RINGS, True) for each in names), *tries]
        for texts, rings, has_bars in tries:
            sizes = [_size(text, self.layout.font) for text in texts]
            obstacles = self.obstacles(has_bars=has_bars)
            labels = place(self.anchors, sizes, self.layout.frame, obstacles, rings)
            if all(labels):
                break
        return texts, labels

    def line_shapes(self) -> Iterator[Shape]:
        """Yield the lines across the chart with their labels."""
        for each in self.lines:
            yield Stroke(_ends(each.line), each.color, "limit", 1.2, "1 2")
            if each.label:
                yield _text(*each.label, self.layout.font, each.color)

    def groups(self) -> Iterator[Group]:
        """Yield each point's intervals and mark, with its numbers."""
        for (point, _), at, (across, up) in zip(self.known, self.anchors, self.bars, strict=True):
            dashes = "3 2" if point.evidence == ABOUT else ""
            bars = [
                Stroke(_ends(across), point.color, "bar", dashes=dashes),
                Stroke(_ends(up), point.color, "bar"),
            ]
            latency = f"{milliseconds(point.latency_ms)} ms{_interval(point.latency_interval, 3)}"
            tooltip = f"{self.chart.tooltip(point)}; {point.evidence} {latency}"
            mark = point.mark(at, is_full=point.evidence != ABOUT)
            yield Group(f"{self.layout.prefix}point-{point.number}", tooltip, [*bars, mark])


@dataclass(frozen=True)
class _Labelled:
    """A line across the whole chart, the texts that it may have, and the one that has room."""

    line: Line
    texts: tuple[str, ...]
    color: str
    label: tuple[str, Box] | None = None


def accuracy_of_each(chart: Chart, layout: Layout = WIDE) -> Drawing:
    """Return the drawing of accuracy alone: a row for each variant, the best first."""
    font, row = layout.font, 2.1 * layout.font
    order = sorted(chart.points, key=lambda point: -_upper(point))
    top = layout.frame.top + 1.5 * font
    frame = Box(layout.names, top, layout.width - VALUES, top + row * len(order))
    axis = chart.axis(frame.left, frame.right)
    shapes: list[Shape | Group] = [*_grid_across(axis, frame, font, is_drawn=True)]
    if chart.limit and axis.shows(chart.limit[0]):
        shapes += _limit_over(axis.at(chart.limit[0]), chart.limit[1], frame, layout)
    for place_, point in enumerate(order):
        shapes += _row(chart, point, axis, frame.top + row * (place_ + 0.5), layout)
    shapes += _head(f"{chart.measure} ({chart.unit}), higher is better", axis, layout)
    description = (
        f"A row for each of {len(order)} models, the best first: {chart.measure} with its "
        f"interval.{_broken('horizontal', axis)} The table Variants has the numbers."
    )
    names = (f"{layout.prefix}chart", f"{chart.measure} of each variant", description)
    return Drawing(*names, layout.width, frame.bottom + 2.2 * font, shapes, bool(axis.breaks))


def _upper(point: Point) -> float:
    return float("inf") if point.accuracy is None else point.accuracy


def _row(
    chart: Chart, point: Point, axis: Axis, y: float, layout: Layout
) -> Iterator[Shape | Group]:
    font = layout.font
    name = _fitting(point.label + " (FP32)" * point.is_reference, layout.names - 14, font)
    yield Text(
        (layout.names - 10, y + 0.35 * font),
        name,
        font,
        point.color if point.is_reference else "ink",
        "end",
    )
    value = f"{number(point.accuracy)} {chart.unit}" if point.accuracy is not None else "\u2013"
    yield Text((layout.width - 4, y + 0.35 * font), value, font, anchor="end")
    if point.accuracy is not None:
        ends = [(axis.at(end), y) for end in point.accuracy_interval or (point.accuracy,) * 2]
        bar, mark = Stroke(ends, point.color, "bar"), point.mark((axis.at(point.accuracy), y))
        yield Group(f"{layout.prefix}point-{point.number}", chart.tooltip(point), [bar, mark])


def _limit_over(x: float, text: str, frame: Box, layout: Layout) -> Iterator[Shape]:
    half = _size(text, layout.font)[0] / 2
    middle = min(max(x, half), layout.width - half)
    yield Stroke([(x, frame.top), (x, frame.bottom)], "muted", "limit", 1.2, "1 2")
    yield Text((middle, frame.top - 0.5 * layout.font), text, layout.font, "muted", "middle")


def _fitting(text: str, room: float, font: float) -> str:
    length = len(text)
    while length > 3 and width_em(shorten(text, length)) * font > room:
        length -= 1
    return shorten(text, length)


def _grid_up(axis: Axis, frame: Box, font: float) -> Iterator[Shape]:
    """Yield lines at the values of a vertical axis, and its breaks."""
    for value in axis.ticks(lambda _: LINES * font):
        y = axis.at(value)
        yield Stroke([(frame.left, y), (frame.right, y)], "line", width=0.8)
        yield Text((frame.left - 6, y + 0.35 * font), _plain(value), font - 0.5, "muted", "end")
    for y in axis.breaks:
        xs = positions(frame.left, frame.right, 2 * ZIGZAG)
        yield Stroke([(x, y + ZIGZAG * (-1) ** n) for n, x in enumerate(xs)], "muted", "break")


def _grid_across(axis: Axis, frame: Box, font: float, *, is_drawn: bool) -> Iterator[Shape]:
    """Yield the values of a horizontal axis, with lines if they are drawn, and its breaks."""
    for value in axis.ticks(lambda value: _size(_plain(value), font)[0]):
        x, half = axis.at(value), _size(_plain(value), font)[0] / 2
        if x + half < frame.right + MARGIN:
            at = (x, frame.bottom + 1.5 * font)
            yield from [Stroke([(x, frame.top), (x, frame.bottom)], "line", width=0.8)] * is_drawn
            yield Text(at, _plain(value), font - 0.5, "muted", "middle")
    yield Stroke([(frame.left, frame.bottom), (frame.right, frame.bottom)], "muted")
    for x in axis.breaks:
        ys = positions(frame.top, frame.bottom + ZIGZAG, 2 * ZIGZAG)
        yield Stroke([(x + ZIGZAG * (-1) ** n, y) for n, y in enumerate(ys)], "muted", "break")


def _head(text: str, axis: Axis, layout: Layout) -> Iterator[Text]:
    return _lines(text, axis, layout, 8.0, 1.3 * layout.font, "start")


def _below(text: str, axis: Axis, layout: Layout) -> Iterator[Text]:
    down = layout.frame.bottom + 3.2 * layout.font
    return _lines(text, axis, layout, layout.frame.right, down, "end")


def _lines(
    text: str, axis: Axis, layout: Layout, x: float, y: float, anchor: str
) -> Iterator[Text]:
    """Yield the title of an axis, in as many lines as it needs."""
    text += "; broken axis" if axis.breaks else ""
    for line in textwrap.wrap(text, int(layout.width / (0.62 * layout.font))) or [""]:
        yield Text((x, y), line, layout.font, anchor=anchor)
        y += LINES * layout.font


def _legend(chart: Chart, layout: Layout, y: float) -> Iterator[Shape]:
    """Yield what the marks are, in as many rows as they need."""
    x, size = layout.frame.left + 5, layout.font - 1
    kinds = {("FP32" if p.is_reference else _evidence(p)): p for p, _ in reversed(chart.known)}
    entries = [("Pareto front", None), *sorted(kinds.items(), reverse=True)][::-1]
    for text, point in entries:
        width = width_em(text) * size + 30
        if x + width > layout.width:
            x, y = layout.frame.left + 5, y + 1.6 * size
        if point is None:
            yield Stroke([(x - 6, y - 0.35 * size), (x + 10, y - 0.35 * size)], *FRONT_LINE)
        else:
            is_full = point.evidence != ABOUT
            yield point.mark((x, y - 0.35 * size), is_full=is_full)
        yield Text((x + 14, y), text, size, "muted")
        x += width


def _evidence(point: Point) -> str:
    return "estimated" if point.evidence == ABOUT else "measured"


def _label(label: Label | None, text: str, font: float) -> Iterator[Shape]:
    if label and label.leader:
        yield Stroke(_ends(label.leader), "muted", "leader", 0.7)
    if label and label.box:
        yield _text(text, label.box, font, "ink")


def _text(text: str, box: Box, font: float, color: str) -> Text:
    return Text(
        (box.left + LABEL_SPACE / 2, box.bottom - 0.3 * font), text, font, color, css="label"
    )


def _ends(line: Line) -> list[Place]:
    return [line[:2], line[2:]]


def _size(text: str, font: float) -> Place:
    return width_em(text) * font + LABEL_SPACE, font * LINES


def _plain(value: float) -> str:
    return f"{value:.6g}".replace("-", "\u2212")


def _interval(interval: Reach | None, digits: int = 2) -> str:
    return f" ({between(*interval, digits)})" if interval else ""


def _broken(name: str, axis: Axis) -> str:
    why = "because a value far off would squeeze the others"
    return f" The {name} axis is broken, {why}." if axis.breaks else ""
