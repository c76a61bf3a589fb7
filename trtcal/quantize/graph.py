"""Small helpers over onnx-graphsurgeon that the passes share."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto
from onnx_graphsurgeon.ir.tensor import LazyValues
from onnx_graphsurgeon.logger import G_LOGGER

from trtcal.onnxfile import LARGE, array_of, embedded, stand_in, weights_of, without_bytes

G_LOGGER.severity = G_LOGGER.ERROR  # its advice on folding sizes is not for our users
logging.getLogger("onnx_graphsurgeon").setLevel(logging.ERROR)

UNFOLDED = ("DequantizeLinear", "QuantizeLinear")  # graphsurgeon leaves them where they are
HALF_OPSET = 19  # the first in which QuantizeLinear takes float16 values, with float16 scales
MAX_IR_VERSION = 10  # ONNX Runtime 1.18, the oldest that we take, reads up to this one


class Weight(LazyValues):  # type: ignore[misc]  # graphsurgeon has no types
    """A weight's values, which stay where they are while the graph is imported and exported."""

    def __init__(self, source: TensorProto | npt.NDArray[Any]) -> None:
        self.source = source
        if isinstance(source, np.ndarray):
            kind = onnx.helper.np_dtype_to_tensor_dtype(source.dtype)
            source = TensorProto(data_type=kind, dims=source.shape)
        super().__init__(without_bytes(source))

    def load(self) -> npt.NDArray[Any]:
        """Return the values, read-only if they are the model's own."""
        return self.source if isinstance(self.source, np.ndarray) else array_of(self.source)

    def fill(self, tensor: TensorProto, inner: bool) -> None:
        """Give a tensor the values; an `inner` one, of a subgraph, holds its bytes itself."""
        name = tensor.name
        if isinstance(self.source, np.ndarray):
            tensor.raw_data = self.source.tobytes()
        else:
            tensor.CopyFrom(embedded(self.source) if inner else self.source)
            tensor.name = name


def import_graph(proto: onnx.ModelProto) -> gs.Graph:
    """Return the graph, sorted, of a copy of the model."""
    return restored(stand_in(proto), weights_of(proto))


def restored(small: onnx.ModelProto, weights: Mapping[str, TensorProto]) -> gs.Graph:
    """Return the graph, sorted, of a stand-in, which is changed, and the model's weights."""
    inputs = [value for value in small.graph.input if value.name not in weights]
    del small.graph.input[:]
    small.graph.input.extend(inputs)
    small.graph.initializer.extend(map(without_bytes, weights.values()))
    graph = gs.import_onnx(small)
    for tensor in _constants(graph):
        if isinstance(tensor._values, LazyValues) and tensor.name in weights:
            tensor.values = Weight(weights[tensor.name])
    return graph.toposort()


def load_weights(graph: gs.Graph) -> None:
    """Read into memory the weights of nodes that do not depend on the inputs, to be computed.

    In a model with subgraphs, which may read any weight, it reads all of them.
    """
    inner = next(iter(graph.subgraphs()), None)
    wanted = _read_by_constant_nodes(graph) if inner is None else _constants(graph)
    for tensor in filter(is_weight, wanted):
        tensor.values = np.array(tensor._values.load())


def _read_by_constant_nodes(graph: gs.Graph) -> Iterator[gs.Tensor]:
    known = set[int]()
    for node in graph.nodes:
        given = [tensor for tensor in node.inputs if not tensor.is_empty()]
        computed = all(isinstance(one, gs.Constant) or id(one) in known for one in given)
        if computed and node.op not in UNFOLDED:
            known.update(map(id, node.outputs))
            yield from given


def is_weight(tensor: gs.Tensor) -> bool:
    """Tell whether a tensor is a constant whose values were not read into memory."""
    return isinstance(tensor, gs.Constant) and isinstance(tensor._values, Weight)


def _constants(graph: gs.Graph) -> Iterator[gs.Constant]:
    """Yield the constants that a graph and its subgraphs read, each perhaps several times."""
    for part in (graph, *graph.subgraphs(recursive=True)):
        yield from (one for one in part.tensors().values() if isinstance(one, gs.Constant))


def export_model(graph: gs.Graph, like: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph as a model with the metadata of the model that it came from."""
    graph.cleanup(remove_unused_graph_inputs=False).toposort()
    weights = _detached(graph)
    proto: onnx.ModelProto = gs.export_onnx(graph, do_type_check=False)
    _fill(proto.graph, weights)
    proto.ir_version = min(max(like.ir_version, 7), MAX_IR_VERSION)
    proto.producer_name, proto.producer_version = like.producer_name, like.producer_version
    proto.metadata_props.extend(like.metadata_props)
    return proto


def _detached(graph: gs.Graph) -> dict[str, Weight]:
    """Make every large constant of a graph a `Weight`, so that its values are not exported."""
    weights = {}
    for tensor in _constants(graph):
        values = tensor._values
        if (
            isinstance(values, np.ndarray)
            and values.nbytes >= LARGE
            and values.dtype.kind in "biuf"
        ):
            tensor.values = Weight(values)
        if isinstance(tensor._values, Weight):
            weights[tensor.name] = tensor._values
    return weights


def _fill(graph: onnx.GraphProto, weights: Mapping[str, Weight], inner: bool = False) -> None:
    for tensor in graph.initializer:
        if tensor.name in weights:
            weights[tensor.name].fill(tensor, inner)
    for node in graph.node:
        for attribute in node.attribute:
            for part in [attribute.g, *attribute.graphs]:
                _fill(part, weights, inner=True)


def constant(tensor: gs.Tensor) -> npt.NDArray[Any] | None:
    """Return a tensor's value where it is constant, else None; a weight's is not kept in memory."""
    if not isinstance(tensor, gs.Constant):
        return None
    values = tensor._values
    return np.asarray(values.load() if isinstance(values, Weight) else tensor.values)


def is_half(node: gs.Node) -> bool:
    """Tell whether a node reads or computes float16 values, as far as types are known."""
    return any(tensor.dtype == np.float16 for tensor in (*node.inputs, *node.outputs))


def only_consumer(tensor: gs.Tensor, graph: gs.Graph) -> gs.Node | None:
    """Return the one node that reads a tensor, None if there are several or it is a graph output."""
    if len(tensor.outputs) != 1 or any(tensor is output for output in graph.outputs):
        return None
    return tensor.outputs[0]


def tensor_names(graph: gs.Graph) -> set[str]:
    """Return the names of all tensors, subgraphs included: ONNX wants them unique together."""
    names = set(graph.tensors().keys())
    for node in graph.nodes:
        for value in node.attrs.values():
            if isinstance(value, gs.Graph):
                names |= tensor_names(value)
    return names


def node_names(nodes: Iterable[gs.Node]) -> set[str]:
    """Return the names of the nodes."""
    return {node.name for node in nodes}
