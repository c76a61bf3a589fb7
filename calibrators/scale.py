"""The one arithmetic between a range and TensorRT's scale, amax / 127.

Formats that hold scales hold float32, so what has to survive a way there and back is the float32
scale, to the bit. Source of 127: TensorRT's sampleINT8, which divides by `127.0f`.
"""

from __future__ import annotations

import math

import numpy as np

LEVELS = 127.0
LEAST, MOST = 127 * 2.0**-126, 127 * 2.0**120  # scales that are normal float32 numbers


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
    if amax < LEAST:
        return f"{scale} is denormal"
    return f"{scale} is too large for float32" if amax > MOST else None
