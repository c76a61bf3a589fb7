"""The report's drawings, worked out: accuracy against latency, and histograms with the ranges on them.

`charts.j2` writes them as SVG. They are legible without colour: the reference is a diamond, variants on
the Pareto front are filled circles, the others hollow ones; methods differ by their dashes. Counts are
on a logarithmic scale, since what a range cuts off is rare. All sizes are units of the drawing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trtcal.reporting.engines import View
from trtcal.reporting.text import between, figure, milliseconds, number, shorten, visible, width_em

NAMES_SHOWN = 12  # beyond this many points, labels are numbers
NAME_LENGTH = 34
LOG_RATIO = 20.0
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
MOST_STEPS = 6


class Box(NamedTuple):
    """A rectangle, y downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Whether the two share more than an edge."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def holds(self, other: Box) -> bool:
        """Whether the other lies inside."""
        across = self.left <= other.left and other.right <= self.right
        return across and self.top <= other.top and other.bottom <= self.bottom


@dataclass(frozen=True)
class Look:
    """A size that drawings have; a page shows the one that its screen has room for.

    `frame` is where the axes stand in the chart; a panel is one histogram. `prefix` begins the ids of
    what is drawn so.
    """

    chart: tuple[float, float]
    frame: Box
    panel: tuple[float, float]
    columns: int
    font: float
    small: float
    prefix: str = ""


WIDE = Look((720, 345.6), Box(46.8, 38, 705.6, 300.7), (244.8, 136.8), 3, 10.0, 8.5)
NARROW = Look((331.2, 316.8), Box(43, 38, 321.3, 272.4), (331.2, 151.2), 1, 12.5, 12.0, "narrow-")
LOOKS = (WIDE, NARROW)


@dataclass(frozen=True)
class Axis:
    """A scale: `low` to `high` lie from `start` to `end` on the paper."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return where a value lies."""
        low, high, place = (
            math.log(one) if self.is_log else one for one in (self.low, self.high, value)
        )
        return self.start + (place - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Return round values, as places and texts."""
        values = self._log_values() if self.is_log else self._values()
        inside = [value for value in values if self.low <= value <= self.high]
        return [(self.at(value), f"{value:.6g}".replace("-", "\u2212")) for value in inside]

    def _values(self) -> list[float]:
        least = (self.high - self.low) / MOST_STEPS
        scale = 10.0 ** math.floor(math.log10(least))
        step = next(one * scale for one in STEPS if one * scale >= least * (1 - 1e-9))
        return [step * n for n in range(math.ceil(self.low / step), int(self.high // step) + 1)]

    def _log_values(self) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        firsts = (1.0, 2.0, 5.0) if len(decades) <= MOST_STEPS else (1.0,)
        return [first * 10.0**decade for decade in decades for first in firsts]


def _padded(low: float, high: float, before: float, after: float) -> tuple[float, float]:
    """Return limits with room at both ends, also where all values are equal."""
    span = high - low or max(abs(high) * 0.1, 1e-3)
    return low - span * before, high + span * after


@dataclass(frozen=True)
class Point:
    """One variant: latency in milliseconds, accuracy in the chart's unit, each with its interval.

    `accuracy` is None for a reference that has none (SQNR against itself is infinite).
    """

    number: int
    name: str
    latency_ms: float
    latency_interval: tuple[float, float]
    accuracy: float | None
    accuracy_interval: tuple[float, float] | None = None
    is_reference: bool = False

    def tooltip(self, measure: str, unit: str) -> str:
        """Return its numbers in a line."""
        name = self.name + (" (reference)" if self.is_reference else "")
        accuracy = f"{measure} {number(self.accuracy)} {unit}{_interval(self.accuracy_interval)}"
        latency = f"p50 {milliseconds(self.latency_ms)} ms{_interval(self.latency_interval, 3)}"
        return f"{name}: {accuracy}; {latency}"


def _interval(interval: tuple[float, float] | None, digits: int = 2) -> str:
    return f" ({between(*interval, digits)})" if interval else ""


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indexes of the (latency, accuracy) that no other one beats, by rising latency."""

    def beaten(one: tuple[float, float]) -> bool:
        return any(other[0] <= one[0] and other[1] >= one[1] and other != one for other in points)

    front = [index for index, point in enumerate(points) if not beaten(point)]
    return sorted(front, key=lambda index: points[index])


def accuracy_against_latency(
    points: Sequence[Point], measure: str, unit: str, look: Look = WIDE
) -> View:
    """Return all that is drawn of a chart; `measure` and `unit` name the accuracy axis."""
    across, up = _axes(points, look.frame)
    known = [(point, point.accuracy) for point in points if point.accuracy is not None]
    front = pareto_front([(point.latency_ms, accuracy) for point, accuracy in known])
    drawn: list[View] = [
        {
            "id": f"{look.prefix}point-{point.number}",
            "x": across.at(point.latency_ms),
            "y": up.at(accuracy),
            "text": shorten(visible(point.name), NAME_LENGTH)
            if len(known) <= NAMES_SHOWN
            else str(point.number),
            "tooltip": point.tooltip(measure, unit),
            "ends": tuple(map(across.at, point.latency_interval)),
            "span": tuple(map(up.at, point.accuracy_interval or ())),
            "is_reference": point.is_reference,
            "is_on_front": index in front,
        }
        for index, (point, accuracy) in enumerate(known)
    ]
    corners = [(drawn[index]["x"], drawn[index]["y"]) for index in front]
    names = ", ".join(known[index][0].name for index in front) or "none"
    return {
        "look": look,
        "title": f"{measure} against latency",
        "description": f"Each of the {len(known)} points is a model. The vertical axis is {measure}, "
        "the horizontal axis the median latency, both with 95 % intervals. On the Pareto front: "
        f"{names}. The table Variants has the numbers.",
        "better": f"{measure} ({unit}), higher is better",
        "across": across.ticks(),
        "up": up.ticks(),
        "front": corners,
        "points": drawn,
        "bare": [
            (across.at(point.latency_ms), shorten(visible(point.name), NAME_LENGTH))
            for point in points
            if point.is_reference and point.accuracy is None
        ],
        "labels": _labels(drawn, corners, look),
    }


def _axes(points: Sequence[Point], frame: Box) -> tuple[Axis, Axis]:
    """Return the axes of latency and accuracy."""
    times = [value for point in points for value in (point.latency_ms, *point.latency_interval)]
    values = [point.accuracy for point in points if point.accuracy is not None]
    values += [value for point in points for value in point.accuracy_interval or ()]
    low, high = (min(times), max(times)) if times else (0.0, 1.0)
    if is_log := low > 0 and high / low > LOG_RATIO:
        limits = low / (high / low) ** 0.08, high * (high / low) ** 0.15
    else:
        limits = _padded(low, high, 0.08, 0.18)
    heights = _padded(min(values, default=0.0), max(values, default=1.0), 0.12, 0.12)
    across = Axis(*limits, frame.left, frame.right, is_log)
    return across, Axis(*heights, frame.bottom, frame.top)


MARKER_HALF = 5.0
LABEL_SPACE = 6.0  # between labels side by side
GAP = 7.0  # from a point's middle to its label's edge
RING = 6.0  # how much farther each next try is
RINGS_NEARBY = 12
ANGLES = (0, 45, -45, 90, -90, 135, -135, 180, 22, -22, 67, -67, 112, -112, 157, -157)


def _labels(
    points: Sequence[View], corners: Sequence[tuple[float, float]], look: Look
) -> list[View]:
    """Return the labels that there is room for, each with the line to its point if it is far away."""
    frame, half = look.frame, MARKER_HALF
    anchors = [(one["x"], one["y"]) for one in points]
    sizes = [(width_em(one["text"]) * look.font + LABEL_SPACE, look.font * 1.25) for one in points]
    markers = [Box(x - half, y - half, x + half, y + half) for x, y in anchors]
    lines = [*(box for one in points for box in _bars(one)), *_steps(corners, frame.right)]
    boxes = place(anchors, sizes, frame._replace(bottom=frame.bottom - 2), markers, lines)
    labels = []
    for point, (x, y), box in zip(points, anchors, boxes, strict=True):
        if box is not None:
            nearest = min(max(x, box.left), box.right), min(max(y, box.top), box.bottom)
            is_far = math.dist((x, y), nearest) > 2.5 * GAP
            start = box.left + LABEL_SPACE / 2, box.bottom - look.font * 0.3
            line = (x, y, *nearest) if is_far else None
            labels.append({"text": point["text"], "x": start[0], "y": start[1], "line": line})
    return labels


def _bars(point: View) -> Iterator[Box]:
    """Yield thin boxes where a point's intervals are drawn."""
    x, y = point["x"], point["y"]
    left, right = point["ends"]
    yield Box(left, y - 1, right, y + 1)
    if point["span"]:
        yield Box(x - 1, point["span"][1], x + 1, point["span"][0])


def _steps(corners: Sequence[tuple[float, float]], right: float) -> Iterator[Box]:
    """Yield thin boxes where the steps of the front are drawn."""
    ends = [*corners[1:], *((right, y) for _, y in corners[-1:])]
    for (x, y), (next_x, next_y) in zip(corners, ends, strict=True):
        yield Box(x, y - 1, next_x, y + 1)
        yield Box(next_x - 1, next_y, next_x + 1, y)


def place(
    anchors: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    bounds: Box,
    avoid: Sequence[Box] = (),
    prefer_to_avoid: Sequence[Box] = (),
) -> list[Box | None]:
    """Return a box of each size near each anchor, in order; None where there is no room at all.

    No box overlaps another or one of `avoid`, or leaves `bounds`; those of `prefer_to_avoid` are
    covered only where there is no room nearby. The same input gives the same places.
    """
    rings = math.ceil(math.hypot(bounds.right - bounds.left, bounds.bottom - bounds.top) / RING)
    taken = list(avoid)
    places: list[Box | None] = []
    for anchor, size in zip(anchors, sizes, strict=True):
        box = _free(_tries(anchor, size, RINGS_NEARBY), bounds, [*taken, *prefer_to_avoid])
        box = box or _free(_tries(anchor, size, rings), bounds, taken)
        places.append(box)
        taken += [box] if box else []
    return places


def _free(tries: Iterator[Box], bounds: Box, taken: Sequence[Box]) -> Box | None:
    fitting = (box for box in tries if bounds.holds(box))
    return next((box for box in fitting if not any(map(box.overlaps, taken))), None)


def _tries(anchor: tuple[float, float], size: tuple[float, float], rings: int) -> Iterator[Box]:
    """Yield boxes about an anchor, the nearest first, those to its right before the others."""
    for ring in range(rings):
        distance = GAP + ring * RING
        for angle in ANGLES:
            across, down = math.cos(math.radians(angle)), -math.sin(math.radians(angle))
            left = anchor[0] + across * distance - size[0] * (1 - across) / 2
            top = anchor[1] + down * distance - size[1] * (1 - down) / 2
            yield Box(left, top, left + size[0], top + size[1])


LEGEND = 3  # methods beside each other over one column
LEGEND_WIDTH, LEGEND_HEIGHT = 108.0, 21.6
DASHES = ("", "8,3.2", "2.4,2.4", "8,3.2,1.6,3.2", "12.8,4.8", "4.8,1.6,1.6,1.6,1.6,1.6")


def draw_histograms(tensors: Sequence[View], methods: Sequence[str], look: Look = WIDE) -> View:
    """Return the drawing of these tensors' magnitudes; each is one of the report's with its bars."""
    in_row = LEGEND * look.columns
    head = 3.6 + LEGEND_HEIGHT * math.ceil(len(methods) / in_row)
    height = look.panel[1] * math.ceil(len(tensors) / look.columns) + head
    lines = [
        {
            "name": method,
            "x": 0.012 * look.panel[0] * look.columns + order % in_row * LEGEND_WIDTH,
            "y": 9.4 + order // in_row * LEGEND_HEIGHT,
            "dash": DASHES[order % len(DASHES)],
            "color": "reference" if order % 2 else "accent",
        }
        for order, method in enumerate(methods)
    ]
    return {
        "look": look,
        "size": (look.panel[0] * look.columns, height),
        "title": "Histograms and ranges",
        "description": f"{len(tensors)} tensors: counts of magnitudes, and the ranges chosen for each.",
        "methods": lines,
        "panels": [
            {"id": f"{look.prefix}histogram-{index}", **_panel(index, tensor, lines, head, look)}
            for index, tensor in enumerate(tensors)
        ],
    }


def _panel(index: int, tensor: View, methods: Sequence[View], head: float, look: Look) -> View:
    row, column = divmod(index, look.columns)
    left, top = column * look.panel[0] + 8.6, head + row * look.panel[1] + 28.8
    frame = Box(left, top, left + look.panel[0] - 24.5, top + look.panel[1] - 51.8)
    largest = tensor["observed"]
    across = Axis(0.0, largest * 1.02, frame.left, frame.right)
    heights = [math.log1p(bar) for bar in tensor["bars"]]
    up = Axis(0.0, max(heights) * 1.05 or 1.0, frame.bottom, frame.top)
    width = largest / len(heights)
    known = {line["name"]: line for line in methods}
    ranges = ", ".join(f"{one['method']} {figure(one['amax'])}" for one in tensor["ranges"])
    return {
        "frame": frame,
        "name": shorten(visible(tensor["name"]), NAME_LENGTH),
        "tooltip": f"{tensor['name']}: largest {figure(largest)}; {ranges}",
        "bars": [(up.at(bar), across.at(width * n)) for n, bar in enumerate(heights, 1)],
        "ticks": [(across.at(value), figure(value)) for value in (0.0, largest / 2, largest)],
        "ranges": [
            {**known[one["method"]], "x": across.at(min(one["amax"], largest))}
            for one in tensor["ranges"]
        ],
    }
