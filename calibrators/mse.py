"""The range with the least squared error of quantization."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from calibrators.histogram import Edges, Histogram
from calibrators.range import Range, guard

LEVELS = 127


@dataclass(frozen=True)
class MSE:
    """amax that minimises the mean of (x - Q(x))^2, rounding and clipping together.

    `candidates` thresholds in equal steps up to max |x| are tried, every value standing in the middle
    of its bin; of equally good ones the largest is taken.
    Source: Y. Choukroun et al., "Low-bit Quantization of Neural Networks for Efficient Inference"
    (2019), section 3.
    """

    candidates: int = 256

    def __post_init__(self) -> None:
        if not isinstance(self.candidates, int) or not 2 <= self.candidates <= 1 << 16:
            raise ValueError(f"candidates must be from 2 to 65536, not {self.candidates!r}")

    def __call__(self, histogram: Histogram) -> Range:
        """Return the range of least error."""
        if histogram.amax == 0.0:
            return guard(0.0, histogram)
        thresholds = np.linspace(0.0, histogram.amax, self.candidates + 1)[1:]
        errors = squared_errors(histogram, thresholds)
        best = np.flatnonzero(errors <= errors.min() * (1 + 1e-12))[-1]
        return guard(float(thresholds[best]), histogram)


def squared_errors(histogram: Histogram, thresholds: Edges) -> npt.NDArray[np.float64]:
    """Return the sum of squared errors of symmetric INT8 for each amax, shape of `thresholds`."""
    low, high, counts = histogram.magnitudes()
    return _squared_errors((low + high) / 2, counts.astype(np.float64), thresholds)


@njit(nogil=True, cache=True)
def _squared_errors(values: Edges, counts: Edges, thresholds: Edges) -> npt.NDArray[np.float64]:
    errors = np.zeros(thresholds.size)
    for number in range(thresholds.size):
        step = thresholds[number] / LEVELS
        for i in range(values.size):
            quantized = min(np.rint(values[i] / step), LEVELS) * step
            errors[number] += counts[i] * (values[i] - quantized) ** 2
    return errors
