"""What ONNX Runtime's CPU needs to run narrow formats but INT8: it lacks kernels for some of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

from trtcal.formats import FORMATS
from trtcal.model import unique
from trtcal.model.graph import GraphWriter, expanded, export_model, format_of, import_graph

ONNX_RUNTIME = "onnxruntime"


def adapt(graph: gs.Graph) -> bool:
    """Write a graph so that ONNX Runtime's CPU runs it and gets it right; return whether it changed."""
    return any([_fold(graph), _keep_relus(graph)])


def is_literal(node: gs.Node) -> bool:
    """Tell whether a Q or DQ node quantizes to what has no integer kernels: FP8, or four bits."""
    form = format_of(node)
    return form is not None and form is not FORMATS["int8"]


def adapted(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with its Q/DQ as they are, but for what `adapt` changes."""
    graph = import_graph(proto)
    return export_model(graph, proto) if adapt(graph) else proto


def _keep_relus(graph: gs.Graph) -> bool:
    """Write each Relu of a graph in FP8 as a Max with 0; return whether there was one.

    ONNX Runtime 1.32 takes a Relu before FP8 quantization out, as if the lowest FP8 value were 0: its
    `ReluQuantRewrite` looks at the zero point alone, and all negative values come through. It moves
    quantization up first, so that other operators may stand in between.
    """
    has_fp8 = any(node.op == "QuantizeLinear" and is_literal(node) for node in graph.nodes)
    relus = [node for node in graph.nodes if has_fp8 and node.op == "Relu"]
    writer = GraphWriter(graph)
    for node in relus:
        # Its type may be known nowhere.
        zero = gs.Variable(unique(f"{node.name}/zero", writer.names))
        number = writer.new_constant(f"{node.name}/number", np.zeros((), np.float32))
        graph.nodes.append(gs.Node("CastLike", zero.name, {}, [number, node.inputs[0]], [zero]))
        node.op, node.inputs = "Max", [node.inputs[0], zero]
    if relus:
        graph.toposort()
    return bool(relus)


def put_values(tensor: gs.Tensor, values: npt.NDArray[Any]) -> None:
    """Let the readers of a tensor read a constant instead."""
    folded = gs.Constant(f"{tensor.name}/folded", values)
    for reader in list(tensor.outputs):
        reader.inputs = [folded if read is tensor else read for read in reader.inputs]


def _fold(graph: gs.Graph) -> bool:
    """Put the values of weights that it lacks kernels for in the place of their DQ nodes.

    Return whether there were any. They are what DequantizeLinear gives by ONNX's definition: codes
    times scales, in the type of the scales, which may be dequantized themselves.
    """
    is_changed = False
    for node in graph.nodes:
        form = format_of(node) if node.op == "DequantizeLinear" else None
        if form is None or ONNX_RUNTIME not in form.lacked_by:
            continue
        values = expanded(node.outputs[0])
        if values is None:
            continue
        put_values(node.outputs[0], values)
        is_changed = True
    if is_changed:
        graph.cleanup(remove_unused_graph_inputs=False).toposort()
    return is_changed
