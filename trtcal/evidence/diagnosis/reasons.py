"""Why nodes lost the precision that was asked: first what the log says, then what the graph shows."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from trtcal.evidence.diagnosis.log_findings import Placed
from trtcal.evidence.findings import KINDS
from trtcal.evidence.layers.layer import nodes_in_name
from trtcal.evidence.layers.outcomes import Outcome
from trtcal.evidence.log.recognition import CATEGORIES
from trtcal.formats import RANGED, WEIGHTS_ONLY
from trtcal.model.files import attribute_of
from trtcal.model.graph import STANDARD
from trtcal.model.ops import MOVES, MULTIPLIES, QDQ, output_axis
from trtcal.model.tensors import constants_of, producers_of
from trtcal.quantization.qdq import asked_precisions
from trtcal.quantization.weighted_ops import ONE_SIDED, REFUSED

DEQUANTIZE, QUANTIZE = "DequantizeLinear", "QuantizeLinear"
LACKED_TYPES = {TensorProto.INT16, TensorProto.UINT16}
INTEGER_OPERATORS = "integer_operators"
MAX_STEPS = 8  # how far above an operand a DQ is searched
TRANSPARENT = MOVES | {"Slice"}  # a DQ may stand above these: they leave values as they are


@dataclass(frozen=True)
class Fault:
    """Why a node's Q/DQ cannot give INT8: `cause` is a kind of finding, `what` a sentence about it.

    `fix` is what to do, where the kind does not say it better.
    """

    cause: str
    what: str
    fix: str = ""


def find_faults(proto: onnx.ModelProto) -> dict[str, Fault]:
    """Return node -> the first fault of its Q/DQ, for heavy nodes of the main graph.

    Nodes without any Q/DQ at their operands have none, and so have those whose Q/DQ is as TensorRT
    wants it, or for weights alone: what those lose, they lose for another reason.
    """
    graph, precisions = _Graph(proto), asked_precisions(proto)
    nodes = (node for node in proto.graph.node if precisions.get(node.name) not in WEIGHTS_ONLY)
    faults = ((node.name, next(graph.faults(node), None)) for node in nodes)
    return {name: fault for name, fault in faults if fault}


def find_refused(proto: onnx.ModelProto) -> dict[str, list[tuple[str, str]]]:
    """Return kind -> node and detail of what TensorRT refuses or misreads, in the whole main graph.

    A pair counts once, by its Q. Beside integer operators nothing else counts: they need another model.
    """
    graph, refused = _Graph(proto), defaultdict[str, list[tuple[str, str]]](list)
    computed = {value.name for value in proto.graph.input} - graph.constants.keys()
    for node in proto.graph.node:
        for kind, detail in graph.refused(node, computed):
            refused[kind].append((node.name, detail))
        if not computed.isdisjoint(node.input):
            computed.update(node.output)
    integer = refused.get(INTEGER_OPERATORS)
    return {INTEGER_OPERATORS: integer} if integer else refused


class _Graph:
    def __init__(self, proto: onnx.ModelProto) -> None:
        self.producers, self.constants = producers_of(proto.graph), constants_of(proto.graph)

    def refused(self, node: onnx.NodeProto, computed: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield kind and detail of what is refused of a node; `computed` tensors need the inputs."""
        names = (name for name in reversed(node.input) if name in self.constants)
        stored = {self.constants[name].data_type: repr(name) for name in names}
        maker = self.producers.get(node.input[0]) if node.input else None
        if node.op_type in REFUSED or node.op_type.startswith("QLinear"):
            yield INTEGER_OPERATORS, node.op_type
        elif node.op_type not in QDQ:
            if TensorProto.INT8 in stored and node.domain in STANDARD:
                yield "stored_integers", stored[TensorProto.INT8]
        elif maker is None or maker.op_type != QUANTIZE:
            yield from self._of_pair(node, stored)
            if node.input[1] in computed:
                yield "computed_scale", repr(node.input[1])

    def _of_pair(self, node: onnx.NodeProto, stored: dict[int, str]) -> Iterator[tuple[str, str]]:
        points = self.array(node.input[2]) if len(node.input) > 2 else None
        if TensorProto.INT32 in stored:
            yield "quantized_bias", stored[TensorProto.INT32]
        for lacked in stored.keys() & LACKED_TYPES:
            yield "qdq_type", TensorProto.DataType.Name(lacked)
        if points is not None and (nonzero := points[points.astype(np.int64) != 0]).size:
            yield "zero_point", f"{nonzero[0]}, {nonzero.dtype}"
        elif TensorProto.UINT8 in stored:
            yield "unsigned_codes", stored[TensorProto.UINT8]

    def faults(self, node: onnx.NodeProto) -> Iterator[Fault]:
        """Yield what is wrong with a node's Q/DQ, the gravest first."""
        operands = node.input[:2]
        above = [self.dequantizer_above(name) for name in operands]
        if node.op_type not in MULTIPLIES or len(operands) < 2 or not any(above):
            return
        for index, dequantizer in enumerate(above):
            if dequantizer is not None:
                yield from self._at_operand(node, index, dequantizer)
                yield from self._between(node, index)
        if not all(above):
            is_weight = above[0] is not None and node.op_type != "MatMul"
            missing = "weights" if is_weight else f"{'second' if above[0] else 'first'} operand"
            yield Fault("one_sided", f"{ONE_SIDED}: none at its {missing}")

    def _between(self, node: onnx.NodeProto, index: int) -> Iterator[Fault]:
        between = self.producers[node.input[index]]
        if between.op_type != DEQUANTIZE and node.op_type != "MatMul":
            what = f"{between.op_type} {between.name!r} is between its Q/DQ and its operand {index}"
            fix = "put a second Q/DQ after it, because its output is not quantized"
            if between.op_type in TRANSPARENT:
                fix = "put the Q/DQ after it, directly before the node"
            yield Fault("not_adjacent", what, fix)

    def dequantizer(self, name: str) -> onnx.NodeProto | None:
        node = self.producers.get(name)
        return node if node is not None and node.op_type == DEQUANTIZE else None

    def dequantizer_above(self, name: str) -> onnx.NodeProto | None:
        """Return the DQ from which a tensor comes through nodes of one data input."""
        for _ in range(MAX_STEPS):
            node = self.producers.get(name)
            if node is None or node.op_type == DEQUANTIZE or not node.input:
                return self.dequantizer(name)
            if len([name for name in node.input if name not in self.constants]) != 1:
                return None
            name = node.input[0]
        return None

    def weight_shape(self, dequantizer: onnx.NodeProto) -> tuple[int, ...] | None:
        """Return a dequantized constant's shape, None for an activation."""
        name = dequantizer.input[0]
        quantizer = self.producers.get(name)
        if quantizer is not None and quantizer.op_type in (QUANTIZE, "Clip"):
            name = quantizer.input[0]
        tensor = self.constants.get(name)
        return None if tensor is None else tuple(tensor.dims)

    def array(self, name: str) -> np.ndarray | None:
        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def _at_operand(
        self, node: onnx.NodeProto, index: int, dequantizer: onnx.NodeProto
    ) -> Iterator[Fault]:
        """Yield what is wrong with the scale and zero point of an operand."""
        word = "second" if index else "first"
        scale = self.array(dequantizer.input[1]) if len(dequantizer.input) > 1 else None
        if scale is None:
            return
        scale = scale.astype(np.float64)
        if not (np.isfinite(scale).all() and (scale >= np.finfo(np.float32).tiny).all()):
            what = "is zero, negative, denormal, infinite or not a number"
            yield Fault("bad_scale", f"a scale of its {word} operand {what}")
        shape = self.weight_shape(dequantizer)
        if "block_size" in (attribute.name for attribute in dequantizer.attribute if attribute.i):
            wrong = "for which TensorRT-RTX 1.7 computes wrong results"
            yield Fault("blocked_weights", f"its INT8 weights have one scale per block, {wrong}")
        elif scale.shape == (1,) and shape is None and node.op_type == "Conv":
            what = "the scale of its activation has the shape [1], and is not a scalar"
            yield Fault("vector_scale", what)
        elif scale.size > 1 and shape is None:
            yield Fault("per_channel_activation", "its activation has one scale per channel")
        elif scale.size > 1 and shape is not None:
            yield from _axis_faults(node, index, dequantizer, shape)


def _axis_faults(
    node: onnx.NodeProto, index: int, dequantizer: onnx.NodeProto, shape: tuple[int, ...]
) -> Iterator[Fault]:
    """Yield a fault if the scales of a weight lie on another axis than its output channels."""
    if node.op_type == "Einsum" or (node.op_type == "MatMul" and index == 0):
        return  # no rule is known
    transposed = bool(attribute_of(node, "transB", 0))
    channel_axis = output_axis(node.op_type, transposed) % len(shape)
    axis = attribute_of(dequantizer, "axis", 1) % len(shape)
    if axis != channel_axis:
        what = f"its weight scales are on axis {axis}, its output channels on axis {channel_axis}"
        fix = f"quantize the weights along axis {channel_axis}, or use one scale for all weights"
        yield Fault("wrong_axis", what, fix)


MISSING_RANGE = "missing_range"
MAX_EVENTS = 5  # events for each name


class Mentions:
    """Which events of a log speak about a node: by its name, or by that of a tensor of its."""

    def __init__(self, events: Iterable[Placed]) -> None:
        self.by_name: dict[str, list[Placed]] = defaultdict(list)
        self.slower: list[Placed] = []
        for placed in events:
            self._note(placed)

    def _note(self, placed: Placed) -> None:
        event = placed[1]
        if "slower" in event.tags and event.subject is None:
            self.slower.append(placed)
        if not CATEGORIES[event.category].cause or event.subject is None:
            return
        for name in dict.fromkeys((event.subject, *nodes_in_name(event.subject))):
            if len(self.by_name[name]) < MAX_EVENTS:
                self.by_name[name].append(placed)

    def of(self, node: str, tensors: Iterable[str] = ()) -> list[Placed]:
        """Return the events about a node, those about its tensors first."""
        placed = (event for name in tensors for event in self.by_name.get(name, ()))
        about = [item for item in placed if item[1].category == "uncalibrated"]
        return about + [item for item in self.by_name.get(node, ()) if item not in about]


def explain(
    outcomes: Sequence[Outcome], proto: onnx.ModelProto, mentions: Mentions
) -> tuple[Outcome, ...]:
    """Return the outcomes with reason, hint and cause for those lost, as far as these are known.

    A line of the log that names the node or a tensor of its counts most, then the structure of its
    Q/DQ. Without either, what the backend reported stays.
    """
    faults, tensors = find_faults(proto), tensors_of(proto)
    return tuple(
        _explained(outcome, mentions, tensors.get(outcome.node, ()), faults.get(outcome.node))
        if outcome.is_lost
        else outcome
        for outcome in outcomes
    )


def tensors_of(proto: onnx.ModelProto) -> dict[str, tuple[str, ...]]:
    """Return node -> the tensors that it reads and writes."""
    return {node.name: (*node.input, *node.output) for node in proto.graph.node}


def _explained(
    outcome: Outcome, mentions: Mentions, tensors: Iterable[str], fault: Fault | None
) -> Outcome:
    events = mentions.of(outcome.node, tensors)
    is_open = fault is None and outcome.asked == "int8" and not outcome.cause
    if events or (is_open and mentions.slower):
        return _from_log(outcome, (events or mentions.slower)[0])
    if fault is None or outcome.asked not in RANGED:
        return outcome
    reason, hint = f"it runs in {outcome.got}: {fault.what}", fault.fix or KINDS[fault.cause].fix
    return dataclasses.replace(outcome, reason=reason, hint=hint, cause=fault.cause)


def _from_log(outcome: Outcome, placed: Placed) -> Outcome:
    source, event = placed
    message = event.message.partition("\n")[0][:300]
    reason = f"it runs in {outcome.got}: {source}, line {event.line}, says: {message}"
    hint = event.rule.fix if event.rule else outcome.hint
    cause = "slower" if "slower" in event.tags else CATEGORIES[event.category].cause
    return dataclasses.replace(outcome, reason=reason, hint=hint, cause=cause)
