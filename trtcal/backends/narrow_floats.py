"""Float16 and bfloat16 on a CPU: operators compute in float32, and each result is rounded.

ONNX Runtime's CPU provider computes float16 in float32 and drops the casts between nodes: nothing is
rounded there, and nothing overflows. Here a graph is written so that each operator reads float32 values
and its result goes through a Cast that the optimizer has to keep. Values that are only moved or
selected are not rounded again. Tensors keep their names and types where something else reads them.

A product of two float16 values is exact in float32, and a sum or quotient of two is rounded as if at
once. What is not known of a device is left to float32: the sum inside a layer (a GPU may add up in
float16), the state between steps of a recurrent layer, and the inside of any other operator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper

from trtcal.model.files import (
    all_nodes,
    attribute_of,
    opset_of,
    stand_in,
    subgraphs_of,
    tensors_of,
    weights_of,
    with_inner,
)
from trtcal.model.graph import STANDARD, reads
from trtcal.model.model import unique
from trtcal.model.ops import PICKS
from trtcal.model.passes.functions import inlined
from trtcal.model.tensors import value_types

FLOAT, FLOAT16, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
NARROW = {FLOAT16, BFLOAT16}
KEPT = {"Cast", "Constant", "ConstantOfShape"}  # their result has its type by itself
TYPES = {"dtype", "output_dtype", "stash_type", "softmax_precision"}
BARRIER = (
    "Identity"  # between two Casts, which versions of ONNX Runtime drop if they are neighbours
)
WIDE, ADDED = "/float32", "/to-round"  # ends of the names of float32 forms, and of nodes
NOT_FOR_NARROW = ("EliminateIdentity", "LayerNormFusionL1", "LayerNormFusionL2")
"""Optimizers that remove a barrier, or join nodes over a Cast and fail on the two types then."""


def is_narrow(proto: onnx.ModelProto) -> bool:
    """Tell whether a model has values of float16 or bfloat16."""
    values = (*proto.graph.input, *proto.graph.output)
    kinds = {value.type.tensor_type.elem_type for value in values}
    kinds |= {tensor.data_type for tensor in tensors_of(proto)}
    kinds |= {item.i for node in all_nodes(proto) for item in node.attribute if item.name == "to"}
    return not NARROW.isdisjoint(kinds)


def rounded(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a narrow model that computes in float32 and rounds.

    Its session must do without `NOT_FOR_NARROW`. Inputs and outputs in bfloat16, which numpy lacks,
    become float32.
    """
    weights, own = weights_of(proto), {value.name for value in proto.graph.input}
    small = stand_in(proto)
    small = inlined(small) if small.functions else small
    names = {name for node in all_nodes(small) for name in (*node.input, *node.output)}
    constants = {tensor.name for tensor in proto.graph.initializer}
    _widen_ends(small.graph, constants, names)
    kinds = {name: value.type.tensor_type.elem_type for name, value in value_types(small).items()}
    _Part(small.graph, opset_of(small), names, kinds).write()
    inputs = [
        value for value in small.graph.input if value.name in own or value.name not in weights
    ]
    del small.graph.input[:], small.graph.value_info[:]
    small.graph.input.extend(inputs)
    small.graph.initializer.extend(weights.values())
    return small


def _widen_ends(graph: GraphProto, constants: Collection[str], names: set[str]) -> None:
    """Make float32 of inputs and outputs in bfloat16, and cast them."""
    ends = [*graph.input, *graph.output]
    ends = [v for v in ends if v.type.tensor_type.elem_type == BFLOAT16 and v.name not in constants]
    inner = {value.name: unique(f"{value.name}/bfloat16", names) for value in ends}
    for node in with_inner(graph.node):
        node.input[:] = [inner.get(name, name) for name in node.input]
        node.output[:] = [inner.get(name, name) for name in node.output]
        for value in (value for part in subgraphs_of(node) for value in part.output):
            value.name = inner.get(value.name, value.name)
    for value in ends:
        value.type.tensor_type.elem_type = FLOAT
        pair = (value.name, inner[value.name])
        if value in graph.input:
            graph.node.insert(0, _cast(*pair, BFLOAT16))
        else:
            graph.node.append(_cast(*reversed(pair), FLOAT))


def _cast(source: str, result: str, kind: int) -> NodeProto:
    return helper.make_node("Cast", [source], [result], f"{result}{ADDED}", to=kind)


class _Part:
    """One graph or subgraph, whose nodes are written anew.

    `kinds` are the types of tensors, `wide` the float32 forms of the narrow ones; `narrow` are those
    that exist in their own type.
    """

    def __init__(
        self, graph: GraphProto, opset: int, names: set[str], outer: Mapping[str, int]
    ) -> None:
        self.graph, self.opset, self.names = graph, opset, names
        values = (*graph.value_info, *graph.input, *graph.output)
        kinds = {value.name: value.type.tensor_type.elem_type for value in values}
        self.kinds = {**outer, **{name: kind for name, kind in kinds.items() if kind}}
        self.kinds |= {tensor.name: tensor.data_type for tensor in graph.initializer}
        self.narrow = set(self.kinds) - {name for node in graph.node for name in node.output}
        self.wide: dict[str, str] = {}
        self.nodes: list[NodeProto] = []

    def write(self) -> None:
        """Write all nodes, and what the graph returns."""
        for node in self.graph.node:
            parts = list(subgraphs_of(node))
            if parts:
                self._write_holder(node, parts)
            else:
                self._write(node)
        self._make_narrow(value.name for value in self.graph.output)
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)

    def _write_holder(self, node: NodeProto, parts: list[GraphProto]) -> None:
        """Write a node with subgraphs, which read and return tensors in their own types."""
        self._make_narrow(reads(node))
        for graph in parts:
            pairs = zip(graph.input, node.input, strict=False)  # of an If there are none
            inputs = {inner.name: self.kinds.get(name, 0) for inner, name in pairs}
            part = _Part(graph, self.opset, self.names, self.kinds | inputs)
            part.write()
            results = graph.output[node.op_type == "Loop" :]  # its first says whether it goes on
            for result, name in zip(results, node.output, strict=False):
                self.kinds.setdefault(name, part.kinds.get(result.name, 0))
        self.narrow.update(node.output)
        self.nodes.append(node)

    def _write(self, node: NodeProto) -> None:
        schema = self._schema(node)
        self._note_kinds(node, schema)
        if not any(map(self._is_narrow, (*node.input, *node.output))):
            self.nodes.append(node)
            return
        copy = NodeProto()
        copy.CopyFrom(node)
        is_kept = schema is None or node.op_type in KEPT
        if schema is None:
            self._make_narrow(node.input)
        else:
            copy.input[:] = map(self._wide, node.input)
        for item in copy.attribute:
            if item.name in TYPES and item.i in NARROW:
                item.i = FLOAT
        self.nodes.append(copy)
        has_numbers = any(
            item.HasField("f") for item in node.attribute
        )  # which may be between steps
        for place, name in enumerate(node.output):
            if self._is_narrow(name):
                copy.output[place] = result = unique(f"{name}{WIDE}", self.names)
                if node.op_type in PICKS and not is_kept and not has_numbers:
                    self.wide[name] = result
                else:
                    self._round(result, name, is_kept)

    def _schema(self, node: NodeProto) -> onnx.defs.OpSchema | None:
        """Return the schema of one of ONNX's operators on tensors, None of any other."""
        is_sequence = "Sequence" in node.op_type and node.op_type != "ReverseSequence"
        if node.domain not in STANDARD or is_sequence or node.op_type.startswith("Optional"):
            return None
        try:
            return onnx.defs.get_schema(node.op_type, self.opset)
        except onnx.defs.SchemaError:
            return None

    def _note_kinds(self, node: NodeProto, schema: onnx.defs.OpSchema | None) -> None:
        """Note the types of a node's outputs that are not known."""
        stated = [attribute_of(node, name, 0) for name in ("to", "dtype", "output_dtype")]
        values = [item.t.data_type for item in node.attribute if item.name == "value"]
        known = [self.kinds.get(name, 0) for name in node.input]
        bound: dict[str, int] = {}
        if schema is not None:
            for kind, formal in zip(known, _formal(schema.inputs, len(known)), strict=True):
                bound.setdefault(formal, kind)
            results = _formal(schema.outputs, len(node.output))
        else:
            bound, results = (
                {"": next((k for k in known if k in NARROW), 0)},
                [""] * len(node.output),
            )
        scale = known[1:2] if node.op_type == "DequantizeLinear" else []
        default = next(filter(None, (*stated, *values, *scale)), 0)
        for name, formal in zip(node.output, results, strict=True):
            self.kinds.setdefault(name, bound.get(formal) or default)

    def _is_narrow(self, name: str) -> bool:
        return self.kinds.get(name) in NARROW

    def _wide(self, name: str) -> str:
        """Return the name of a tensor's float32 form, which is itself if it is not narrow."""
        if not self._is_narrow(name):
            return name
        if name not in self.wide:
            self.wide[name] = self._cast(name, unique(f"{name}{WIDE}", self.names), FLOAT)
        return self.wide[name]

    def _make_narrow(self, names: Iterable[str]) -> None:
        """Give tensors their own type where they exist in float32 alone."""
        for name in names:
            if self._is_narrow(name) and name not in self.narrow:
                self._cast(self.wide[name], name, self.kinds[name])
                self.narrow.add(name)

    def _round(self, result: str, name: str, is_kept: bool) -> None:
        """Round a node's result, unless it has its type already, and keep a Cast behind off it."""
        if not is_kept:
            result = self._cast(result, unique(f"{name}/rounded", self.names), self.kinds[name])
        self.nodes.append(helper.make_node(BARRIER, [result], [name], f"{name}/kept{ADDED}"))
        self.narrow.add(name)

    def _cast(self, source: str, result: str, kind: int) -> str:
        self.nodes.append(_cast(source, result, kind))
        return result


def _formal(parameters: list[onnx.defs.OpSchema.FormalParameter], count: int) -> list[str]:
    """Return the types of as many parameters; the last one may stand for several."""
    return [parameters[min(place, len(parameters) - 1)].type_str for place in range(count)]
