"""Labels beside points: boxes and lines, and where a label has room. All in pixels, y downwards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

Place = tuple[float, float]
Line = tuple[float, float, float, float]
"""Both ends of a line: x and y of the first, x and y of the second."""

GAP = 7.0  # from a point's middle to its label's edge
RING = 4.0  # how much farther each next try is
STEP = 8.0  # between the places where the label of a line is tried
LEADER = 2.5 * GAP  # a label farther away has a line from its point
TURN = 8  # degrees from one ring to the next, so that far tries are not all in the same directions
ANGLES = (0, 45, -45, 90, -90, 135, -135, 180, 22, -22, 67, -67, 112, -112, 157, -157)


@dataclass(frozen=True)
class Box:
    """A rectangle."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Whether the two share more than an edge."""
        is_beside = self.left >= other.right or other.left >= self.right
        return not is_beside and self.top < other.bottom and other.top < self.bottom

    def holds(self, other: Box) -> bool:
        """Whether the other lies inside."""
        is_across = self.left <= other.left and other.right <= self.right
        return is_across and self.top <= other.top and other.bottom <= self.bottom

    def is_crossed_by(self, line: Line) -> bool:
        """Whether a part of the line lies inside."""
        start, end = 0.0, 1.0
        spans = ((self.left, self.right), (self.top, self.bottom))
        for (low, high), origin, way in zip(spans, line, _way(line), strict=False):
            if way == 0 and not low < origin < high:
                return False
            if way:
                first, last = sorted(((low - origin) / way, (high - origin) / way))
                start, end = max(start, first), min(end, last)
        return start < end

    def nearest(self, place: Place) -> Place:
        """Return the place inside that is nearest to another."""
        x, y = place
        return min(max(x, self.left), self.right), min(max(y, self.top), self.bottom)

    @classmethod
    def around(cls, x: float, y: float, half: float) -> Box:
        """Return a square about a point."""
        return cls(x - half, y - half, x + half, y + half)


def _way(line: Line) -> Place:
    return line[2] - line[0], line[3] - line[1]


@dataclass(frozen=True)
class Label:
    """Where a label is, with the line from its point unless it is beside it."""

    box: Box
    leader: Line | None = None


@dataclass(frozen=True)
class Obstacles:
    """What a label leaves visible: boxes, such as marks and other labels, and lines."""

    boxes: tuple[Box, ...] = ()
    lines: tuple[Line, ...] = ()

    def leave(self, box: Box) -> bool:
        """Whether a box is free of them."""
        return not any(map(box.overlaps, self.boxes)) and not any(
            map(box.is_crossed_by, self.lines)
        )

    def with_label(self, label: Label) -> Obstacles:
        """Return them and a label with its line."""
        lines = (label.leader,) if label.leader else ()
        return Obstacles((*self.boxes, label.box), (*self.lines, *lines))


def positions(start: float, end: float, step: float) -> list[float]:
    """Return the places from `start` to `end`, a step from each other."""
    return [start + step * count for count in range(int((end - start) / step) + 1)]


def beside(line: Line, size: Place) -> Iterator[Box]:
    """Yield boxes on both sides of a line, from its right end on, or from its top if it is vertical."""
    left, top, right, bottom = line
    width, height = size
    if top == bottom:
        corners = product((top + 1, top - height - 1), positions(right - width, left, -STEP))
        yield from (Box(x, y, x + width, y + height) for y, x in corners)
    else:
        corners = product((left + 1, left - width - 1), positions(top, bottom - height, STEP))
        yield from (Box(x, y, x + width, y + height) for x, y in corners)


def place(
    anchors: Sequence[Place],
    sizes: Sequence[Place],
    bounds: Box,
    obstacles: Obstacles,
    rings: int,
) -> list[Label | None]:
    """Return a label of each size near each anchor, in order; None where there is no room.

    No label overlaps another, an obstacle or a leader, or leaves `bounds`; no leader crosses a label or
    the mark of another point. `rings` is how far away a label is tried. The same input gives the same
    places.
    """
    obstacles = Obstacles((*dict.fromkeys(obstacles.boxes),), (*dict.fromkeys(obstacles.lines),))
    labels: list[Label | None] = []
    for anchor, size in zip(anchors, sizes, strict=True):
        near = Box.around(*anchor, GAP / 2)
        others = [box for box in obstacles.boxes if not box.overlaps(near)]
        tries = (box for box in _tries(anchor, size, rings) if bounds.holds(box))
        free = ((box, _leader(anchor, box)) for box in tries if obstacles.leave(box))
        clear = (Label(*each) for each in free if _is_clear(each[1], others))
        label = next(clear, None)
        labels.append(label)
        obstacles = obstacles.with_label(label) if label else obstacles
    return labels


def _is_clear(leader: Line | None, boxes: Sequence[Box]) -> bool:
    return leader is None or not any(box.is_crossed_by(leader) for box in boxes)


def _leader(anchor: Place, box: Box) -> Line | None:
    end = box.nearest(anchor)
    return (*anchor, *end) if math.dist(anchor, end) > LEADER else None


def _tries(anchor: Place, size: Place, rings: int) -> Iterator[Box]:
    """Yield boxes about an anchor, the nearest first, those to its right before the others."""
    for ring in range(rings):
        distance = GAP + ring * RING
        for angle in (each + TURN * ring for each in ANGLES):
            across, down = math.cos(math.radians(angle)), -math.sin(math.radians(angle))
            x, y = anchor[0] + across * distance, anchor[1] + down * distance
            left, top = x - size[0] * (1 - across) / 2, y - size[1] * (1 - down) / 2
            yield Box(left, top, left + size[0], top + size[1])
