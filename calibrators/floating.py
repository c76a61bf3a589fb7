"""The scales of a grid with the least error, and ranges for floating-point grids such as FP8.

Steps of the latter grow with the values, so that other ranges are best than for INT8. Whoever knows
the number formats gives the grid.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from calibrators.histogram import Edges, Histogram

OCTAVE = 16  # candidates from one power of two to the next
CLIPPED = 4  # powers of two by which a range may be smaller than the largest value
TOLERANCE = 1e-8  # of the sum of squares: more than sums and float32 arithmetic differ by
SPAN = 40  # powers of two from the smallest value of a format, and more, to its largest


class FloatingGrid(Hashable, Protocol):
    """A floating-point format: its largest value, and rounding to its nearest values."""

    @property
    def top(self) -> float:
        """The largest value: the scale of a range is amax / top."""

    def floats(self, exact: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the nearest values of the format, saturated."""


def floating_amax(histogram: Histogram, grid: FloatingGrid) -> float:
    """Return the amax whose values have the least mean squared error, 0.0 if all values are 0.

    Tried are 16 candidates in each power of two, from 2^-4 of the largest value (what is above
    saturates) to almost 2 of it: a power of two changes only where values become subnormal, but where
    the largest value stands between two powers decides on the steps below it. Every value stands in
    the middle of its bin; of equally good candidates the largest is taken.
    Source: P. Micikevicius et al., "FP8 Formats for Deep Learning" (2022), for the format.
    """
    if histogram.amax == 0.0:
        return 0.0
    values, weights = histogram.middles()
    exponents = np.arange(-CLIPPED * OCTAVE, OCTAVE) / OCTAVE
    candidates = histogram.amax * 2.0**exponents
    candidates = candidates[near_least(values, weights, _levels(grid), candidates / grid.top)]
    errors = np.array([floating_error(values, weights, amax, grid) for amax in candidates])
    return float(candidates[np.flatnonzero(errors <= errors.min() * (1 + 1e-12))[-1]])


def near_least(
    values: Edges, counts: Edges, levels: Edges, scales: Edges
) -> npt.NDArray[np.signedinteger[Any]]:
    """Return the places of the scales among which the one with the least squared error is, rising.

    `values` are magnitudes, rising, each `counts` times; each goes to the nearest of `levels` times
    the scale, which rise from 0, and those beyond the last to the last. Sums of values and squares up
    to each value make the work of a scale that of its levels. All arrays are float64 of one
    dimension.
    """
    places = np.searchsorted(values, np.multiply.outer(scales, (levels[1:] + levels[:-1]) / 2))
    ends = np.pad(places, ((0, 0), (1, 1)), constant_values=((0, 0), (0, values.size)))
    mass, first, second = (
        np.concatenate([[0.0], np.cumsum(counts * values**power)]) for power in range(3)
    )
    crossed = np.diff(first[ends]) @ levels
    squared = np.diff(mass[ends]) @ levels**2
    errors = second[-1] - 2 * scales * crossed + scales**2 * squared
    return np.flatnonzero(errors <= errors.min() + TOLERANCE * second[-1])


@cache
def _levels(grid: FloatingGrid) -> Edges:
    """Return all values of the format from 0 to the largest, rising."""
    return np.unique(grid.floats(grid.top * 2.0 ** np.linspace(-SPAN, 0, 1 << 14))).astype(float)


def floating_error(values: Edges, counts: Edges | float, amax: float, grid: FloatingGrid) -> float:
    """Return the sum of squared errors of values, each `counts` times, in a format with this amax."""
    scale = amax / grid.top
    rounded = grid.floats(values / scale).astype(np.float64) * scale
    return float(np.sum(counts * (values - rounded) ** 2))
