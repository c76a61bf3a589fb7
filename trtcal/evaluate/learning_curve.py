"""How many calibration samples are enough: what INT8 loses with ranges from 8, 16, 32, ... of them.

Four series of samples that share none grow chunk by chunk. At each size INT8 runs on samples held back,
with the ranges of each series. Enough is the smallest size from which on the mean loss is within 5 % of
that with the largest. The interval is over series and held-back samples, each paired with itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from trtcal.calibration import Observation, ObserveOptions, calibrate, create_calibrator, observe
from trtcal.data import Dataset, open_dataset, whole_batches
from trtcal.data.dataset import batch_for
from trtcal.documents import Document, seal
from trtcal.errors import InputError, __version__
from trtcal.evaluate.metrics import Rows, total
from trtcal.evaluate.per_sample import class_labels
from trtcal.evaluate.replay import Reporter
from trtcal.evaluate.search.plan_loss import Reference
from trtcal.model import Model
from trtcal.quantization import find_layers, quantize, tensors_to_observe
from trtcal.ranges import Parameters
from trtcal.stats import LEVEL, Interval, Values, scipy

CHUNK, LARGEST = 8, 256  # samples of a series: at first, and at most
SERIES = 4
HELD_BACK = 16, 256  # samples, at least and at most; a quarter between
TOLERANCE = 0.05  # of the loss with the largest size: what a smaller one may lose more
NEGLIGIBLE = {"kl": 1e-3, "noise": 1e-4}  # a loss that no number of samples makes matter


@dataclass(frozen=True)
class Point:
    """The `losses` with ranges from `samples` samples of each series.

    `excess` is how much more their mean is than with the largest size (0.05: 5 % more).
    """

    samples: int
    losses: tuple[float, ...]
    excess: Interval


@dataclass(frozen=True)
class LearningCurve:
    """The points by rising size; `measure` is `kl` (nats) or `noise` (error over signal power).

    So many samples are `needed`: None if only the largest number is, and nobody knows whether that is
    enough. `at_least` and `at_most` are the same for the lower and upper ends of the intervals.
    """

    head: dict[str, Any]
    measure: str
    held_back: int
    points: tuple[Point, ...]
    needed: int | None
    at_least: int | None
    at_most: int | None
    warnings: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        largest, negligible = self.points[-1].samples, NEGLIGIBLE[self.measure]
        if all(max(point.losses) < negligible for point in self.points):
            return (
                f"the loss is below {negligible:g} with any number of samples: the number hardly "
                "matters"
            )
        if self.needed is None:
            more = "more than" if self.at_least is None else "perhaps more than"
            last = self.points[-2]
            return (
                f"{more} {largest} samples are needed: with {last.samples} the loss is "
                f"{last.excess.value:.0%} above that with {largest}, and may fall further"
            )
        if self.at_most is None:
            return (
                f"{self.needed} samples seem enough, but these data cannot exclude that more than "
                f"{largest} are needed"
            )
        bounds = f" (between {self.at_least} and {self.at_most})"
        return (
            f"{self.needed} samples{bounds if self.at_least != self.at_most else ''} are enough: "
            f"with {largest} the loss is no more than {TOLERANCE:.0%} lower"
        )

    def to_document(self) -> Document:
        """Return the curve as a sealed document."""
        fields = asdict(self)
        head = {"kind": "learning-curve", "schema_version": 2, "trtcal": __version__}
        more = {"tolerance": TOLERANCE, "sentence": self.sentence}
        return seal({**head, **fields.pop("head"), **fields, **more})


def learning_curve(
    model: Model, dataset: Dataset, method: str, parameters: Parameters, reporter: Reporter
) -> LearningCurve:
    """Measure what INT8 loses with ranges from 8, 16, 32, ... samples of a prepared model's data.

    `InputError` for too few samples, an unknown method, or outputs that are not finite.
    """
    create_calibrator(method, parameters)
    chunk, least = (whole_batches(samples, model) for samples in (CHUNK, HELD_BACK[0]))
    batch = batch_for(model, 1)
    held_back = max(least, min(len(dataset) // 4, HELD_BACK[1]) // batch * batch)
    first = len(dataset) - held_back
    largest = min(first // chunk // SERIES, LARGEST // CHUNK) * chunk
    if largest < 2 * chunk:
        what = f"data {dataset.name} have {len(dataset)} samples, too few for a learning curve"
        hint = f"give {3 * SERIES * chunk} samples or more; more make the answer more precise"
        raise InputError(what, hint)
    doubled = (chunk * 2**power for power in range(largest.bit_length()))
    sizes = [*(size for size in doubled if size < 0.8 * largest), largest]
    losses: dict[int, list[Rows]] = {size: [] for size in sizes}
    with (
        Reference(model, dataset, held_back, first) as reference,
        reporter("judging ranges", SERIES * len(sizes)) as advance,
    ):
        for seen in _observed(model, dataset, chunk, largest):
            if seen.samples in losses:
                ranges = calibrate(seen, method, parameters)
                rows = reference.rows(quantize(model, ranges).proto)
                if rows is None or not total(rows).is_fit:
                    raise InputError(
                        f"with ranges from {seen.samples} samples the INT8 outputs are not finite",
                        "check the data and the float model's outputs first",
                    )
                losses[seen.samples].append(rows)
                advance(1)
    head: dict[str, Any] = {"model": model.fingerprint, "dataset": dataset.fingerprint}
    head |= {"method": method, "parameters": ranges.parameters}
    return curve_of(head, losses, _warnings(dataset))


def _observed(model: Model, dataset: Dataset, chunk: int, largest: int) -> Iterator[Observation]:
    """Yield what a series has seen after each chunk; chunks go to the series in turns."""
    tensors, options = tensors_to_observe(find_layers(model)), ObserveOptions(batch=chunk)
    series: dict[int, Observation] = {}
    for number, start in enumerate(range(0, SERIES * largest, chunk)):
        samples = open_dataset(list(dataset.batches(chunk, start, start + chunk)), model)
        seen = observe(model, samples, tensors, options)
        before = series.get(number % SERIES)
        if before is not None:
            for name, histogram in before.histograms.items():
                seen.histograms[name].merge(histogram)
            seen = replace(seen, samples=seen.samples + before.samples)
        series[number % SERIES] = seen
        yield seen


def curve_of(
    head: dict[str, Any], rows: dict[int, list[Rows]], warnings: tuple[str, ...]
) -> LearningCurve:
    """Return the curve of losses by size: for each series the figures of each held-back sample."""
    measure = "kl" if all("kl" in row for series in rows.values() for row in series) else "noise"
    losses = {
        size: np.array([row["kl"] if measure == "kl" else _noise(row) for row in series])
        for size, series in rows.items()
    }
    last = losses[max(losses)]
    points = [Point(n, tuple(x.mean(1).tolist()), _excess(x, last)) for n, x in losses.items()]

    def enough(end: str) -> int | None:
        """Return the size from which on an end of the intervals is within the tolerance."""
        above = [n for n, point in enumerate(points) if getattr(point.excess, end) > TOLERANCE]
        first = above[-1] + 1 if above else 0
        return points[first].samples if first < len(points) - 1 else None

    ends = enough("value"), enough("low"), enough("high")
    return LearningCurve(head, measure, last.shape[1], tuple(points), *ends, warnings)


def _noise(row: Rows) -> Values:
    return np.asarray(row["error"] / (row["signal"].mean() or 1.0))


def _excess(losses: Values, last: Values) -> Interval:
    """Return how much more a size loses than the last; both are (series, held-back samples)."""
    differences = (losses - last) / max(float(last.mean()), 1e-9)
    value = float(differences.mean())
    margin = math.hypot(_margin(differences.mean(0)), _margin(differences.mean(1)))
    return Interval(value, value - margin, value + margin)


def _margin(values: Values) -> float:
    quantile = scipy.stats.t.ppf(0.5 + LEVEL / 2, len(values) - 1)
    return float(quantile * values.std(ddof=1) / math.sqrt(len(values)))


def _warnings(dataset: Dataset) -> tuple[str, ...]:
    labels = class_labels(dataset.labels)
    if labels is None or labels[0] == labels[-1] or (np.diff(labels) < 0).any():
        return ()
    return ("the samples are sorted by class: shuffle them, so that each series has all classes",)
