"""The whole observed range."""

from __future__ import annotations

from dataclasses import dataclass

from calibrators.histogram import Histogram
from calibrators.range import Range, guard


@dataclass(frozen=True)
class MinMax:
    """amax = max |x|: nothing is clipped, and one outlier decides the step of all values.

    Source: H. Wu et al., "Integer Quantization for Deep Learning Inference" (2020), section 3.2, "Max".
    """

    def __call__(self, histogram: Histogram) -> Range:
        """Return the exact largest magnitude as range."""
        return guard(histogram.amax, histogram)
