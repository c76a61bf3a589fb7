"""Figures of a quantized ONNX file of any tool: SQNR of each output, and a task metric with labels.

All files run in one way: ONNX Runtime without any optimization, so Q/DQ is computed in float as it is
written, and no kernel decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from benchmarks.accuracy_networks import FILES, SAMPLES
from trtcal.backends.sessions import Array, open_session, run_session
from trtcal.data import Dataset, batch_for, open_dataset
from trtcal.evaluate.mean_precision import PrecisionCollector, mean_precision
from trtcal.evaluate.tasks import find_task
from trtcal.model import Model, load_model
from trtcal.model.ops import QDQ

BATCH = 16
CONSTANT = "Constant"
Outputs = list[list[Array]]


@dataclass(frozen=True)
class Figures:
    """What is known of a quantized model: dB of each float output, and the task's metric.

    `db` has None for an output that is not finite or of another shape. `metric` and `float_metric` are
    percentages, None without labels.
    """

    db: list[float | None]
    metric: float | None
    float_metric: float | None


class Test:
    """A float model and its test samples; a network without labels has no task metric."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model = folder, load_model(folder / FILES[0])

    @cached_property
    def dataset(self) -> Dataset:
        """The test samples, with annotations of boxes if there is a file of them."""
        annotations = self.folder / "instances.json"
        labels = str(annotations) if annotations.exists() else None
        return open_dataset(self.folder / FILES[2], self.model, labels=labels)

    @cached_property
    def reference(self) -> Outputs:
        """The outputs of the float model, of each batch."""
        return outputs_of(self.model.proto, self.model, self.dataset)

    def figures(self, path: Path) -> Figures:
        """Return the figures of a quantized file of this model."""
        outputs = outputs_of(onnx.load(path), self.model, self.dataset)
        metrics: tuple[float | None, float | None] = (None, None)
        if self.dataset.labels is not None:
            metrics = self._metric(outputs), self.float_metric
        return Figures(self._db(outputs), *metrics)

    @cached_property
    def float_metric(self) -> float:
        """The task's metric of the float model, in %."""
        return self._metric(self.reference)

    def _metric(self, outputs: Outputs) -> float:
        has_boxes = (self.folder / "instances.json").exists()
        return round(self._map(outputs) if has_boxes else self._top1(outputs), 2)

    def _db(self, outputs: Outputs) -> list[float | None]:
        """Return the SQNR of each float output on the first samples, in dB."""
        pairs = zip(joined(self.reference), joined(outputs), strict=True)
        return [sqnr_db(*pair) for pair in pairs if pair[0].dtype.kind == "f"]

    def _top1(self, outputs: Outputs) -> float:
        decisions = np.concatenate([batch[0].argmax(-1) for batch in outputs])
        return 100 * float((decisions == self.dataset.labels).mean())

    def _map(self, outputs: Outputs) -> float:
        """Return the mean average precision of boxes, decoded as the reference's, in %."""
        names = [value.name for value in self.model.proto.graph.output]
        named = [
            [dict(zip(names, batch, strict=True)) for batch in each]
            for each in (self.reference, outputs)
        ]
        labels, size, done = np.asarray(self.dataset.labels), len(self.reference[0][0]), 0
        task = find_task(named[0][0], size, tasks="detection", labels=labels[:size])
        (decoder,) = (output.decoder for output in task.outputs if output.decoder is not None)
        collector = PrecisionCollector(decoder)
        for both in zip(*named, strict=True):
            size = len(both[0][names[0]])
            collector.add(both, size, labels[done : done + size], np.ones(size, bool))
            done += size
        collector.contrast()  # matches boxes and annotations, without the intervals of `means`
        return 100 * float(mean_precision(collector.known[1][1], np.ones(done))[0])


def outputs_of(proto: onnx.ModelProto, model: Model, dataset: Dataset) -> Outputs:
    """Return the outputs of every batch, by the graph as it is written."""
    session = open_session(proto, as_it_is=True)
    batches = dataset.batches(batch_for(model, BATCH))
    return [run_session(session, None, feeds) for feeds in batches]


def joined(outputs: Outputs) -> list[Array]:
    """Return each output's values of the first samples, whatever its samples are along."""
    done, kept = 0, []
    for batch in outputs:
        kept.append([value.ravel() for value in batch])
        done += len(batch[0])
        if done >= SAMPLES:
            break
    return [np.concatenate(values) for values in zip(*kept, strict=True)]


def sqnr_db(reference: Array, actual: Array) -> float | None:
    """Return signal over error power in dB; 200 without any error, None if it cannot be said."""
    if reference.shape != actual.shape or not np.isfinite(actual).all():
        return None
    wide = reference.astype(np.float64)
    noise = np.square(wide - actual).sum()
    return round(float(10 * np.log10(np.square(wide).sum() / noise)), 2) if noise else 200.0


def refusal(path: Path) -> str:
    """Return why TensorRT refuses the Q/DQ of a file, "" if it takes them: int8, zero points of 0."""
    graph = onnx.load(path).graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    tensors |= {
        node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == CONSTANT
    }
    reasons = set()
    for node in (node for node in graph.node if node.op_type in QDQ):
        known = [tensors[name] for name in (node.input[0], *node.input[2:]) if name in tensors]
        kinds = {TensorProto.DataType.Name(each.data_type).lower() for each in known}
        reasons |= kinds & {"uint8", "int32", "uint16", "int16"}
        if any(numpy_helper.to_array(each).any() for each in known if each.name in node.input[2:]):
            reasons.add("zero points other than 0")
    return " and ".join(sorted(reasons))
