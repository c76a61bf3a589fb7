"""A metric of the user's own: `metric(outputs, labels) -> {name: value}` in a Python file.

It is the user's code, run because the user named it. It is called once a sample, so that every value
can be paired, resampled and sliced; what needs many samples at once (a mean average precision) cannot
be written so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.data.script import function_in, running
from trtcal.errors import InputError

Array = npt.NDArray[Any]
Values = npt.NDArray[np.float64]
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

    def __call__(
        self, names: Sequence[str], outputs: Sequence[Array], labels: npt.NDArray[np.int64] | None
    ) -> dict[str, Values]:
        """Return each figure of a batch, of shape (samples,); `InputError` if a value is none."""
        rows = [
            self._of_one(
                {name: array[i : i + 1] for name, array in zip(names, outputs, strict=True)},
                None if labels is None else labels[i : i + 1],
            )
            for i in range(len(outputs[0]))
        ]
        self.known = self.known or set(rows[0])
        if any(set(row) != self.known for row in rows):
            raise InputError(f"{self.path}: not every sample has the same figures", HINT)
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}

    def _of_one(
        self, outputs: dict[str, Array], labels: npt.NDArray[np.int64] | None
    ) -> dict[str, float]:
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
