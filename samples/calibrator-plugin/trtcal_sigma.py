"""A calibrator of one's own: a range of so many standard deviations around zero.

Install this folder beside trtcal, and `trtcal calibrate --method sigma -p sigmas=5` knows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from calibrators import EmptyHistogramError, Histogram, Range


@dataclass(frozen=True)
class Sigma:
    """amax = `sigmas` times the root mean square of the values, at most the largest magnitude."""

    sigmas: float = 6.0

    def __call__(self, histogram: Histogram) -> Range:
        """Return the range, from the middles of the histogram's bins."""
        if histogram.amax == 0.0:
            raise EmptyHistogramError("there is nothing but zeros")
        low, high, counts = histogram.magnitudes()
        squares = float((((low + high) / 2) ** 2 * counts).sum())
        deviation = math.sqrt(squares / histogram.count)
        return Range(min(self.sigmas * deviation, histogram.amax))
