"""A float model and the quantized one as one set of nodes that can be cut into segments.

A node that is quantized reads other tensors than in float; everything else is the same. So any part
of the network can be written with any choice of nodes quantized, without quantizing anything again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise

import onnx

from trtcal.backends.lowering import lower
from trtcal.backends.sessions import Session, give_back, open_session, run_session
from trtcal.backends.trial import crashes_as_warnings
from trtcal.data import Dataset, Feeds
from trtcal.evaluate.collectors import batch_of_rows
from trtcal.evaluate.metrics import Loss, Rows, joined, task_rows, total
from trtcal.evaluate.per_sample import Values
from trtcal.evaluate.replay import Recording
from trtcal.evaluate.tasks import TaskReader
from trtcal.model import Model
from trtcal.model.graph import part_of, reads
from trtcal.model.ops import MULTIPLIES, QDQ
from trtcal.model.tensors import producers_of, value_types
from trtcal.quantization import Plan, find_layers, quantize
from trtcal.quantization.qdq import in_opset_of
from trtcal.ranges import Calibration

LEAST_UNITS = 3  # of a segment: a border costs reordering, a long segment is run more often
MOST_UNITS = 8  # from here on, cuts through several tensors are tried too
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


class PairedGraph:
    """The prepared float model and the same with Q/DQ."""

    def __init__(self, prepared: Model, quantized: onnx.ModelProto) -> None:
        self.proto, self.quantized = prepared.proto, quantized
        self.nodes = list(prepared.proto.graph.node)
        self.pair = {node.name: node for node in quantized.graph.node}
        self.producers = producers_of(quantized.graph)
        self.tensors = {tensor.name: tensor for tensor in quantized.graph.initializer}
        self.tensors |= {tensor.name: tensor for tensor in prepared.proto.graph.initializer}
        self.quantizable = {
            node.name
            for node in self.nodes
            if node.name in self.pair and list(node.input) != list(self.pair[node.name].input)
        }
        self.inputs = [spec.name for spec in prepared.inputs]
        self.outputs = [spec.name for spec in prepared.outputs]
        self.types = value_types(prepared.proto)
        self.last = {name: i for i, node in enumerate(self.nodes) for name in reads(node)}
        self.last |= dict.fromkeys(self.outputs, len(self.nodes))
        self.readers = Counter(name for node in self.nodes for name in set(reads(node)))
        self.readers.update(self.outputs)

    def segments(self, units: Collection[str]) -> list[Segment]:
        """Cut the graph before units, where as few tensors as possible are handed on."""
        marks = [node.name in units for node in self.nodes]
        places = [0, *_cuts(marks, self._widths(), 0, len(marks), 1), len(marks)]
        return [self.segment(start, stop, units) for start, stop in pairwise(places)]

    def segment(self, start: int, stop: int, units: Collection[str] = ()) -> Segment:
        """Return a run of nodes, of which some may be units."""
        written = [name for node in self.nodes[start:stop] for name in node.output if name]
        read = [name for node in self.nodes[start:stop] for name in reads(node)]
        own = set(written)
        new = (name for name in dict.fromkeys(read) if name not in own)
        inputs = tuple(name for name in new if name not in self.tensors)
        outputs = tuple(name for name in written if self.last.get(name, -1) >= stop)
        mine = tuple(node.name for node in self.nodes[start:stop] if node.name in units)
        return Segment(start, stop, inputs, outputs, mine)

    def _widths(self) -> list[int]:
        """Return for each place how many tensors a cut before that node hands on."""
        written = ((name, i) for i, node in enumerate(self.nodes, 1) for name in node.output)
        changes = [0] * (len(self.nodes) + 1)
        for name, first in (dict.fromkeys(self.inputs, 0) | dict(written)).items():
            if first <= (last := self.last.get(name, -1)) < len(self.nodes):
                changes[first] += 1
                changes[last + 1] -= 1
        return list(accumulate(changes[:-1]))

    def part(self, segment: Segment, int8: Collection[str]) -> onnx.ModelProto:
        """Return a segment as a model, these of its nodes quantized."""
        nodes, done = list[onnx.NodeProto](), set[str]()
        for node in self.nodes[segment.start : segment.stop]:
            chosen = self.pair[node.name] if node.name in int8 else node
            for before in self._pairs(chosen) if node.name in int8 else ():
                if before.name not in done:
                    done.add(before.name)
                    nodes.append(before)
            nodes.append(chosen)
        return self.as_model(nodes, segment.inputs, segment.outputs)

    def as_model(
        self, nodes: Sequence[onnx.NodeProto], inputs: Sequence[str], outputs: Sequence[str]
    ) -> onnx.ModelProto:
        """Return nodes as a model, with the constants that they read."""
        first, last = (map(self._value, names) for names in (inputs, outputs))
        return part_of(self.quantized, nodes, self.tensors, first, last)

    def step(
        self,
        session: Session,
        segment: Segment,
        values: Feeds,
        kept: Collection[str] = (),
        instead: Feeds | None = None,
    ) -> Feeds:
        """Run a segment; return what later nodes read, and what is `kept`; it reads `instead` first."""
        read = values | (instead or {})
        inputs = {name: read[name] for name in segment.inputs}
        results = run_session(session, segment.outputs, inputs)
        after = {**values, **dict(zip(segment.outputs, results, strict=True))}
        return {
            name: value
            for name, value in after.items()
            if self.last.get(name, -1) >= segment.stop or name in kept
        }

    def _pairs(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield the Q and DQ before a quantized node, or a new Pad, each after what it reads."""
        own = {name for node in self.nodes for name in node.output}
        for name in set(node.input) - own:
            maker = self.producers.get(name)
            if maker is None or maker.op_type not in ("DequantizeLinear", "Pad"):
                continue
            before = (self.producers.get(name) for name in maker.input[:2])
            yield from (pair for pair in before if pair is not None and pair.op_type in QDQ)
            yield maker

    def _value(self, name: str) -> onnx.ValueInfoProto:
        known = self.types.get(name)
        return known or onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)


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


BATCH = 8
STEP_SAMPLES = 16  # samples
ROOM = 1 << 26  # bytes of samples and of what segments make of them that are kept in memory
TOLERANCE = 0.1  # relative standard error of a layer's mean error power, or of its equal share


class Rerun(AbstractContextManager["Rerun"]):
    """All-float and all-quantized runs of one network, kept up to one segment. A context manager.

    `ops` are the operators of the layers that a plan decides on. `tolerance` is the relative standard
    error that suffices for a loss; 0 takes all samples.
    """

    def __init__(
        self,
        model: Model,
        calibration: Calibration,
        dataset: Dataset,
        samples: int,
        tolerance: float = TOLERANCE,
        reader: TaskReader | None = None,
        precision: str = "int8",
    ) -> None:
        self.tolerance, self.reader = tolerance, reader or TaskReader()
        self.figures = partial(task_rows, self.reader)
        plan = Plan(precision)
        quantized = quantize(model, calibration, plan)
        self.pair = PairedGraph(in_opset_of(model, plan), quantized.proto)
        self.ops = {
            layer.name: layer.op
            for layer in find_layers(model).layers
            if layer.name in self.pair.quantizable
            and (layer.op not in MULTIPLIES or quantized.asked.get(layer.name) == precision)
        }
        self.parts = self.pair.segments(self.ops)
        self.batch = batch_of_rows(self.reader, model, dataset, BATCH)
        self.samples = min(samples, len(dataset))
        self.chosen: dict[str, Collection[str]] = {"float": (), "int8": self.pair.quantizable}
        self.sessions = {
            (kind, place): self._open(self.pair.part(segment, int8))
            for kind, int8 in self.chosen.items()
            for place, segment in enumerate(self.parts)
        }
        self.place = 0  # of the segment that both runs are kept up to
        feeds = dataset.batches(self.batch, 0, self.samples)
        run, threads = partial(self._through, "float", 0), os.cpu_count() or 1
        self.recording = Recording(run, feeds, dataset.labels, ROOM, threads)
        try:
            first = self.recording.first  # read here: batches are measured in several threads
            outputs = {name: first.expected[name] for name in self.pair.outputs}
            self.reader.read(replace(first, expected=outputs))
            self.rows = joined(
                self.recording.rerun(partial(self._through, "int8", 0), self.figures)
            )
        except BaseException:
            self.recording.close()
            raise

    def __exit__(self, *exception: object) -> None:
        self.sessions.clear()
        self.recording.close()
        give_back()

    def segments(self) -> Iterator[tuple[int, Segment]]:
        """Yield every segment, with both runs kept up to it."""
        for place, segment in enumerate(self.parts):
            self.place = place
            yield place, segment
            for kind in self.chosen:
                self.recording.each(partial(self._advance, kind))

    def loss(self, kind: str, place: int, int8: Collection[str]) -> Loss:
        """Return the loss with these nodes of a segment quantized, and all others as in `kind`.

        Every `STEP_SAMPLES` samples it stops if what differs from `kind` is known to the tolerance.
        """
        session = self._open(self.pair.part(self.parts[place], int8))

        def run(number: int) -> Feeds:
            values = self.pair.step(session, self.parts[place], self._kept(kind, number))
            return self._through(kind, place + 1, values)

        parts: list[Rows] = []
        step, numbers = -(-STEP_SAMPLES // self.batch), range(len(self.recording))
        for start in numbers[::step]:
            parts += self.recording.compare(run, self.figures, numbers[start : start + step])
            if self._is_known(kind, joined(parts)["error"]):
                break
        return total(joined(parts))

    def _is_known(self, kind: str, error: Values) -> bool:
        """Tell whether the mean is known as well as is asked, or as a layer's equal share would be."""
        usual = self.rows["error"][: len(error)]
        added = error if kind == "float" else usual - error
        share = usual.mean() / max(len(self.ops), 1)
        most = self.tolerance * max(abs(float(added.mean())), float(share))
        return len(error) > 1 and float(added.std(ddof=1)) / len(error) ** 0.5 <= most

    def whole(self, samples: int | None = None) -> Loss:
        """Return the loss of the all-INT8 run on the first samples, all if None."""
        return total({name: values[:samples] for name, values in self.rows.items()})

    def _kept(self, kind: str, number: int) -> Feeds:
        spill = self.recording.spill
        return spill.get(kind, number) if self.place else self.recording.feeds(number)

    def _through(self, kind: str, start: int, values: Feeds) -> Feeds:
        for place in range(start, len(self.parts)):
            values = self.pair.step(self.sessions[kind, place], self.parts[place], values)
        return values

    @staticmethod
    def _open(part: onnx.ModelProto) -> Session:
        with crashes_as_warnings():
            return open_session(lower(part), 1, arena=False)
        return open_session(part, 1, as_it_is=True, arena=False)

    def _advance(self, kind: str, number: int) -> None:
        session, segment = self.sessions[kind, self.place], self.parts[self.place]
        values = self.pair.step(session, segment, self._kept(kind, number))
        self.recording.spill.keep(kind, number, values)
