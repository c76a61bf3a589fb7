"""Names in a converted model that every conversion gives alike.

tf2onnx names folded weights after counters and after whichever equal constant it met first, so that two
conversions of one model differ. Nodes keep their names: those are the layers' of the framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from trtcal.model.files import refill, subgraphs_of
from trtcal.model.model import unique

BATCH = "batch"
UNKNOWN = "unk__"


def name_weights(proto: onnx.ModelProto) -> None:
    """Name every weight after its first use, `NODE:POSITION`, and put them in the order of their uses.

    A model with subgraphs, which see the names outside of them, is left as it is.
    """
    graph = proto.graph
    if any(next(iter(subgraphs_of(node)), None) for node in graph.node):
        return
    weights = {tensor.name for tensor in graph.initializer}
    taken = {name for node in graph.node for name in node.output} | _names(graph.input)
    names = dict[str, str]()
    for name, preferred in _uses(graph):
        if name in weights and name not in names:
            names[name] = unique(preferred, taken)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    _reorder(graph, names)


def _names(values: Iterable[onnx.ValueInfoProto]) -> set[str]:
    return {value.name for value in values}


def _uses(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """Yield each input of each node, and what a weight there would be called."""
    for number, node in enumerate(graph.node):
        for position, name in enumerate(node.input):
            yield name, f"{node.name or f'{node.op_type}_{number}'}:{position}"


def _reorder(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Rename the weights and order them as they are used; those that nothing uses go."""
    outputs = _names(graph.output)
    order = {name: number for number, name in enumerate(names)}
    known = names.keys() | outputs
    kept = [initializer for initializer in graph.initializer if initializer.name in known]
    kept.sort(key=lambda initializer: order.get(initializer.name, len(order)))
    for tensor in kept:
        tensor.name = names.get(tensor.name, tensor.name)
    refill(graph.initializer, kept)


def name_batch(proto: onnx.ModelProto) -> None:
    """Call an unknown first axis of inputs and outputs `batch`, which in TensorFlow it is."""
    for value in (*proto.graph.input, *proto.graph.output):
        for axis in value.type.tensor_type.shape.dim[:1]:
            if axis.dim_param.startswith(UNKNOWN):
                axis.dim_param = BATCH


def rename_values(proto: onnx.ModelProto, names: dict[str, str]) -> None:
    """Rename inputs and outputs of a graph, where the new name is not another tensor's."""
    graph = proto.graph
    taken = {name for node in graph.node for name in (*node.input, *node.output)} | _names(
        graph.input
    )
    names = {old: new for old, new in names.items() if old in taken and new not in taken}
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*graph.input, *graph.output):
        value.name = names.get(value.name, value.name)
