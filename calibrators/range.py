"""What a calibrator returns, and the guard that keeps every range usable."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from calibrators.histogram import Histogram

FLOOR = 2.0**-20
"""The smallest amax ever given: its scale, amax / 127, stays a normal float16 and float32 number."""


@dataclass(frozen=True)
class Range:
    """A symmetric range [-amax, amax]; `note` says what a user should know about how it came."""

    amax: float
    note: str | None = None

    @property
    def scale(self) -> float:
        """The INT8 quantization step, amax / 127."""
        return self.amax / 127.0


class EmptyHistogramError(ValueError):
    """There are no finite values to choose a range from."""


class Calibrator(Protocol):
    """A pure function from a tensor's histogram to its range."""

    def __call__(self, histogram: Histogram) -> Range:
        """Choose the range of one tensor; `EmptyHistogramError` if nothing was observed."""
        ...


def guard(amax: float, histogram: Histogram) -> Range:
    """Return a range that can be used: never zero, denormal or infinite, and named where it was."""
    if histogram.count == 0:
        raise EmptyHistogramError("no finite values were observed")
    if not math.isfinite(amax):
        raise ValueError(f"a calibrator chose the range {amax}")
    if histogram.amax == 0.0:
        return Range(FLOOR, f"all {histogram.count} values are zero; amax set to its floor")
    if amax < FLOOR:
        return Range(FLOOR, f"amax {amax:.3g} raised to its floor")
    if histogram.minimum == histogram.maximum:
        return Range(amax, f"all {histogram.count} values are {histogram.maximum:.6g}")
    return Range(amax)
