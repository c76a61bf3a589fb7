"""A model as TensorRT 8 has to get it: its parser is older than opset 18, and its types are free.

Measured with TensorRT 8.6.0 on a GPU: the parser ignores axes that a Reduce operator has as an input
(opset 18) and reduces over all of them, without a word unless a later node needs other axes; and it
reads float16 scales of Q/DQ as float32, and refuses them. So axes become attributes here, all floats
float32, and float16 is the builder's to choose (flag FP16), but for the nodes of `kept_in_float32`.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from trtcal.model.graph import export_model, import_graph, replace_tensor
from trtcal.model.ops import SENSITIVE
from trtcal.model.passes.bfloat16 import widen
from trtcal.model.passes.redundant import CASTS
from trtcal.quantization.qdq import asked_precisions, fp16_tensors

FLOAT, FLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


def for_tensorrt_8(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model for its parser, with the same inputs and outputs; itself if nothing changes."""
    graph = import_graph(proto)
    changed = [_axes_to_attributes(graph), _widen(graph)]
    return export_model(graph, proto) if any(changed) else proto


def kept_in_float32(proto: onnx.ModelProto) -> dict[str, str]:
    """Return node -> "fp32" for the nodes that need it and have it in a model with float16."""
    fp16 = fp16_tensors(proto.graph)
    if not fp16:
        return {}
    precisions = asked_precisions(proto)
    return {
        node.name: "fp32"
        for node in proto.graph.node
        if precisions.get(node.name, "fp32" if node.op_type in SENSITIVE else None) == "fp32"
        and fp16.isdisjoint((*node.input, *node.output))
    }


def _axes_to_attributes(graph: gs.Graph) -> bool:
    reductions = [
        node
        for node in graph.nodes
        if node.op.startswith("Reduce")
        and node.op != "ReduceSum"  # which has them as an input since opset 13
        and len(node.inputs) > 1
        and isinstance(node.inputs[1], gs.Constant)
    ]
    for node in reductions:
        node.attrs["axes"] = [int(axis) for axis in node.inputs[1].values]
        node.attrs.pop("noop_with_empty_axes", None)
        node.inputs = node.inputs[:1]
    return bool(reductions)


def _widen(graph: gs.Graph) -> bool:
    """Make all float16 float32, with casts at inputs and outputs, and take other casts out."""
    borders = [end for end in (*graph.inputs, *graph.outputs) if end.dtype == np.float16]
    count = widen(graph, FLOAT16)
    for tensor in borders:
        tensor.dtype = np.float16
        _cast_at_border(graph, tensor)
    CASTS.apply(graph)
    return count > 0


def _cast_at_border(graph: gs.Graph, tensor: gs.Variable) -> None:
    wide = gs.Variable(f"{tensor.name}/fp32", np.float32, tensor.shape)
    replace_tensor(tensor, wide)
    is_input = any(tensor is other for other in graph.inputs)
    kind, *ends = (FLOAT, [tensor], [wide]) if is_input else (FLOAT16, [wide], [tensor])
    graph.nodes.append(gs.Node("Cast", wide.name, {"to": kind}, *ends))
