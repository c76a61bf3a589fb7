"""Whether two models compute the same, but for rounding: run on the same feeds, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from trtcal.backends.sessions import Array, open_session
from trtcal.data.dataset import Feeds
from trtcal.evaluate.accuracy import Accuracy, rounded
from trtcal.evaluate.replay import replay, runner
from trtcal.model import Model, uniquely_named

FLOAT_TOLERANCE = 1e-4
TOLERANCES: dict[int, float] = {TensorProto.FLOAT16: 1e-2, TensorProto.BFLOAT16: 5e-2}
"""What rounding in another order may move an output by, relative to its largest value."""


@dataclass(frozen=True)
class Equality:
    """The largest relative difference of each output, and what float rounding explains.

    Of a float output it is max |a - b| / max |a| over all samples, infinite where only one has a NaN or
    an infinite value; of any other output the share of values that differ. `magnitudes` are max |a|.
    """

    samples: int
    tolerance: float
    differences: dict[str, float]
    magnitudes: dict[str, float]

    @property
    def largest(self) -> float:
        """The largest difference of all outputs."""
        return max(self.differences.values())

    @property
    def holds(self) -> bool:
        """Tell whether the difference is no more than float rounding."""
        return self.largest <= self.tolerance


def check_equal(
    model: Model,
    other: Model,
    batches: Iterable[Feeds],
    progress: Callable[[int], None] = lambda done: None,
) -> Equality:
    """Run both models in ONNX Runtime; `BackendError` if it can't."""
    names = [spec.name for spec in model.outputs]
    both = [runner(open_session(uniquely_named(each).proto), names) for each in (model, other)]
    meters, samples = {name: _Difference() for name in names}, 0
    for batch in replay(both[0], both[1:], batches, progress=progress):
        samples += batch.size
        for name, meter in meters.items():
            meter.update(batch.expected[name], batch.outputs[0][name])
    differences = {name: meter.result() for name, meter in meters.items()}
    magnitudes = {name: meter.largest for name, meter in meters.items()}
    return Equality(samples, tolerance_of(model.proto), differences, magnitudes)


def tolerance_of(proto: onnx.ModelProto) -> float:
    """Return the tolerance of the coarsest float type that is known in a model."""
    graph = proto.graph
    kinds = {tensor.data_type for tensor in graph.initializer}
    values = (*graph.input, *graph.output, *graph.value_info)
    kinds |= {value.type.tensor_type.elem_type for value in values}
    casts = (node.attribute for node in graph.node if node.op_type == "Cast")
    kinds |= {item.i for items in casts for item in items if item.name == "to"}
    return max((TOLERANCES.get(kind, 0.0) for kind in kinds), default=0.0) or FLOAT_TOLERANCE


class _Difference:
    def __init__(self) -> None:
        self.most = self.largest = 0.0
        self.differing = self.values = 0

    def update(self, a: Array, b: Array) -> None:
        self.values += a.size
        if a.shape != b.shape:
            self.most = math.inf
        elif a.dtype.kind in "biuOSU":
            self.differing += int((a != b).sum())
        elif a.size:
            self._floats(a.astype(np.float64), b.astype(np.float64))

    def _floats(self, a: Array, b: Array) -> None:
        finite = np.isfinite(a)
        if np.array_equal(a[~finite], b[~finite], equal_nan=True) and np.isfinite(b[finite]).all():
            a, b = a[finite], b[finite]
            self.most = max(self.most, float(np.abs(a - b).max(initial=0.0)))
            self.largest = max(self.largest, float(np.abs(a).max(initial=0.0)))
        else:
            self.most = math.inf

    def result(self) -> float:
        if self.differing:
            return max(self.most, self.differing / self.values)
        return self.most / self.largest if self.largest and self.most else self.most


@dataclass(frozen=True)
class Simulation:
    """What the simulation reaches, and how the integer kernels differ from it.

    `gap` is their figure minus the simulation's: top-1, without labels agreement with the reference
    (both in points), without classes SQNR (dB); `gap_interval` is 95 %, paired, of top-1 alone. `same`
    is the percentage of samples that both give one class, `sqnr_db` the integer outputs' against the
    simulation's, None where there is no error.
    """

    accuracy: Accuracy
    measure: str
    gap: float
    gap_interval: tuple[float, float] | None
    same: float | None
    sqnr_db: float | None

    @property
    def differs(self) -> bool:
        """Whether the difference is large enough to report."""
        return abs(self.gap) > (1.0 if self.measure == "SQNR" else 0.2)  # dB, else points

    @property
    def may_be_chance(self) -> bool:
        """Whether so few samples differ that their number may be chance; False where not known."""
        return self.gap_interval is not None and self.gap_interval[0] <= 0 <= self.gap_interval[1]


def hold_against(integer: Accuracy, literal: Accuracy, between: Accuracy) -> Simulation:
    """Return the difference of two modes; `between` compares the integer outputs with the literal."""
    interval = None
    if between.top1_drop is not None and between.top1_drop_interval is not None:
        low, high = between.top1_drop_interval
        measure, gap, interval = "top-1", 0.0 - between.top1_drop, (-high, -low)
    elif integer.agreement is not None and literal.agreement is not None:
        measure, gap = "agreement", integer.agreement - literal.agreement
    else:
        measure, gap = "SQNR", (integer.sqnr_db or 0.0) - (literal.sqnr_db or 0.0)
    return Simulation(literal, measure, rounded(gap), interval, between.agreement, between.sqnr_db)
