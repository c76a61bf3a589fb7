"""Seeded changes of models, each with its kind and the node that it is at, as whoever made it knows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper

Change = tuple[str, str]
"""Kind and name of the first node with it."""
ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish", "Erf", "Softmax", "Identity")


def _copy(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def _replace(nodes, old: str, new: str) -> None:
    for node in nodes:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def _pick(rng, items):
    items = list(items)
    return items[rng.integers(len(items))] if items else None


def _readers(graph, name: str) -> list[onnx.NodeProto]:
    return [node for node in graph.node if name in node.input]


def rename(proto, rng) -> Change | None:
    """Give a node, a tensor between nodes, or a weight another name."""
    graph = proto.graph
    outputs = {value.name for value in graph.output}
    number = int(rng.integers(len(graph.node)))
    node, way = graph.node[number], rng.integers(3)
    if way == 0:
        node.name += "/renamed"
        return "renamed", node.name
    if way == 1 and node.output[0] not in outputs:
        for value in graph.value_info:
            value.name = "renamed" if value.name == node.output[0] else value.name
        _replace(graph.node, node.output[0], "renamed")
        return "renamed", node.name
    weight = _pick(rng, [one for one in graph.initializer if _readers(graph, one.name)])
    if weight is None:
        return None
    first = _readers(graph, weight.name)[0].name
    _replace(graph.node, weight.name, "renamed")
    weight.name = "renamed"
    return "renamed", first


def reorder(proto, rng) -> Change | None:
    """Swap two neighbours that do not depend on each other."""
    nodes = proto.graph.node
    free = [
        number
        for number in range(len(nodes) - 1)
        if not set(nodes[number].output) & set(nodes[number + 1].input)
        and (nodes[number].op_type, list(nodes[number].input))
        != (nodes[number + 1].op_type, list(nodes[number + 1].input))
    ]
    number = _pick(rng, free)
    if number is None:
        return None
    both = [_node(nodes[number + 1]), _node(nodes[number])]
    for place, one in enumerate(both):
        nodes[number + place].CopyFrom(one)
    return "reordered", both[0].name


def _node(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def constant(proto, rng) -> Change | None:
    """Flip one bit of a weight."""
    graph = proto.graph
    weight = _pick(
        rng,
        [one for one in graph.initializer if _readers(graph, one.name) and np.prod(one.dims) > 0],
    )
    if weight is None:
        return None
    data = bytearray(numpy_helper.to_array(weight).tobytes())
    data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    weight.CopyFrom(
        onnx.TensorProto(
            name=weight.name, data_type=weight.data_type, dims=weight.dims, raw_data=bytes(data)
        )
    )
    return "constants", _readers(graph, weight.name)[0].name


def structure(proto, rng) -> Change | None:
    """Insert an Identity before one reader, or take out or replace an activation."""
    nodes, way = proto.graph.node, int(rng.integers(3))
    number = int(rng.integers(len(nodes)))
    if way == 0:
        source = next(filter(None, nodes[number].input), None)
        if source is None:
            return None
        nodes[number].input[list(nodes[number].input).index(source)] = "inserted:out"
        nodes.insert(number, helper.make_node("Identity", [source], ["inserted:out"], "inserted"))
        return "structure", "inserted"
    outputs = {value.name for value in proto.graph.output}
    node = _pick(
        rng, [one for one in nodes if one.op_type in ACTIVATIONS and one.output[0] not in outputs]
    )
    if node is None:
        return None
    name = node.name
    if way == 1:
        node.op_type = "Softsign"
        return "structure", name
    source, result = node.input[0], node.output[0]
    nodes.remove(node)
    _replace(nodes, result, source)
    return "structure", name


KINDS: dict[str, Callable] = {
    "rename": rename,
    "reorder": reorder,
    "constant": constant,
    "structure": structure,
}


def changed(kind: str, protos: list[onnx.ModelProto], seed: int):
    """Return a model, the same with one change of a kind, and which."""
    rng = np.random.default_rng(seed)
    while True:
        before = protos[rng.integers(len(protos))]
        after = _copy(before)
        change = KINDS[kind](after, rng)
        if change is not None:
            return before, after, change
