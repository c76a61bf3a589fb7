"""Which Q/DQ go to ONNX Runtime's integer kernels: those of forms that are checked here completely.

ONNX allows more forms than ONNX Runtime's optimizer gets right: it takes scales along any axis for
those of output channels, and the steps of an int32 bias for the product of the other two. So each Q
and DQ is written in one of these forms, or kept from the optimizer and computed as it stands:

- one constant scale and zero point for a whole tensor of int8 or uint8, both scalars;
- a constant weight of int8 with a scale for each output channel of the layer that reads it.

Constants of other forms become their float values. Other Q and DQ get a node beside them through
which the optimizer does not look.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from trtcal.backends.narrow import is_literal, put_values
from trtcal.model.graph import GraphWriter, captured, clean, constant, expanded, numpy_type, spread
from trtcal.model.ops import AFFINE, QDQ, output_axis
from trtcal.model.passes.constants import state
from trtcal.model.passes.redundant import CASTS, IDENTITIES
from trtcal.model.passes.scalars import BYTES, write_scalars

Array = npt.NDArray[Any]

FLOATS = (np.dtype(np.float32), np.dtype(np.float16))
OPAQUE = "Max"  # of one input it is that input, and no rewriting of ONNX Runtime knows it
ONE_SCALE = "its activation has no one constant scale and zero point of int8 or uint8"
OPEN = "the int8 codes of its activation are read by other nodes or made by them"


def settle(graph: gs.Graph) -> dict[str, str]:
    """Write each Q and DQ of a graph in a form for kernels, or keep it from them.

    Return why, by the name of the layer that is computed in float for it.
    """
    reasons: dict[str, str] = {}
    for part in (graph, *graph.subgraphs(recursive=True)):
        _Forms(graph, part, reasons).settle()
    return reasons


def pairs(graph: gs.Graph) -> Iterator[gs.Node]:
    """Yield each Q whose codes such DQs alone read, and these: all with one scale and zero point."""
    outputs = {id(tensor) for tensor in (*graph.outputs, *captured(graph))}
    for node in graph.nodes:
        if node.op == "QuantizeLinear" and is_plain(node) and id(node.outputs[0]) not in outputs:
            readers = node.outputs[0].outputs
            if readers and all(reader.op == "DequantizeLinear" for reader in readers):
                yield from [node, *readers] if all(map(is_plain, readers)) else ()


def is_plain(node: gs.Node) -> bool:
    """Tell whether a settled Q or DQ has one constant scale, and a zero point of int8 or uint8."""
    scale, zero = _parameters(node)
    if scale is None or zero is None:
        return False
    return scale.ndim == zero.ndim == 0 and zero.dtype in BYTES


def _parameters(node: gs.Node) -> tuple[Array | None, Array | None]:
    """Return a node's scale and zero point, None where there is none or it is computed."""
    scale, zero, *_ = (*map(constant, node.inputs[1:]), None)
    return scale, zero


class _Forms(GraphWriter):
    """Settles one part of a graph: all but its subgraphs, or one of these."""

    def __init__(self, graph: gs.Graph, part: gs.Graph, reasons: dict[str, str]) -> None:
        super().__init__(graph)
        self.graph, self.reasons = part, reasons

    def settle(self) -> None:
        """Settle each Q and DQ but those of formats that have no integer kernels."""
        for node in self.graph.nodes:
            state(node)
        IDENTITIES.apply(self.graph)
        write_scalars(self.graph, self)
        CASTS.apply(self.graph)
        nodes = [node for node in self.graph.nodes if node.op in QDQ and not is_literal(node)]
        self._fold_codes(nodes)
        known = set(map(id, pairs(self.graph)))
        for node in (node for node in nodes if id(node) not in known):
            if constant(node.inputs[0]) is not None and node.op == "DequantizeLinear":
                self._settle_constant(node)
            elif not is_plain(node) or numpy_type(node.inputs[2].dtype) != np.uint8:
                self._hide(node)
        clean(self.graph).toposort()

    def _fold_codes(self, nodes: Iterable[gs.Node]) -> None:
        """Store the codes of constants that the graph quantizes."""
        for node in (node for node in nodes if node.op == "QuantizeLinear"):
            values = constant(node.inputs[0])
            quantized = None if values is None else codes(values, node)
            if quantized is not None:
                put_values(node.outputs[0], quantized)

    def _hide(self, node: gs.Node) -> None:
        """Put a node between a Q or DQ and floats through which the optimizer does not look."""
        float_side = (node.inputs if node.op == "QuantizeLinear" else node.outputs)[0]
        hidden = self.new_variable(f"{node.name}/hidden", float_side.dtype, float_side)
        if node.op == "QuantizeLinear":
            node.inputs[0] = self.new_node(OPAQUE, hidden.name, [float_side], hidden)
            return
        node.outputs = [hidden]
        self.new_node(OPAQUE, hidden.name, [hidden], float_side)
        for reader in float_side.outputs:
            self._keep_float(reader, ONE_SCALE if not is_plain(node) else OPEN)

    def _keep_float(self, layer: gs.Node, reason: str) -> None:
        if layer.op in AFFINE:
            self.reasons.setdefault(layer.name, reason)

    def _settle_constant(self, node: gs.Node) -> None:
        """Give each reader of a constant a DQ of its own, if it takes it, else the float values."""
        output = node.outputs[0]
        places = [
            (reader, index)
            for reader in output.outputs
            for index, tensor in enumerate(reader.inputs)
            if tensor is output
        ]
        for reader, index in places:
            reason = _misfit(node, reader, index)
            if reason is None:
                self._separate(node, reader, index)
                continue
            if index < 2:
                self._keep_float(reader, reason)
            values = expanded(output)
            if values is None:
                self._hide(node)
                return
            reader.inputs[index] = self.new_constant(f"{output.name}/folded", values)

    def _separate(self, node: gs.Node, reader: gs.Node, index: int) -> None:
        """Give a reader of quantized constants its own: shared ones ONNX Runtime fails on."""
        is_shared = len(node.outputs[0].outputs) > 1
        own = [
            self.new_constant(f"{reader.name}/{tensor.name}", np.asarray(constant(tensor)))
            if is_shared or len(tensor.outputs) > 1
            else tensor
            for tensor in node.inputs
        ]
        if not is_shared:
            node.inputs = own
            return
        result = self.new_variable(f"{node.outputs[0].name}/own", node.outputs[0].dtype, own[0])
        reader.inputs[index] = self.new_node(node.op, result.name, own, result, node.attrs)


def codes(values: Array, node: gs.Node) -> Array | None:
    """Return what a Q to bytes makes of constants; None where its parameters are computed."""
    scale, zero = _parameters(node)
    if scale is None or zero is None or node.attrs.get("block_size"):
        return None
    if zero.dtype not in BYTES or scale.dtype not in FLOATS:
        return None
    step = spread(scale.astype(np.float32), node, values.shape)
    steps = np.rint(values.astype(np.float32) / step) + spread(zero, node, values.shape)
    limits = np.iinfo(zero.dtype)
    return np.asarray(np.clip(steps, limits.min, limits.max).astype(zero.dtype))


def _misfit(node: gs.Node, reader: gs.Node, index: int) -> str | None:
    """Return why no kernel takes a constant from its DQ; None if one does, or it has one scale."""
    scale, zero = _parameters(node)
    kind = numpy_type(node.inputs[0].dtype)
    if scale is None or zero is None or kind not in BYTES or node.attrs.get("block_size"):
        return f"its weight is {kind}" if kind not in BYTES else "its weight has scales for blocks"
    if not scale.ndim:
        return None
    if reader.op not in AFFINE or index != 1:
        return "its first operand has scales along an axis"
    rank = len(node.inputs[0].shape)
    own = output_axis(reader.op, bool(reader.attrs.get("transB"))) % rank
    if (axis := node.attrs.get("axis", 1) % rank) != own:
        return f"its weight scales are on axis {axis}, its output channels on axis {own}"
    return "the zero points of its weight are not 0" if zero.any() else None
