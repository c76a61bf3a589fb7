"""Symmetric INT8 weights, per output channel where the compiler takes an axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

UNIT_SCALE = 1.0 / 127.0

Int8 = npt.NDArray[np.int8]
Scale = npt.NDArray[np.float32]


def quantize_weight(values: npt.NDArray[Any], axis: int | None) -> tuple[Int8, Scale]:
    """Return int8 values and float32 scales: shape (channels,) along `axis`, or () without one.

    scale = max |w| / 127, rounding half to even, clamped to [-127, 127]. An all-zero channel, whose
    scale TensorRT would refuse, gets 1/127. Source: NVIDIA, "Working with Quantized Types".
    """
    magnitude = np.abs(values.astype(np.float32))
    others = tuple(i for i in range(values.ndim) if i != axis)
    amax = magnitude.max() if axis is None else magnitude.max(axis=others)
    scale = np.where(amax > 127 * np.finfo(np.float32).tiny, amax / 127.0, UNIT_SCALE)
    shape = [1] * values.ndim
    if axis is not None:
        shape[axis] = -1
    steps = np.rint(values / scale.reshape(shape))
    return np.clip(steps, -127, 127).astype(np.int8), scale.astype(np.float32)
