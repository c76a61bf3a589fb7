"""A range that leaves out a given share of the values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibrators.histogram import Histogram
from calibrators.range import Range, guard


@dataclass(frozen=True)
class Percentile:
    """amax = the given percentile of |x|, zeros included, exact to the histogram's bin.

    It is the linearly interpolated order statistic, as `numpy.quantile(abs(x), percentile / 100)`.
    Source: H. Wu et al., "Integer Quantization for Deep Learning Inference" (2020), section 3.2,
    "Percentile".
    """

    percentile: float = 99.999

    def __post_init__(self) -> None:
        number = isinstance(self.percentile, (int, float))
        if not (number and 0.0 < self.percentile <= 100.0):
            raise ValueError(f"percentile must be above 0 and at most 100, not {self.percentile!r}")

    def __call__(self, histogram: Histogram) -> Range:
        """Return the percentile of the magnitudes as range."""
        rank = self.percentile / 100.0 * max(histogram.count - 1, 0)
        low, high = _order_statistics(histogram, (math.floor(rank), math.ceil(rank)))
        return guard(low + (high - low) * (rank - math.floor(rank)), histogram)


def _order_statistics(histogram: Histogram, ranks: tuple[int, int]) -> tuple[float, float]:
    """Return the upper edges of the bins in which the magnitudes of these ranks lie (0: smallest)."""
    _, upper, counts = histogram.magnitudes()
    edges = np.concatenate([[0.0], upper])
    up_to = histogram.zeros + np.concatenate([[0], np.cumsum(counts)])
    first, second = np.searchsorted(up_to, ranks, side="right")
    return float(edges[min(first, upper.size)]), float(edges[min(second, upper.size)])
