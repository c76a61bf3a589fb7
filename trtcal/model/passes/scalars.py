"""One scale for a whole tensor is written as a scalar, with its zero point."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from trtcal.model.graph import GraphWriter, constant, input_at, numpy_type
from trtcal.model.ops import QDQ
from trtcal.model.passes.base import Pass, current

BYTES = (np.dtype(np.int8), np.dtype(np.uint8))


def write_scalars(graph: gs.Graph, writer: GraphWriter | None = None) -> int:
    """Give Q and DQ of int8 and uint8 a scalar for each one-element scale, and all a zero point.

    Return the number of nodes that changed. The `writer` is that of the graph that holds a subgraph.
    """
    writer = writer or GraphWriter(graph)
    rewritten = [(node, new) for node in graph.nodes if (new := _rewritten(node)) is not None]
    for node, (scale, zero) in rewritten:
        constants = (
            writer.new_constant(f"{node.name}/scale", scale),
            writer.new_constant(f"{node.name}/zero_point", zero),
        )
        node.inputs = [node.inputs[0], *constants]
    return len(rewritten)


def _rewritten(node: gs.Node) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """Return the scale and zero point that a node should have, None if it has them."""
    scale, kind = (constant(node.inputs[1]), _kind(node)) if node.op in QDQ else (None, None)
    if scale is None or kind not in BYTES or node.attrs.get("block_size"):
        return None
    stated = input_at(node, 2)
    zero = np.zeros(scale.shape, kind) if stated is None else constant(stated)
    shape = () if scale.size == 1 else scale.shape
    if zero is None or zero.size != scale.size or (stated and scale.shape == zero.shape == shape):
        return None
    return scale.reshape(shape), zero.reshape(shape)


def _kind(node: gs.Node) -> np.dtype[Any] | None:
    zero, makers = input_at(node, 2), node.inputs[0].inputs
    if zero is not None:
        return numpy_type(zero.dtype)
    if node.op == "QuantizeLinear":
        return numpy_type(node.attrs.get("output_dtype")) or np.dtype(np.uint8)
    is_quantized = len(makers) == 1 and makers[0].op == "QuantizeLinear"
    return _kind(makers[0]) if is_quantized else numpy_type(node.inputs[0].dtype)


def _none_left(graph: gs.Graph) -> str | None:
    left = next((node.name for node in graph.nodes if _rewritten(node) is not None), None)
    return left and f"node {left!r} still has a scale of one element, or no zero point"


SCALARS = Pass(
    "scalars",
    "Write a scale of the shape [1] as a scalar, and a zero point that is left out: with a scale [1] "
    "of its activation TensorRT computes a convolution in float.",
    write_scalars,
    current,
    _none_left,
)
