"""Measure what a whole plan loses, by running it: Q/DQ with the scales that the compiler gets."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

import onnx

from trtcal.backends.sessions import open_session
from trtcal.backends.trial import crashes_as_warnings
from trtcal.data import Dataset
from trtcal.documents import Workplace
from trtcal.evaluate.caches import EvaluationCache
from trtcal.evaluate.collectors import batch_of_rows
from trtcal.evaluate.metrics import Loss, Rows, joined, task_rows, total
from trtcal.evaluate.replay import Recording, quantized_runner, runner
from trtcal.evaluate.search.limits import Plan as Chosen
from trtcal.evaluate.search.limits import Unit, split
from trtcal.evaluate.search.segments import ROOM
from trtcal.evaluate.tasks import TaskReader
from trtcal.evaluate.variants import Variant, open_variant
from trtcal.model import Model
from trtcal.model.files import write_onnx
from trtcal.quantization import Plan, QuantizedModel, quantize
from trtcal.quantization.qdq import in_opset_of
from trtcal.ranges import Calibration

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
    opened: dict[Chosen | None, tuple[Variant, Workplace]] = field(default_factory=dict)
    raised: dict[int, Model] = field(default_factory=dict)

    def plan(self, chosen: Chosen, precision: str | None = None) -> Plan:
        """Return the plan with these units, other layers in float, of another precision if given."""
        names = (split(unit).layer for unit in self.units)
        layers = dict.fromkeys(names, precision or self.precision)
        layers |= dict(map(split, chosen))
        return Plan("int8", {name: form for name, form in layers.items() if form != "int8"})

    def quantized(self, chosen: Chosen, precision: str | None = None) -> QuantizedModel:
        """Return the model that a plan gives."""
        plan = self.plan(chosen, precision)
        if plan.opset not in self.raised:
            self.raised[plan.opset] = in_opset_of(self.model, plan)
        return quantize(self.raised[plan.opset], self.calibration, plan)

    def variant(self, chosen: Chosen | None) -> Variant:
        """Return the model that a plan gives, or FP32 for None, opened once."""
        if chosen not in self.opened:
            place = Workplace()  # large weights stay in its files
            path = place.path / f"{len(self.opened)}.onnx"
            plain = self.model.reference
            write_onnx(path, plain if chosen is None else self.quantized(chosen).proto)
            self.opened[chosen] = open_variant(path), place
        return self.opened[chosen][0]


class Reference(AbstractContextManager["Reference"]):
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
            run = runner(open_session(self.model.reference), self.names)
            batches = self.dataset.batches(size, self.start, stop)
            labels = None if labels is None else labels[self.start : stop]
            self.known = Recording(run, batches, labels, ROOM, os.cpu_count() or 1)
            self.reader.read(self.known.first)  # here: batches are measured in several threads
        return self.known

    def rows(self, proto: onnx.ModelProto) -> Rows | None:
        """Return the figures of each sample, NaN for outputs that are not finite; None for a crash."""
        with crashes_as_warnings():
            run, rows = quantized_runner(proto, self.names, 1), partial(task_rows, self.reader)
            return joined(self.recording.rerun(run, rows))
        return None


class Evaluator:
    """What plans lose beside their float model."""

    def __init__(self, plans: Plans, reference: Reference, cache: EvaluationCache) -> None:
        self.plans, self.reference, self.cache = plans, reference, cache

    def loss(self, plan: Chosen = frozenset()) -> Loss:
        """Return what a plan loses, measured once."""
        what = {
            "plan": self.plans.plan(plan).to_document()["digest"],
            "samples": self.reference.samples,
            "start": self.reference.start,
            "calibration": self.plans.calibration.digest,
        }
        return self.cache.recall(what, partial(self._measured, plan))

    def _measured(self, plan: Chosen) -> Loss:
        rows = self.reference.rows(self.plans.quantized(plan).proto)
        return Loss(self.reference.samples, math.inf) if rows is None else total(rows)
