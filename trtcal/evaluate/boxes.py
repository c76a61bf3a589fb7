"""What detectors find: read from the layouts that exporters write, and found again in another's boxes.

Nothing here is learned of a network but the shapes and values of its outputs. Corners are (x1, y1, x2,
y2) or (y1, x1, y2, x2), in pixels or shares: an intersection over union is the same in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from trtcal.evaluate.per_sample import Array, Values
from trtcal.stats import softmax

SCORE = 0.25  # from which on a box counts; that of the usual deployments
OVERLAP = 0.5  # intersection over union from which on two boxes are one
MOST_CANDIDATES = 1000  # of a sample that overlap is removed from, the highest scores first
SUM_TOLERANCE = 1e-2
CELLS = 1000  # rows from which on they are a detector's, not a short sequence
VALID = 0.99  # share of rows that must be boxes for all to be


class Boxes(NamedTuple):
    """The boxes of one sample: corners (n, 4), scores (n,) and classes (n,), float64.

    `cells` are the outputs that they are read from, where these have a row for each cell of a head.
    """

    corners: Values
    scores: Values
    classes: Values
    cells: tuple[Array, ...] = ()


class Columns(NamedTuple):
    """Where a row has what: the first of four box columns, score, class and sample (-1: nowhere)."""

    box: int
    score: int
    label: int = -1
    sample: int = -1


PLAIN = Columns(0, 4)
ROWS: Mapping[int, tuple[Columns, ...]] = {
    5: (PLAIN,),
    6: (Columns(0, 4, 5), Columns(2, 1, 0), Columns(0, 5, 4)),
    7: (Columns(1, 6, 5, 0), Columns(3, 2, 1, 0), Columns(1, 5, 6, 0)),
}
"""Rows after a NonMaxSuppression: those of YOLO and mmdetection, of Paddle, of SSD and YOLOv7."""
GRID, LISTED, SEPARATE, SELECTED = "grid", "rows", "separate", "selected"


@dataclass(frozen=True)
class Decoder:
    """How outputs become boxes.

    `layout` is `grid` (every cell of a head, `first` if its columns come first), `rows` (after a
    NonMaxSuppression, by `columns`), `separate` outputs, or `selected` (what a NonMaxSuppression
    selects where its boxes are no output: they are found again by their numbers). `names` has each
    output by what it is; `centers`: boxes are (x, y, width, height). `score` is what makes scores of
    all classes shares: softmax, sigmoid or nothing; `background` is the class that is none, `least` the
    score from which on a box counts, `most` how many a head has at most after its overlap is removed.
    """

    layout: str
    names: Mapping[str, str]
    columns: Columns = PLAIN
    first: bool = False
    centers: bool = False
    background: int | None = None
    score: str = ""
    least: float = SCORE
    most: int = MOST_CANDIDATES

    @property
    def has_cells(self) -> bool:
        """Whether there is a row for each cell: nothing was selected or sorted."""
        return self.layout == GRID or (
            self.layout == SEPARATE and not {"selected", "classes", "count"} & set(self.names)
        )

    def decode(self, outputs: Mapping[str, Array], size: int) -> list[Boxes]:
        """Return the boxes of each of `size` samples that score `least` or more."""
        boxes = self._boxes(outputs, size)
        if not self.has_cells:
            return boxes
        cells = [np.asarray(outputs[name]) for name in self.names.values()]
        parts = [part if len(part) == size else part[None] for part in cells]
        together = zip(boxes, zip(*parts, strict=True), strict=True)
        return [sample._replace(cells=own) for sample, own in together]

    def _boxes(self, outputs: Mapping[str, Array], size: int) -> list[Boxes]:
        parts = {role: np.asarray(outputs[name], np.float64) for role, name in self.names.items()}
        if self.layout == GRID:
            rows = parts["boxes"].reshape(size, *parts["boxes"].shape[-2:])
            return [self._of_grid(cells.T if self.first else cells) for cells in rows]
        if self.layout == LISTED:
            return self._of_rows(parts["boxes"], size)
        if self.layout == SELECTED:
            return [_numbered(parts["selected"], number) for number in range(size)]
        return [self._of_parts(part) for part in _by_sample(parts, size)]

    def _of_grid(self, rows: Values) -> Boxes:
        scores = rows[:, 4:] if self.first else rows[:, 4:5] * rows[:, 5:]
        return suppressed(_best(_corners(rows[:, :4], True), scores, self.least), self.most)

    def _of_rows(self, values: Values, size: int) -> list[Boxes]:
        at = self.columns
        width = values.shape[-1]
        if at.sample >= 0:
            rows = values.reshape(-1, width)
            groups = [rows[rows[:, at.sample] == number] for number in range(size)]
        else:
            groups = [*values.reshape(size, -1, width)]
        return [self._of_listed(rows) for rows in groups]

    def _of_listed(self, rows: Values) -> Boxes:
        at = self.columns
        kept = rows[rows[:, at.score] >= self.least]
        labels = kept[:, at.label] if at.label >= 0 else np.zeros(len(kept))
        corners = _corners(kept[:, at.box : at.box + 4], self.centers)
        return Boxes(corners, kept[:, at.score], labels)

    def _of_parts(self, parts: Mapping[str, Values]) -> Boxes:
        rows = parts["boxes"].reshape(-1, parts["boxes"].shape[-1])
        corners = _corners(rows[:, :4], self.centers)
        if "selected" in parts:
            return self._selected(corners, parts)
        scores = parts["scores"] if "scores" in parts else parts["boxes"][..., 4]
        if scores.ndim == 2 and 1 not in scores.shape:
            shares = self._shares(_cells_first(scores, len(corners)))
            return suppressed(_best(corners, shares, self.least), self.most)
        if "count" in parts:
            scores = scores.reshape(-1)[: int(parts["count"].ravel()[0])]
        scores = scores.reshape(-1)
        labels = parts["classes"].reshape(-1) if "classes" in parts else np.zeros(len(corners))
        kept = np.flatnonzero(scores >= self.least)
        return Boxes(corners[kept], scores[kept], labels[kept])

    def _shares(self, scores: Values) -> Values:
        """Return the scores of cells in 0..1, without those of the background."""
        if self.score == "softmax":
            scores = softmax(scores)
        elif self.score == "sigmoid":
            scores = 1 / (1 + np.exp(-scores))
        if self.background is not None:
            scores = scores.copy()
            scores[:, self.background] = 0.0
        return scores

    def _selected(self, corners: Values, parts: Mapping[str, Values]) -> Boxes:
        rows = parts["selected"].astype(np.int64)
        labels, places = rows[:, 1], rows[:, 2]
        scores = parts["scores"][labels, places] if "scores" in parts else np.ones(len(rows))
        kept = np.flatnonzero(scores >= self.least)
        return Boxes(corners[places[kept]], scores[kept], labels[kept].astype(np.float64))


def _numbered(rows: Values, sample: int) -> Boxes:
    """Return selected boxes as unit squares in a row, each at its number."""
    own = rows[rows[:, 0] == sample]
    zeros, ones = np.zeros(len(own)), np.ones(len(own))
    corners = np.stack([own[:, 2], zeros, own[:, 2] + 1, ones], axis=1)
    return Boxes(corners, ones, own[:, 1])


def _by_sample(outputs: Mapping[str, Values], size: int) -> list[dict[str, Values]]:
    """Return separate outputs by sample; selected rows say themselves which they are of."""
    parts: list[dict[str, Values]] = [{} for _ in range(size)]
    for role, values in outputs.items():
        for number, part in enumerate(parts):
            if role == "selected":
                part[role] = values[values[:, 0] == number]
            elif len(values) == size and values.ndim > OWN[role]:
                part[role] = values[number]
            else:
                part[role] = values
    return parts


OWN = {"boxes": 2, "scores": 1, "classes": 1, "count": 0, "selected": 2}
"""Axes of each part in one sample."""


def _cells_first(scores: Values, cells: int) -> Values:
    return scores if len(scores) == cells else scores.T


def _corners(boxes: Values, centers: bool) -> Values:
    if not centers:
        return boxes
    middle, half = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate([middle - half, middle + half], axis=1)


def _best(corners: Values, scores: Values, least: float) -> Boxes:
    labels = scores.argmax(1)
    best = scores[np.arange(len(scores)), labels]
    kept = np.flatnonzero(best >= least)
    return Boxes(corners[kept], best[kept], labels[kept].astype(np.float64))


def suppressed(boxes: Boxes, most: int = MOST_CANDIDATES) -> Boxes:
    """Return boxes without those that overlap a better one of their class (greedy, at `OVERLAP`)."""
    order = np.argsort(-boxes.scores, kind="stable")[:MOST_CANDIDATES]
    kept: list[int] = []
    while len(order) and len(kept) < most:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        same = boxes.classes[order] == boxes.classes[best]
        near = overlaps(boxes.corners[[best]], boxes.corners[order])[0] >= OVERLAP
        order = order[~(same & near)]
    corners, scores, classes = (part[kept] for part in boxes[:3])
    return Boxes(corners, scores, classes)


def overlaps(a: Values, b: Values) -> Values:
    """Return the intersection over union of corners (n, 4) and (m, 4), of shape (n, m)."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    both = np.clip(high - low, 0.0, None).prod(2)
    areas = [np.clip(corners[:, 2:] - corners[:, :2], 0.0, None).prod(1) for corners in (a, b)]
    union = areas[0][:, None] + areas[1][None, :] - both
    return np.asarray(np.divide(both, union, out=np.zeros_like(both), where=union > 0))


def cells_of(boxes: Sequence[Boxes]) -> Array | None:
    """Return all values of each sample's cells, (samples, values), None of boxes without cells."""
    if not boxes or not boxes[0].cells:
        return None
    return np.stack([np.concatenate([part.ravel() for part in sample.cells]) for sample in boxes])


def found_again(expected: Boxes, actual: Boxes) -> tuple[float, float]:
    """Return the share of boxes that are found again, of the larger number of both, and score error.

    A box is found again where one of its class overlaps it by `OVERLAP` or more; each counts once, the
    reference's highest scores choose first. Where neither has any all are. The score error is the mean
    absolute difference of scores, of which a box that only one has counts its own.
    """
    most = max(len(expected.scores), len(actual.scores))
    if not most:
        return 1.0, 0.0
    near = overlaps(expected.corners, actual.corners)
    near *= expected.classes[:, None] == actual.classes[None, :]
    matched, error = 0, 0.0
    free = np.ones(len(actual.scores), bool)
    for box in np.argsort(-expected.scores, kind="stable").tolist():
        row = np.where(free, near[box], 0.0)
        place = int(row.argmax()) if len(row) else 0
        if len(row) and row[place] >= OVERLAP:
            matched, free[place] = matched + 1, False
            error += abs(float(expected.scores[box] - actual.scores[place]))
        else:
            error += float(expected.scores[box])
    return matched / most, (error + float(actual.scores[free].sum())) / most


def find_decoder(outputs: Mapping[str, Array], size: int) -> Decoder | None:
    """Return how the outputs of `size` samples are read as boxes, None if they are not known ones."""
    for name, values in outputs.items():
        if values.dtype.kind != "f" or values.ndim not in (2, 3, 4):
            continue
        single = _of_rows(name, values, size) or _of_cells(name, values, size, len(outputs) == 1)
        if single is not None and not (values.shape[-1:] == (5,) and len(outputs) > 1):
            return single
    return _of_several(outputs, size)


def _of_rows(name: str, values: Array, size: int) -> Decoder | None:
    """Read rows of 5 to 7 columns whose values are those of a score, a class, a box."""
    width = values.shape[-1]
    own_rows = values.ndim >= 3 and len(values) == size
    if values.ndim == 2 and values.shape == (size, 5):
        return None  # as a classifier of five classes has them
    for at in ROWS.get(width, ()):
        rows = values.reshape(-1, width).astype(np.float64)
        if (own_rows or at.sample >= 0 or size == 1) and _are_rows(rows, at, size):
            boxes = rows[rows[:, at.score] > 0][:, at.box : at.box + 4]
            centers = bool(len(rows)) and not _valid(boxes, False)
            return Decoder(LISTED, {"boxes": name}, at, centers=centers)
    return None


def _are_rows(rows: Values, at: Columns, size: int) -> bool:
    scores, boxes = rows[:, at.score], rows[:, at.box : at.box + 4]
    whole = [rows[:, column] for column in (at.label, at.sample) if column >= 0]
    inside = at.sample < 0 or bool(((rows[:, at.sample] < size) & (rows[:, at.sample] >= -1)).all())
    integers = all(bool((v == np.round(v)).all() and (v >= -1).all()) for v in whole)
    shares = bool(((scores >= 0) & (scores <= 1)).all())
    kept = boxes[scores > 0]
    valid = not len(rows) or _valid(kept, False) or _valid(kept, True)
    return inside and integers and shares and valid


def _valid(boxes: Values, centers: bool) -> bool:
    if not len(boxes):
        return False
    sides = boxes[:, 2:] if centers else boxes[:, 2:] - boxes[:, :2]
    return bool((sides >= 0).all(1).mean() >= VALID and sides.max() > 0)


def _of_cells(name: str, values: Array, size: int, alone: bool) -> Decoder | None:
    """Read a head's cells: YOLOv8's [B, 4+C, A] or YOLOv5's [B, A, 5+C].

    In pixels, or where the output is alone and has many cells in shares of the picture.
    """
    if values.ndim != 3 or len(values) != size:
        return None
    for first, least in ((True, 5), (False, 6)):
        rows = np.swapaxes(values, 1, 2) if first else values
        if rows.shape[1] > rows.shape[2] >= least and _are_cells(rows.astype(np.float64), alone):
            return Decoder(GRID, {"boxes": name}, first=first, centers=True)
    return None


def _are_cells(rows: Values, alone: bool) -> bool:
    boxes, scores = rows[..., :4], rows[..., 4:]
    shares = bool((scores >= 0).all() and (scores <= 1).all())
    large = boxes.max() > 2.0 or (alone and rows.shape[1] >= CELLS and not _are_classes(rows))
    pixels = bool(large and (boxes[..., 2:] >= 0).mean() >= VALID)
    return shares and pixels and bool((boxes[..., :2] >= 0).mean() > 0.9)


def _are_classes(rows: Values) -> bool:
    """Tell whether shares sum to one, as those of classes do."""
    return any(bool((np.abs(rows.sum(axis) - 1) <= SUM_TOLERANCE).all()) for axis in (1, 2))


ROLES = (
    ("count", re.compile(r"num|count", re.I)),
    ("classes", re.compile(r"class|label|categor", re.I)),
    ("scores", re.compile(r"score|prob|conf|logit", re.I)),
    ("boxes", re.compile(r"box|loc|rect|dets?\b", re.I)),
)


def _of_several(outputs: Mapping[str, Array], size: int) -> Decoder | None:
    """Read boxes, scores and perhaps classes, a count, or what a NonMaxSuppression selects."""
    roles = _roles(outputs, size)
    if set(roles) == {"selected"}:
        return Decoder(SELECTED, roles)
    if "boxes" not in roles:
        return None
    boxes = outputs[roles["boxes"]]
    has_scores = bool({"scores", "selected"} & {*roles})
    has_scores |= boxes.shape[-1] == 5 and "classes" in roles
    if not has_scores or not (size == 1 or (boxes.ndim == 3 and len(boxes) == size)):
        return None
    boxes = boxes.astype(np.float64)
    rows = boxes.reshape(-1, boxes.shape[-1])[:, :4]
    rows = rows[np.abs(rows).sum(1) > 0]
    centers = bool(len(rows)) and not _valid(rows, False)
    if centers and not _valid(rows, True):
        return None
    return Decoder(SEPARATE, roles, centers=centers, **_score_of(outputs, roles))


def _roles(outputs: Mapping[str, Array], size: int) -> dict[str, str]:
    """Return what each output is, by its shape, and by its name where that leaves a choice."""
    roles: dict[str, str] = {}
    for name, values in outputs.items():
        if _is_selection(name, values, size):
            roles.setdefault("selected", name)
        elif _is_box_list(name, values):
            roles.setdefault("boxes", name)
    if "boxes" not in roles:
        return roles
    cells = outputs[roles["boxes"]].shape[-2]
    for name, values in outputs.items():
        if name in roles.values():
            continue
        role = _role(name, values, cells)
        if role is not None:
            roles.setdefault(role, name)
    return roles


def _is_box_list(name: str, values: Array) -> bool:
    """Tell whether an output has a row for each of several boxes, or for the one that it names."""
    if values.dtype.kind != "f" or values.ndim not in (2, 3) or values.shape[-1] not in (4, 5):
        return False
    return values.shape[-2] > 1 or ROLES[-1][1].search(name) is not None


def _is_selection(name: str, values: Array, size: int) -> bool:
    """Tell whether an output has rows of (sample, class, box), not three values of each sample."""
    if values.dtype.kind not in "iu" or values.ndim != 2 or values.shape[1] != 3:
        return False
    inside = bool(((values[:, 0] >= 0) & (values[:, 0] < size)).all())
    return inside and (len(values) != size or SELECTS.search(name) is not None)


SELECTS = re.compile("select|nms|suppress|indices|keep", re.IGNORECASE)


def _role(name: str, values: Array, cells: int) -> str | None:
    if cells not in values.shape[-2:]:
        return "count" if values.size and ROLES[0][1].search(name) else None
    named = next((role for role, pattern in ROLES[1:3] if pattern.search(name)), None)
    if values.dtype.kind in "iu":
        return "classes"
    if values.ndim >= 2 and values.shape[-1] != cells:
        return "scores"  # of every class
    whole = bool((values == np.round(values)).all())
    return named if named != "classes" or whole else "scores"


def _score_of(outputs: Mapping[str, Array], roles: Mapping[str, str]) -> dict[str, Any]:
    """Return how scores of every class become shares, and which class is the background."""
    if "scores" not in roles or "selected" in roles:
        return {}
    scores = outputs[roles["scores"]].astype(np.float64)
    cells = outputs[roles["boxes"]].shape[-2]
    if scores.ndim < 2 or not scores.size or (scores.shape[-1] == cells and scores.ndim == 2):
        return {}
    scores = scores.reshape(-1, *scores.shape[-2:])
    rows = np.concatenate([_cells_first(sample, cells) for sample in scores])
    if (rows >= 0).all() and (rows <= 1).all():
        is_sum = rows.shape[1] > 1 and bool((np.abs(rows.sum(1) - 1) <= SUM_TOLERANCE).all())
        return {"background": int(rows.mean(0).argmax())} if is_sum else {}
    if (rows.max(1) > 0).mean() > 0.5:
        background = int(softmax(rows).mean(0).argmax())
        return {"score": "softmax", "background": background}
    return {"score": "sigmoid"}


def names_of(decoder: Decoder | None) -> Sequence[str]:
    """Return the outputs that boxes are read from."""
    return () if decoder is None else tuple(decoder.names.values())
