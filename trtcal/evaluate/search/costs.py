"""What a plan costs in time: an estimate for a GPU by its datasheet, or measured layer times.

Each kernel takes as long as its bytes or its multiplications take, whichever is longer
(`trtcal.evidence.layers.costs`). A tensor is stored in every precision in which it is read, and
once more in float where the layer that makes it is float; where that is twice, a cast reads it again.
"""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx
import onnx_graphsurgeon as gs

from trtcal.backends.sessions import open_session, run_once
from trtcal.backends.taps import showing
from trtcal.data import Feeds
from trtcal.errors import InputError
from trtcal.evidence.layers.costs import Target
from trtcal.evidence.layers.reading import Engine
from trtcal.model import Model, work
from trtcal.model.graph import import_graph
from trtcal.model.ops import EPILOGUE, FREE, MULTIPLIES, UNTYPED
from trtcal.model.shapes import Shape
from trtcal.quantization.coverage import Coverage, cover
from trtcal.quantization.weighted_ops import readers, weight_count


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
    """All kernels in graph order, how many values each tensor has, and those read by the user.

    `counted` is the work of every node, bodies included.
    """

    kernels: tuple[Kernel, ...]
    sizes: Mapping[str, int]
    shown: tuple[str, ...]
    counted: work.Work = field(default_factory=lambda: work.Work((), {}))

    def coverage(self, int8: Collection[str]) -> Coverage:
        """Return how much of the compute a plan with these layers in INT8 asks for."""
        kept = {one.name: "left out of INT8 by this plan" for one in self.kernels if one.unit}
        return cover(self.counted, dict.fromkeys(int8, "int8"), kept)


def work_of(model: Model, units: Collection[str], feeds: Feeds) -> Work:
    """Return the work of a prepared model for one batch, whose shapes decide the sizes."""
    graph = import_graph(model.proto)
    shapes = _shapes(model.proto, feeds)
    counted = work.count_work(model, shapes)
    finder = _Finder(graph, set(units), shapes, counted.by_root)
    kernels = tuple(finder.kernels())
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    return Work(kernels, sizes, tuple(tensor.name for tensor in graph.outputs), counted)


def _shapes(proto: onnx.ModelProto, feeds: Feeds) -> dict[str, Shape]:
    """Return the shapes of all tensors, as they are when the model runs."""
    names = list(dict.fromkeys(name for node in proto.graph.node for name in node.output if name))
    session = open_session(showing(proto, names), as_it_is=True)
    feeds = session.runs_of(feeds)[0]
    arrays = run_once(session, names, feeds)
    made = {name: array.shape for name, array in zip(names, arrays, strict=True)}
    return {name: array.shape for name, array in feeds.items()} | made


class _Finder:
    """Walks the graph once and takes light nodes into the kernels before them."""

    def __init__(
        self,
        graph: gs.Graph,
        units: set[str],
        shapes: Mapping[str, Shape],
        macs: Mapping[str, int | None],
    ) -> None:
        self.graph, self.units, self.shapes, self.macs = graph, units, shapes, macs
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
            self.macs.get(node.name) or 0,
            weight_count(node),
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


FLOAT_BYTES = {"fp16": 2, "fp32": 4}
Times = Mapping[str, tuple[float, float]]
"""Layer -> ms of its kernel in INT8 and in float."""
Listed = Sequence[tuple[str, str, str, int]]
"""Layers of an engine in order: name, kind, precision, bytes moved."""
NUMBERED = re.compile(r"_myl\d+_\d+$")  # what TensorRT-RTX puts behind a node's name


Terms = dict[str, float]
"""Factors by variable, each of which is 1 or 0: `x LAYER` where a layer is in INT8, `i TENSOR` and
`f TENSOR` where a tensor is stored in INT8 and in float."""


def storage_rules(kernel: Kernel) -> Iterator[tuple[str, str | None, bool]]:
    """Yield what a kernel needs stored, and the variable and its value that decide it, None for always.

    What a kernel reads is decided by what is known of its result.
    """
    as_float, as_int8 = f"f {kernel.writes}", f"i {kernel.writes}"
    if kernel.unit is not None:
        yield as_float, f"x {kernel.unit}", False
    else:
        yield as_float, as_int8 if kernel.moves else None, False
    for read in kernel.reads:
        if kernel.moves:
            yield f"f {read.tensor}", as_float, True
            yield f"i {read.tensor}", as_int8, True
        elif read.unit is None:
            yield f"f {read.tensor}", None, True
        else:
            yield f"f {read.tensor}", f"x {read.unit}", False
            yield f"i {read.tensor}", f"x {read.unit}", True


@dataclass(frozen=True)
class Costs:
    """Prices of one network's work on a GPU; `precision` is what is not INT8: fp16 or fp32."""

    work: Work
    target: Target
    precision: str = "fp16"
    times: Times = field(default_factory=dict)
    source: str = "the kernels of the model with the expected fusions"
    fp32_ms: float | None = None

    @property
    def label(self) -> str:
        """What the figures are."""
        return f"{self.source}; the rest is an estimate from the datasheet of {self.target.name}"

    @property
    def baseline_ms(self) -> float:
        """What the network takes in FP32, over which plans are faster; of given times, all float."""
        if self.fp32_ms is not None:
            return self.fp32_ms
        baseline = self if self.times else replace(self, precision="fp32")
        return baseline.plan_ms(())

    @property
    def float_bytes(self) -> int:
        """Bytes of a value that is not INT8."""
        return FLOAT_BYTES[self.precision]

    def memory_ms(self, size_bytes: float) -> float:
        """Return how long it takes to move bytes."""
        return size_bytes / self.target.bandwidth_gb_s / 1e6

    def compute_ms(self, kernel: Kernel, is_int8: bool) -> float:
        """Return how long a kernel multiplies."""
        gpu = self.target  # TensorRT takes TF32 for float32 layers where the GPU has it
        floats = gpu.fp16_tflops if self.precision == "fp16" else gpu.tf32_tflops or gpu.fp32_tflops
        return 2 * kernel.macs / (gpu.int8_tops if is_int8 else floats) / 1e9

    def plan_ms(self, int8: Collection[str]) -> float:
        """Return what a plan takes with these layers in INT8."""
        stored = self.stored(int8)
        pairs = zip(self.work.kernels, self.moved_bytes, strict=True)
        kernels = sum(self._kernel_ms(one, *moved, stored) for one, moved in pairs)
        return kernels + sum(
            self.cast_ms(name) for name in self.work.sizes if _is_cast(name, stored)
        )

    def cast_ms(self, tensor: str) -> float:
        """Return what a cast takes: it reads the float values; what it writes is stored anyway."""
        return self.memory_ms(self.work.sizes[tensor] * self.float_bytes)

    def stored(self, int8: Collection[str]) -> set[str]:
        """Return the variables that are 1 in a plan, from the last reader to the first."""
        found = {*(f"x {name}" for name in int8), *(f"f {name}" for name in self.work.shown)}
        for kernel in reversed(self.work.kernels):
            for stored, decides, value in storage_rules(kernel):
                if decides is None or (decides in found) == value:
                    found.add(stored)
        return found

    @functools.cached_property
    def moved_bytes(self) -> list[tuple[Terms, float]]:
        """What each kernel moves by variable (less where a layer is in INT8), and in any case."""
        return list(map(self._moved_by, self.work.kernels))

    def _moved_by(self, kernel: Kernel) -> tuple[Terms, float]:
        terms: Terms = defaultdict(float)
        less, fixed = 1.0 - self.float_bytes, float(kernel.weights * self.float_bytes)
        if kernel.unit is not None:
            terms[f"x {kernel.unit}"] = kernel.weights * less
        passed = [read.tensor for read in kernel.reads] if kernel.moves else []
        for size in (self.work.sizes[name] for name in (kernel.writes, *passed)):
            terms[f"i {kernel.writes}"] += size
            terms[f"f {kernel.writes}"] += size * self.float_bytes
        for read in () if kernel.moves else kernel.reads:
            size = self.work.sizes[read.tensor]
            fixed += size * self.float_bytes
            if read.unit is not None:
                terms[f"x {read.unit}"] += size * less
        return terms, fixed

    def _kernel_ms(
        self, kernel: Kernel, terms: Terms, fixed: float, stored: Collection[str]
    ) -> float:
        is_int8 = kernel.unit is not None and f"x {kernel.unit}" in stored
        if kernel.free:
            return 0.0
        if kernel.unit in self.times:
            return self.times[str(kernel.unit)][0 if is_int8 else 1]
        moved = fixed + sum(one for name, one in terms.items() if name in stored)
        return max(self.memory_ms(moved), self.compute_ms(kernel, is_int8))


def _is_cast(tensor: str, stored: Collection[str]) -> bool:
    """Tell whether a cast makes one form of a tensor from the other."""
    return f"i {tensor}" in stored and f"f {tensor}" in stored


def measured_times(units: Collection[str], int8: Engine, floats: Engine) -> Times:
    """Return times of layers from two timed engines; `InputError` if one has none.

    A kernel's time goes to the first of its layers, as the others are computed in it.
    """
    pair = [_times(units, engine) for engine in (int8, floats)]
    return {name: (pair[0][name], pair[1][name]) for name in pair[0] if name in pair[1]}


def listed_times(costs: Costs, int8: Listed, floats: Listed) -> Times:
    """Return estimates for the layers that a compiler made, of an all-INT8 and of an all-float engine.

    They have the copies and the steps of Q/DQ that it did not fuse. A layer that comes from no kernel
    of ours goes to the one before it. Multiplications are counted as in `work`.
    """
    kernels = {one.unit: one for one in costs.work.kernels if one.unit is not None}
    moved = [_moved(set(kernels), layers) for layers in (int8, floats)]

    def longest(unit: str, is_int8: bool) -> float:
        memory = costs.memory_ms(moved[0 if is_int8 else 1].get(unit, 0))
        return max(memory, costs.compute_ms(kernels[unit], is_int8))

    return {unit: (longest(unit, True), longest(unit, False)) for unit in kernels}


def _moved(units: Collection[str], layers: Listed) -> dict[str, int]:
    found: dict[str, int] = {}
    last: str | None = None
    for name, _, _, size_bytes in layers:
        pieces = [NUMBERED.sub("", piece) for piece in name.split(" + ")]
        last = next((piece for piece in pieces if piece in units), last)
        if last is not None:
            found[last] = found.get(last, 0) + size_bytes
    return found


def _times(units: Collection[str], engine: Engine) -> dict[str, float]:
    if not engine.is_timed:
        raise InputError(
            f"{engine.source} has no layer times", "build it with --layer-times on the GPU"
        )
    found: dict[str, float] = {}
    for layer in engine.layers:
        mine = [node for node in layer.nodes if node in units]
        if mine and layer.time_ms is not None:
            found[mine[0]] = found.get(mine[0], 0.0) + layer.time_ms
    return found
