"""From a model to the graph that the passes work on.

Every model first gets one form: a name of its own for every node, no initializer among the inputs, no
node that no output needs. What the graph library would lose or break on is refused, by node.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_graphsurgeon as gs
from onnx import AttributeProto, NodeProto

from trtcal.errors import InputError
from trtcal.model.files import all_nodes, opset_of, refill, stand_in, subgraphs_of, weights_of
from trtcal.model.graph import MIN_OPSET, NUMBERS, STANDARD, clean, held_by, restored
from trtcal.model.model import Model, name_nodes, unique

KEPT_KINDS = ("FLOAT", "INT", "STRING", "TENSOR", "GRAPH", "FLOATS", "INTS", "STRINGS")


def read_graph(model: Model) -> gs.Graph:
    """Return a model's graph in the form that passes want.

    `InputError` names a node that can't be kept as it is.
    """
    small = stand_in(model.proto)
    nodes = list(all_nodes(small))
    for number, node in enumerate(nodes):
        _check(model, node, number)
    _normalize(small, nodes)
    return clean(restored(small, weights_of(model.proto)))


def drop_other_types(proto: onnx.ModelProto) -> None:
    """Forget the types of values that are no tensors, which the graph library can't write."""
    values = proto.graph.value_info
    refill(values, (value for value in values if value.type.HasField("tensor_type")))


def _check(model: Model, node: NodeProto, number: int) -> None:
    if why := _unreadable(node):
        shown = repr(node.name) if node.name else f"number {number}"
        hint = "export the model without it"
        raise InputError(f"model {model.path}: node {shown} ({node.op_type!r}) {why}", hint)


def _unreadable(node: NodeProto) -> str | None:
    """Return why a node can't be kept as it is, None if it can."""
    texts = (node.name, node.op_type, node.domain, *node.input, *node.output)
    if not all(isinstance(text, str) for text in texts):
        return "has a name that is not UTF-8, or a tensor with such a name"
    if getattr(node, "overload", ""):
        return "calls an overloaded function"
    for attribute in node.attribute:
        why = None if attribute.ref_attr_name else _unkept(node, attribute)
        if why:
            return f"has an attribute {attribute.name!r} {why}"
    return None


def _unkept(node: NodeProto, attribute: AttributeProto) -> str | None:
    kind = AttributeProto.AttributeType.Name(attribute.type)
    if kind not in KEPT_KINDS:
        return f"of kind {kind}, which would be lost"
    is_empty = not (attribute.floats or attribute.ints or attribute.strings)
    plain = node.op_type == "Constant" and attribute.name in NUMBERS
    if kind.endswith("S") and is_empty and not plain:
        return "that is an empty list, whose kind would be lost"
    try:
        b"".join([attribute.s, *attribute.strings]).decode()
    except UnicodeDecodeError:
        return "that is not UTF-8 text"
    return None


def _normalize(small: onnx.ModelProto, nodes: Iterable[NodeProto]) -> None:
    _name_domain_once(small)
    for node in nodes:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name in NUMBERS:
            attribute = onnx.helper.make_attribute("value", held_by(node.attribute[0]))
            node.attribute[0].CopyFrom(attribute)
    drop_other_types(small)
    name_nodes(small)
    _name_inner_nodes(small, nodes)


def _name_inner_nodes(small: onnx.ModelProto, nodes: Iterable[NodeProto]) -> None:
    """Give nodes of subgraphs another name where theirs is taken: ONNX Runtime wants that."""
    outer = {node.name for node in small.graph.node}
    for node in nodes:
        for part in subgraphs_of(node):
            for inner in part.node:
                inner.name = unique(inner.name, outer) if inner.name else ""


def _name_domain_once(small: onnx.ModelProto) -> None:
    """Import ONNX's own operators by the empty name; a model that has none of them does too."""
    others = [item for item in small.opset_import if item.domain not in STANDARD]
    version = opset_of(small) if len(others) < len(small.opset_import) else MIN_OPSET
    refill(small.opset_import, [onnx.helper.make_opsetid("", version), *others])
