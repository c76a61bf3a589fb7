"""What a plan loses against the float model: figures of its outputs, one number each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.compare.per_sample import Labels, Values, class_scores, compare_rows, correctness

Array = npt.NDArray[Any]
KEPT = ("signal", "error", "kl", "agreement")
Rows = Mapping[str, Values]


@dataclass(frozen=True)
class Loss:
    """How far outputs are from the float model's, over `samples` samples.

    `noise` is error power over signal power, `kl` the mean divergence of class probabilities in
    nats, `disagreement` and `top1_drop` are points (%). What outputs or labels do not tell is None.
    """

    samples: int
    noise: float
    kl: float | None = None
    disagreement: float | None = None
    top1_drop: float | None = None

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise in dB, infinite where there is none."""
        return -10 * math.log10(self.noise) if self.noise > 0 else math.inf

    @property
    def drop(self) -> float | None:
        """Points lost: of top-1, without labels of agreement with the float model."""
        return self.disagreement if self.top1_drop is None else self.top1_drop

    def of(self, measure: str) -> float:
        """Return `kl` or `noise`, the two that add up over layers."""
        value = self.kl if measure == "kl" else self.noise
        return math.nan if value is None else value

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dataclasses.asdict(self)


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
    error, signal = float(rows["error"].sum()), float(rows["signal"].sum())
    return Loss(
        len(rows["error"]),
        error / signal if signal else 0.0,
        float(rows["kl"].mean()) if "kl" in rows else None,
        100 * (1 - float(rows["agreement"].mean())) if "agreement" in rows else None,
        100 * float(rows["lost"].mean()) if "lost" in rows else None,
    )
