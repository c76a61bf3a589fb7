"""What a network has to do: its kernels, and the tensors that they read and write.

A kernel is a layer with the light nodes behind it that a compiler computes in its epilogue, or a node
that stands alone. Only what goes from kernel to kernel is stored. This is a model of what a compiler
makes, to choose plans by; what it really makes, the builds that follow tell.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from trtcal.backends.sessions import open_session, run_session
from trtcal.backends.taps import showing
from trtcal.data import Feeds
from trtcal.model import Model
from trtcal.model.graph import constant, import_graph
from trtcal.model.ops import CONVOLUTIONS, EPILOGUE, FREE, MULTIPLIES, UNTYPED
from trtcal.quantization.weighted_ops import readers


@dataclass(frozen=True)
class Read:
    """A tensor that a kernel reads, in the precision of the layer `unit`.

    Without a unit it is read as float, or, if the kernel moves values, as what it writes.
    """

    tensor: str
    unit: str | None = None


@dataclass(frozen=True)
class Kernel:
    """One kernel: `macs` multiply-accumulates, `weights` constants, one tensor written.

    `moves` says that it takes and gives values of any type, `free` that it costs nothing.
    """

    name: str
    unit: str | None
    reads: tuple[Read, ...]
    writes: str
    macs: int = 0
    weights: int = 0
    moves: bool = False
    free: bool = False


@dataclass(frozen=True)
class Work:
    """All kernels in graph order, how many values each tensor has, and those read by the user."""

    kernels: tuple[Kernel, ...]
    sizes: Mapping[str, int]
    shown: tuple[str, ...]


def work_of(model: Model, units: Collection[str], feeds: Feeds) -> Work:
    """Return the work of a prepared model for one batch, whose shapes decide the sizes."""
    graph = import_graph(model.proto)
    shapes = _shapes(model.proto, feeds)
    finder = _Finder(graph, set(units), shapes)
    kernels = tuple(finder.kernels())
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    return Work(kernels, sizes, tuple(tensor.name for tensor in graph.outputs))


def _shapes(proto: onnx.ModelProto, feeds: Feeds) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors, as they are when the model runs."""
    names = list(dict.fromkeys(name for node in proto.graph.node for name in node.output if name))
    arrays = run_session(open_session(showing(proto, names), as_it_is=True), names, dict(feeds))
    made = {name: array.shape for name, array in zip(names, arrays, strict=True)}
    return {name: array.shape for name, array in feeds.items()} | made


class _Finder:
    """Walks the graph once and takes light nodes into the kernels before them."""

    def __init__(
        self, graph: gs.Graph, units: set[str], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.graph, self.units, self.shapes = graph, units, shapes
        self.order = {node.name: number for number, node in enumerate(graph.nodes)}
        self.shown = {tensor.name for tensor in graph.outputs}
        self.taken = set[str]()

    def kernels(self) -> Iterator[Kernel]:
        for node in self.graph.nodes:
            if node.name not in self.taken and any(t.name in self.shapes for t in node.outputs):
                yield self._kernel(node)

    def _kernel(self, node: gs.Node) -> Kernel:
        unit = self._unit(node)
        reads = [Read(t.name, unit) for t in node.inputs if t.name in self.shapes]
        last = node
        while node.op in MULTIPLIES and (following := self._epilogue(last, node)) is not None:
            self.taken.add(following.name)
            before = {t.name for t in last.outputs}
            others = [t.name for t in following.inputs if t.name not in before]
            reads += [Read(n, self._unit(following)) for n in others if n in self.shapes]
            last = following
        return Kernel(
            node.name,
            unit,
            tuple(reads),
            last.outputs[0].name,
            self._macs(node),
            self._weights(node),
            node.op in UNTYPED,
            node.op in FREE,
        )

    def _unit(self, node: gs.Node) -> str | None:
        return node.name if node.name in self.units else None

    def _epilogue(self, node: gs.Node, head: gs.Node) -> gs.Node | None:
        """Return the light node that alone reads a node's result, if all else is there by then."""
        found = [reader for tensor in node.outputs for reader, _ in readers(tensor)]
        if len(found) != 1 or node.outputs[0].name in self.shown or found[0].op not in EPILOGUE:
            return None
        producers = [p for t in found[0].inputs for p in t.inputs if p is not node]
        ready = all(self.order[one.name] < self.order[head.name] for one in producers)
        return found[0] if ready else None

    def _weights(self, node: gs.Node) -> int:
        constants = (
            [constant(tensor) for tensor in node.inputs[:2]] if node.op in MULTIPLIES else []
        )
        return sum(value.size for value in constants if value is not None)

    def _macs(self, node: gs.Node) -> int:
        """Return multiply-accumulates of a layer that multiplies, 0 of others."""
        if node.op not in MULTIPLIES:
            return 0
        shapes = [self._shape(tensor) for tensor in node.inputs[:2]]
        made = self.shapes[node.outputs[0].name]
        if node.op in CONVOLUTIONS:
            image = made if node.op == "Conv" else shapes[0]
            return math.prod(shapes[1]) * math.prod(image[2:]) * image[0]
        if node.op == "Einsum":
            return _einsum_macs(node.attrs["equation"], shapes)
        summed = shapes[0][0 if node.attrs.get("transA", 0) else -1]
        return math.prod(made) * summed

    def _shape(self, tensor: gs.Tensor) -> tuple[int, ...]:
        value = constant(tensor)
        return self.shapes[tensor.name] if value is None else np.shape(value)


def _einsum_macs(equation: str, shapes: list[tuple[int, ...]]) -> int:
    """Return the product of the sizes of all letters."""
    operands = equation.replace(" ", "").partition("->")[0].split(",")
    pairs = zip(operands, shapes, strict=True)
    sizes = {
        letter: size
        for letters, shape in pairs
        for letter, size in zip(letters, shape, strict=True)
    }
    return math.prod(sizes.values())
