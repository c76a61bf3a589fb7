"""How strongly images drive a network's first layer, beside the biases that it was trained with.

Normalization in training keeps both of one size: a layer behind pixels that are 255 times too large
does not notice its biases, and behind such as are too small it hardly makes anything else.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

from trtcal.backends.inside import showing
from trtcal.backends.sessions import open_session, run_session
from trtcal.data import Feeds
from trtcal.data.fingerprint import Array
from trtcal.graph import reads
from trtcal.model import Model
from trtcal.onnxfile import embedded

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
LOOKED_AT = 4  # of them: the first may have no bias
NOTHING = 1e-6  # a bias so small beside what the images bring is none


class Front:
    """The first layers of a model, run apart from the rest."""

    def __init__(self, model: Model) -> None:
        graph = model.proto.graph
        layers = weighted(model.proto, (*WEIGHTED, "BatchNormalization", "Add"))[:LOOKED_AT]
        self.tensors = [node.output[0] for node in layers]
        made = [place for place, one in enumerate(graph.node) if one.output[0] in self.tensors]
        nodes = graph.node[: max(made, default=-1) + 1]
        read = {name for node in nodes for name in reads(node)}
        part = onnx.GraphProto(node=nodes, input=graph.input, name=graph.name)
        part.initializer.extend(embedded(one) for one in graph.initializer if one.name in read)
        proto = onnx.ModelProto(
            ir_version=model.proto.ir_version,
            opset_import=model.proto.opset_import,
            functions=model.proto.functions,
            graph=part,
        )
        self.session = open_session(showing(proto, self.tensors), as_it_is=True, arena=False)

    def drive(self, feeds: Feeds) -> float | None:
        """Return by how many powers of ten samples move the first layer with a bias more than that.

        Root mean squares over samples and outputs, beside those for inputs that are all zero; None
        without such a layer.
        """
        if not self.tensors:
            return None
        nothing = {n: np.zeros_like(a) if a.dtype.kind == "f" else a for n, a in feeds.items()}
        found = (run_session(self.session, self.tensors, one) for one in (feeds, nothing))
        for given, empty in zip(*found, strict=True):
            bias = _strength(empty)
            moved = _strength(np.subtract(given, empty, out=given))
            if bias > NOTHING * moved > 0:
                return math.log10(moved / bias)
        return None


def weighted(proto: onnx.ModelProto, operators: tuple[str, ...] = WEIGHTED) -> list[onnx.NodeProto]:
    """Return the nodes that have constants beside what they read, in graph order."""
    constants = constants_of(proto)
    return [
        node
        for node in proto.graph.node
        if node.op_type in operators
        and any(name in constants for name in node.input)
        and not all(name in constants for name in node.input)
    ]


def constants_of(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Return the initializers and what Constant nodes hold, by name."""
    held = {
        node.output[0]: attribute.t
        for node in proto.graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    return {one.name: one for one in proto.graph.initializer} | held


def _strength(values: Array) -> float:
    """Return the root mean square, a sample at a time: in float64, all would be the peak of memory."""
    return math.sqrt(np.mean([np.square(one, dtype=np.float64).mean() for one in values]))
