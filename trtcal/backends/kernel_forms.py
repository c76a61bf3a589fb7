"""Which Q/DQ go to ONNX Runtime's integer kernels: those of forms that are checked here completely.

ONNX allows more forms than ONNX Runtime's optimizer gets right: it takes scales along any axis for
those of output channels, say. So a Q or DQ has one of these forms, or is computed as it stands:

- one constant scale and zero point for a whole tensor of int8 or uint8, both scalars;
- a constant weight of int8 with a scale for each output channel of the layer that reads it.

Constants of other forms become float values; other Q and DQ get a node beside them through which the
optimizer does not look.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from trtcal.backends.sessions import Array
from trtcal.formats import FORMATS
from trtcal.model.graph import (
    GraphWriter,
    captured,
    clean,
    constant,
    expanded,
    export_model,
    format_of,
    import_graph,
    in_order,
    numpy_type,
    parts_of,
    redirect_readers,
    spread,
)
from trtcal.model.ops import AFFINE, QDQ, output_axis
from trtcal.model.passes.constants import state
from trtcal.model.passes.redundant import CASTS, IDENTITIES
from trtcal.model.passes.scalars import BYTES, write_scalars

ONNX_RUNTIME = "onnxruntime"
OPAQUE = "Max"  # of one input it is that input, and no rewriting of ONNX Runtime knows it


def settle(graph: gs.Graph) -> dict[str, str]:
    """Write each Q and DQ of a graph in a form for kernels, or keep it from them.

    Return why, by the name of the layer that is computed in float for it.
    """
    reasons: dict[str, str] = {}
    for part in parts_of(graph):
        _Forms(graph, part, reasons).settle()
    return reasons


def pairs(graph: gs.Graph) -> Iterator[gs.Node]:
    """Yield each Q whose codes such DQs alone read, and these: all with one scale and zero point."""
    outputs = {id(tensor) for tensor in (*graph.outputs, *captured(graph))}
    for node in graph.nodes:
        readers = node.outputs[0].outputs if node.op == "QuantizeLinear" else []
        is_closed = readers and id(node.outputs[0]) not in outputs
        if is_closed and all(reader.op == "DequantizeLinear" for reader in readers):
            yield from [node, *readers] if all(map(_is_plain, [node, *readers])) else ()


def parameters(node: gs.Node) -> tuple[Array | None, Array | None]:
    """Return a node's scale and zero point, None where there is none or it is computed."""
    scale, zero, *_ = (*map(constant, node.inputs[1:]), None)
    return scale, zero


def _is_plain(node: gs.Node) -> bool:
    """Tell whether a settled Q or DQ has one constant scale, and a zero point of int8 or uint8."""
    scale, zero = parameters(node)
    if scale is None or zero is None:
        return False
    return scale.ndim == zero.ndim == 0 and zero.dtype in BYTES


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
        for node in self.graph.nodes:
            values = constant(node.inputs[0]) if node.op == "QuantizeLinear" else None
            if values is not None and (quantized := codes(values, node)) is not None:
                put_values(node.outputs[0], quantized)
        known = set(map(id, pairs(self.graph)))
        for node in list(self.graph.nodes):
            if node.op in QDQ and id(node) not in known:
                self._settle_node(node)
        in_order(clean(self.graph))

    def _settle_node(self, node: gs.Node) -> None:
        if is_literal(node):
            return
        if node.op == "DequantizeLinear" and constant(node.inputs[0]) is not None:
            self._settle_constant(node)
        elif not _is_plain(node):
            self._hide(node, "its activation has no one constant scale and zero point of bytes")
        elif node.inputs[2].dtype == np.int8:
            self._hide(node, "other nodes read or make the int8 codes of its activation")

    def _hide(self, node: gs.Node, reason: str) -> None:
        """Put a node between a Q or DQ and floats through which the optimizer does not look."""
        is_quantizer = node.op == "QuantizeLinear"
        floats = node.inputs[0] if is_quantizer else node.outputs[0]
        hidden = self.new_variable(f"{node.name}/hidden", floats.dtype, floats)
        if is_quantizer:
            node.inputs[0] = self.new_node(OPAQUE, hidden.name, [floats], hidden)
        else:
            self._blame(floats, reason)
            node.outputs = [hidden]
            self.new_node(OPAQUE, hidden.name, [hidden], floats)

    def _blame(self, floats: gs.Tensor, reason: str) -> None:
        """Note why layers with this operand are in float."""
        for layer in floats.outputs:
            if layer.op in AFFINE and any(tensor is floats for tensor in layer.inputs[:2]):
                self.reasons.setdefault(layer.name, reason)

    def _settle_constant(self, node: gs.Node) -> None:
        """Put the values of constants in the place of a DQ that not all of its readers take."""
        output = node.outputs[0]
        reasons = [why for reader in output.outputs if (why := _misfit(node, reader))]
        values = expanded(output) if reasons else None
        if not reasons:
            self._separate(node)
        elif values is None:
            self._hide(node, reasons[0])
        else:
            self._blame(output, reasons[0])
            put_values(output, values)

    def _separate(self, node: gs.Node) -> None:
        """Give each reader of quantized constants its own: shared ones ONNX Runtime fails on."""
        output = node.outputs[0]
        for reader in output.outputs[1:]:
            result = self.new_variable(f"{output.name}/own", output.dtype, node.inputs[0])
            own = [self._copy(tensor) for tensor in node.inputs]
            self.new_node(node.op, result.name, own, result, node.attrs)
            reader.inputs = [result if tensor is output else tensor for tensor in reader.inputs]
        shared = {id(t) for t in node.inputs if constant(t) is not None and len(t.outputs) > 1}
        node.inputs = [self._copy(t) if id(t) in shared else t for t in node.inputs]

    def _copy(self, tensor: gs.Tensor) -> gs.Constant:
        return self.new_constant(f"{tensor.name}/own", np.asarray(constant(tensor)))


def codes(values: Array, node: gs.Node) -> Array | None:
    """Return what a Q to bytes makes of constants; None where its parameters are computed."""
    scale, zero = parameters(node)
    if scale is None or zero is None or zero.dtype not in BYTES or node.attrs.get("block_size"):
        return None
    step = spread(scale.astype(np.float32), node, values.shape)
    steps = np.rint(values.astype(np.float32) / step) + spread(zero, node, values.shape)
    limits = np.iinfo(zero.dtype)
    return np.asarray(np.clip(steps, limits.min, limits.max).astype(zero.dtype))


def _misfit(node: gs.Node, reader: gs.Node) -> str | None:
    """Return why no kernel takes a constant from its DQ; None if one does, or it has one scale."""
    scale, zero = parameters(node)
    kind = numpy_type(node.inputs[0].dtype)
    if kind not in BYTES:
        return f"its weight is {kind}"
    if scale is None or zero is None or node.attrs.get("block_size"):
        return "its weight has scales for blocks, or computed ones"
    if not scale.ndim:
        return None
    if reader.op not in AFFINE or reader.inputs[1] is not node.outputs[0]:
        return "its first operand is constant, with scales along an axis"
    rank = len(node.inputs[0].shape)
    own = output_axis(reader.op, bool(reader.attrs.get("transB"))) % rank
    if (axis := node.attrs.get("axis", 1) % rank) != own:
        return f"its weight scales are on axis {axis}, its output channels on axis {own}"
    return "the zero points of its weight are not 0" if zero.any() else None


def is_literal(node: gs.Node) -> bool:
    """Tell whether a Q or DQ node quantizes to what has no integer kernels: FP8, or four bits."""
    form = format_of(node)
    return form is not None and form is not FORMATS["int8"]


def adapted(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with its Q/DQ as they are, but for what `fold` changes."""
    graph = import_graph(proto)
    return export_model(graph, proto) if fold(graph) else proto


def put_values(tensor: gs.Tensor, values: Array) -> None:
    """Let the readers of a tensor read a constant instead."""
    redirect_readers(tensor, gs.Constant(f"{tensor.name}/folded", values))


def fold(graph: gs.Graph) -> bool:
    """Put the values of weights that it lacks kernels for in the place of their DQ nodes.

    Return whether there were any. They are what DequantizeLinear gives by ONNX's definition: codes
    times scales, in the type of the scales, which may be dequantized themselves.
    """
    dequantizers = [node for node in graph.nodes if node.op == "DequantizeLinear"]
    forms = [(node.outputs[0], format_of(node)) for node in dequantizers]
    lacked = [tensor for tensor, form in forms if form and ONNX_RUNTIME in form.lacked_by]
    known = [(tensor, values) for tensor in lacked if (values := expanded(tensor)) is not None]
    for tensor, values in known:
        put_values(tensor, values)
    return bool(known)
