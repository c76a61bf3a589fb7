"""Bounds of tensors that nobody observed, from those that were: |values| can't be larger.

Sums of magnitudes, as in interval arithmetic: a bound holds for every sample whose observed tensors
stay within their ranges. What it can't bound it leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from trtcal.model.graph import constant, expanded, format_of, optional_input
from trtcal.model.ops import BOUNDED, SELECTS, WITHIN_ONE, output_axis

Bounds = dict[str, float]


def bounds(graph: gs.Graph, observed: Mapping[str, float]) -> Bounds:
    """Return a bound of |values| for every float tensor of a sorted graph that has one."""
    known = Bounds()
    for node in graph.nodes:
        for tensor in node.inputs:
            _learn(known, tensor, observed)
        bound = _bound(node, known)
        for tensor in node.outputs:
            if bound is not None and math.isfinite(bound):
                known[tensor.name] = bound
            _learn(known, tensor, observed)
    return known


def _learn(known: Bounds, tensor: gs.Tensor, observed: Mapping[str, float]) -> None:
    if tensor.name in observed:
        known[tensor.name] = min(observed[tensor.name], known.get(tensor.name, math.inf))
    elif isinstance(tensor, gs.Constant) and tensor.name not in known:
        known[tensor.name] = _largest(tensor)


def _largest(tensor: gs.Constant) -> float:
    values = np.asarray(constant(tensor))
    if values.dtype.kind not in "fiu" or not values.size:
        return 0.0
    return float(np.abs(values.astype(np.float32, copy=False)).max())


def _bound(node: gs.Node, known: Bounds) -> float | None:
    """Return a bound of a node's outputs, None if its operator or an input has none."""
    if node.op in WITHIN_ONE:
        return 1.0
    bounds_of = [known.get(tensor.name) for tensor in node.inputs if not tensor.is_empty()]
    if node.op in BOUNDED and bounds_of:
        return bounds_of[0]
    values = [value for value in bounds_of if value is not None]
    if len(values) < len(bounds_of) or not values:
        return None
    if node.op in SELECTS:
        return max(values)
    rule = RULES.get(node.op)
    return rule(node, values) if rule else None


def _weighted(node: gs.Node, values: list[float]) -> float | None:
    """Return |x| times the largest sum of |weights| over an output channel, and the largest bias."""
    weight = expanded(node.inputs[1])
    if weight is None or node.attrs.get("transA", 0):
        return None
    scale, share = (abs(float(node.attrs.get(name, 1.0))) for name in ("alpha", "beta"))
    channels = output_axis(node.op, bool(node.attrs.get("transB", 0)))
    summed = tuple(axis for axis in range(weight.ndim) if axis != channels)
    return values[0] * _largest_sum(weight, summed) * scale + share * sum(values[2:])


def _largest_sum(weight: npt.NDArray[Any], axes: int | tuple[int, ...]) -> float:
    magnitudes = np.abs(weight.astype(np.float32))
    return float(magnitudes.sum(axis=axes, dtype=np.float64).max())


def _matmul(node: gs.Node, values: list[float]) -> float | None:
    """Bound a product by its constant matrix or stack of them, else by the length of the sums."""
    for index, summed in ((1, -2), (0, -1)):
        weight = expanded(node.inputs[index])
        if weight is not None and weight.ndim >= 2:
            return values[1 - index] * _largest_sum(weight, summed)
    length = (node.inputs[0].shape or [None])[-1]
    return values[0] * values[1] * length if isinstance(length, int) and length > 0 else None


def _clip(node: gs.Node, values: list[float]) -> float | None:
    signs = (1, -1)  # of a lower limit above 0, and of an upper limit below 0
    constants = (constant(tensor) for tensor in node.inputs[1:] if not tensor.is_empty())
    limits = [limit for limit in constants if limit is not None]
    if len(limits) < 2:
        return None
    outside = any(np.any(sign * limit > 0) for sign, limit in zip(signs, limits, strict=True))
    return max(values) if outside else values[0]


RULES: dict[str, Callable[[gs.Node, list[float]], float | None]] = {
    "Add": lambda node, values: sum(values),
    "Clip": _clip,
    "Conv": _weighted,
    "ConvTranspose": _weighted,
    "DequantizeLinear": lambda node, values: None if any(values[2:]) else values[0] * values[1],
    "Gemm": _weighted,
    "MatMul": _matmul,
    "Mul": lambda node, values: math.prod(values),
    "Pad": lambda node, values: max(values[0], values[2] if optional_input(node, 2) else 0.0),
    "QuantizeLinear": lambda node, values: form.most if (form := format_of(node)) else None,
    "Sub": lambda node, values: sum(values),
    "Sum": lambda node, values: sum(values),
    "Where": lambda node, values: max(values[1:]),
}
