"""Codes of other tools in the one form that TensorRT takes: int8 with zero point 0, biases in float.

Exact are: uint8 around 128, limits on codes between Q and DQ, stored codes whose distance from their
zero point int8 holds, and stored int32. All other bytes need new scales, which is done on request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from trtcal.model.graph import (
    GraphWriter,
    clean,
    clip_bounds,
    constant,
    expanded,
    input_at,
    is_op,
    spread,
)
from trtcal.model.passes.base import Pass, current
from trtcal.model.passes.redundant import KeptTensors
from trtcal.model.passes.scalars import BYTES

LOW, HIGH = -128, 127


@dataclass(frozen=True)
class Pair:
    """A QuantizeLinear and what reads its codes; `low` and `high` are steps from the zero point."""

    quantizer: gs.Node
    readers: tuple[gs.Node, ...]
    scale: float
    low: float
    high: float

    @property
    def is_exact(self) -> bool:
        """Tell whether int8 holds all steps."""
        return self.low >= LOW and self.high <= HIGH

    @property
    def needs_limits(self) -> bool:
        """Tell whether values beyond the steps could become other codes of int8."""
        low, high = (LOW, HIGH) if self.is_exact else (-self.high, -self.low)
        source = next(iter(self.quantizer.inputs[0].inputs), None)
        bounds = clip_bounds(source) if source else None
        is_bounded = bounds is not None and bounds[0] >= self.low * self.scale
        return (self.low > low and not is_bounded) or self.high < high

    def rewrite(self, writer: GraphWriter) -> None:
        """Put int8 with zero point 0 in its place, with limits in front where they are needed."""
        node, name = self.quantizer, self.quantizer.name
        source = node.inputs[0]
        if self.needs_limits:
            limits = (self.low * self.scale, self.high * self.scale)
            source = writer.new_clip(f"{name}/limit", source, limits)
        step = self.scale if self.is_exact else max(-self.low, self.high) * self.scale / HIGH
        parameters = [
            writer.new_constant(f"{name}/scale", np.asarray(step, np.float32)),
            writer.new_constant(f"{name}/zero_point", np.asarray(0, np.int8)),
        ]
        node.outputs[0].dtype = np.dtype(np.int8)
        node.attrs.pop("output_dtype", None)
        node.inputs = [source, *parameters]
        for reader in self.readers:
            reader.inputs = [node.outputs[0], *parameters]


def _pair(node: gs.Node, kept: KeptTensors) -> Pair | None:
    """Return the pair of bytes that a Q begins, None for others and for int8 with zero point 0."""
    if not is_op(node, "QuantizeLinear"):
        return None
    values, codes = _parameters(node), node.outputs[0]
    if values is None or not kept.is_free(codes):
        return None
    ends = np.iinfo(values[1].dtype)
    low, high = float(ends.min), float(ends.max)
    if len(codes.outputs) == 1 and is_op(codes.outputs[0], "Clip"):
        bounds, codes = clip_bounds(codes.outputs[0]), codes.outputs[0].outputs[0]
        if bounds is None or not kept.is_free(codes):
            return None
        low, high = max(low, bounds[0]), min(high, bounds[1])
    readers = tuple(codes.outputs)
    same = [is_op(r, "DequantizeLinear") and _parameters(r) == values for r in readers]
    scale, zero = float(values[0]), float(values[1])
    is_plain = values[1].dtype == np.int8 and (low - zero, high - zero) == (LOW, HIGH)
    if is_plain or not readers or not all(same):
        return None
    return Pair(node, readers, scale, low - zero, high - zero)


def _parameters(node: gs.Node) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """Return the one scale and zero point of bytes, None for others."""
    scale, zero = (constant(t) if (t := input_at(node, place)) else None for place in (1, 2))
    if scale is None or zero is None or scale.shape or zero.shape or zero.dtype not in BYTES:
        return None
    return (scale, zero) if scale.dtype == np.float32 else None


def _stored(graph: gs.Graph, symmetric: bool) -> Iterator[tuple[gs.Node, Any, Any]]:
    """Yield dequantizers of stored bytes, with codes and scales that need no zero point."""
    for node in graph.nodes:
        codes = constant(node.inputs[0]) if is_op(node, "DequantizeLinear") else None
        zero = constant(tensor) if (tensor := input_at(node, 2)) else None
        scale = constant(node.inputs[1]) if codes is not None else None
        if codes is None or scale is None or zero is None or codes.dtype not in BYTES:
            continue
        is_plain = codes.dtype == np.int8 and not zero.any()
        if node.attrs.get("block_size") or is_plain or not codes.size:
            continue
        steps = codes.astype(np.int32) - spread(zero.astype(np.int32), node, codes.shape)
        is_exact = steps.min() >= LOW and steps.max() <= HIGH
        if not (is_exact or symmetric):
            continue
        if not is_exact:
            axis = node.attrs.get("axis", 1) % codes.ndim
            others = tuple(place for place in range(codes.ndim) if place != axis or not scale.ndim)
            factor = np.maximum(np.abs(steps).max(others) / HIGH, 1).astype(np.float32)
            steps = np.rint(steps / spread(factor, node, codes.shape))
            scale = np.asarray(scale * factor, scale.dtype)
        yield node, steps.astype(np.int8), scale


def _biases(graph: gs.Graph) -> Iterator[tuple[gs.Tensor, npt.NDArray[Any]]]:
    """Yield what is dequantized of int32, and its values."""
    kept = KeptTensors(graph)
    for node in graph.nodes:
        if is_op(node, "DequantizeLinear") and node.inputs[0].dtype == np.int32:
            values = expanded(node.outputs[0])
            if values is not None and kept.is_free(node.outputs[0]):
                yield node.outputs[0], values


def _write(graph: gs.Graph, symmetric: bool = False) -> int:
    writer = GraphWriter(graph)
    stored, biases = list(_stored(graph, symmetric)), list(_biases(graph))
    for node, codes, scale in stored:
        arrays = {"codes": codes, "scale": scale, "zero_point": np.zeros(scale.shape, np.int8)}
        names = [(f"{node.name}/{what}", values) for what, values in arrays.items()]
        node.inputs = [writer.new_constant(name, values) for name, values in names]
    for tensor, values in biases:
        tensor.to_constant(values)
        tensor.inputs.clear()
    kept = KeptTensors(graph)
    every = [pair for node in graph.nodes if (pair := _pair(node, kept))]
    pairs = [pair for pair in every if symmetric or pair.is_exact]
    for pair in pairs:
        pair.rewrite(writer)
    clean(graph)
    return len(stored) + len(biases) + len(pairs)


CODES = Pass(
    "signed-codes",
    "Write uint8 around 128, limits on codes, and stored codes as int8 with zero point 0, and int32 "
    "biases in float, where every value stays the same.",
    _write,
    current,
)
SYMMETRIC = Pass(
    "symmetric-codes",
    "Give all other uint8 and int8 codes with a zero point a symmetric scale: values change by up "
    "to one step.",
    partial(_write, symmetric=True),
    current,
    on_request=True,
)
