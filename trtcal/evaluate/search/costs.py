"""What a plan costs in time: an estimate for a GPU by its datasheet, or measured layer times.

Each kernel takes as long as its bytes or its multiplications take, whichever is longer
(`trtcal.evidence.layers.roofline`). A tensor is stored in every precision in which it is read, and
once more in float where the layer that makes it is float; where that is twice, a cast reads it again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trtcal.errors import InputError
from trtcal.evaluate.search.work import Kernel, Work
from trtcal.evidence.layers.reading import Engine
from trtcal.evidence.layers.roofline import Target

FLOAT_BYTES = {"fp16": 2, "fp32": 4}
Times = Mapping[str, tuple[float, float]]
"""Layer -> ms of its kernel in INT8 and in float."""
Listed = Sequence[tuple[str, str, str, int]]
"""Layers of an engine in order: name, kind, precision, bytes moved."""
NUMBERED = re.compile(r"_myl\d+_\d+$")  # what TensorRT-RTX puts behind a node's name


@dataclass(frozen=True)
class Storage:
    """In which precisions a tensor is stored."""

    int8: bool
    float: bool

    @property
    def is_cast(self) -> bool:
        """Whether a cast makes one from the other."""
        return self.int8 and self.float


@dataclass(frozen=True)
class Costs:
    """Prices of one network's work on a GPU; `precision` is what is not INT8: fp16 or fp32."""

    work: Work
    target: Target
    precision: str = "fp16"
    times: Times = field(default_factory=dict)
    source: str = "the model's kernels as they should be fused"
    fp32_ms: float | None = None

    @property
    def label(self) -> str:
        """What the figures are."""
        return f"{self.source}, the rest an estimate by the datasheet of {self.target.name}"

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
        floats = self.target.fp16_tflops if self.precision == "fp16" else self.float_tflops
        return 2 * kernel.macs / (self.target.int8_tops if is_int8 else floats) / 1e9

    @property
    def float_tflops(self) -> float:
        """The rate of float32 layers: TensorRT takes TF32 where the GPU has it."""
        return self.target.tf32_tflops or self.target.fp32_tflops

    def plan_ms(self, int8: Collection[str]) -> float:
        """Return what a plan takes with these layers in INT8."""
        chosen = set(int8)
        storage = self.storage(chosen)
        kernels = sum(self._kernel_ms(one, chosen, storage) for one in self.work.kernels)
        casts = (name for name, one in storage.items() if one.is_cast)
        return kernels + sum(self.cast_ms(name) for name in casts)

    def cast_ms(self, tensor: str) -> float:
        """Return what a cast takes: it reads the float values; what it writes is stored anyway."""
        return self.memory_ms(self.work.sizes[tensor] * self.float_bytes)

    def storage(self, int8: Collection[str]) -> dict[str, Storage]:
        """Return in which precisions each tensor is stored, from the last reader to the first."""
        ints, floats = set[str](), set(self.work.shown)
        for kernel in reversed(self.work.kernels):
            written = kernel.writes
            if kernel.unit is not None and kernel.unit not in int8:
                floats.add(written)
            if kernel.unit is None and not (kernel.moves and written in ints):
                floats.add(written)
            for read in kernel.reads:
                if kernel.moves:
                    ints |= {read.tensor} if written in ints else set()
                    floats |= {read.tensor} if written in floats else set()
                else:
                    (ints if read.unit in int8 else floats).add(read.tensor)
        return {name: Storage(name in ints, name in floats) for name in ints | floats}

    def _kernel_ms(self, kernel: Kernel, int8: set[str], storage: Mapping[str, Storage]) -> float:
        is_int8 = kernel.unit in int8
        if kernel.free:
            return 0.0
        if kernel.unit in self.times:
            return self.times[str(kernel.unit)][0 if is_int8 else 1]
        values = float(kernel.weights * (1 if is_int8 else self.float_bytes))
        written = storage[kernel.writes]
        values += self._bytes(kernel.writes, written.int8, written.float)
        for read in kernel.reads:
            if kernel.moves:
                values += self._bytes(read.tensor, written.int8, written.float)
            else:
                values += self._bytes(read.tensor, read.unit in int8, read.unit not in int8)
        return max(self.memory_ms(values), self.compute_ms(kernel, is_int8))

    def _bytes(self, tensor: str, as_int8: bool, as_float: bool) -> int:
        return self.work.sizes[tensor] * (as_int8 + self.float_bytes * as_float)


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
            f"{engine.source} has no layer times", "build it with --layer-times, on the GPU"
        )
    found: dict[str, float] = {}
    for layer in engine.layers:
        mine = [node for node in layer.nodes if node in units]
        if mine and layer.time_ms is not None:
            found[mine[0]] = found.get(mine[0], 0.0) + layer.time_ms
    return found
