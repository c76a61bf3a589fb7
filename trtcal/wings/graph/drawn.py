"""The nodes and edges of a model on a graph page: no constants, and no Q/DQ.

A node that reads a tensor through Q/DQ has an edge in the precision of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx

from trtcal.formats import ROWS
from trtcal.model import Model
from trtcal.model.files import subgraphs_of
from trtcal.model.graph import reads
from trtcal.model.ops import QDQ, RANDOM
from trtcal.model.tensors import constants_of, producers_of, value_types
from trtcal.quantization.qdq import dequantized_types
from trtcal.wings.graph.blocks import Wiring, scopes_of

INPUT, OUTPUT = "Input", "Output"
BY_TYPE = {onnx.TensorProto.DataType.Value(row.onnx): row.name for row in reversed(ROWS)}


@dataclass(frozen=True)
class Edge:
    """A tensor from one node to another, by their numbers; `precision` is "" for integers."""

    start: int
    end: int
    shape: str
    precision: str


@dataclass
class Drawn:
    """What is drawn of a model: columns by the numbers of nodes, which are in topological order.

    `tensors` are those that a node reads, before their Q/DQ; `weights` describe its constants.
    `numbers` gives the numbers of the model's nodes by name, `ends` those of its inputs.
    """

    names: list[str] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
    scopes: list[list[str]] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    tensors: list[list[str]] = field(default_factory=list)
    weights: list[list[str]] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)

    @property
    def wiring(self) -> Wiring:
        """Who reads from whom."""
        sources: list[list[int]] = [[] for _ in self.names]
        for edge in self.edges:
            sources[edge.end].append(edge.start)
        return Wiring(self.names, self.operators, self.scopes, sources)


def draw(model: Model) -> Drawn:
    """Return the nodes and edges of a model's main graph, whose nodes have names of their own."""
    return _Drawing(model.proto).drawn


class _Drawing:
    """Goes through the nodes in their order, each input before its first reader."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.drawn = Drawn()
        self.types = value_types(proto)
        self.narrow = dequantized_types(proto)
        self.makers, self.constants = producers_of(proto.graph), constants_of(proto.graph)
        self.inputs = {value.name for value in proto.graph.input} - self.constants.keys()
        self.outputs = [value.name for value in proto.graph.output]
        self.fixed = set(self.constants)
        self.places: dict[str, int] = {}
        for node in proto.graph.node:
            self._visit(node)

    def _visit(self, node: onnx.NodeProto) -> None:
        names = list(dict.fromkeys(reads(node)))
        is_fixed = self.fixed.issuperset(names) and node.op_type not in RANDOM
        if is_fixed and not any(True for _ in subgraphs_of(node)):
            self.fixed.update(node.output)
        elif node.op_type not in QDQ:
            self._take(node, names)
        for name in self.outputs:
            if name in node.output and name not in self.fixed:
                end = self._add(name, OUTPUT, [], self._shape(name))
                self._connect(end, name)

    def _take(self, node: onnx.NodeProto, names: list[str]) -> None:
        sources = [self._source(name) for name in names]
        for source in sources:
            if source in self.inputs and source not in self.places:
                self.places[source] = self._add(source, INPUT, [], self._shape(source))
                self.drawn.ends[source] = self.places[source]
        first = next(iter(node.output), "")
        number = self._add(node.name, node.op_type, scopes_of(node), self._shape(first))
        self.drawn.numbers[node.name] = number
        self.places.update(dict.fromkeys(node.output, number))
        for name, source in zip(names, sources, strict=True):
            if source in self.constants:
                self.drawn.weights[number].append(self._weight(name, source))
            else:
                self._connect(number, name)

    def _add(self, name: str, operator: str, scopes: list[str], shape: str) -> int:
        drawn = self.drawn
        drawn.names.append(name)
        drawn.operators.append(operator)
        drawn.scopes.append(scopes)
        drawn.shapes.append(shape)
        drawn.tensors.append([])
        drawn.weights.append([])
        return len(drawn.names) - 1

    def _connect(self, number: int, name: str) -> None:
        source = self._source(name)
        if source in self.places:
            precision = self.narrow.get(name) or self._precision(name)
            edge = Edge(self.places[source], number, self._shape(source), precision)
            self.drawn.edges += [edge] if edge not in self.drawn.edges[-8:] else []
            self.drawn.tensors[number].append(source)

    def _source(self, name: str) -> str:
        """Return the tensor that Q and DQ read, itself if nothing quantizes it."""
        while name in self.makers and self.makers[name].op_type in QDQ:
            name = self.makers[name].input[0]
        return name

    def _precision(self, name: str) -> str:
        value = self.types.get(name)
        return BY_TYPE.get(value.type.tensor_type.elem_type, "") if value else ""

    def _shape(self, name: str) -> str:
        value = self.types.get(name)
        dims = value.type.tensor_type.shape.dim if value else ()
        return "x".join(
            str(dim.dim_value) if dim.dim_value else dim.dim_param or "?" for dim in dims
        )

    def _weight(self, name: str, source: str) -> str:
        tensor = self.constants[source]
        kind = self.narrow.get(name) or BY_TYPE.get(tensor.data_type, "")
        size = "x".join(map(str, tensor.dims)) or "1 value"
        return f"{size} {kind.upper()}".strip()
