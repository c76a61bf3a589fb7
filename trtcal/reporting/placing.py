"""Labels beside points: boxes and lines, and where a label has room. All in pixels, y upwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Place = tuple[float, float]
Line = tuple[float, float, float, float]
"""Both ends of a line: x and y of the first, x and y of the second."""

GAP = 7.0  # from a point's middle to its label's edge
RING = 4.0  # how much farther each next try is
STEP = 8.0  # between the boxes beside a line
LEADER = 2.5 * GAP  # a label farther away has a line from its point
TURN = 8  # degrees from one ring to the next, so that far tries are not all in the same directions
ANGLES = (0, 45, -45, 90, -90, 135, -135, 180, 22, -22, 67, -67, 112, -112, 157, -157)


class Box(NamedTuple):
    """A rectangle."""

    left: float
    bottom: float
    right: float
    top: float

    @classmethod
    def around(cls, x: float, y: float, half: float) -> Box:
        """Return a square about a point."""
        return cls(x - half, y - half, x + half, y + half)


class Label(NamedTuple):
    """Where a label is, with the line from its point unless it is beside it."""

    box: Box
    leader: Line | None = None


@dataclass(frozen=True)
class Obstacles:
    """What a label leaves visible: boxes, such as marks and other labels, and lines."""

    boxes: Sequence[Box] = ()
    lines: Sequence[Line] = ()

    def leave(self, boxes: Array) -> Array:
        """Return which boxes are free of them."""
        others, lines = np.reshape(self.boxes, (-1, 4)), np.reshape(self.lines, (-1, 4))
        is_crossed = crosses(lines, boxes[:, None]).any(axis=1)
        return np.asarray(~(overlaps(boxes, others).any(axis=1) | is_crossed))


def overlaps(boxes: Array, others: Array) -> Array:
    """Return which boxes share more than an edge with which others: boxes x others."""
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    return np.asarray(((low < others[:, 2:]) & (others[:, :2] < high)).all(axis=-1))


def crosses(lines: Array, boxes: Array) -> Array:
    """Return which lines have a part inside their boxes."""
    start, way = lines[..., :2], lines[..., 2:] - lines[..., :2]
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = (boxes[..., :2] - start) / way, (boxes[..., 2:] - start) / way
        first, last = np.minimum(*ends).max(axis=-1), np.maximum(*ends).min(axis=-1)
    return np.asarray(np.maximum(first, 0.0) < np.minimum(last, 1.0))


def place(
    anchors: Sequence[Place | None], tries: Sequence[Array], bounds: Box, obstacles: Obstacles
) -> list[Label | None]:
    """Return a label for each anchor, in order: the first of its boxes that has room, else None.

    No label overlaps another, an obstacle or a leader, or leaves `bounds`; no leader crosses a label or
    the mark of another point. Labels without an anchor have no leader. The same input gives the same
    places.
    """
    boxes, lines = [*dict.fromkeys(obstacles.boxes)], [*dict.fromkeys(obstacles.lines)]
    labels: list[Label | None] = []
    for anchor, own in zip(anchors, tries, strict=True):
        inside = own[((own[:, :2] >= bounds[:2]) & (own[:, 2:] <= bounds[2:])).all(axis=1)]
        free = inside[Obstacles(boxes, lines).leave(inside)]
        label = _nearest(anchor, free, np.reshape(boxes, (-1, 4))) if len(free) else None
        labels.append(label)
        boxes += [label.box] if label else []
        lines += [label.leader] if label and label.leader else []
    return labels


def _nearest(anchor: Place | None, tries: Array, boxes: Array) -> Label | None:
    """Return the first try that needs no leader, or one that crosses no box but at the anchor."""
    if anchor is None:
        return Label(Box(*tries[0].tolist()))
    others = boxes[~overlaps(boxes, np.array([Box.around(*anchor, GAP / 2)]))[:, 0]]
    ends = np.clip(anchor, tries[:, :2], tries[:, 2:])
    leaders = np.hstack([np.broadcast_to(anchor, ends.shape), ends])
    is_far = np.hypot(*(ends - anchor).T) > LEADER
    is_free = ~(is_far & crosses(leaders[:, None], others).any(axis=1))
    for number in np.flatnonzero(is_free)[:1]:
        leader = (*anchor, *ends[number].tolist()) if is_far[number] else None
        return Label(Box(*tries[number].tolist()), leader)
    return None


def around(anchor: Place, size: Place, rings: int) -> Array:
    """Return boxes about an anchor, the nearest first, those to its right before the others.

    `rings` is how far away they are.
    """
    ring = np.repeat(np.arange(rings), len(ANGLES))
    angles = np.radians(np.tile(ANGLES, rings) + TURN * ring)
    way = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    corners = anchor + way * (GAP + RING * ring)[:, None] - np.multiply(size, 1 - way) / 2
    return np.hstack([corners, corners + size])


def beside(line: Line, size: Place) -> Array:
    """Return boxes on both sides of a line, from its right end on, or from its top."""
    left, bottom, right, top = line
    width, height = size
    if top == bottom:
        along = np.arange(right - width, left, -STEP)
        corners = [(x, y) for y in (bottom - height - 1, bottom + 1) for x in along]
    else:
        along = np.arange(top - height, bottom, -STEP)
        corners = [(x, y) for x in (left + 1, left - width - 1) for y in along]
    low = np.reshape(corners, (-1, 2))
    return np.hstack([low, low + size])
