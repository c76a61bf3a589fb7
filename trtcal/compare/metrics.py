"""Accuracy of a candidate's outputs against the reference's, accumulated batch by batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.compare.statistics import Interval, paired_difference
from trtcal.errors import InputError

Array = npt.NDArray[Any]
DIGITS = 6  # significant digits kept: below this, batch size and threads decide


@dataclass(frozen=True)
class Accuracy:
    """How good a candidate's outputs are, over `samples` samples.

    `top1`, `agreement` and `top1_drop` are percentages (points), None without labels or without a
    class axis; `sqnr_db` is 10 log10 of signal over error power over all outputs, None where there is
    no error; `cosine` is the mean over samples. `top1_drop_interval` is 95 %, paired.
    """

    samples: int
    top1: float | None
    top1_drop: float | None
    top1_drop_interval: tuple[float, float] | None
    agreement: float | None
    sqnr_db: float | None
    cosine: float


@dataclass
class AccuracyMeter:
    """Collects batches of reference and candidate outputs; memory does not grow with samples."""

    samples: int = 0
    classified: bool = True
    labelled: bool = True
    agree: int = 0
    correct: dict[tuple[bool, bool], int] = field(default_factory=dict)
    signal: float = 0.0
    error: float = 0.0
    cosine_sum: float = 0.0

    def update(
        self, reference: list[Array], candidate: list[Array], labels: npt.NDArray[np.int64] | None
    ) -> None:
        """Add one batch: outputs in the model's order, samples along the first axis."""
        size = len(reference[0])
        self.samples += size
        _check_outputs(reference, candidate, size)
        self._add_errors(reference, candidate, size)
        ours, theirs = class_scores(candidate[0]), class_scores(reference[0])
        if ours is None or theirs is None:
            self.classified = False
            return
        _check_labels(labels, ours.shape[1])
        said, expected = ours.argmax(axis=1), theirs.argmax(axis=1)
        self.agree += int((said == expected).sum())
        if labels is None:
            self.labelled = False
            return
        for pair in zip((expected == labels).tolist(), (said == labels).tolist(), strict=True):
            self.correct[pair] = self.correct.get(pair, 0) + 1

    def _add_errors(self, reference: list[Array], candidate: list[Array], size: int) -> None:
        pairs = [_rows(a, b, size) for a, b in zip(reference, candidate, strict=True)]
        expected = np.concatenate([pair[0] for pair in pairs], axis=1)
        said = np.concatenate([pair[1] for pair in pairs], axis=1)
        self.signal += float(np.square(expected).sum())
        self.error += float(np.square(expected - said).sum())
        norms = np.linalg.norm(expected, axis=1) * np.linalg.norm(said, axis=1)
        dots = np.einsum("ij,ij->i", expected, said)
        same = np.where((expected == said).all(axis=1), 1.0, 0.0)
        self.cosine_sum += float(np.divide(dots, norms, out=same, where=norms > 0).sum())

    def result(self) -> Accuracy:
        """Return the figures so far."""
        known = self.classified and self.labelled
        drop = self._drop() if known else None
        right = sum(number for pair, number in self.correct.items() if pair[1])
        return Accuracy(
            self.samples,
            _round(100.0 * right / self.samples) if known else None,
            _round(drop.value) if drop else None,
            (_round(drop.low), _round(drop.high)) if drop else None,
            _round(100.0 * self.agree / self.samples) if self.classified else None,
            _sqnr_db(self.signal, self.error),
            _round(self.cosine_sum / self.samples),
        )

    def _drop(self) -> Interval:
        lost, won = self.correct.get((True, False), 0), self.correct.get((False, True), 0)
        return paired_difference(lost, won, self.samples).scaled(100.0)


def _check_outputs(reference: list[Array], candidate: list[Array], size: int) -> None:
    for before, after in zip(reference, candidate, strict=True):
        if before.shape != after.shape or len(before) != size or before.dtype.kind not in "fiub":
            raise InputError(
                f"outputs of shapes {before.shape} and {after.shape} can't be compared",
                "every output needs one row a sample, the same in reference and candidate",
            )
        if not (np.isfinite(before).all() and np.isfinite(after).all()):
            raise InputError(
                "an output has NaN or infinite values",
                "run the models alone on these data: weights or data are broken",
            )


def _check_labels(labels: npt.NDArray[np.int64] | None, classes: int) -> None:
    if labels is not None and not ((labels >= 0) & (labels < classes)).all():
        wrong = labels[(labels < 0) | (labels >= classes)][0]
        raise InputError(
            f"label {wrong} is none of the model's {classes} classes (0 to {classes - 1})",
            "number the labels as the model does",
        )


def class_scores(output: Array) -> Array | None:
    """Return an output as scores of shape (samples, classes), None if it does not look like that."""
    if output.dtype.kind != "f" or output.ndim < 2 or any(size != 1 for size in output.shape[2:]):
        return None
    return output.reshape(len(output), -1) if output.shape[1] > 1 else None


def _rows(reference: Array, candidate: Array, size: int) -> tuple[Array, Array]:
    return (
        reference.astype(np.float64).reshape(size, -1),
        candidate.astype(np.float64).reshape(size, -1),
    )


def _sqnr_db(signal: float, error: float) -> float | None:
    if error == 0.0 or signal == 0.0:
        return None
    return _round(10.0 * math.log10(signal / error))


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
