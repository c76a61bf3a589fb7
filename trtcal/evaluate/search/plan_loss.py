"""Measure what a whole plan loses, by running it: Q/DQ with the scales that the compiler gets."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from trtcal.backends.sessions import open_session, run_session
from trtcal.backends.trial import crashes_as_warnings
from trtcal.data import Dataset, Feeds
from trtcal.evaluate.caches import EvaluationCache
from trtcal.evaluate.collectors import batch_of_rows
from trtcal.evaluate.metrics import Loss, Rows, joined, task_rows, total
from trtcal.evaluate.replay import Batch, Recording, quantized_runner, runner
from trtcal.evaluate.search.limits import Plan as Chosen
from trtcal.evaluate.search.limits import Unit, split
from trtcal.evaluate.tasks import TaskReader
from trtcal.model import Model
from trtcal.quantization import Plan, QuantizedModel, fp16, quantize
from trtcal.ranges import Calibration


def find_peaks(
    proto: onnx.ModelProto, names: Sequence[str], batches: Iterable[Feeds]
) -> dict[str, float]:
    """Run a float model for the largest magnitudes of its tensors."""
    session = open_session(_reduced(proto, names), as_it_is=True)
    peaks = np.zeros(len(names))
    for feeds in batches:
        peaks = np.maximum(peaks, np.array(run_session(session, None, feeds)))
    return dict(zip(names, peaks.tolist(), strict=True))


def _reduced(proto: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """Return the model with the largest magnitudes of tensors as its outputs."""
    reduced = onnx.ModelProto()
    reduced.CopyFrom(proto)
    del reduced.graph.output[:]
    for number, name in enumerate(names):
        outputs = [f"{name} magnitude {number}", f"{name} peak {number}"]
        reduced.graph.node.append(helper.make_node("Abs", [name], outputs[:1]))
        node = helper.make_node("ReduceMax", outputs[:1], outputs[1:], keepdims=0)
        reduced.graph.node.append(node)
        value = helper.make_tensor_value_info(outputs[1], onnx.TensorProto.FLOAT, ())
        reduced.graph.output.append(value)
    return reduced


BATCH = 8


@dataclass(frozen=True)
class Plans:
    """All plans of a prepared model, of which each quantizes some of the `units`.

    `precision` is that of the layers that are left in float: fp16 or fp32.
    """

    model: Model
    calibration: Calibration
    units: Sequence[Unit] = ()
    precision: str = "fp32"

    def plan(self, chosen: Chosen, precision: str | None = None) -> Plan:
        """Return the plan with these units, other layers in float, of another precision if given."""
        names = (split(unit).layer for unit in self.units)
        layers = dict.fromkeys(names, precision or self.precision)
        layers |= dict(map(split, chosen))
        return Plan("int8", {name: form for name, form in layers.items() if form != "int8"})

    def quantized(self, chosen: Chosen, precision: str | None = None) -> QuantizedModel:
        """Return the model that a plan gives."""
        return quantize(self.model, self.calibration, self.plan(chosen, precision))


class Reference:
    """A prepared float model on samples of a dataset, run once it is needed. A context manager.

    There are up to `samples` of them, from number `start` on. `reader` has the task that is judged.
    """

    def __init__(
        self,
        model: Model,
        dataset: Dataset,
        samples: int,
        start: int = 0,
        reader: TaskReader | None = None,
    ) -> None:
        self.reader = reader or TaskReader()
        self.model, self.dataset, self.start = model, dataset, start
        self.samples = min(samples, len(dataset) - start)
        self.names = [spec.name for spec in model.outputs]
        self.known: Recording | None = None

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.known is not None:
            self.known.close()

    @property
    def recording(self) -> Recording:
        """The samples, and what the float model gives for them."""
        if self.known is None:
            stop = self.start + self.samples
            size = batch_of_rows(self.reader, self.model, self.dataset, BATCH)
            labels = self.dataset.labels
            self.known = Recording(
                runner(open_session(self.model.reference), self.names),
                self.dataset.batches(size, self.start, stop),
                None if labels is None else labels[self.start : stop],
                threads=os.cpu_count() or 1,
            )
            first = self.known.first  # read here: batches are measured in several threads
            self.reader.read(first.expected, first.size, first.labels, first.inputs)
        return self.known

    def measure(self, proto: onnx.ModelProto) -> Loss:
        """Return what a model loses on all samples."""
        rows = self.rows(proto)
        return Loss(self.samples, math.inf) if rows is None else total(rows)

    def rows(self, proto: onnx.ModelProto) -> Rows | None:
        """Return the figures of each sample, None for outputs that are not finite, or a crash."""
        with crashes_as_warnings():
            by_batch = self.recording.rerun(quantized_runner(proto, self.names, 1), self._rows)
            rows = [part for part in by_batch if part is not None]
            return joined(rows) if len(rows) == len(by_batch) else None
        return None

    def _rows(self, batch: Batch) -> Rows | None:
        """Return the figures of a batch, None where the variant's outputs are not finite."""
        outputs = batch.outputs[0]
        if any(each.dtype.kind == "f" and not np.isfinite(each).all() for each in outputs.values()):
            return None
        row = (batch.expected, outputs, batch.size)
        return task_rows(self.reader, row, batch.labels, batch.inputs)


class Evaluator:
    """What plans lose beside their float model."""

    def __init__(self, plans: Plans, reference: Reference, cache: EvaluationCache) -> None:
        self.plans, self.reference, self.cache = plans, reference, cache
        proto = plans.model.proto
        self.made = {name for node in proto.graph.node for name in node.output}
        self.peaks: dict[str, float] = {}

    def loss(self, plan: Chosen = frozenset()) -> Loss:
        """Return what a plan loses, measured once."""
        what = {
            "plan": self.plans.plan(plan).to_document()["digest"],
            "samples": self.reference.samples,
            "start": self.reference.start,
            "calibration": self.plans.calibration.digest,
        }
        return self.cache.recall(what, lambda: self._measured(plan))

    def overflowing(self) -> frozenset[str]:
        """Return the layers that can't be left in float alone: float16 ends below their values."""
        everything = frozenset(unit for unit in self.plans.units if isinstance(unit, str))
        if not self._beyond(self.plans.quantized(frozenset())):
            return frozenset()
        alone = {name: self.plans.quantized(everything - {name}) for name in everything}
        return frozenset(name for name, quantized in alone.items() if self._beyond(quantized))

    def _measured(self, plan: Chosen) -> Loss:
        quantized = self.plans.quantized(plan)
        if self._beyond(quantized):
            return Loss(self.reference.samples, math.inf)
        return self.reference.measure(quantized.proto)

    def _beyond(self, quantized: QuantizedModel) -> list[str]:
        """Return the float16 tensors of a plan that float16 is too small for."""
        names = quantized.fp16_subgraphs.unknown
        new = sorted(self.made & set(names) - set(self.peaks))
        if new:
            recording = self.reference.recording
            feeds = map(recording.feeds, range(len(recording)))
            self.peaks |= find_peaks(self.plans.model.proto, new, feeds)
        return [name for name in names if self.peaks.get(name, 0.0) > fp16.FP16_MAX]
