"""What a plan loses against the float model: figures of its outputs, one number each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.evaluate.per_sample import Labels, Values, class_scores, compare_rows, correctness

Array = npt.NDArray[Any]
KEPT = ("signal", "error", "kl", "agreement")
Rows = Mapping[str, Values]


@dataclass(frozen=True)
class Loss:
    """How far outputs are from the float model's, over `samples` samples.

    `noise` is error power over signal power, `kl` the mean divergence of class probabilities in
    nats, `disagreement` and `top1_drop` are points (%); `noise_error` and `kl_error` are standard
    errors. What outputs or labels do not tell is None. Infinite noise is that of outputs that are not
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


def rows_of(expected: Sequence[Array], said: Sequence[Array], labels: Labels | None) -> Rows:
    """Return the figures of each sample of a batch, each of shape (samples,)."""
    found = compare_rows(expected, said, labels)
    rows = {name: values for name, values in found.items() if name in KEPT}
    scores = class_scores(expected[0])
    if "top1" in found and scores is not None and labels is not None:
        rows["lost"] = correctness(scores, labels)["top1"] - found["top1"]
    return rows


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
