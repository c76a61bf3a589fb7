"""Finds the run from which on a figure is another: a level that shifted and stayed.

Each figure is held against the median of the runs before, in units of their scatter (median absolute
deviation: single odd runs move neither). The last few runs together decide; one alone never does.
Odd values count for no more than a bounded amount (P. Huber, Ann. Math. Stat. 35, 1964).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

TOGETHER = 3  # runs that decide
FEWEST = 10  # runs before, below which nothing is said
BASELINE = 60  # runs before that count
BOUND = 3.2  # of one run's deviation, in units of the scatter
LIMIT = 4.2  # of the runs together, in units of the scatter of their mean
UNCERTAIN = 3.5  # how much more is wanted of few runs
LEAST = 0.002  # scatter that is taken at least, relative to the level
LEAST_SHIFT = 0.005  # relative change that is worth telling
MAD = 1.4826  # makes the median absolute deviation the standard deviation of a normal distribution


@dataclass(frozen=True)
class Shift:
    """A level that shifted: the first run on the new one (index), and both levels."""

    first: int
    found: int
    before: float
    after: float

    @property
    def change(self) -> float:
        """Relative change: 0.05 is 5 % more."""
        return (
            self.after / self.before - 1.0 if self.before else math.copysign(math.inf, self.after)
        )


def find_shifts(values: Sequence[float]) -> tuple[Shift, ...]:
    """Return the shifts of a series, in order; each is found a few runs after it began."""
    series = np.asarray(values, np.float64)
    found: list[Shift] = []
    start = 0
    for end in range(FEWEST + TOGETHER, len(series) + 1):
        if end - start < FEWEST + TOGETHER:
            continue
        shift = _shift_at(series, start, end)
        if shift is not None:
            found.append(shift)
            start = shift.first
    return tuple(found)


def _shift_at(series: Values, start: int, end: int) -> Shift | None:
    before = series[max(start, end - TOGETHER - BASELINE) : end - TOGETHER]
    last = series[end - TOGETHER : end]
    level, scatter = _level_and_scatter(before)
    apart = np.clip((last - level) / scatter, -BOUND, BOUND)
    # Of few runs level and scatter are uncertain themselves.
    limit = LIMIT * (1 + UNCERTAIN / len(before))
    after = float(np.median(last))
    if abs(apart.sum()) / math.sqrt(TOGETHER) < limit:
        return None
    if abs(after - level) < LEAST_SHIFT * abs(level):
        return None
    return Shift(end - TOGETHER, end - 1, level, after)


def _level_and_scatter(before: Values) -> tuple[float, float]:
    """Return mean and standard deviation of runs, with odd ones pulled in to three deviations."""
    middle = float(np.median(before))
    reach = 3 * MAD * float(np.median(np.abs(before - middle)))
    pulled = np.clip(before, middle - reach, middle + reach)
    level = float(pulled.mean())
    return level, max(float(pulled.std(ddof=1)), LEAST * abs(level), 1e-12)
