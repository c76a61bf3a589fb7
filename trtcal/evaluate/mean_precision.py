"""Mean average precision (mAP) of boxes against annotations, and what its intervals take.

It is a figure of all samples together, no mean over them. `pycocotools` matches the boxes of each
sample with its annotations once; for resamples the precisions are accumulated anew, as its `accumulate`
does, each sample as often as it was chosen.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from calibrators.imports import MATPLOTLIB, without_file
from trtcal.data.issues import DataIssue
from trtcal.errors import BackendError, InputError
from trtcal.evaluate.accuracy import Mean
from trtcal.evaluate.boxes import SELECTED, Boxes, Decoder
from trtcal.evaluate.constant_answers import no_better
from trtcal.evaluate.per_sample import Array, Labels, Values
from trtcal.evaluate.tasks import PRECISIONS, Task
from trtcal.metrics import metric_of
from trtcal.stats import LEVEL, Corpus, Mask, bootstrap, one_sided

LEAST_SCORE = 0.001  # from which on a box counts for the precision
BOXES_COUNTED = 100  # boxes of a sample, those of the highest scores, as in COCO's rules
IN_SHARES = 2.0  # coordinates up to which boxes are in shares of the image, not in pixels
SOME = 256  # samples from which it is read whether boxes are (x, y) or (y, x)
RECALLS = np.linspace(0.0, 1.0, 101)


class Matches(NamedTuple):
    """The boxes of one category, the highest scores first.

    `samples` has the sample of each box. `right` has by overlap, of shape (10, most), the places of the
    boxes that are right, -1 where there are no more; `ignored`, of shape (10, boxes), those of a crowd,
    which do not count. `objects` is the number of annotated ones in each sample.
    """

    samples: Labels
    right: Labels
    ignored: Mask
    objects: Values


def mean_precision(categories: Sequence[Matches], weights: Values) -> Values:
    """Return `PRECISIONS` (0 to 1), each sample counted as often as its weight; NaN without objects."""
    known = (category for category in categories if float(category.objects @ weights) > 0)
    each = [_of_category(category, weights) for category in known]
    return np.mean(each, axis=0) if each else np.full(len(PRECISIONS), np.nan)


def _of_category(matches: Matches, weights: Values) -> Values:
    """Return the mean of the best precisions from each recall on: they change where a box is right."""
    counted = np.append(weights[matches.samples], 0.0)
    right = counted[matches.right].cumsum(1)
    ignored = matches.ignored
    boxes = np.where(ignored, 0.0, counted[:-1]) if ignored.any() else counted[:-1]
    boxes = np.broadcast_to(boxes.cumsum(-1), matches.ignored.shape)
    boxes = np.append(boxes, np.full((len(right), 1), np.inf), axis=1)
    precisions = right / np.maximum(np.take_along_axis(boxes, matches.right, 1), np.spacing(1))
    best = np.maximum.accumulate(precisions[:, ::-1], axis=1)[:, ::-1]
    best = np.append(best, np.zeros((len(best), 1)), axis=1)
    recalls = right / float(matches.objects @ weights)
    places = np.array([row.searchsorted(RECALLS, side="left") for row in recalls])
    means = np.take_along_axis(best, places, 1).mean(1)
    return np.array([means.mean(), means[0]])


@dataclass
class PrecisionCollector:
    """Collects the boxes of several models, the reference's first, and the annotations.

    `InputError` if boxes have no coordinates, `BackendError` without pycocotools.
    """

    decoder: Decoder
    boxes: list[list[Boxes]] = field(default_factory=list)
    labels: list[Array] = field(default_factory=list)
    known: tuple[int, list[list[Matches]], dict[str, float]] = (0, [], {})
    drawn: dict[tuple[object, ...], Values] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _pycocotools()
        self.decoder = replace(self.decoder, least=LEAST_SCORE, most=BOXES_COUNTED)
        if self.decoder.layout == SELECTED:
            raise InputError(
                "the output has the numbers of boxes but no coordinates to compare with the "
                "annotations",
                "make the boxes an output too, or leave --labels out",
            )

    def add(
        self, outputs: Sequence[Mapping[str, Array]], size: int, labels: Array, where: Mask
    ) -> None:
        """Take in some of a batch of `size`: everybody's outputs, and the annotations."""
        self.boxes = self.boxes or [[] for _ in outputs]
        self.labels.append(labels[where])
        for kept, output in zip(self.boxes, outputs, strict=True):
            kept += map(_best, compress(self.decoder.decode(output, size), where))

    @classmethod
    def of(cls, task: Task) -> PrecisionCollector | None:
        """Return what collects the first boxes of a task whose labels are annotations, else None."""
        if not task.labelled & {*PRECISIONS}:
            return None
        return next(cls(output.decoder) for output in task.outputs if output.decoder is not None)

    def corpus(self, name: str, pair: tuple[int, int], where: Mask | None = None) -> Corpus:
        """Return a figure of two models by their places, of all samples or of some."""
        samples, everyone, _ = self._matched()
        key = (samples, None if where is None else where.tobytes())
        if key not in self.drawn:
            self.drawn[key] = bootstrap(
                lambda weights: np.array([mean_precision(each, weights) for each in everyone]),
                samples,
                where,
            )
        count = samples if where is None else int(where.sum())
        return Corpus(count, self.drawn[key][:, pair, PRECISIONS.index(name)])

    def means(self, place: int) -> dict[str, Mean]:
        """Return the figures of a model beside the reference's."""
        corpora = {name: self.corpus(name, (0, place)) for name in PRECISIONS}
        return {name: Mean(each.candidate, each.change, 1.0) for name, each in corpora.items()}

    def contrast(self) -> dict[str, float]:
        """Return the reference's figures halfway to those of boxes that are of other samples."""
        return self._matched()[2]

    def issues(self) -> tuple[DataIssue, ...]:
        """Return that the reference's boxes are not clearly better than those of other samples."""
        metric, own = metric_of(PRECISIONS[0]), self.corpus(PRECISIONS[0], (0, 0)).candidate
        other = 2 * self.contrast()[metric.name] - own.mean
        if own.interval(one_sided(LEVEL), 0.0).low > max(other, 0.0):
            return ()
        return (no_better(metric, own.mean, other, own.count, "the boxes of other samples"),)

    def _matched(self) -> tuple[int, list[list[Matches]], dict[str, float]]:
        labels = np.concatenate(self.labels)
        if self.known[0] != len(labels):
            read = self._reading(labels)
            everyone = [matched(read.of(box), labels) for box in self.boxes]
            own, ones = self.boxes[0], np.ones(len(labels))
            other = matched(read.of([*own[-1:], *own[:-1]]), labels)
            both = [mean_precision(categories, ones) for categories in (everyone[0], other)]
            halfway = dict(zip(PRECISIONS, np.mean(both, axis=0).tolist(), strict=True))
            self.known = (len(labels), everyone, halfway)
        return self.known

    def _reading(self, labels: Array) -> _Reading:
        """Return how boxes are read: as (y, x) where the reference's fit the annotations better so."""
        corners = np.concatenate([own.corners[:BOXES_COUNTED].ravel() for own in self.boxes[0]])
        in_shares = bool(len(corners)) and float(np.quantile(corners, 0.99)) <= IN_SHARES
        sides = np.ones((len(labels), 2)) if in_shares else labels["size"]
        first = int(self.decoder.background == 0)
        ways = [_Reading(sides, first, is_turned) for is_turned in (False, True)]
        return max(ways, key=lambda way: way.fit(self.boxes[0][:SOME], labels[:SOME]))


@dataclass(frozen=True)
class _Reading:
    """How boxes become (x1, y1, x2, y2) in shares of the image, and classes count from 0.

    `sides` has what the width and height of each sample are in their coordinates, (samples, 2).
    """

    sides: Values
    first: int
    is_turned: bool

    def of(self, boxes: Sequence[Boxes]) -> list[Boxes]:
        order = [1, 0, 3, 2] if self.is_turned else [0, 1, 2, 3]
        return [
            sample._replace(
                corners=sample.corners[:, order] / np.tile(sides, 2),
                classes=sample.classes - self.first,
            )
            for sample, sides in zip(boxes, self.sides, strict=False)
        ]

    def fit(self, boxes: Sequence[Boxes], labels: Array) -> float:
        """Return the mAP50 of boxes read so, 0 without objects."""
        precisions = mean_precision(matched(self.of(boxes), labels), np.ones(len(labels)))
        return float(np.nan_to_num(precisions[1]))


def _best(boxes: Boxes) -> Boxes:
    order = np.argsort(-boxes.scores, kind="stable")[:BOXES_COUNTED]
    return Boxes(boxes.corners[order], boxes.scores[order], boxes.classes[order])


def matched(boxes: Sequence[Boxes], labels: Array) -> list[Matches]:
    """Return what pycocotools matches, by category; `InputError` for a class that is no category."""
    coco, evaluator = _pycocotools()
    categories = int(labels["categories"][0])
    largest = max((int(box.classes.max(initial=-1)) for box in boxes), default=-1)
    if largest >= categories:
        raise InputError(
            f"the model gives class {largest}, but the annotations have only {categories} categories",
            "list all of the model's classes in `categories`; the first by id is class 0",
        )
    with contextlib.redirect_stdout(io.StringIO()):
        both = [coco(), coco()]
        for api, items in zip(both, (_annotated(labels), _detections(boxes)), strict=True):
            api.dataset = {
                "images": [{"id": number} for number in range(len(labels))],
                "categories": [{"id": number} for number in range(categories)],
                "annotations": [{"id": n, **item} for n, item in enumerate(items, 1)],
            }
            api.createIndex()
        run = evaluator(*both, "bbox")
        run.params.areaRng, run.params.areaRngLbl = [[0, 1e10]], ["all"]
        run.params.maxDets = [BOXES_COUNTED]
        run.evaluate()
    size = len(labels)
    return [_joined(run.evalImgs[n * size : (n + 1) * size]) for n in range(categories)]


def _annotated(labels: Array) -> list[dict[str, Any]]:
    return [
        _item(number, box, name) | {"iscrowd": int(crowd)}
        for number, record in enumerate(labels)
        for box, name, crowd in zip(
            record["boxes"], record["classes"], record["crowd"], strict=True
        )
        if name >= 0
    ]


def _detections(boxes: Sequence[Boxes]) -> list[dict[str, Any]]:
    return [
        _item(number, box, name) | {"score": float(score)}
        for number, sample in enumerate(boxes)
        for box, score, name in zip(*sample[:3], strict=True)
    ]


def _item(number: int, box: Values, name: float) -> dict[str, Any]:
    x, y, right, low = box.tolist()
    sides = [right - x, low - y]
    area = abs(sides[0] * sides[1])
    return {"image_id": number, "category_id": int(name), "bbox": [x, y, *sides], "area": area}


def _joined(each: Sequence[Mapping[str, Any] | None]) -> Matches:
    """Return the matches of a category from those of each sample, None where it has none."""
    known = [(number, result) for number, result in enumerate(each) if result is not None]
    objects = np.zeros(len(each))
    for number, result in known:
        objects[number] = (np.asarray(result["gtIgnore"]) == 0).sum()
    scores = np.concatenate([np.zeros(0), *(result["dtScores"] for _, result in known)])
    samples = np.repeat([n for n, _ in known], [len(result["dtScores"]) for _, result in known])
    nothing = np.zeros((10, 0))
    hits, ignored = (
        np.concatenate([nothing, *(result[key] for _, result in known)], axis=1) != 0
        for key in ("dtMatches", "dtIgnore")
    )
    order = np.argsort(-scores, kind="mergesort")
    places = [np.flatnonzero(row) for row in (hits & ~ignored)[:, order]]
    right = np.full((len(places), max(map(len, places))), -1)
    for row, own in zip(right, places, strict=True):
        row[: len(own)] = own
    return Matches(samples.astype(np.int64)[order], right, ignored[:, order], objects)


def _pycocotools() -> tuple[Any, Any]:
    try:
        with without_file(MATPLOTLIB):
            from pycocotools.coco import COCO
            from pycocotools.cocoeval import COCOeval
    except ImportError as error:
        what = f"mAP needs pycocotools, which is not installed: {error}"
        hint = "install it with pip install 'trtcal[detection]', or leave --labels out"
        raise BackendError(what, hint) from error
    return COCO, COCOeval
