"""Ranges for FP8 (E4M3), whose steps grow with the values: others are best than for INT8."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from calibrators.histogram import Edges, Histogram

FP8_MOST = 448.0
"""The largest E4M3 value: the scale of a range is amax / 448."""
OCTAVE = 16  # candidates from one power of two to the next
CLIPPED = 4  # powers of two by which a range may be smaller than the largest value


def fp8_amax(histogram: Histogram) -> float:
    """Return the amax whose FP8 values have the least mean squared error, 0.0 if all values are 0.

    Tried are 16 candidates in each power of two, from 2^-4 of the largest value (what is above
    saturates at 448) to almost 2 of it: a power of two changes only where values become subnormal,
    but where the largest value stands between two powers decides on the steps below it. Every value
    stands in the middle of its bin; of equally good candidates the largest is taken.
    Source: P. Micikevicius et al., "FP8 Formats for Deep Learning" (2022), for the format.
    """
    low, high, counts = histogram.magnitudes()
    if histogram.amax == 0.0:
        return 0.0
    values, weights = (low + high) / 2, counts.astype(np.float64)
    exponents = np.arange(-CLIPPED * OCTAVE, OCTAVE) / OCTAVE
    candidates = histogram.amax * 2.0**exponents
    errors = np.array([fp8_error(values, weights, amax) for amax in candidates])
    return float(candidates[np.flatnonzero(errors <= errors.min() * (1 + 1e-12))[-1]])


def fp8_error(values: Edges, counts: Edges | float, amax: float) -> float:
    """Return the sum of squared errors of values, each `counts` times, in FP8 with this amax."""
    scale = amax / FP8_MOST
    steps = np.clip(values / scale, -FP8_MOST, FP8_MOST).astype(np.float32)
    rounded = steps.astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * scale
    return float(np.sum(counts * (values - rounded) ** 2))
