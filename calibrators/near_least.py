"""The scales of a grid that may have the least squared error, found without rounding the values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.histogram import Edges

TOLERANCE = 1e-8  # of the sum of squares: more than sums and float32 arithmetic differ by


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
