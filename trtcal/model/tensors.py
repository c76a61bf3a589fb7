"""What is known of a graph's tensors: who makes and reads them, constants, types, equal values.

Nothing is copied or changed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto

from trtcal.model.files import ITEM_BYTES, array_of, stand_in, subgraphs_of, with_inner
from trtcal.model.graph import STANDARD, held_by
from trtcal.model.model import Model, uniquely_named
from trtcal.model.ops import MOVES, QDQ, SHAPE_ONLY

SEEN_THROUGH = MOVES | QDQ | {"Cast"}
"""Operators that leave a constant one."""
CONSTANT_STEPS = 8


def producers_of(graph: onnx.GraphProto) -> dict[str, NodeProto]:
    """Return the node that makes each tensor of a graph."""
    return {name: node for node in graph.node for name in node.output}


def readers_of(graph: onnx.GraphProto) -> dict[str, list[NodeProto]]:
    """Return the nodes that read each tensor, one that reads it twice two times."""
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    return readers


def constants_of(graph: onnx.GraphProto) -> dict[str, TensorProto]:
    """Return the initializers of a graph and what its Constant nodes hold, by name."""
    nodes = (node for node in graph.node if node.op_type == "Constant")
    pairs = ((node.output[0], held_by(item)) for node in nodes for item in node.attribute)
    constants = {name: tensor for name, tensor in pairs if tensor is not None}
    return {tensor.name: tensor for tensor in graph.initializer} | constants


class View:
    """The main graph of a model; its nodes go by their number, with the names that a build gives them.

    `makers` and `readers` are the nodes that make and read each tensor, `held` what subgraphs read.
    `inner` counts the nodes of subgraphs and functions, which the view leaves out.
    """

    def __init__(self, model: Model) -> None:
        self.proto = uniquely_named(model).proto
        graph = self.proto.graph
        self.nodes: list[NodeProto] = list(graph.node)
        self.operators = [_operator(node) for node in self.nodes]
        self.outputs = {value.name for value in graph.output}
        self.constants = constants_of(graph)
        self.makers: dict[str, int] = {}
        self.readers: dict[str, list[int]] = {}
        self.held: set[str] = set()
        self.inner = sum(len(function.node) for function in self.proto.functions)
        for number, node in enumerate(self.nodes):
            self._take(number, node)

    def _take(self, number: int, node: NodeProto) -> None:
        for name in filter(None, node.output):
            self.makers[name] = number
        if self.operators[number] not in SHAPE_ONLY:
            for name in dict.fromkeys(node.input):
                self.readers.setdefault(name, []).append(number)
        for part in (part for holder in with_inner([node]) for part in subgraphs_of(holder)):
            self.inner += len(part.node)
            self.held.update(name for inner in part.node for name in inner.input)
            self.held.update(value.name for value in part.output)

    def maker(self, tensor: str) -> int | None:
        """Return the number of the node of which a tensor is the first output."""
        number = self.makers.get(tensor)
        return number if number is not None and self.nodes[number].output[0] == tensor else None

    def is_constant(self, tensor: str) -> bool:
        """Tell whether a tensor is a constant, or made of one by what does not compute."""
        for _ in range(CONSTANT_STEPS):
            if tensor in self.constants:
                return True
            number = self.maker(tensor)
            if number is None or self.operators[number] not in SEEN_THROUGH:
                return False
            tensor = next(iter(self.nodes[number].input), "")
        return False

    def values(self, tensor: str) -> npt.NDArray[Any] | None:
        """Return a constant's values, None if it is none or they can't be read."""
        constant = self.constants.get(tensor)
        if constant is None or constant.data_type not in NUMBERS:
            return None
        try:
            return array_of(constant)
        except (OSError, TypeError, ValueError):  # the checker lets short data pass
            return None

    def number(self, tensor: str) -> float | None:
        """Return the value of a constant that has one only."""
        constant = self.constants.get(tensor)
        if constant is None or any(size != 1 for size in constant.dims):
            return None
        values = self.values(tensor)
        return None if values is None or values.size != 1 else float(values.reshape(-1)[0])

    @cached_property
    def known(self) -> Mapping[str, tuple[int, tuple[int, ...] | None]]:
        """The ONNX type of each tensor and its shape, if known, with 1 for a size that is not."""
        try:
            proto = onnx.shape_inference.infer_shapes(stand_in(self.proto), data_prop=True)
        except Exception:  # it raises what it likes: then only what the model says is known
            proto = self.proto
        graph = proto.graph
        values = (*graph.input, *graph.value_info, *graph.output)
        return {value.name: _known(value) for value in values if value.type.HasField("tensor_type")}

    def type_of(self, tensor: str) -> int | None:
        """Return the number that ONNX gives a tensor's type, None if it is not known."""
        return self.known.get(tensor, (None, None))[0]

    def size_bytes(self, tensor: str) -> int | None:
        """Return the bytes of a tensor, with 1 for a size that is known at run time only."""
        kind, shape = self.known.get(tensor, (0, None))
        if shape is None or kind not in ITEM_BYTES:
            return None
        return ITEM_BYTES[kind] * math.prod(shape)


NUMBERS = (
    TensorProto.BOOL,
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.DOUBLE,
    TensorProto.INT32,
    TensorProto.INT64,
)


def _operator(node: NodeProto) -> str:
    return node.op_type if node.domain in STANDARD else f"{node.domain}::{node.op_type}"


def _known(value: onnx.ValueInfoProto) -> tuple[int, tuple[int, ...] | None]:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    return tensor.elem_type, tuple(max(dim.dim_value, 1) for dim in tensor.shape.dim)


def sources(proto: onnx.ModelProto, tensors: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return for every tensor those whose histograms add up to its own; itself if there are none."""
    producers = producers_of(proto.graph)
    constants = {tensor.name for tensor in proto.graph.initializer}
    constants |= {name for name, node in producers.items() if node.op_type == "Constant"}
    return {name: _sources(name, producers, constants) for name in tensors}


def groups(
    needed: Mapping[str, Sequence[str]], separate: Collection[str] = ()
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return into whose histogram each source is counted, and which histograms make up each tensor's.

    Sources that are only ever summed together share one histogram, so that a Concat of many takes no
    more memory than a tensor. Those in `separate` have one of their own.
    """
    uses: dict[str, Counter[str]] = {}
    for tensor, parts in needed.items():
        for part in parts:
            uses.setdefault(part, Counter())[tensor] += 1
    first: dict[object, str] = {}
    into = {}
    for part in sorted(uses):
        key = part if part in separate else tuple(sorted(uses[part].items()))
        into[part] = first.setdefault(key, part)
    sums = {}
    for tensor, parts in needed.items():
        names = sorted({into[part] for part in parts})
        sums[tensor] = [name for name in names for _ in range(uses[name][tensor])]
    return into, sums


def _sources(
    name: str, producers: dict[str, onnx.NodeProto], constants: set[str]
) -> tuple[str, ...]:
    pending, names = [name], list[str]()
    while pending:
        tensor = pending.pop()
        node = producers.get(tensor)
        if node is not None and node.op_type in MOVES and node.input[0] not in constants:
            pending.append(node.input[0])
        elif node is not None and node.op_type == "Concat" and constants.isdisjoint(node.input):
            pending.extend(node.input)
        else:
            names.append(tensor)
    return tuple(sorted(names))
