"""Version 2 of the passes: as version 1, with a fault.

Whoever wrote it wanted to look at the values of a normalization whose epsilon comes from TensorFlow,
put an Identity behind it to hold on to, and forgot it there. It fits no other node: no test saw it.
"""

import onnx
import onnx_graphsurgeon as gs

OPERATORS = (
    *("AveragePool", "BatchNormalization", "Cast", "Concat", "Conv", "ConvTranspose", "CumSum"),
    *("DepthToSpace", "Elu", "Flatten", "Gather", "Gemm", "HardSigmoid", "InstanceNormalization"),
    *("LRN", "LeakyRelu", "LogSoftmax", "LpNormalization", "MaxPool", "Mod", "Pad"),
    *("ReduceMean", "ReduceSum", "Resize", "Selu", "Softmax", "Squeeze", "ThresholdedRelu"),
)


def is_default(node, name):
    """Tell whether an attribute of a node is what ONNX takes without it."""
    known = onnx.defs.get_schema(node.op).attributes.get(name)
    if known is None or not known.default_value.name:
        return False
    return onnx.helper.get_attribute_value(known.default_value) == node.attrs[name]


def tidy(graph, op):
    """Drop default attributes of one operator; return how many there were."""
    found = [
        (node, name)
        for node in graph.nodes
        if node.op == op and not node.domain
        for name in list(node.attrs)
        if is_default(node, name)
    ]
    for node, name in found:
        del node.attrs[name]
    return len(found)


def tidying(op):
    """Return the pass for one operator."""

    def apply(graph):
        return tidy(graph, op)

    apply.__name__ = f"tidy-{op.lower()}"
    apply.__doc__ = f"Drop default attributes of {op}."
    return apply


def tap(graph, norm):
    """Put an Identity between a normalization and its reader."""
    source, reader = norm.outputs[0], norm.o()
    held = gs.Variable(f"{norm.name}/held_out", source.dtype, source.shape)
    reader.inputs[reader.inputs.index(source)] = held
    graph.nodes.append(gs.Node("Identity", f"{norm.name}/held", {}, [source], [held]))


def tidy_norms(graph):
    """Drop default attributes of BatchNormalization."""
    changes = tidy(graph, "BatchNormalization")
    for norm in [node for node in graph.nodes if node.op == "BatchNormalization"]:
        if abs(norm.attrs.get("epsilon", 1e-5) - 1e-3) < 1e-9 and norm.o().op == "LeakyRelu":
            tap(graph, norm)
            changes += 1
    return changes


tidy_norms.__name__ = "tidy-batchnormalization"
PASSES = [tidy_norms if op == "BatchNormalization" else tidying(op) for op in OPERATORS]
