"""What a network is, whatever its weights, names and file are: two trainings of it are one project."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx

from trtcal.documents import canonical_json, digest_bytes


def structure_of(proto: onnx.ModelProto) -> str:
    """Return a digest of operators, attributes and wiring, and of the shapes of inputs and weights.

    Values of weights and all names have no part in it, so that retrained networks have the same.
    """
    numbers = dict[str, int]()
    return digest_bytes(canonical_json(list(_graph(proto.graph, numbers))))


def _graph(graph: onnx.GraphProto, numbers: dict[str, int]) -> Iterator[Any]:
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for value in graph.input:
        if value.name not in weights:
            yield ["input", _number(value.name, numbers), _type(value)]
    for node in graph.node:
        places = [[_number(name, numbers) for name in some] for some in (node.input, node.output)]
        attributes = sorted(node.attribute, key=lambda item: item.name)
        settings = [_attribute(attribute, numbers) for attribute in attributes]
        yield [node.domain, node.op_type, *places, settings]
    numbered = {_number(name, numbers): tensor for name, tensor in weights.items()}
    for number, tensor in sorted(numbered.items()):
        yield ["weight", number, tensor.data_type, list(tensor.dims)]
    yield ["outputs", [_number(value.name, numbers) for value in graph.output]]


def _number(name: str, numbers: dict[str, int]) -> int:
    """Return a tensor's number in the order in which tensors are met, -1 for an input left out."""
    return numbers.setdefault(name, len(numbers)) if name else -1


def _type(value: onnx.ValueInfoProto) -> list[Any]:
    tensor = value.type.tensor_type
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
    return [tensor.elem_type, sizes]


def _attribute(attribute: onnx.AttributeProto, numbers: dict[str, int]) -> list[Any]:
    graphs = [attribute.g, *attribute.graphs] if attribute.HasField("g") else list(attribute.graphs)
    if graphs:
        return [attribute.name, [list(_graph(graph, numbers)) for graph in graphs]]
    if attribute.HasField("t"):
        return [attribute.name, attribute.t.data_type, list(attribute.t.dims)]
    return [attribute.name, repr(onnx.helper.get_attribute_value(attribute))]
