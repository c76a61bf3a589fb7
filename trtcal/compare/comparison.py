"""Run candidates beside the FP32 reference on one dataset, and keep what came out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtcal import __version__
from trtcal.backends.guard import check_engine
from trtcal.backends.lowering import lower
from trtcal.backends.providers import PROVIDERS
from trtcal.backends.sessions import Session, open_session, run_session
from trtcal.compare.latency import Latency, measure
from trtcal.compare.metrics import Accuracy, AccuracyMeter
from trtcal.data import Dataset
from trtcal.data.dataset import fixed_batch
from trtcal.errors import InputError
from trtcal.model import Model, TensorSpec, load_model, uniquely_named
from trtcal.quantize.qdq import provenance, quantization_record
from trtcal.storage import Document, parsing, read_document, seal, write_document

KIND = "comparison"
REFERENCE = "fp32"


@dataclass(frozen=True)
class Gates:
    """Limits that a candidate must hold.

    `max_top1_drop` is in points of top-1 against FP32 (of agreement with FP32, without labels);
    `min_speedup` is over FP32 on this machine, None where speed is not judged here.
    """

    max_top1_drop: float = 1.0
    min_speedup: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(f"the limit {name} is {value}", "give a number from 0 up")


@dataclass(frozen=True)
class Candidate:
    """Something that runs: an ONNX model, or the engine of an `onnxruntime` build.

    `model` is the fingerprint of the ONNX file that it comes from.
    """

    name: str
    model: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    session: Session
    quantization: dict[str, Any]
    size_bytes: int


@dataclass(frozen=True)
class Row:
    """One candidate's results; `size_bytes` is its file's."""

    name: str
    model: str
    quantization: dict[str, Any]
    accuracy: Accuracy
    latency: Latency
    size_bytes: int


@dataclass(frozen=True)
class Comparison:
    """All candidates on one dataset; the first row is the reference itself."""

    dataset: str
    dataset_name: str
    samples: int
    batch: int
    gates: Gates
    rows: tuple[Row, ...]
    machine: dict[str, Any] = field(default_factory=dict)

    def to_document(self) -> Document:
        """Return the comparison as a sealed document, with times and sizes under `measured`."""
        lasting = [
            {
                "name": row.name,
                "model": row.model,
                "quantization": row.quantization,
                "accuracy": dataclasses.asdict(row.accuracy),
            }
            for row in self.rows
        ]
        measured = {
            row.name: {"latency": dataclasses.asdict(row.latency), "size_bytes": row.size_bytes}
            for row in self.rows
        }
        body = {
            "trtcal": __version__,
            "dataset": self.dataset,
            "dataset_name": self.dataset_name,
            "samples": self.samples,
            "batch": self.batch,
            "gates": dataclasses.asdict(self.gates),
            "rows": lasting,
            "measured": {"candidates": measured, "machine": self.machine},
        }
        return seal({"kind": KIND, "schema_version": 1, **body})

    @property
    def digest(self) -> str:
        """Digest of the lasting part: accuracy, not times."""
        return str(self.to_document()["digest"])


def open_candidate(
    path: Path, name: str | None = None, trust: bool = False, reference: Model | None = None
) -> Candidate:
    """Open an ONNX file or a build folder; `InputError` if it can't be run on this machine.

    An engine is loaded only after `check_engine`, which `trust` and `reference` are for.
    """
    if path.is_dir():
        return _open_build(path, name, trust, reference)
    model = uniquely_named(load_model(path))
    session = open_session(lower(model.proto))
    record = quantization_record(model.proto)
    return Candidate(
        name or model.name,
        model.fingerprint,
        model.inputs,
        model.outputs,
        session,
        provenance(record),
        path.stat().st_size,
    )


def _open_build(folder: Path, name: str | None, trust: bool, reference: Model | None) -> Candidate:
    engine = check_engine(folder, trust, reference)
    made = engine.build
    if made.backend != "onnxruntime":
        raise InputError(
            f"the engine in {folder} is for {made.backend}, which trtcal builds but does not run",
            "compare ONNX models or onnxruntime builds",
        )
    return Candidate(
        name or made.model_name,
        made.model,
        made.inputs,
        made.outputs,
        open_session(engine.data, provider=PROVIDERS[made.target]),
        made.quantization,
        len(engine.data),
    )


def compare(
    reference: Candidate,
    candidates: Sequence[Candidate],
    dataset: Dataset,
    gates: Gates,
    batch: int = 32,
    rounds: int = 60,
    progress: Callable[[int], None] = lambda done: None,
) -> Comparison:
    """Measure accuracy on all of the dataset and latency on its first batch, in turns.

    `InputError` if two candidates bear one name or their inputs differ from the reference's.
    """
    everyone = [reference, *candidates]
    check_candidates(everyone)
    accuracies = _accuracies(everyone, dataset, batch, progress)
    feeds = next(dataset.batches(batch))
    runs = [lambda one=one: run_session(one.session, None, feeds) for one in everyone]
    latencies = measure(runs, len(next(iter(feeds.values()))), rounds)
    rows = tuple(
        Row(one.name, one.model, one.quantization, accuracy, latency, one.size_bytes)
        for one, accuracy, latency in zip(everyone, accuracies, latencies, strict=True)
    )
    return Comparison(dataset.fingerprint, dataset.name, len(dataset), batch, gates, rows)


def batch_for(model: Model, wanted: int) -> int:
    """Return the batch size to use: the model's own where it is fixed."""
    return fixed_batch(model) or wanted


def check_candidates(everyone: Sequence[Candidate]) -> None:
    """`InputError` if two bear one name, or one has other inputs or outputs than the first."""
    names = [one.name for one in everyone]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise InputError(
            f"two candidates are called {sorted(repeated)[0]!r}",
            "rename a file: candidates are named after their files",
        )
    for one in everyone[1:]:
        for side in ("inputs", "outputs"):
            if _signature(one, side) != _signature(everyone[0], side):
                raise InputError(
                    f"candidate {one.name!r} has other {side} than the reference",
                    "compare models that were made from the same one",
                )


def _signature(one: Candidate, side: str) -> list[tuple[str, int]]:
    specs: tuple[TensorSpec, ...] = getattr(one, side)
    return sorted((spec.name, len(spec.shape)) for spec in specs)


def _accuracies(
    everyone: Sequence[Candidate],
    dataset: Dataset,
    batch: int,
    progress: Callable[[int], None],
) -> list[Accuracy]:
    meters = [AccuracyMeter() for _ in everyone]
    names = [spec.name for spec in everyone[0].outputs]
    for number, feeds in enumerate(dataset.batches(batch)):
        labels = dataset.labels
        part = None if labels is None else labels[number * batch : (number + 1) * batch]
        outputs = [run_session(one.session, names, feeds) for one in everyone]
        for meter, output in zip(meters, outputs, strict=True):
            meter.update(outputs[0], output, part)
        progress(len(next(iter(feeds.values()))))
    return [meter.result() for meter in meters]


def write_comparison(path: Path, comparison: Comparison) -> Document:
    """Write `comparison.json`."""
    return write_document(path, comparison.to_document())


def read_comparison(path: Path) -> Comparison:
    """Read `comparison.json`; `InputError` if it is missing, altered or malformed."""
    document = read_document(path, KIND)
    comparison: Comparison = parsing(path, lambda: _from_document(document))
    return comparison


def _from_document(document: Document) -> Comparison:
    measured = document["measured"]["candidates"]
    rows = tuple(
        Row(
            item["name"],
            item["model"],
            item["quantization"],
            _accuracy(item["accuracy"]),
            _latency(measured[item["name"]]["latency"]),
            measured[item["name"]]["size_bytes"],
        )
        for item in document["rows"]
    )
    plain = {key: document[key] for key in ("dataset", "dataset_name", "samples", "batch")}
    gates = Gates(**document["gates"])
    return Comparison(gates=gates, rows=rows, machine=document["measured"]["machine"], **plain)


def _accuracy(item: dict[str, Any]) -> Accuracy:
    interval = item["top1_drop_interval"]
    return Accuracy(**{**item, "top1_drop_interval": tuple(interval) if interval else None})


def _latency(item: dict[str, Any]) -> Latency:
    intervals = {key: tuple(item[key]) for key in ("p50_interval_ms", "speedup_interval")}
    return Latency(**{**item, **intervals})
