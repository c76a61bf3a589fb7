"""The user's own metric, and what a search goes by: how far outputs are from the float model's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtcal.errors import InputError
from trtcal.evaluate.per_sample import Array, Labels, Values, by_class, compare_rows
from trtcal.evaluate.tasks import TaskReader
from trtcal.scripts import function_in, running

if TYPE_CHECKING:
    from trtcal.evaluate.replay import Batch, Outputs

FUNCTION = "metric"
METRIC_FORM = (
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
            raise InputError(f"{self.path}: not every sample has the same figures", METRIC_FORM)
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}

    def _of_one(self, outputs: dict[str, Array], labels: Labels | None) -> dict[str, float]:
        with running(self.path, METRIC_FORM):
            figures = self.function(outputs, labels)
            if not isinstance(figures, dict) or not figures:
                raise InputError(
                    f"{self.path}: metric returned {type(figures).__name__}", METRIC_FORM
                )
            return {str(name): self._number(name, value) for name, value in figures.items()}

    def _number(self, name: object, value: object) -> float:
        try:
            number = float(value)  # type: ignore[arg-type]  # whatever it is, it is tried
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise InputError(f"{self.path}: the value of {name!r} is {value!r}", METRIC_FORM)
        return number


def load_metric(path: Path) -> OwnMetric:
    """Run a file and return its metric; `InputError` if it has none."""
    with running(path, METRIC_FORM):
        return OwnMetric(path, function_in(path, FUNCTION, METRIC_FORM))


NOISE_FIGURES = ("signal", "error", "kl", "agreement")
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

    def of(self, measure: str) -> float:
        """Return `kl` or `noise`, the two that add up over layers."""
        value = self.kl if measure == "kl" and self.is_fit else self.noise
        return math.nan if value is None else value

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form, in which infinite noise is None."""
        return dataclasses.asdict(self) | ({} if self.is_fit else {"noise": None})


def rows_of(expected: Sequence[Array], actual: Sequence[Array], labels: Labels | None) -> Rows:
    """Return the figures of each sample of a batch, each of shape (samples,)."""
    figures = compare_rows(expected, actual, labels)
    rows = {name: values for name, values in figures.items() if name in NOISE_FIGURES}
    if "top1" in figures:
        rows["lost"] = by_class(expected[0], expected[0], labels)["top1"] - figures["top1"]
    return rows


def task_rows(reader: TaskReader, batch: Batch) -> Rows:
    """Return the figures of each sample of a batch, of the outputs that count, by their task.

    The noise of boxes after a NonMaxSuppression is the share of boxes that are not found again. Where
    several outputs count there is no divergence of classes, which one of them has alone. All figures
    are NaN where only the variant's outputs are not finite.
    """
    expected, (actual,), size = batch.expected, batch.outputs, batch.size
    if not are_finite(actual) and are_finite(expected):
        rows = task_rows(reader, dataclasses.replace(batch, outputs=(expected,)))
        return {name: np.full(len(values), math.nan) for name, values in rows.items()}
    task = reader.read(batch)
    both = [task.rows(outputs, size) for outputs in (expected, actual)]
    figures = task.compare(both[0], both[1], batch.labels)
    if "error" not in figures:
        figures |= {"error": 1 - figures["agreement"], "signal": np.ones(size)}
    left_out = {"kl"} if len(task.outputs) > 1 else set[str]()
    kept = (name for name in NOISE_FIGURES if name in figures and name not in left_out)
    rows = {name: figures[name] for name in kept}
    if "top1" in figures:
        rows["lost"] = task.of_labels(both[0], both[0], batch.labels)["top1"] - figures["top1"]
    return rows


def are_finite(outputs: Outputs) -> bool:
    """Tell whether outputs have neither NaN nor infinity."""
    return all(array.dtype.kind != "f" or np.isfinite(array).all() for array in outputs.values())


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the figures of all batches in one."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def total(rows: Rows) -> Loss:
    """Return the loss over samples, infinite where a figure is not finite."""
    error, signal = rows["error"], rows["signal"]
    if not all(np.isfinite(values).all() for values in rows.values()):
        return Loss(len(error), math.inf)
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
