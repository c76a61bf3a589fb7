"""Weights in blocks that share a scale, which is float16 or quantized itself.

A block lies along the summed axis of a matrix. Sources: ONNX, DequantizeLinear-21 (`block_size`);
NVIDIA, "Working with Quantized Types", INT4 and FP4 weight-only quantization.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.formats import FORMATS, Precision
from trtcal.model.model import Floats, Grid

LEAST_SCALE = 2.0**-14  # the smallest normal float16
LARGEST_SCALE = np.float32(65504)  # the largest float16
LEAST_STEP = 2.0**-24  # the smallest float16
# Shares of the scale that reaches the largest values; at 1.5 the largest value of floats in four bits
# is 4, whose neighbours are nearer. Lower ones lose less of the weights but more of the output: in
# trained networks the few largest weights matter more than their number says.
SHARES = np.linspace(1.0, 0.96, 5)
FLOAT_SHARES = np.linspace(1.5, 0.96, 10)
CHUNK = 1 << 16  # weights at a time, which stay in the cache of a CPU


def least_scale(kind: Precision) -> float:
    """Return the smallest scale that weights get in a narrow float format or in blocks."""
    if not kind.weights_only:
        return float(np.finfo(np.float32).tiny)
    return LEAST_STEP * FORMATS[kind.scales].normal if kind.scales else LEAST_SCALE


def padded(weight: Floats, axis: int, size: int) -> Floats:
    """Return a matrix with as many zeros behind it along `axis` as blocks of `size` need."""
    widths = [(0, 0)] * weight.ndim
    widths[axis] = (0, -weight.shape[axis] % size)
    return np.pad(weight, widths)


def quantize_blocks(weight: Floats, kind: Precision, axis: int, size: int) -> Grid:
    """Return a matrix in `kind`, each block with the scale of least squared error that clips little.

    Scales up to 65504 are numbers of float16 too; those of `kind.scales` are times one `scale_step`.
    `ValueError` if `size` does not divide the matrix along `axis`.
    """
    if weight.shape[axis] % size:
        raise ValueError(f"blocks of {size} do not divide {weight.shape[axis]} weights")
    exact = np.moveaxis(weight, axis, -1)
    blocks = np.ascontiguousarray(exact, np.float32).reshape(-1, size)
    lowest = abs(kind.lowest or kind.top) / kind.top
    largest = np.maximum(blocks.max(1, initial=0.0), -blocks.min(1, initial=0.0) / lowest)
    step = scale_step(largest / kind.top, kind) if kind.scales else None
    best = np.empty_like(largest)
    values = np.empty(blocks.shape, kind.dtype)
    for start in range(0, len(blocks), CHUNK // size):
        part = slice(start, start + CHUNK // size)
        best[part] = _best_scales(blocks[part], largest[part] / np.float32(kind.top), kind, step)
        values[part] = kind.rounded(blocks[part] / best[part, None])
    scales = best.reshape(*exact.shape[:-1], -1)
    return Grid(_back(values.reshape(exact.shape), axis), _back(scales, axis))


def _best_scales(blocks: Floats, exact: Floats, kind: Precision, step: float | None) -> Floats:
    """Return the scale of each block (blocks, size); `exact` ones reach the largest magnitudes."""
    best, least = exact, np.full(exact.shape, np.inf, np.float32)
    for share in FLOAT_SHARES if kind.is_float else SHARES:
        tried = _scales(exact * np.float32(share), kind, step)
        errors = _errors(blocks, tried, kind)
        best = np.where(errors < least, tried, best)
        np.minimum(errors, least, out=least)
    return best


def _back(values: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
    return np.ascontiguousarray(np.moveaxis(values, -1, axis))


def scale_step(scales: Floats, kind: Precision) -> float:
    """Return the scale of quantized block scales: the least power of two with which they are reached.

    Products of a power of two and a number in FP8 are exact in float16.
    """
    exact = max(scales.max(initial=0.0) / FORMATS[kind.scales or ""].top, LEAST_STEP)
    return float(2.0 ** np.ceil(np.log2(exact)))


def _scales(exact: Floats, kind: Precision, step: float | None) -> Floats:
    """Return scales as the file holds them."""
    if step is None or kind.scales is None:
        exact = np.maximum(exact, np.float32(LEAST_SCALE))
        halves = np.minimum(exact, LARGEST_SCALE).astype(np.float16).astype(np.float32)
        return np.where(exact > LARGEST_SCALE, exact, halves)
    stored = FORMATS[kind.scales]
    steps = np.maximum(exact / np.float32(step), np.float32(stored.normal))
    return stored.floats(steps) * np.float32(step)


def _errors(blocks: Floats, scales: Floats, kind: Precision) -> Floats:
    error = kind.floats(blocks / scales[:, None])
    error *= scales[:, None]
    error -= blocks
    return np.asarray(np.einsum("bs,bs->b", error, error))
