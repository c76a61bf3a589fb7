"""Float16 and bfloat16 on a CPU: operators compute in float32, and each result is rounded.

ONNX Runtime's CPU provider computes float16 in float32 and drops the casts between nodes, so that
nothing is rounded and nothing overflows. Here each operator reads float32 values, and its result goes
through a Cast that the optimizer has to keep; what is only moved or selected is not rounded again.
Tensors keep their names and types where something else reads them.

What is not known of a device is left to float32: what happens inside an operator (a GPU may add up in
float16), and the state between steps of a recurrent layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper

from trtcal.errors import InputError
from trtcal.model import files
from trtcal.model.graph import reads
from trtcal.model.model import unique
from trtcal.model.ops import PICKS
from trtcal.model.passes.base import NotApplicable
from trtcal.model.passes.functions import inlined
from trtcal.quantization.fp16 import formal_types, schema_of

FLOAT, BFLOAT16 = TensorProto.FLOAT, TensorProto.BFLOAT16
NARROW = {TensorProto.FLOAT16, BFLOAT16}
KEPT = {"Cast", "Constant", "ConstantOfShape"}  # their result has its type by itself
TYPES = {"dtype", "output_dtype", "stash_type", "softmax_precision"}
NORMS = {"ReduceL2": "Sqrt", "ReduceSumSquare": "Identity"}  # and how they end
BARRIER = "Identity"  # between two Casts: versions of ONNX Runtime drop those that are neighbours
WIDE, ADDED = "/float32", "/to-round"  # ends of the names of float32 forms, and of nodes
NOT_FOR_NARROW = ("EliminateIdentity", "LayerNormFusionL1", "LayerNormFusionL2")
"""Optimizers that remove a barrier, or join nodes over a Cast and fail on the two types then."""


def is_narrow(proto: onnx.ModelProto) -> bool:
    """Tell whether a model has values of float16 or bfloat16."""
    return not NARROW.isdisjoint(kinds_of(proto))


def kinds_of(proto: onnx.ModelProto) -> set[int]:
    """Return the types that inputs, outputs, constants and attributes of a model have."""
    values = (*proto.graph.input, *proto.graph.output)
    kinds = {value.type.tensor_type.elem_type for value in values}
    kinds |= {tensor.data_type for tensor in files.tensors_of(proto)}
    attributes = (item for node in files.all_nodes(proto) for item in node.attribute)
    return kinds | {item.i for item in attributes if item.name in ("to", "output_dtype")}


def is_rounded(proto: onnx.ModelProto) -> bool:
    """Tell whether a model is one that `rounded` made."""
    return any(node.name.endswith(ADDED) for node in proto.graph.node)


def rounded(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a narrow model that computes in float32 and rounds, for sessions without `NOT_FOR_NARROW`.

    Inputs and outputs in bfloat16, which numpy lacks, become float32.
    """
    small = files.stand_in(proto)
    try:
        small = inlined(small) if small.functions else small
    except NotApplicable as reason:
        what = f"the float16 of the model cannot be computed: {reason}"
        raise InputError(what, "export the model without functions") from None
    graph, nodes = small.graph, files.all_nodes(small)
    names = {name for node in nodes for name in (*node.input, *node.output)}
    kinds = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    del graph.input[len(proto.graph.input) :]
    _widen_ends(graph, {tensor.name for tensor in proto.graph.initializer}, names)
    _Part(graph, files.opset_of(small), names, kinds).write()
    del graph.value_info[:]
    graph.initializer.extend(files.weights_of(proto).values())
    return small


def _widen_ends(graph: GraphProto, constants: set[str], names: set[str]) -> None:
    """Make float32 of inputs and outputs in bfloat16, and cast them."""
    values = (value for value in (*graph.input, *graph.output) if value.name not in constants)
    ends = [value for value in values if value.type.tensor_type.elem_type == BFLOAT16]
    inner = {value.name: unique(f"{value.name}/bfloat16", names) for value in ends}
    for node in files.with_inner(graph.node if ends else ()):
        node.input[:] = [inner.get(name, name) for name in node.input]
        node.output[:] = [inner.get(name, name) for name in node.output]
    for value in ends:
        value.type.tensor_type.elem_type = FLOAT
        if value in graph.input:
            graph.node.insert(0, _cast(value.name, inner[value.name], BFLOAT16))
        else:
            graph.node.append(_cast(inner[value.name], value.name, FLOAT))


def _cast(source: str, result: str, kind: int) -> NodeProto:
    return _added("Cast", [source], result, to=kind)


def _added(op: str, inputs: list[str], result: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs, [result], f"{result}/{op}{ADDED}", **attributes)


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
            parts = list(files.subgraphs_of(node))
            if parts:
                self._write_holder(node, parts)
            for step in () if parts else self._steps(node):
                self._write(step)
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

    def _steps(self, node: NodeProto) -> list[NodeProto]:
        """Return a node, or what TensorRT's parser makes of a norm: squares, their sum, its root."""
        if node.op_type not in NORMS or not self._is_narrow(node.input[0]):
            return [node]
        total, result = deepcopy(node), node.output[0]
        squares, sum_ = (unique(f"{result}/{step}", self.names) for step in ("squares", "sum"))
        total.op_type, total.input[0], total.output[0] = "ReduceL1", squares, sum_
        last = _added(NORMS[node.op_type], [sum_], result)
        return [_added("Mul", [node.input[0]] * 2, squares), total, last]

    def _write(self, node: NodeProto) -> None:
        schema = self._schema(node)
        self._note_kinds(node, schema)
        if not any(map(self._is_narrow, (*node.input, *node.output))):
            self.nodes.append(node)
            return
        copy = self._converted(node, schema is None)
        self.nodes.extend(_sigmoid(copy) if node.op_type == "Sigmoid" else [copy])
        is_kept = schema is None or node.op_type in KEPT
        has_numbers = any(item.HasField("f") for item in node.attribute)  # as they are in float32
        if is_kept or has_numbers or node.op_type not in PICKS:
            for name in filter(self._is_narrow, node.output):
                self._round(self.wide.pop(name), name, is_kept)

    def _converted(self, node: NodeProto, is_foreign: bool) -> NodeProto:
        """Return a copy that gives its results other names, and reads float32 if ONNX knows it."""
        copy = deepcopy(node)
        if is_foreign:
            self._make_narrow(node.input)
        else:
            copy.input[:] = map(self._wide, node.input)
        for item in copy.attribute:
            if item.name in TYPES and item.i in NARROW:
                item.i = FLOAT
        for place, name in enumerate(node.output):
            if self._is_narrow(name):
                copy.output[place] = self.wide[name] = unique(f"{name}{WIDE}", self.names)
        return copy

    def _schema(self, node: NodeProto) -> onnx.defs.OpSchema | None:
        """Return the schema of one of ONNX's operators on tensors, None of any other."""
        is_sequence = "Sequence" in node.op_type and node.op_type != "ReverseSequence"
        if is_sequence or node.op_type.startswith("Optional"):
            return None
        return schema_of(node.op_type, node.domain, self.opset)

    def _note_kinds(self, node: NodeProto, schema: onnx.defs.OpSchema | None) -> None:
        """Note the types of a node's outputs that are not known."""
        known = [self.kinds.get(name, 0) for name in node.input]
        if schema is None:  # its results are taken to be as narrow as what it reads
            read = [] if node.op_type == "QuantizeLinear" else known
            bound, results = {"": max([0, *read], key=NARROW.__contains__)}, [""]
        else:
            pairs = zip(formal_types(schema.inputs, len(known)), known, strict=True)
            bound = {formal: kind for formal, kind in pairs if kind}
            results = formal_types(schema.outputs, len(node.output))
        stated = [files.attribute_of(node, name, 0) for name in ("to", "dtype", "output_dtype")]
        stated += [item.t.data_type for item in node.attribute if item.name == "value"]
        stated += known[1:2] if node.op_type == "DequantizeLinear" else []
        for name, formal in zip(node.output, results * len(node.output), strict=False):
            self.kinds.setdefault(name, bound.get(formal) or next(filter(None, stated), 0))

    def _is_narrow(self, name: str) -> bool:
        return self.kinds.get(name) in NARROW

    def _wide(self, name: str) -> str:
        """Return the name of a tensor's float32 form, which is itself if it is not narrow."""
        if not self._is_narrow(name):
            return name
        if name not in self.wide:
            self.wide[name] = unique(f"{name}{WIDE}", self.names)
            self.nodes.append(_cast(name, self.wide[name], FLOAT))
        return self.wide[name]

    def _make_narrow(self, names: Iterable[str]) -> None:
        """Give tensors their own type where they exist in float32 alone."""
        for name in names:
            if self._is_narrow(name) and name not in self.narrow:
                self.nodes.append(_cast(self.wide[name], name, self.kinds[name]))
                self.narrow.add(name)

    def _round(self, result: str, name: str, is_kept: bool) -> None:
        """Round a node's result, unless it has its type already, and keep a Cast behind off it."""
        source = result if is_kept else f"{result}/rounded"
        self.nodes += [] if is_kept else [_cast(result, source, self.kinds[name])]
        self.nodes.append(_added(BARRIER, [source], name))
        self.narrow.add(name)


def _sigmoid(node: NodeProto) -> Iterator[NodeProto]:
    """Yield 1 / (1 + Exp(-x)): the kernel is off by 1e-7, which is many units of a small value."""
    result = node.output[0]
    one, minus, power, total = (f"{result}/{part}" for part in ("one", "minus", "power", "sum"))
    yield helper.make_node("Constant", [], [one], f"{one}{ADDED}", value_float=1.0)
    yield _added("Neg", [node.input[0]], minus)
    yield _added("Exp", [minus], power)
    yield _added("Add", [power, one], total)
    yield _added("Reciprocal", [total], result)
