"""The samples whose outputs differ most from the reference's, by name: where to look first."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.compare.metrics import rounded
from trtcal.compare.per_sample import Labels, class_scores
from trtcal.data import Dataset
from trtcal.data.images import ImageDataset

Array = npt.NDArray[Any]
Values = npt.NDArray[np.float64]
KEPT = 10


@dataclass(frozen=True, order=True)
class Sample:
    """One sample: `l2` is the Euclidean norm of the outputs' difference, `cosine` that of both.

    `name` is its file's where it has one. `reference` and `candidate` are the classes that they give,
    None where the first output is no class scores.
    """

    l2: float
    index: int
    cosine: float
    name: str | None = None
    label: int | None = None
    reference: int | None = None
    candidate: int | None = None


@dataclass
class Worst:
    """Keeps the samples of the largest error; memory does not grow with samples."""

    files: Sequence[str] | None
    kept: list[tuple[float, int, Sample]] = field(default_factory=list)

    def add(
        self,
        start: int,
        found: Mapping[str, Values],
        outputs: tuple[Sequence[Array], Sequence[Array]],
        labels: Labels | None,
    ) -> None:
        """Take in a batch from sample `start` on: its figures and the outputs of both."""
        errors = found["l2"]
        limit = self.kept[0][0] if len(self.kept) == KEPT else -1.0
        said = [class_scores(one[0]) for one in outputs]
        for row in np.argsort(-errors, kind="stable")[:KEPT].tolist():
            if errors[row] <= max(limit, 0.0):
                break
            classes = [None if one is None else int(one[row].argmax()) for one in said]
            index, label = start + row, None if labels is None else int(labels[row])
            name = self.files[index] if self.files else None
            figures = rounded(float(errors[row])), index, rounded(float(found["cosine"][row]))
            sample = Sample(*figures, name, label, *classes)
            push = heapq.heappushpop if len(self.kept) == KEPT else heapq.heappush
            push(self.kept, (float(errors[row]), -index, sample))

    def result(self) -> tuple[Sample, ...]:
        """Return the samples, the worst first."""
        return tuple(sample for _, _, sample in sorted(self.kept, reverse=True))


def files_of(dataset: Dataset) -> Sequence[str] | None:
    """Return the samples' files, relative to their folder, None if they have none of their own."""
    return dataset.files if isinstance(dataset, ImageDataset) else None
