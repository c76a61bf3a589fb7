"""Scales, and symmetric INT8 weights, per output channel where the compiler takes an axis."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrators.floating import OCTAVE, floating_error
from trtcal.formats import FORMATS, Precision
from trtcal.model.model import Grid, along
from trtcal.quantization.blocks import quantize_blocks

LEVELS = 127
UNIT_SCALE = 1.0 / LEVELS
CACHE_BYTES = 1 << 27  # bytes of quantized weights that are kept
BLOCK = 1 << 14  # weights that are rounded together, in whole channels

Int8 = npt.NDArray[np.int8]
Scale = npt.NDArray[Any]
FP16_SCALES = (2.0**-24, 65504.0)  # the smallest and largest positive float16

_known: OrderedDict[Any, tuple[Int8, Scale]] = OrderedDict()
_known_bytes = 0
_lock = Lock()


def as_scale(exact: npt.ArrayLike, dtype: npt.DTypeLike) -> Scale:
    """Return scales in the type of the values that they are for, float32 or float16.

    ONNX wants them so up to opset 22. A float16 is rounded up, so that no value leaves the range.
    """
    if np.dtype(dtype) != np.float16:
        return np.asarray(exact, np.float32)
    clipped = np.clip(np.asarray(exact, np.float64), *FP16_SCALES)
    near = clipped.astype(np.float16)
    above = np.nextafter(near, np.float16(FP16_SCALES[1]))
    return np.asarray(np.where(near < clipped, above, near))


def step_above(scale: Scale) -> Scale | None:
    """Return the next scale of the same type, by which every INT8 value stays the integer it is.

    None if there is none: small float16 scales are too coarse.
    """
    above = np.nextafter(scale, scale.dtype.type(np.inf))
    is_near = float(above) * LEVELS < float(scale) * (LEVELS + 0.5)
    return np.asarray(above) if is_near else None


def nearest(
    values: npt.NDArray[Any], precision: str, axis: int | None, size: int | None = None
) -> Grid:
    """Return a weight in a narrow precision, each value at the nearest step of its scale.

    `axis` is that of outputs for INT8, and for blocks of `size` the summed one.
    """
    form = FORMATS[precision]
    if size is not None and axis is not None:
        return quantize_blocks(values, form, axis, size)
    if form.by_channel:
        return Grid(*quantize_weight(values, axis))
    return Grid(*quantize_floating(values, form))


def quantize_weight(values: npt.NDArray[Any], axis: int | None) -> tuple[Int8, Scale]:
    """Return int8 values and scales of the values' type: shape (channels,) along `axis`, else ().

    scale = max |w| / 127, clamped to [-127, 127]. An all-zero channel, whose scale TensorRT would
    refuse, gets 1/127. Without an axis every weight is rounded half to even, with one see `balanced`.
    The arrays are read-only: the same weights are quantized once, as long as there is room for them.
    Source: NVIDIA, "Working with Quantized Types".
    """
    global _known_bytes
    key = (sha256(np.ascontiguousarray(values).data).digest(), values.shape, values.dtype, axis)
    with _lock:
        if key in _known:
            _known.move_to_end(key)
            return _known[key]
    arrays = _quantized(values, axis)
    for array in arrays:
        array.flags.writeable = False
    with _lock:
        _known_bytes += 0 if key in _known else arrays[0].nbytes
        _known[key] = arrays
        while _known_bytes > CACHE_BYTES and len(_known) > 1:
            _known_bytes -= _known.popitem(last=False)[1][0].nbytes
    return arrays


def _quantized(values: npt.NDArray[Any], axis: int | None) -> tuple[Int8, Scale]:
    magnitude = np.abs(values, dtype=np.float32)
    others = tuple(i for i in range(values.ndim) if i != axis)
    amax = magnitude.max() if axis is None else magnitude.max(axis=others)
    scale = np.where(amax > 127 * np.finfo(np.float32).tiny, amax / 127.0, UNIT_SCALE)
    del magnitude
    if values.dtype == np.float16:
        scale = as_scale(scale, np.float16).astype(np.float32)
    exact = values / along(scale, values.ndim, axis)
    steps = np.rint(exact) if axis is None else balanced(exact, axis)
    np.clip(steps, -127, 127, out=steps)
    return steps.astype(np.int8), as_scale(scale, values.dtype)


def quantize_floating(values: npt.NDArray[Any], form: Precision) -> tuple[npt.NDArray[Any], Scale]:
    """Return weights in FP8 or alike, and their one scale, float32, shape (): of least squared error.

    The scale is per tensor: what channels differ by, the exponents hold, and a scale for each channel
    costs a kernel of its own after the product (seen in TensorRT-RTX 1.7.1's layer lists).
    """
    exact = np.asarray(values, np.float64)
    amax = float(np.abs(exact).max(initial=0.0)) or UNIT_SCALE
    candidates = amax * 2.0 ** (np.arange(OCTAVE) / OCTAVE)
    errors = [floating_error(exact, 1.0, amax, form) for amax in candidates]
    scale = as_scale(candidates[int(np.argmin(errors))] / form.top, values.dtype)
    return form.rounded(exact / scale), scale


def balanced(exact: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
    """Round each value up or down so that a channel's errors add up to half a step at most.

    The mean of what a layer reads is rarely zero (after a Relu, for example), and then the sum of a
    channel's rounding errors shifts that channel of its output for every sample. All are rounded to
    the nearest; then as many as the sum has steps, those nearest to the middle between two steps, go
    to the other side. Whole numbers stay as they are.
    Source: C. Guo et al., "SQuant: On-the-Fly Data-Free Quantization via Diagonal Hessian
    Approximation" (2022), of which this is the step by output channels.
    """
    channels = np.moveaxis(exact, axis, 0)
    rows = np.ascontiguousarray(channels).reshape(len(channels), -1)
    steps: npt.NDArray[Any] = np.rint(rows)
    count = max(BLOCK // max(rows.shape[1], 1), 1)
    for start in range(0, len(rows), count):
        block = steps[start : start + count]
        block -= _moves((block - rows[start : start + count]).astype(np.float64))
    return np.moveaxis(steps.reshape(channels.shape), 0, axis)


def _moves(errors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return what to subtract from rounded rows: of equal errors, those that come first go."""
    sums = errors.sum(axis=1, keepdims=True)
    side, excess = np.sign(sums), np.rint(np.abs(sums)).astype(np.intp)
    if not excess.any():
        return np.zeros_like(errors)
    values = -side * errors
    sorted_up_to = np.partition(values, np.unique(np.maximum(excess - 1, 0)), axis=1)
    last = np.take_along_axis(sorted_up_to, np.maximum(excess - 1, 0), axis=1)
    below, equal = values < last, values == last
    room = excess - below.sum(axis=1, keepdims=True)
    return np.asarray(side * ((below | (equal & (equal.cumsum(axis=1) <= room))) & (excess > 0)))
