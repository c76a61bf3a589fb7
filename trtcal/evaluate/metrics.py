"""Accuracy of a variant's outputs against the reference's, accumulated batch by batch."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trtcal.data.polygraphy import function_in, running
from trtcal.errors import InputError
from trtcal.evaluate.per_sample import (
    Array,
    Labels,
    Values,
    class_scores,
    compare_rows,
    correctness,
)
from trtcal.stats import paired_difference

DIGITS = 6  # significant digits kept: below this, batch size and threads decide


@dataclass(frozen=True)
class Accuracy:
    """How good a variant's outputs are, over `samples` samples.

    `top1`, `agreement` and `top1_drop` are percentages (points), None without labels or without a
    class axis; so is `top5`, with more than five classes. `sqnr_db` is 10 log10 of signal over error
    power over all outputs, None where there is no error. `top1_drop_interval` is 95 %, paired. The
    others are means over samples of what `trtcal.evaluate.per_sample` names, `linf` the largest.
    `top1_lost` counts the samples that only the reference has right, `top1_won` the opposite.
    """

    samples: int
    top1: float | None
    top1_drop: float | None
    top1_drop_interval: tuple[float, float] | None
    agreement: float | None
    sqnr_db: float | None
    cosine: float
    top5: float | None = None
    kl: float | None = None
    l0: float | None = None
    l1: float | None = None
    l2: float | None = None
    linf: float | None = None
    top1_lost: int | None = None
    top1_won: int | None = None


@dataclass
class AccuracyMeter:
    """Collects batches of reference and variant outputs; memory does not grow with samples."""

    samples: int = 0
    known: Counter[str] = field(default_factory=Counter)  # samples that had each figure
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    lost: int = 0
    won: int = 0
    largest: float = 0.0

    def update(
        self, reference: list[Array], variant: list[Array], labels: Labels | None
    ) -> dict[str, Values]:
        """Add one batch and return its figures, as `compare_rows` does.

        Outputs are in the model's order, samples along the first axis.
        """
        found = compare_rows(reference, variant, labels)
        self.samples += len(reference[0])
        self.largest = max(self.largest, float(found["linf"].max(initial=0.0)))
        for name, values in found.items():
            self.known[name] += len(values)
            self.sums[name] += float(values.sum())
        lost = _lost(reference, found, labels)
        if lost is not None:
            self.lost += int((lost > 0).sum())
            self.won += int((lost < 0).sum())
        return found

    def result(self) -> Accuracy:
        """Return the figures so far."""
        top1 = self._mean("top1", 100.0)
        drop = paired_difference(self.lost, self.won, self.samples).scaled(100.0)
        return Accuracy(
            self.samples,
            top1,
            None if top1 is None else rounded(drop.value),
            None if top1 is None else (rounded(drop.low), rounded(drop.high)),
            self._mean("agreement", 100.0),
            sqnr_db(self.sums["signal"], self.sums["error"]),
            rounded(self.sums["cosine"] / self.samples),
            self._mean("top5", 100.0),
            self._mean("kl"),
            self._mean("l0"),
            self._mean("l1"),
            self._mean("l2"),
            rounded(self.largest),
            None if top1 is None else self.lost,
            None if top1 is None else self.won,
        )

    def _mean(self, name: str, unit: float = 1.0) -> float | None:
        """Return the mean of a figure that every sample had."""
        if self.known[name] != self.samples:
            return None
        return rounded(unit * self.sums[name] / self.samples)


def sqnr_db(signal: float, error: float) -> float | None:
    """Return signal over error power in dB, None where either is zero or not finite."""
    if not (0 < signal < math.inf and 0 < error < math.inf):
        return None
    return rounded(10.0 * math.log10(signal / error))


def _lost(reference: Sequence[Array], found: Rows, labels: Labels | None) -> Values | None:
    """Return the reference's `top1` minus the variant's, None where they are not known."""
    scores = class_scores(reference[0])
    if scores is None or labels is None or "top1" not in found:
        return None
    return np.asarray(correctness(scores, labels)["top1"] - found["top1"])


def rounded(value: float) -> float:
    """Return a figure to the digits that are kept of it."""
    return float(f"{value:.{DIGITS}g}")


FUNCTION = "metric"
HINT = (
    "metric(outputs, labels) gets {output: array} and the labels (or None) of one sample, whose first "
    "axis has length 1, and returns {name: number}"
)


@dataclass
class OwnMetric:
    """The function of a file, called for one sample after another."""

    path: Path
    function: Callable[..., Any]
    known: set[str] = field(default_factory=set)

    def __call__(self, outputs: Mapping[str, Array], labels: Labels | None) -> dict[str, Values]:
        """Return each figure of a batch, of shape (samples,); `InputError` if a value is none."""
        rows = [
            self._of_one(
                {name: array[i : i + 1] for name, array in outputs.items()},
                None if labels is None else labels[i : i + 1],
            )
            for i in range(len(next(iter(outputs.values()))))
        ]
        self.known = self.known or set(rows[0])
        if any(set(row) != self.known for row in rows):
            raise InputError(f"{self.path}: not every sample has the same figures", HINT)
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}

    def _of_one(self, outputs: dict[str, Array], labels: Labels | None) -> dict[str, float]:
        with running(self.path, HINT):
            found = self.function(outputs, labels)
        if not isinstance(found, dict) or not found:
            raise InputError(f"{self.path}: metric returned {type(found).__name__}", HINT)
        return {str(name): self._number(name, value) for name, value in found.items()}

    def _number(self, name: object, value: object) -> float:
        try:
            number = float(value)  # type: ignore[arg-type]  # whatever it is, it is tried
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise InputError(f"{self.path}: the value of {name!r} is {value!r}", HINT)
        return number


def load_metric(path: Path) -> OwnMetric:
    """Run a file and return its metric; `InputError` if it has none."""
    with running(path, HINT):
        return OwnMetric(path, function_in(path, FUNCTION, HINT))


KEPT = ("signal", "error", "kl", "agreement")
Rows = Mapping[str, Values]


@dataclass(frozen=True)
class Loss:
    """How far outputs are from the float model's, over `samples` samples.

    `noise` is error power over signal power, `kl` the mean divergence of class probabilities in
    nats, `disagreement` and `top1_drop` are points (%); `noise_error` and `kl_error` are standard
    errors. What outputs or labels do not show is None. Infinite noise is that of outputs that are not
    finite, as those of float16 that overflows: nothing else is known of them.
    """

    samples: int
    noise: float
    kl: float | None = None
    disagreement: float | None = None
    top1_drop: float | None = None
    noise_error: float | None = None
    kl_error: float | None = None

    @property
    def is_fit(self) -> bool:
        """Whether all outputs are finite."""
        return math.isfinite(self.noise)

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise in dB, infinite where there is none."""
        if not self.is_fit:
            return -math.inf
        return -10 * math.log10(self.noise) if self.noise > 0 else math.inf

    @property
    def drop(self) -> float | None:
        """Points lost: of top-1, without labels of agreement with the float model."""
        return self.disagreement if self.top1_drop is None else self.top1_drop

    def of(self, measure: str) -> float:
        """Return `kl` or `noise`, the two that add up over layers."""
        value = self.kl if measure == "kl" and self.is_fit else self.noise
        return math.nan if value is None else value

    def error_of(self, measure: str) -> float:
        """Return the standard error of `kl` or `noise`, 0 where it is not known."""
        return (self.kl_error if measure == "kl" else self.noise_error) or 0.0

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form, in which infinite noise is None."""
        return dataclasses.asdict(self) | ({} if self.is_fit else {"noise": None})


def rows_of(expected: Sequence[Array], made: Sequence[Array], labels: Labels | None) -> Rows:
    """Return the figures of each sample of a batch, each of shape (samples,)."""
    found = compare_rows(expected, made, labels)
    rows = {name: values for name, values in found.items() if name in KEPT}
    lost = _lost(expected, found, labels)
    return rows if lost is None else rows | {"lost": lost}


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the figures of all batches in one."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def total(rows: Rows) -> Loss:
    """Return the loss over samples."""
    error, signal = rows["error"], rows["signal"]
    mean = float(signal.mean())
    noise = float(error.mean()) / mean if mean else 0.0
    return Loss(
        len(error),
        noise,
        float(rows["kl"].mean()) if "kl" in rows else None,
        100 * (1 - float(rows["agreement"].mean())) if "agreement" in rows else None,
        100 * float(rows["lost"].mean()) if "lost" in rows else None,
        _error(error - noise * signal) / mean if mean else 0.0,
        _error(rows["kl"]) if "kl" in rows else None,
    )


def _error(values: Values) -> float:
    """Return the standard error of the mean, 0 of a single value."""
    return float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
