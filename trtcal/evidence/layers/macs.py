"""How many multiply-accumulates a layer performs, from its operands or the inspector's parameters.

A size known only at run time counts as 1. What cannot be told for certain is None: fused attention,
a fusion made at run time, a recurrent layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trtcal.evidence.layers.layer import TensorInfo

CONVOLUTIONS = ("correlation", "corrltn")
TRANSPOSED = ("deconv", "deconvolution")
PRODUCTS = ("gemm", "fully_connected", "matrixmultiply", "batched_gemm")
MAX_MACS = 1 << 70

Tensors = Sequence[TensorInfo]
Shape = tuple[int, ...]


def count_operands(kind: str, inputs: Tensors, constants: Tensors, outputs: Tensors) -> int | None:
    """Count those of a convolution or product whose operands are all listed; else None.

    A convolution's weights are (out, in / groups, kernel...), those of a transposed one
    (in, out / groups, kernel...), a product's operands (..., m, k) and (..., k, n).
    """
    operands = [tensor.shape for tensor in (*inputs, *constants) if len(tensor.shape) > 1]
    if len(operands) < 2 or not outputs:
        return None
    kind, first, output = kind.lower(), operands[0], outputs[0].shape
    channels = {**dict.fromkeys(CONVOLUTIONS, output), **dict.fromkeys(TRANSPOSED, first)}
    second = _weights(operands[1:], channels[kind]) if kind in channels else operands[1]
    return None if second is None else _bounded(_count(kind, first, second, output))


def _weights(operands: Sequence[Shape], channels: Shape) -> Shape | None:
    """Return the shape of a convolution's weights; what is added behind it may stand before them."""
    known = [one for one in operands if len(one) == len(channels) and one[0] == channels[1]]
    return next((one for one in reversed(known)), None)


def _count(kind: str, first: Shape, second: Shape, output: Shape) -> int | None:
    if kind in CONVOLUTIONS and len(first) == len(second):
        return _volume(output) * _volume(second[1:])
    if kind in TRANSPOSED and len(first) == len(second):
        return _volume(first) * _volume(second[1:])
    if kind in PRODUCTS and first[-1] == second[-2]:
        return _volume(output) * _volume(first[-1:])
    return None


def count_described(entry: Mapping[str, Any], first: Shape, output: Shape) -> int | None:
    """Count those of a layer from the inspector's `Kernel`, `OutMaps`, `Groups` and weight count.

    `first` and `output` are the shapes (batch, channels, ...) of its first input and output. The
    size before a pooling that is fused behind is computed from stride, padding and dilation.
    """
    kernel = _sizes(entry.get("Kernel"))
    if not kernel or len(first) != len(kernel) + 2:
        return None
    weights = _weight_count(entry) or _implied_count(entry, kernel, first[1])
    if weights is None:
        return None
    if "deconv" in str(entry.get("ParameterType")).lower():
        return _bounded(weights * _volume(first[:1]) * _volume(first[2:]))
    places = _places(entry, kernel, first[2:]) or output[2:]
    return _bounded(weights * _volume(first[:1]) * _volume(places))


def _weight_count(entry: Mapping[str, Any]) -> int | None:
    weights = entry.get("Weights")
    return _size(weights.get("Count")) if isinstance(weights, Mapping) else None


def _implied_count(entry: Mapping[str, Any], kernel: Shape, channels: int) -> int | None:
    maps, groups = _size(entry.get("OutMaps")), _size(entry.get("Groups", 1))
    if maps is None or groups is None or channels < 1:
        return None
    return maps * channels * math.prod(kernel) // groups


def _places(entry: Mapping[str, Any], kernel: Shape, sizes: Shape) -> Shape | None:
    names = ("PrePadding", "PostPadding", "Stride", "Dilation")
    before, after, strides, dilations = (_sizes(entry.get(name)) for name in names)
    told = (before, after, strides, dilations)
    if any(len(one) != len(kernel) for one in told) or min(*sizes, *strides) < 1:
        return None
    rows = zip(sizes, before, after, strides, dilations, kernel, strict=True)
    return tuple((n + b + a - d * (k - 1) - 1) // s + 1 for n, b, a, s, d, k in rows)


def _sizes(value: Any) -> Shape:
    items = value if isinstance(value, list) else []
    return tuple(items) if all(type(item) is int and item >= 0 for item in items) else ()


def _size(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _volume(shape: Shape) -> int:
    return math.prod(1 if size < 0 else size for size in shape)


def _bounded(count: int | None) -> int | None:
    return count if count is not None and 0 < count <= MAX_MACS else None
