"""A method for each tensor, by what it would cost there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from calibrators.entropy import Entropy
from calibrators.histogram import Histogram
from calibrators.minmax import MinMax
from calibrators.mse import MSE, squared_errors
from calibrators.percentile import Percentile
from calibrators.range import Range

METHODS: dict[str, Callable[[], Callable[[Histogram], Range]]] = {
    "minmax": MinMax,
    "percentile": Percentile,
    "entropy": Entropy,
    "mse": MSE,
}


@dataclass(frozen=True)
class Auto:
    """Takes the whole range unless clipping pays: then the method with the least squared error.

    The few largest values of an activation often matter more than their number says, so another
    method than `minmax` must bring at least `min_gain_db` of signal to quantization noise (dB) on the
    tensor itself. The note says what was chosen and why.
    """

    min_gain_db: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.min_gain_db, (int, float)) or not self.min_gain_db >= 0:
            raise ValueError(f"min_gain_db must be from 0 up, not {self.min_gain_db!r}")

    def __call__(self, histogram: Histogram) -> Range:
        """Return the chosen range, its reason in the note."""
        ranges = {name: make()(histogram) for name, make in METHODS.items()}
        if histogram.amax == 0.0:
            return ranges["minmax"]
        errors = squared_errors(histogram, np.array([item.amax for item in ranges.values()]))
        errors = np.maximum(errors, np.finfo(np.float64).tiny)
        gains = dict(zip(ranges, 10.0 * np.log10(errors[0] / errors), strict=True))
        best = max(gains, key=lambda name: gains[name])
        if gains[best] < self.min_gain_db:
            reason = f"minmax: {best} would gain {gains[best]:.2f} dB only"
            best = "minmax"
        else:
            reason = f"{best}: {gains[best]:.2f} dB better than minmax"
        notes = filter(None, [reason, ranges[best].note])
        return replace(ranges[best], note="; ".join(notes))
