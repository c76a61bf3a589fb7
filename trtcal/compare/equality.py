"""Whether two models compute the same, but for rounding: run on the same feeds, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from trtcal.backends.sessions import open_session, run_session
from trtcal.data.fingerprint import Feeds
from trtcal.model import Model, uniquely_named

Array = npt.NDArray[Any]

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
    given: Model,
    other: Model,
    batches: Iterable[Feeds],
    progress: Callable[[int], None] = lambda done: None,
) -> Equality:
    """Run both models in ONNX Runtime; `BackendError` if it can't."""
    sessions = [open_session(uniquely_named(one).proto) for one in (given, other)]
    names = [spec.name for spec in given.outputs]
    meters = {name: _Meter() for name in names}
    samples = 0
    for feeds in batches:
        results = (run_session(session, names, feeds) for session in sessions)
        for name, a, b in zip(names, *results, strict=True):
            meters[name].update(a, b)
        count = max((len(array) for array in feeds.values()), default=1)
        samples += count
        progress(count)
    differences = {name: meter.result() for name, meter in meters.items()}
    magnitudes = {name: meter.largest for name, meter in meters.items()}
    return Equality(samples, tolerance_of(given.proto), differences, magnitudes)


def tolerance_of(proto: onnx.ModelProto) -> float:
    """Return the tolerance of the coarsest float type that is known in a model."""
    graph = proto.graph
    kinds = {tensor.data_type for tensor in graph.initializer}
    values = (*graph.input, *graph.output, *graph.value_info)
    kinds |= {value.type.tensor_type.elem_type for value in values}
    casts = (node.attribute for node in graph.node if node.op_type == "Cast")
    kinds |= {item.i for items in casts for item in items if item.name == "to"}
    return max((TOLERANCES.get(kind, 0.0) for kind in kinds), default=0.0) or FLOAT_TOLERANCE


class _Meter:
    """Gathers the difference of one output over all batches."""

    def __init__(self) -> None:
        self.apart = self.largest = 0.0
        self.differing = self.values = 0

    def update(self, a: Array, b: Array) -> None:
        self.values += a.size
        if a.shape != b.shape:
            self.apart = math.inf
        elif a.dtype.kind in "biuOSU":
            self.differing += int((a != b).sum())
        elif a.size:
            self._floats(a.astype(np.float64), b.astype(np.float64))

    def _floats(self, a: Array, b: Array) -> None:
        finite = np.isfinite(a)
        if np.array_equal(a[~finite], b[~finite], equal_nan=True) and np.isfinite(b[finite]).all():
            a, b = a[finite], b[finite]
            self.apart = max(self.apart, float(np.abs(a - b).max(initial=0.0)))
            self.largest = max(self.largest, float(np.abs(a).max(initial=0.0)))
        else:
            self.apart = math.inf

    def result(self) -> float:
        if self.differing:
            return max(self.apart, self.differing / self.values)
        return self.apart / self.largest if self.largest and self.apart else self.apart
