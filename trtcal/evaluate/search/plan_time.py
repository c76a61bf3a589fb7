"""What a plan costs in time: an estimate for a GPU, or measured layer times.

Each kernel takes its launch, and as long as its bytes or its multiplications take, whichever is
longer (`trtcal.evidence.times`). A tensor is stored in every precision in which it is read, and
once more in float where the layer that makes it is float; where that is twice, a cast reads it again.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import onnx
import onnx_graphsurgeon as gs

from trtcal.backends.sessions import open_session, run_once
from trtcal.backends.taps import showing
from trtcal.data import Feeds
from trtcal.errors import InputError
from trtcal.evaluate.search.limits import Unit, split, unit_of
from trtcal.evidence import times as kernel_times
from trtcal.evidence.gpus import Target
from trtcal.evidence.layers.predicted import fused_nodes
from trtcal.evidence.times import SpeedupEstimate, TimeEstimate
from trtcal.formats import FORMATS, PRECISIONS, RANGED
from trtcal.model import Model, work
from trtcal.model.graph import import_graph
from trtcal.model.ops import FREE, MULTIPLIES, UNTYPED
from trtcal.model.shapes import Shape
from trtcal.quantization.coverage import Coverage, cover
from trtcal.quantization.weighted_ops import weight_count

if TYPE_CHECKING:
    from trtcal.evidence.layers.reading import Engine


@dataclass(frozen=True)
class Kernel:
    """One kernel: `macs` multiply-accumulates, `weights` constants, one tensor written.

    It `reads` tensors, each in the precision of a layer; without one as float, or, if the kernel moves
    values, as what it writes. `moves` says that it takes and gives values of any type, `free` that it
    costs nothing.
    """

    name: str
    unit: str | None
    reads: tuple[tuple[str, str | None], ...]
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

    def coverage(self, plan: Collection[Unit]) -> Coverage:
        """Return how much of the compute a plan asks for in INT8."""
        chosen = dict(map(split, plan))
        units = (kernel.name for kernel in self.kernels if kernel.unit)
        forms = {name: f"in {form.upper()}" for name, form in chosen.items()}
        kept = {name: f"{forms.get(name, 'left in float')} by this plan" for name in units}
        return cover(self.counted, chosen, kept)


def work_of(model: Model, units: Collection[str], feeds: Feeds) -> Work:
    """Return the work of a prepared model for one batch, whose shapes decide the sizes.

    Its kernels are those that TensorRT is expected to make, each with one product at most.
    """
    graph = import_graph(model.proto)
    shapes = _shapes(model.proto, feeds)
    counted = work.count_work(model, shapes)
    nodes = {node.name: node for node in graph.nodes}
    groups = fused_nodes(model, counted.tensors)
    kernels = tuple(
        _kernel([nodes[n] for n in group], units, shapes, counted.by_root) for group in groups
    )
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    return Work(kernels, sizes, tuple(tensor.name for tensor in graph.outputs), counted)


def _shapes(proto: onnx.ModelProto, feeds: Feeds) -> dict[str, Shape]:
    names = list(dict.fromkeys(name for node in proto.graph.node for name in node.output if name))
    session = open_session(showing(proto, names), as_it_is=True)
    feeds = session.runs_of(feeds)[0]
    arrays = run_once(session, names, feeds)
    shapes = {name: array.shape for name, array in zip(names, arrays, strict=True)}
    return {name: array.shape for name, array in feeds.items()} | shapes


def _kernel(
    group: Sequence[gs.Node],
    units: Collection[str],
    shapes: Mapping[str, Shape],
    macs: Mapping[str, int | None],
) -> Kernel:
    head = next((node for node in group if node.op in MULTIPLIES), group[0])
    made = {tensor.name for node in group for tensor in node.outputs}
    reads = [
        (tensor.name, node.name if node.name in units else None)
        for node in group
        for tensor in node.inputs
        if tensor.name in shapes and tensor.name not in made
    ]
    return Kernel(
        head.name,
        head.name if head.name in units else None,
        tuple(reads),
        group[-1].outputs[0].name,
        macs.get(head.name) or 0,
        weight_count(head),
        head.op in UNTYPED,
        head.op in FREE,
    )


FLOAT = "float"
FILE_BYTES = {name: row.bits / 8 for name, row in FORMATS.items()}
Times = Mapping[str, Mapping[str, float]]
"""Layer -> ms of its kernel by precision, `float` among them."""
Listed = Sequence[tuple[tuple[str, ...], int]]
"""Layers of an engine in order: the nodes that each comes from, and the bytes that it moves."""


Variable = tuple[str, Unit]
"""1 or 0: `x` and a unit that is in the plan, or a precision and a tensor that is stored in it."""
Terms = dict[Variable, float]
"""Factors by variable."""
Rule = tuple[Variable, tuple[Variable, ...], bool]
"""What has to be stored if any of some variables is 1, or else if none of them is."""


def storage_rules(kernel: Kernel, precisions: Sequence[str] = ("int8",)) -> Iterator[Rule]:
    """Yield what a kernel needs stored, and the variables and their value that decide it.

    What a kernel reads is decided by what is known of its result.
    """
    narrow = [form for form in RANGED if form in precisions]
    stored = tuple((form, kernel.writes) for form in narrow)
    if kernel.unit is not None:
        yield (FLOAT, kernel.writes), _units(kernel.unit, narrow), False
    else:
        yield (FLOAT, kernel.writes), stored if kernel.moves else (), False
    for tensor, layer in kernel.reads:
        if kernel.moves:
            for form in (FLOAT, *narrow):
                yield (form, tensor), ((form, kernel.writes),), True
        else:
            units = () if layer is None else _units(layer, narrow)
            yield (FLOAT, tensor), units, False
            for form, unit in zip(narrow, units, strict=False):
                yield (form, tensor), (unit,), True


def _units(layer: str, precisions: Sequence[str]) -> tuple[Variable, ...]:
    return tuple(("x", unit_of(layer, precision)) for precision in precisions)


@dataclass(frozen=True)
class Costs:
    """Prices of one network's work on a GPU; `precision` is what is not quantized: fp16 or fp32.

    `precisions` are those that layers may be quantized to.
    """

    work: Work
    target: Target
    precision: str = "fp16"
    times: Times = field(default_factory=dict)
    source: str = "the kernels that TensorRT is expected to make"
    in_fp32: Costs | None = None
    precisions: tuple[str, ...] = ("int8",)

    @functools.cached_property
    def baseline(self) -> Costs:
        """The costs of the network in FP32, over which plans are faster; of given times, all float."""
        return self.in_fp32 or (self if self.times else replace(self, precision="fp32"))

    @property
    def float_bytes(self) -> int:
        """Bytes of a value that is not quantized."""
        return PRECISIONS[self.precision].width // 8

    @functools.cached_property
    def floor_ms(self) -> float:
        """What a kernel takes without work."""
        return kernel_times.floor_ms(self.target)

    def memory_ms(self, size_bytes: float) -> float:
        """Return how long a kernel moves bytes, without its launch."""
        return kernel_times.memory_ms(size_bytes, self.target)

    def compute_ms(self, kernel: Kernel, precision: str) -> float:
        """Return how long a kernel multiplies in a precision; that of weights only is float's."""
        has_rate = precision in RANGED and self.target.rate_in(precision) is not None
        form = precision if has_rate else self.precision
        kind = kernel_times.product_kind(kernel.macs, self.work.sizes[kernel.writes])
        return kernel_times.compute_ms(kernel.macs, form, kind, self.target) or 0.0

    def plan_ms(self, plan: Collection[Unit]) -> float:
        """Return what a plan takes."""
        stored = self.stored(plan)
        pairs = zip(self.work.kernels, self.moved_bytes, strict=True)
        kernels = sum(self._kernel_ms(kernel, *moved, stored) for kernel, moved in pairs)
        return kernels + sum(self.cast_ms(name) * _casts(name, stored) for name in self.work.sizes)

    def estimate(self, plan: Collection[Unit]) -> TimeEstimate:
        """Return what a plan takes, with its interval; measured times have none."""
        stored, ms = self.stored(plan), self.plan_ms(plan)
        casts = sum(_casts(name, stored) for name in self.work.sizes)
        kernels = sum(not kernel.free for kernel in self.work.kernels) + casts
        whole = kernel_times.total(ms, kernels, self.target)
        return replace(whole, low_ms=ms, high_ms=ms, too_small=False) if self.is_measured else whole

    def over(self, slow: TimeEstimate, plan: Collection[Unit]) -> SpeedupEstimate:
        """Return how many times as fast as something else a plan is."""
        ratio = kernel_times.speedup(slow, self.estimate(plan))
        exact = ratio.ratio
        return SpeedupEstimate(exact, exact, exact) if self.is_measured else ratio

    @property
    def is_measured(self) -> bool:
        """Whether the times are given, and no estimates."""
        return bool(self.times) and self.in_fp32 is None

    def size_mb(self, plan: Collection[Unit]) -> float:
        """Return what the weights of all layers take in the file of a plan, in 10^6 bytes."""
        chosen = dict(map(split, plan))
        sizes = (
            kernel.weights * FILE_BYTES.get(chosen.get(kernel.unit or "", ""), self.float_bytes)
            for kernel in self.work.kernels
        )
        return sum(sizes) / 1e6

    def cast_ms(self, tensor: str) -> float:
        """Return what a cast takes: it reads the float values; what it writes is stored anyway."""
        return self.floor_ms + self.memory_ms(self.work.sizes[tensor] * self.float_bytes)

    def stored(self, plan: Collection[Unit]) -> set[Variable]:
        """Return the variables that are 1 in a plan, from the last reader to the first."""
        variables: set[Variable] = {*(("x", unit) for unit in plan)}
        variables |= {(FLOAT, name) for name in self.work.shown}
        for kernel in reversed(self.work.kernels):
            for stored, decides, value in storage_rules(kernel, self.precisions):
                if (not variables.isdisjoint(decides)) == value:
                    variables.add(stored)
        return variables

    @functools.cached_property
    def moved_bytes(self) -> list[tuple[Terms, float]]:
        """What each kernel moves by variable (less where a layer is quantized), and in any case."""
        return list(map(self._moved_by, self.work.kernels))

    def _moved_by(self, kernel: Kernel) -> tuple[Terms, float]:
        terms: Terms = defaultdict(float)
        less, fixed = 1.0 - self.float_bytes, float(kernel.weights * self.float_bytes)
        narrow = [name for name in RANGED if name in self.precisions]
        for precision in self.precisions if kernel.unit is not None else ():
            spared = FORMATS[precision].moved_bits / 8 - self.float_bytes
            terms["x", unit_of(str(kernel.unit), precision)] = kernel.weights * spared
        passed = [tensor for tensor, _ in kernel.reads] if kernel.moves else []
        for size in (self.work.sizes[name] for name in (kernel.writes, *passed)):
            for form in narrow:
                terms[form, kernel.writes] += size
            terms[FLOAT, kernel.writes] += size * self.float_bytes
        for tensor, layer in () if kernel.moves else kernel.reads:
            size = self.work.sizes[tensor]
            fixed += size * self.float_bytes
            for variable in () if layer is None else _units(layer, narrow):
                terms[variable] += size * less
        return terms, fixed

    def _kernel_ms(
        self, kernel: Kernel, terms: Terms, fixed: float, stored: Collection[Variable]
    ) -> float:
        if kernel.free:
            return 0.0
        unit = kernel.unit or ""
        units = ((precision, ("x", unit_of(unit, precision))) for precision in self.precisions)
        precision = next((form for form, variable in units if variable in stored), FLOAT)
        if kernel.unit in self.times:
            return self.times[str(kernel.unit)][precision]
        moved = fixed + sum(size for name, size in terms.items() if name in stored)
        return self.busiest_ms(moved, kernel, precision)

    def busiest_ms(self, moved: float, kernel: Kernel, precision: str, launches: int = 1) -> float:
        """Return what a kernel takes that moves so many bytes."""
        memory, compute = self.memory_ms(moved), self.compute_ms(kernel, precision)
        return launches * self.floor_ms + max(memory, compute)


def _casts(tensor: str, stored: Collection[Variable]) -> int:
    """Return how many casts make the forms of a tensor from the first of them."""
    return max(sum((form, tensor) in stored for form in (FLOAT, *RANGED)) - 1, 0)


def measured_times(units: Collection[str], int8: Engine, floats: Engine) -> Times:
    """Return times of layers from two timed engines; `InputError` if one has none.

    A kernel's time goes to the first of its layers, as the others are computed in it.
    """
    pair = {"int8": _times(units, int8), FLOAT: _times(units, floats)}
    return {
        name: {precision: times[name] for precision, times in pair.items()}
        for name in units
        if all(name in times for times in pair.values())
    }


def listed_times(costs: Costs, listed: Mapping[str, Listed]) -> Times:
    """Return estimates for the layers that a compiler made, of an engine all in each precision.

    They have the copies and the steps of Q/DQ that it did not fuse. A layer that comes from no kernel
    of ours goes to the one before it. Multiplications are counted as in `work`.
    """
    kernels = {kernel.unit: kernel for kernel in costs.work.kernels if kernel.unit is not None}
    moved = {form: _moved(set(kernels), layers) for form, layers in listed.items()}

    def longest(unit: str, precision: str) -> float:
        sizes = moved[precision].get(unit, [])
        return costs.busiest_ms(sum(sizes), kernels[unit], precision, len(sizes))

    return {unit: {form: longest(unit, form) for form in listed} for unit in kernels}


def _moved(units: Collection[str], layers: Listed) -> dict[str, list[int]]:
    bytes_by_unit: dict[str, list[int]] = {}
    last: str | None = None
    for nodes, size_bytes in layers:
        last = next((node for node in nodes if node in units), last)
        if last is not None and size_bytes:
            bytes_by_unit.setdefault(last, []).append(size_bytes)
    return bytes_by_unit


def _times(units: Collection[str], engine: Engine) -> dict[str, float]:
    if not engine.is_timed:
        raise InputError(
            f"{engine.source} has no layer times", "build it with --layer-times on the GPU"
        )
    times: dict[str, float] = {}
    for layer in engine.layers:
        mine = [node for node in layer.nodes if node in units]
        if mine and layer.time_ms is not None:
            times[mine[0]] = times.get(mine[0], 0.0) + layer.time_ms
    return times
