"""Find places for labels beside their points, so that none covers another label or a point."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

GAP = 7.0  # from a point's middle to its label's edge
RING = 6.0  # how much farther each next try is
ANGLES = (0, 45, -45, 90, -90, 135, -135, 180, 22, -22, 67, -67, 112, -112, 157, -157)


@dataclass(frozen=True)
class Box:
    """A rectangle, y upwards."""

    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: Box) -> bool:
        """Whether the two share more than an edge."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.bottom < other.top
            and other.bottom < self.top
        )

    def holds(self, other: Box) -> bool:
        """Whether the other lies inside."""
        return (
            self.left <= other.left
            and other.right <= self.right
            and self.bottom <= other.bottom
            and other.top <= self.top
        )

    @classmethod
    def around(cls, x: float, y: float, half: float) -> Box:
        """Return a square about a point."""
        return cls(x - half, y - half, x + half, y + half)


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
    taken = list(avoid)
    places: list[Box | None] = []
    for anchor, size in zip(anchors, sizes, strict=True):
        box = _free(_tries(anchor, size, 12), bounds, [*taken, *prefer_to_avoid])
        box = box or _free(_tries(anchor, size, _rings(bounds)), bounds, taken)
        places.append(box)
        if box is not None:
            taken.append(box)
    return places


def _rings(bounds: Box) -> int:
    return math.ceil(math.hypot(bounds.right - bounds.left, bounds.top - bounds.bottom) / RING)


def _free(tries: Iterator[Box], bounds: Box, taken: Sequence[Box]) -> Box | None:
    fitting = (box for box in tries if bounds.holds(box))
    return next((box for box in fitting if not any(map(box.overlaps, taken))), None)


def _tries(anchor: tuple[float, float], size: tuple[float, float], rings: int) -> Iterator[Box]:
    """Yield boxes about an anchor, the nearest first, those to its right before the others."""
    for ring in range(rings):
        distance = GAP + ring * RING
        for angle in ANGLES:
            across, up = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            x, y = anchor[0] + across * distance, anchor[1] + up * distance
            left = x - size[0] * (1 - across) / 2
            bottom = y - size[1] * (1 - up) / 2
            yield Box(left, bottom, left + size[0], bottom + size[1])
