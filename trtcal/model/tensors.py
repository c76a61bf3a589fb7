"""What is known of a graph's tensors: who makes and reads them, constants, types, equal values.

Nothing is copied or changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto

from trtcal.model.files import ITEM_BYTES, array_of, stand_in, subgraphs_of, with_inner
from trtcal.model.graph import held_by
from trtcal.model.model import Model, uniquely_named
from trtcal.model.ops import MOVES, QDQ, SHAPE_ONLY
from trtcal.model.shapes import UNKNOWN, Tensor, operator

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
        self.operators = [operator(node) for node in self.nodes]
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
        if constant is None or constant.data_type not in ITEM_BYTES:
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
    def known(self) -> Mapping[str, Tensor]:
        """What is known of each tensor, with 1 for a size that is not."""
        return {name: _known(value) for name, value in value_types(self.proto).items()}

    def type_of(self, tensor: str) -> int | None:
        """Return the number that ONNX gives a tensor's type, None if it is not known."""
        return self.known.get(tensor, UNKNOWN).kind or None

    def size_bytes(self, tensor: str) -> int | None:
        """Return the bytes of a tensor, with 1 for a size that is known at run time only."""
        return self.known.get(tensor, UNKNOWN).size_bytes


def value_types(proto: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Return what is known of the tensors of a model's main graph, without those of unknown type."""
    try:
        graph = onnx.shape_inference.infer_shapes(stand_in(proto), data_prop=True).graph
    except Exception:  # it raises what it likes: then only what the model says is known
        graph = proto.graph
    values = (*graph.value_info, *graph.input, *graph.output)
    return {value.name: value for value in values if value.type.tensor_type.elem_type}


def _known(value: onnx.ValueInfoProto) -> Tensor:
    tensor = value.type.tensor_type
    sizes = tuple(max(dim.dim_value, 1) for dim in tensor.shape.dim)
    return Tensor(tensor.elem_type, sizes if tensor.HasField("shape") else None)


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


def _sources(name: str, makers: dict[str, onnx.NodeProto], constants: set[str]) -> tuple[str, ...]:
    pending, names = [name], list[str]()
    while pending:
        tensor = pending.pop()
        node = makers.get(tensor)
        if node is not None and node.op_type in MOVES and node.input[0] not in constants:
            pending.append(node.input[0])
        elif node is not None and node.op_type == "Concat" and constants.isdisjoint(node.input):
            pending.extend(node.input)
        else:
            names.append(tensor)
    return tuple(sorted(names))
