"""Measure what a whole plan loses, by running it: Q/DQ with the scales that the compiler gets."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import onnx
from onnx import helper

from trtcal.backends.lowering import lower
from trtcal.backends.sessions import Session, open_session, run_session
from trtcal.data import Dataset, Feeds
from trtcal.data.dataset import fixed_batch
from trtcal.errors import BackendError
from trtcal.evaluate.search.caches import EvaluationCache, SpillCache
from trtcal.evaluate.search.limits import Plan as Int8
from trtcal.evaluate.search.losses import Loss, Rows, joined, rows_of, total
from trtcal.model import Model
from trtcal.quantization import Plan, QuantizedModel, quantize
from trtcal.quantization import fp16 as half
from trtcal.ranges import Calibration


class Peaks:
    """The largest magnitudes of a float model's tensors."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.known: dict[str, float] = {}

    def look(self, names: Iterable[str], batches: Iterable[Feeds]) -> None:
        """Run the model for those of some tensors that are not known yet."""
        made = {name for node in self.model.proto.graph.node for name in node.output}
        wanted = sorted(made & set(names) - set(self.known))
        if not wanted:
            return
        session = open_session(_reduced(self.model.proto, wanted), as_it_is=True)
        peaks = np.zeros(len(wanted))
        for feeds in batches:
            peaks = np.maximum(peaks, np.array(run_session(session, None, feeds)))
        self.known |= dict(zip(wanted, peaks.tolist(), strict=True))

    def beyond(self, names: Iterable[str]) -> Iterator[str]:
        """Yield those that do not fit float16."""
        return (name for name in names if self.known.get(name, 0.0) > half.MOST)


def _reduced(proto: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """Return the model with the largest magnitudes of tensors as its outputs."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    del made.graph.output[:]
    for number, name in enumerate(names):
        outputs = [f"{name} magnitude {number}", f"{name} peak {number}"]
        made.graph.node.append(helper.make_node("Abs", [name], outputs[:1]))
        made.graph.node.append(helper.make_node("ReduceMax", outputs[:1], outputs[1:], keepdims=0))
        value = helper.make_tensor_value_info(outputs[1], onnx.TensorProto.FLOAT, ())
        made.graph.output.append(value)
    return made


BATCH = 8


class Evaluator:
    """Plans of one prepared model on samples of a dataset, from `start`. A context manager.

    `precision` is that of the layers that are not in INT8: fp16 or fp32.
    """

    def __init__(
        self,
        model: Model,
        calibration: Calibration,
        units: Sequence[str],
        dataset: Dataset,
        samples: int,
        precision: str,
        memory: EvaluationCache,
        start: int = 0,
    ) -> None:
        self.model, self.calibration, self.units = model, calibration, units
        self.dataset, self.start = dataset, start
        self.samples = min(samples, len(dataset) - start)
        self.precision, self.memory = precision, memory
        self.size = fixed_batch(model) or BATCH
        self.names = [spec.name for spec in model.outputs]
        self.pool = ThreadPoolExecutor(os.cpu_count() or 1, "evaluate")
        self.spill, self.peaks = SpillCache(), Peaks(model)
        self.batches = 0

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.pool.shutdown(cancel_futures=True)
        self.spill.close()

    def plan(self, int8: Int8, precision: str | None = None) -> Plan:
        """Return the plan that has these layers in INT8, the others in another precision if named."""
        others = precision or self.precision
        return Plan("int8", {name: others for name in self.units if name not in int8})

    def quantized(self, int8: Int8, precision: str | None = None) -> QuantizedModel:
        """Return the model that a plan gives."""
        return quantize(self.model, self.calibration, self.plan(int8, precision))

    def loss(self, int8: Int8) -> Loss:
        """Return what a plan loses, measured once."""
        what = {
            "plan": self.plan(int8).to_document()["digest"],
            "samples": self.samples,
            "start": self.start,
            "calibration": self.calibration.digest,
        }
        return self.memory.recall(what, lambda: self._measured(int8))

    def overflowing(self) -> frozenset[str]:
        """Return the layers that can't be left in float alone: float16 ends below their values."""
        everything = frozenset(self.units)
        if not self._beyond(self.quantized(frozenset())):
            return frozenset()
        alone = {name: self.quantized(everything - {name}) for name in self.units}
        return frozenset(name for name, made in alone.items() if self._beyond(made))

    def _measured(self, int8: Int8) -> Loss:
        made = self.quantized(int8)
        return Loss(self.samples, math.inf) if self._beyond(made) else self.measure(made.proto)

    def _beyond(self, made: QuantizedModel) -> list[str]:
        """Return the float16 tensors of a plan that float16 is too small for."""
        names = made.fp16_subgraphs.unknown
        if names:
            self._expect()
            feeds = (self.spill.get("feeds", number) for number in range(self.batches))
            self.peaks.look(names, feeds)
        return list(self.peaks.beyond(names))

    def measure(self, proto: onnx.ModelProto) -> Loss:
        """Run a model on all samples, and compare it with the float model."""
        rows = self.rows(proto)
        return Loss(self.samples, math.inf) if rows is None else total(rows)

    def rows(self, proto: onnx.ModelProto) -> Rows | None:
        """Return the figures of each sample, None where a model's outputs are not finite."""
        self._expect()
        session = _opened(proto)
        found = list(self.pool.map(lambda number: self._one(session, number), range(self.batches)))
        rows = [one for one in found if one is not None]
        return joined(rows) if len(rows) == len(found) else None

    def _expect(self) -> None:
        """Run the float model, once."""
        if self.batches:
            return
        session = open_session(self.model.reference)
        number = 0
        for feeds in self.dataset.batches(self.size, self.start, self.start + self.samples):
            outputs = run_session(session, self.names, feeds)
            self.spill.keep("feeds", number, feeds)
            self.spill.keep("expected", number, dict(zip(self.names, outputs, strict=True)))
            number += 1
        self.batches = number

    def _one(self, session: Session, number: int) -> Rows | None:
        """Return the figures of a batch, None where the plan's outputs are not finite."""
        said = run_session(session, self.names, self.spill.get("feeds", number))
        expected = list(self.spill.get("expected", number).values())
        if any(one.dtype.kind == "f" and not np.isfinite(one).all() for one in said):
            return None
        start, labels = self.start + number * self.size, self.dataset.labels
        stop = min(start + self.size, self.start + self.samples)
        return rows_of(expected, said, None if labels is None else labels[start:stop])


def _opened(proto: onnx.ModelProto) -> Session:
    """Open a quantized model for the integer kernels, or literally where these do not take it."""
    try:
        return open_session(lower(proto), 1)
    except BackendError:
        return open_session(proto, 1, as_it_is=True)


@contextmanager
def judge(
    model: Model, dataset: Dataset, samples: int, memory: EvaluationCache
) -> Iterator[Callable[[Calibration], Loss]]:
    """Yield what measures a calibration with every layer in INT8."""
    evaluators = list[Evaluator]()

    def measure(calibration: Calibration) -> Loss:
        one = Evaluator(model, calibration, (), dataset, samples, "fp32", memory)
        evaluators.append(one)
        return one.loss(frozenset())

    try:
        yield measure
    finally:
        for one in evaluators:
            one.__exit__()
