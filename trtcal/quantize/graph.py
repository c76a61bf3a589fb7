"""Small helpers over onnx-graphsurgeon that the passes share."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.logger import G_LOGGER

G_LOGGER.severity = G_LOGGER.ERROR  # its advice on folding sizes is not for our users
logging.getLogger("onnx_graphsurgeon").setLevel(logging.ERROR)

MAX_IR_VERSION = 10  # ONNX Runtime 1.18, the oldest that we take, reads up to this one


def import_graph(proto: onnx.ModelProto) -> gs.Graph:
    """Return the graph, sorted, of a copy of the model."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return gs.import_onnx(copy).toposort()


def export_model(graph: gs.Graph, like: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph as a model with the metadata of the model that it came from."""
    graph.cleanup(remove_unused_graph_inputs=False).toposort()
    proto: onnx.ModelProto = gs.export_onnx(graph, do_type_check=False)
    proto.ir_version = min(max(like.ir_version, 7), MAX_IR_VERSION)
    proto.producer_name, proto.producer_version = like.producer_name, like.producer_version
    proto.metadata_props.extend(like.metadata_props)
    return proto


def constant(tensor: gs.Tensor) -> npt.NDArray[Any] | None:
    """Return a tensor's value where it is constant, else None."""
    if isinstance(tensor, gs.Constant):
        return np.asarray(tensor.values)
    return None


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
