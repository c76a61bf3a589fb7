"""Intervals for the differences that a decision rests on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

Times = npt.NDArray[np.float64]
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Interval:
        """Return all three times `factor` (positive)."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)


def paired_difference(lost: int, won: int, samples: int, level: float = LEVEL) -> Interval:
    """Return how much lower the candidate's proportion is, on the same samples.

    `lost`: only the reference was right; `won`: only the candidate was. Adjusted Wald interval for
    matched pairs: A. Agresti and Y. Min, Statistics in Medicine 24 (2005), which adds one half to
    each discordant count and two to the number of pairs.
    """
    count = samples + 2.0
    difference = (lost - won) / count
    spread = math.sqrt(max(lost + won + 1.0 - (lost - won) ** 2 / count, 0.0)) / count
    margin = float(stats.norm.ppf(0.5 + level / 2)) * spread
    return Interval((lost - won) / samples, difference - margin, difference + margin)


def median_interval(times: Times) -> Interval:
    """Return the median and its distribution-free interval, from order statistics."""
    ordered = np.sort(times)
    rank = int(stats.binom.ppf((1 - LEVEL) / 2, len(ordered), 0.5))
    low, high = ordered[max(rank - 1, 0)], ordered[min(len(ordered) - rank, len(ordered) - 1)]
    return Interval(float(np.median(ordered)), float(low), float(high))
