"""What each node of a quantized model reads, by its Q/DQ: from a node to its tensors and ranges."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx

from trtcal.compare.sites import find_sites
from trtcal.diagnosis.structure import DEQUANTIZE, MOVES, QUANTIZE
from trtcal.storage import Document

Makers = dict[str, onnx.NodeProto]


def wire(proto: onnx.ModelProto, nodes: Collection[str]) -> Document:
    """Return node -> operator and inputs that are no constants, for the nodes named.

    Of each input the tensor that is quantized for it and the largest value that its Q/DQ can stand
    for (`amax`, in the tensor's unit); where there is no Q/DQ the input itself, and None.
    """
    makers = {name: node for node in proto.graph.node for name in node.output}
    constants = {tensor.name for tensor in proto.graph.initializer}
    limits = {
        site.tensor: float(site.scale.reshape(-1)[0]) * 127
        for site in find_sites(proto)[0]
        if site.scale.size == 1 and not site.is_weight
    }
    return {
        node.name: {"op": node.op_type, "inputs": list(_inputs(node, makers, constants, limits))}
        for node in proto.graph.node
        if node.name in nodes
    }


def _inputs(
    node: onnx.NodeProto, makers: Makers, constants: Collection[str], limits: dict[str, float]
) -> Iterator[Document]:
    for name in filter(None, node.input):
        tensor, is_quantized = _source(name, makers)
        if tensor not in constants and not (tensor in makers and _is_fixed(makers[tensor])):
            yield {"tensor": tensor, "amax": limits.get(tensor) if is_quantized else None}


def _source(name: str, makers: Makers) -> tuple[str, bool]:
    """Return the tensor that is quantized for an input, itself if none is."""
    at = name
    while at in makers and makers[at].op_type in MOVES:
        at = makers[at].input[0]
    pair = makers.get(at)
    if pair is None or pair.op_type != DEQUANTIZE:
        return name, False
    quantize = makers.get(pair.input[0])
    if quantize is not None and quantize.op_type == QUANTIZE:
        return quantize.input[0], True
    return pair.input[0], True  # a weight, stored in integers


def _is_fixed(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant"
