"""What ONNX Runtime's CPU needs to run FP8 and FP4: it has kernels for FP8 and INT4, none for FP4."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs

from trtcal.model import unique
from trtcal.model.graph import all_names, constant, expanded

INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32)


def is_integer(node: gs.Node) -> bool:
    """Tell whether a Q or DQ node quantizes to integers of a byte or more, as far as is known."""
    known = [one.dtype for one in (*node.inputs[:1], *node.inputs[2:3], *node.outputs)]
    return any(one in INTEGERS for one in known if one is not None)


def keep_relus(graph: gs.Graph) -> bool:
    """Write each Relu of a graph in FP8 as a Max with 0; return whether there was one.

    ONNX Runtime 1.32 takes a Relu before FP8 quantization out, as if the lowest FP8 value were 0: its
    `ReluQuantRewrite` looks at the zero point alone, and all negative values come through. It moves
    quantization up first, so that other operators may stand in between.
    """
    is_narrow = any(one.op == "QuantizeLinear" and not is_integer(one) for one in graph.nodes)
    found = [node for node in graph.nodes if is_narrow and node.op == "Relu"]
    names = all_names(graph)
    for node in found:
        dtype = node.outputs[0].dtype if node.outputs[0].dtype == np.float16 else np.float32
        zero = gs.Constant(unique(f"{node.name}/zero", names), np.zeros((), dtype))
        node.op, node.inputs = "Max", [node.inputs[0], zero]
    return bool(found)


def fold_fp4(graph: gs.Graph) -> bool:
    """Put the values of FP4 weights in the place of their DQ nodes; return whether there were any.

    They are what DequantizeLinear gives by ONNX's definition: codes times scales, in the type of the
    scales, which may be dequantized themselves.
    """
    found = False
    for node in graph.nodes:
        steps = constant(node.inputs[0]) if node.op == "DequantizeLinear" else None
        is_fp4 = steps is not None and steps.dtype == ml_dtypes.float4_e2m1fn
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
