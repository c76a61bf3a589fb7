"""The nodes and edges of a model on a graph page: no constants, and no Q/DQ.

A node that reads a tensor through Q/DQ has an edge in the precision of these.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from trtcal.formats import ROWS
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


class Drawn:
    """What is drawn of a model's main graph: columns by the numbers of nodes, in topological order.

    `tensors` are those that a node reads, before their Q/DQ; `weights` describe its constants.
    `numbers` gives the numbers of the model's nodes by name, `ends` those of its inputs. Nodes have
    names of their own, and each input comes before its first reader.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.names, self.operators, self.shapes = list[str](), list[str](), list[str]()
        self.scopes, self.tensors, self.weights = (list[list[str]]() for _ in range(3))
        self.edges = list[Edge]()
        self.numbers, self.ends = dict[str, int](), dict[str, int]()
        self._types, self._narrow = value_types(proto), dequantized_types(proto)
        self._makers, self._constants = producers_of(proto.graph), constants_of(proto.graph)
        self._inputs = {value.name for value in proto.graph.input} - self._constants.keys()
        self._outputs = [value.name for value in proto.graph.output]
        self._fixed = set(self._constants)
        self._places: dict[str, int] = {}
        for node in proto.graph.node:
            self._visit(node)

    @property
    def wiring(self) -> Wiring:
        """Who reads from whom."""
        sources: list[list[int]] = [[] for _ in self.names]
        for edge in self.edges:
            sources[edge.end].append(edge.start)
        return Wiring(self.names, self.operators, self.scopes, sources)

    def _visit(self, node: onnx.NodeProto) -> None:
        names = list(dict.fromkeys(reads(node)))
        is_fixed = self._fixed.issuperset(names) and node.op_type not in RANDOM
        if is_fixed and not any(True for _ in subgraphs_of(node)):
            self._fixed.update(node.output)
        elif node.op_type not in QDQ:
            self._take(node, names)
        for name in self._outputs:
            if name in node.output and name not in self._fixed:
                end = self._add(name, OUTPUT, [], self._shape(name))
                self._connect(end, name)

    def _take(self, node: onnx.NodeProto, names: list[str]) -> None:
        sources = [self._source(name) for name in names]
        for source in sources:
            if source in self._inputs and source not in self._places:
                self._places[source] = self._add(source, INPUT, [], self._shape(source))
                self.ends[source] = self._places[source]
        first = next(iter(node.output), "")
        number = self._add(node.name, node.op_type, scopes_of(node), self._shape(first))
        self.numbers[node.name] = number
        self._places.update(dict.fromkeys(node.output, number))
        for name, source in zip(names, sources, strict=True):
            if source in self._constants:
                self.weights[number].append(self._weight(name, source))
            else:
                self._connect(number, name)

    def _add(self, name: str, operator: str, scopes: list[str], shape: str) -> int:
        self.names.append(name)
        self.operators.append(operator)
        self.scopes.append(scopes)
        self.shapes.append(shape)
        self.tensors.append([])
        self.weights.append([])
        return len(self.names) - 1

    def _connect(self, number: int, name: str) -> None:
        source = self._source(name)
        if source in self._places:
            precision = self._narrow.get(name) or self._precision(name)
            edge = Edge(self._places[source], number, self._shape(source), precision)
            self.edges += [edge] if edge not in self.edges[-8:] else []
            self.tensors[number].append(source)

    def _source(self, name: str) -> str:
        """Return the tensor that Q and DQ read, itself if nothing quantizes it."""
        while name in self._makers and self._makers[name].op_type in QDQ:
            name = self._makers[name].input[0]
        return name

    def _precision(self, name: str) -> str:
        value = self._types.get(name)
        return BY_TYPE.get(value.type.tensor_type.elem_type, "") if value else ""

    def _shape(self, name: str) -> str:
        value = self._types.get(name)
        dims = value.type.tensor_type.shape.dim if value else ()
        return "x".join(
            str(dim.dim_value) if dim.dim_value else dim.dim_param or "?" for dim in dims
        )

    def _weight(self, name: str, source: str) -> str:
        tensor = self._constants[source]
        kind = self._narrow.get(name) or BY_TYPE.get(tensor.data_type, "")
        size = "x".join(map(str, tensor.dims)) or "1 value"
        return f"{size} {kind.upper()}".strip()
