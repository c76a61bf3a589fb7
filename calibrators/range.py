"""What a calibrator returns, and the guard that keeps every range usable."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from calibrators.histogram import Histogram

FLOOR = 2.0**-20
"""The smallest amax ever given: its scale, amax / 127, stays a normal float16 and float32 number."""
LEVELS = 127.0
LEAST_AMAX, LARGEST_AMAX = 127 * 2.0**-126, 127 * 2.0**120  # scales that are normal float32 numbers


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
    if amax > LARGEST_AMAX:
        note = f"amax {amax:.3g} lowered to {LARGEST_AMAX:.3g}, the most that float32 allows"
        return Range(LARGEST_AMAX, note)
    if histogram.minimum == histogram.maximum:
        return Range(amax, f"all {histogram.count} values are {histogram.maximum:.6g}")
    return Range(amax)


def scale_of(amax: float) -> np.float32:
    """Return amax / 127, rounded once to float32.

    For a float32 amax that is what dividing in float32 gives, and it is what `quantize` writes.
    """
    with np.errstate(over="ignore", under="ignore"):
        return np.float32(amax / LEVELS)


def amax_of(scale: np.float32) -> float:
    """Return an amax whose `scale_of` is this scale again, a float32 number where one is.

    A float32 amax that became a scale comes back to the bit, but for those whose mantissa is 127/64
    or more: there two neighbours share a scale.
    """
    product = float(scale) * LEVELS  # exact: 24 + 7 bits
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = float(np.float32(product))
    return rounded if scale_of(rounded) == scale else product


def single(amax: float) -> np.float32:
    """Return the float32 amax with the same scale; the nearest one if none has it (1 scale in 128)."""
    scale = scale_of(amax)
    near = np.float32(amax)
    return near if scale_of(float(near)) == scale else np.float32(amax_of(scale))


def problem(amax: float) -> str | None:
    """Return why no layer can use a range, None if one can: its scale is no normal float32."""
    if math.isnan(amax):
        return "its scale is not a number"
    if math.isinf(amax):
        return "its scale is infinite: the data overflowed"
    if amax == 0:
        return "its scale is 0, which newer builders refuse"
    scale = f"its scale {amax / LEVELS:.6g}"
    if amax < 0:
        return f"{scale} is negative"
    if amax < LEAST_AMAX:
        return f"{scale} is denormal"
    return f"{scale} is too large for float32" if amax > LARGEST_AMAX else None
