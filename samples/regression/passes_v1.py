"""Version 1 of 28 passes: each takes attributes that say what ONNX takes anyway off one operator."""

import onnx

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


PASSES = [tidying(op) for op in OPERATORS]
