"""A float model and its quantized twin as one set of nodes that can be cut into segments.

A node that is quantized reads other tensors than in float; everything else is the same. So any part
of the network can be written with any choice of nodes quantized, without quantizing anything again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import onnx

from trtcal.graph import reads
from trtcal.model import Model
from trtcal.onnxfile import embedded, stand_in

LEAST_UNITS = 3  # of a segment: a border costs reordering, a long segment is run more often
MOST_UNITS = 8  # from here on, cuts through several tensors are looked for too
MOST_TENSORS = 4


@dataclass(frozen=True)
class Segment:
    """A run of nodes: their places in the float graph, what they read from before and hand on.

    `outputs` are all tensors that are read after it, those that only pass through it left out.
    """

    start: int
    stop: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    units: tuple[str, ...]


class Twins:
    """The prepared float model and the same with Q/DQ."""

    def __init__(self, prepared: Model, quantized: onnx.ModelProto) -> None:
        self.proto, self.quantized = prepared.proto, quantized
        self.nodes = list(prepared.proto.graph.node)
        self.twins = {node.name: node for node in quantized.graph.node}
        self.producers = {name: node for node in quantized.graph.node for name in node.output}
        self.tensors = {one.name: one for one in quantized.graph.initializer}
        self.tensors |= {one.name: one for one in prepared.proto.graph.initializer}
        self.quantizable = {
            node.name
            for node in self.nodes
            if node.name in self.twins and list(node.input) != list(self.twins[node.name].input)
        }
        self.inputs = [spec.name for spec in prepared.inputs]
        self.outputs = [spec.name for spec in prepared.outputs]
        self.types = _types(prepared.proto)
        self.last = self._last_readers()
        self.readers = Counter(name for node in self.nodes for name in set(reads(node)))
        self.readers.update(self.outputs)

    def segments(self, units: Collection[str]) -> list[Segment]:
        """Cut the graph before units, where as few tensors as possible are handed on."""
        marks = [node.name in units for node in self.nodes]
        widths = self._widths(self.last)
        places = [0, *_cuts(marks, widths, 0, len(marks), 1), len(marks)]
        return [self.segment(start, stop, units) for start, stop in pairwise(places)]

    def segment(self, start: int, stop: int, units: Collection[str] = ()) -> Segment:
        """Return a run of nodes, of which some may be units."""
        made = [name for node in self.nodes[start:stop] for name in node.output if name]
        read = [name for node in self.nodes[start:stop] for name in reads(node)]
        known = set(self.tensors) | set(made)
        inputs = tuple(name for name in dict.fromkeys(read) if name not in known)
        outputs = tuple(name for name in made if self.last.get(name, -1) >= stop)
        mine = tuple(node.name for node in self.nodes[start:stop] if node.name in units)
        return Segment(start, stop, inputs, outputs, mine)

    def _last_readers(self) -> dict[str, int]:
        last = {name: i for i, node in enumerate(self.nodes) for name in reads(node)}
        return last | dict.fromkeys(self.outputs, len(self.nodes))

    def _widths(self, last: dict[str, int]) -> list[int]:
        """Return for each place how many tensors a cut before that node hands on."""
        live, widths = set(self.inputs), []
        for i, node in enumerate(self.nodes):
            live = {name for name in live if last.get(name, -1) >= i}
            widths.append(sum(last[name] < len(self.nodes) for name in live))
            live |= {name for name in node.output if name}
        return widths

    def part(self, segment: Segment, int8: Collection[str]) -> onnx.ModelProto:
        """Return a segment as a model, these of its nodes quantized."""
        nodes, done = list[onnx.NodeProto](), set[str]()
        for node in self.nodes[segment.start : segment.stop]:
            chosen = self.twins[node.name] if node.name in int8 else node
            for before in self._pairs(chosen) if node.name in int8 else ():
                if before.name not in done:
                    done.add(before.name)
                    nodes.append(before)
            nodes.append(chosen)
        return self.apart(nodes, segment.inputs, segment.outputs)

    def apart(
        self, nodes: Sequence[onnx.NodeProto], inputs: Sequence[str], outputs: Sequence[str]
    ) -> onnx.ModelProto:
        """Return nodes as a model, with the constants that they read."""
        read = {name for node in nodes for name in reads(node)}
        graph = onnx.GraphProto(name="segment", node=nodes)
        graph.initializer.extend(
            embedded(self.tensors[n]) for n in sorted(read & set(self.tensors))
        )
        graph.input.extend(self._value(name) for name in inputs)
        graph.output.extend(self._value(name) for name in outputs)
        like = self.quantized
        return onnx.ModelProto(
            graph=graph,
            ir_version=like.ir_version,
            opset_import=like.opset_import,
            functions=like.functions,
        )

    def _pairs(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield the Q and DQ before a quantized node, each after what it reads."""
        for name in node.input:
            dequantize = self.producers.get(name)
            if dequantize is None or dequantize.op_type != "DequantizeLinear":
                continue
            quantize = self.producers.get(dequantize.input[0])
            if quantize is not None and quantize.op_type == "QuantizeLinear":
                yield quantize
            yield dequantize

    def _value(self, name: str) -> onnx.ValueInfoProto:
        return self.types.get(name) or onnx.helper.make_tensor_value_info(
            name, onnx.TensorProto.FLOAT, None
        )


def _types(proto: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    graph = onnx.shape_inference.infer_shapes(stand_in(proto)).graph
    return {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}


def _cuts(
    marks: Sequence[bool], widths: Sequence[int], start: int, stop: int, limit: int
) -> list[int]:
    """Return where to cut, every `LEAST_UNITS` units, and finer where many lie between."""
    places, units = list[int](), 0
    for i in range(start, stop):
        enough = units >= LEAST_UNITS and widths[i] <= limit
        if marks[i] and enough and sum(marks[i:stop]) >= LEAST_UNITS:
            places.append(i)
            units = 0
        units += marks[i]
    if limit == MOST_TENSORS:
        return places
    ends = [start, *places, stop]
    finer: Iterable[int] = ()
    for first, last in pairwise(ends):
        if sum(marks[first:last]) > MOST_UNITS:
            finer = [*finer, *_cuts(marks, widths, first, last, limit + 1)]
    return sorted([*places, *finer])
