"""One scale for a whole tensor is written as a scalar, with its zero point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from trtcal.model.graph import GraphWriter, constant, numpy_type
from trtcal.model.ops import QDQ
from trtcal.model.passes.base import Pass, current

BYTES = (np.dtype(np.int8), np.dtype(np.uint8))
PARAMETERS = ("scale", "zero_point")


def write_scalars(graph: gs.Graph, writer: GraphWriter | None = None) -> int:
    """Give Q and DQ of int8 and uint8 a scalar for each one-element scale, and all a zero point.

    Return the number of nodes that changed. The `writer` is that of the graph that holds a subgraph.
    """
    writer, changes = writer or GraphWriter(graph), 0
    for node in graph.nodes:
        if node.op not in QDQ:
            continue
        arrays = _rewritten(node)
        if arrays is not None:
            new = (
                writer.new_constant(f"{node.name}/{name}", values)
                for name, values in zip(PARAMETERS, arrays, strict=True)
            )
            node.inputs = [node.inputs[0], *new]
            changes += 1
    return changes


def _rewritten(node: gs.Node) -> tuple[npt.NDArray[Any], ...] | None:
    """Return the scale and zero point that a node should have, None if it has them."""
    scale, is_left_out, kind = constant(node.inputs[1]), _lacks_zero_point(node), _kind(node)
    if scale is None or kind not in BYTES or node.attrs.get("block_size"):
        return None
    zero = np.zeros(scale.shape, kind) if is_left_out else constant(node.inputs[2])
    if zero is None or zero.size != scale.size:
        return None
    shape = () if scale.size == 1 else scale.shape
    if not is_left_out and scale.shape == zero.shape == shape:
        return None
    return scale.reshape(shape), zero.reshape(shape)


def _lacks_zero_point(node: gs.Node) -> bool:
    return len(node.inputs) < 3 or node.inputs[2].is_empty()


def _kind(node: gs.Node) -> np.dtype[Any] | None:
    """Return the type of a node's codes, None if it is not known."""
    if not _lacks_zero_point(node):
        return numpy_type(node.inputs[2].dtype)
    if node.op == "DequantizeLinear":
        makers = node.inputs[0].inputs
        is_quantized = len(makers) == 1 and makers[0].op == "QuantizeLinear"
        return _kind(makers[0]) if is_quantized else numpy_type(node.inputs[0].dtype)
    return numpy_type(node.attrs.get("output_dtype")) or np.dtype(np.uint8)


def _none_left(graph: gs.Graph) -> str | None:
    left: Iterator[gs.Node] = (
        node for node in graph.nodes if node.op in QDQ and _rewritten(node) is not None
    )
    name = next((node.name for node in left), None)
    return name and f"node {name!r} still has a scale of one element, or no zero point"


SCALARS = Pass(
    "scalars",
    "Write a scale of the shape [1] as a scalar, and a zero point that is left out: with a scale [1] "
    "of its activation TensorRT computes a convolution in float.",
    write_scalars,
    current,
    _none_left,
)
