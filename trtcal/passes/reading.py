"""From a model to the graph that the passes work on.

Every model first gets one form: a name of its own for every node, no initializer among the inputs, no
node that no output needs. What the graph library would lose or break on is refused, by node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs
from onnx import AttributeProto, NodeProto, TensorProto

from trtcal.errors import InputError
from trtcal.graph import MIN_OPSET, STANDARD, clean, restored, subgraphs_of
from trtcal.model import Model, name_nodes
from trtcal.onnxfile import ITEM_BYTES, stand_in, weights_of

KEPT_KINDS = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
}
PLAIN: dict[str, type] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


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


def all_nodes(proto: onnx.ModelProto) -> Iterator[NodeProto]:
    """Yield every node of a model: of its graph, of subgraphs, of functions."""
    pending = [*proto.graph.node, *(node for one in proto.functions for node in one.node)][::-1]
    while pending:
        node = pending.pop()
        yield node
        for part in subgraphs_of(node):
            pending.extend(reversed(part.node))


def drop_other_types(proto: onnx.ModelProto) -> None:
    """Forget the types of values that are no tensors, which the graph library can't write."""
    kept = [value for value in proto.graph.value_info if value.type.HasField("tensor_type")]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(kept)


def _check(model: Model, node: NodeProto, number: int) -> None:
    why = _unreadable(node)
    if why:
        shown = repr(node.name) if node.name else f"number {number}"
        raise InputError(
            f"model {model.path}: node {shown} ({node.op_type!r}) {why}", "export it without that"
        )


def _unreadable(node: NodeProto) -> str | None:
    """Return why a node can't be kept as it is, None if it can."""
    texts = (node.name, node.op_type, node.domain, *node.input, *node.output)
    if not all(isinstance(text, str) for text in texts):
        return "has a name, or reads or makes a tensor with one, that is not UTF-8"
    if getattr(node, "overload", ""):
        return "calls an overloaded function"
    for attribute in node.attribute:
        why = None if attribute.ref_attr_name else _unkept(node, attribute)
        if why:
            return f"has an attribute {attribute.name!r} {why}"
    return None


def _unkept(node: NodeProto, attribute: AttributeProto) -> str | None:
    field = KEPT_KINDS.get(attribute.type)
    if field is None:
        kind = AttributeProto.AttributeType.Name(attribute.type)
        return f"of kind {kind}, which would be lost"
    value = getattr(attribute, field)
    plain = node.op_type == "Constant" and attribute.name in PLAIN
    if field.endswith("s") and field != "s" and not value and not plain:
        return "that is an empty list, whose kind would be lost"
    if field in ("s", "strings"):
        try:
            b"".join([value] if field == "s" else value).decode()
        except UnicodeDecodeError:
            return "that is not UTF-8 text"
    return None


def _normalize(small: onnx.ModelProto, nodes: Iterable[NodeProto]) -> None:
    initialized = {tensor.name for tensor in small.graph.initializer}
    inputs = [value for value in small.graph.input if value.name not in initialized]
    del small.graph.input[:]
    small.graph.input.extend(inputs)
    small.ir_version = max(small.ir_version, 4)
    for item in (*small.opset_import, *(o for f in small.functions for o in f.opset_import)):
        item.domain = "" if item.domain in STANDARD else item.domain
    if all(item.domain for item in small.opset_import):  # then no node is of ONNX's own domain
        small.opset_import.add(domain="", version=MIN_OPSET)
    for node in nodes:
        node.domain = "" if node.domain in STANDARD else node.domain
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name in PLAIN:
            _make_tensor(node.attribute[0])
    for tensor in small.graph.initializer:
        if tensor.data_type in ITEM_BYTES and tensor.data_type != TensorProto.BFLOAT16:
            tensor.CopyFrom(_raw(tensor))
    drop_other_types(small)
    name_nodes(small)


def _make_tensor(attribute: AttributeProto) -> None:
    """Give a Constant's number or numbers the type that ONNX says, as a tensor."""
    field = KEPT_KINDS[attribute.type]
    values: npt.NDArray[Any] = np.array(getattr(attribute, field), PLAIN[attribute.name])
    attribute.CopyFrom(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(values)))


def _raw(tensor: TensorProto) -> TensorProto:
    return onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name)
