"""What ONNX Runtime's CPU needs to run FP8 and FP4: it has kernels for FP8 and INT4, none for FP4."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from trtcal.model import unique
from trtcal.model.graph import all_names, expanded, export_model, import_graph
from trtcal.quantization.formats import format_of, is_narrow


def adapt(graph: gs.Graph) -> bool:
    """Write a graph so that ONNX Runtime's CPU runs it and gets it right; return whether it changed."""
    return any([_fold_fp4(graph), _keep_relus(graph)])


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
    has_fp8 = any(one.op == "QuantizeLinear" and is_narrow(one) for one in graph.nodes)
    found = [node for node in graph.nodes if has_fp8 and node.op == "Relu"]
    names = all_names(graph)
    for node in found:
        # Its type may be known nowhere.
        zero = gs.Variable(unique(f"{node.name}/zero", names))
        number = gs.Constant(unique(f"{node.name}/number", names), np.zeros((), np.float32))
        graph.nodes.append(gs.Node("CastLike", zero.name, {}, [number, node.inputs[0]], [zero]))
        node.op, node.inputs = "Max", [node.inputs[0], zero]
    if found:
        graph.toposort()
    return bool(found)


def _fold_fp4(graph: gs.Graph) -> bool:
    """Put the values of FP4 weights in the place of their DQ nodes; return whether there were any.

    They are what DequantizeLinear gives by ONNX's definition: codes times scales, in the type of the
    scales, which may be dequantized themselves.
    """
    found = False
    for node in graph.nodes:
        kind = format_of(node) if node.op == "DequantizeLinear" else None
        is_fp4 = kind is not None and kind.name == "nvfp4"
        result = expanded(node.outputs[0]) if is_fp4 else None
        if result is None:
            continue
        made = gs.Constant(f"{node.outputs[0].name}/folded", result)
        for reader in list(node.outputs[0].outputs):
            reader.inputs = [made if one is node.outputs[0] else one for one in reader.inputs]
        found = True
    if found:
        graph.cleanup(remove_unused_graph_inputs=False).toposort()
    return found
