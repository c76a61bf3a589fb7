"""What other tools measured of a run's variants: files of trtexec, Polygraphy and Nsight Systems.

Read are trtexec's --exportTimes, --exportProfile, --exportLayerInfo, --exportOutput, its debug tensors
and its log (TensorRT 8.6 to 11), Polygraphy's --save-outputs and --save-inputs, Nsight Systems' SQLite
export, and the result of `measure.sh`. A file is recognized by what is in it.

Each belongs to one variant, whose name it bears or is given. All of them are untrusted: sizes, counts
and types are checked, nothing is unpickled, and no path in a file is followed.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from trtcal.backends.sessions import Array
from trtcal.data.dataset import fixed_batch
from trtcal.documents import Document, digest_bytes, digest_file
from trtcal.documents.bounds import read_bytes
from trtcal.errors import InputError, some
from trtcal.evaluate.comparison import Row
from trtcal.evaluate.latency import Latency
from trtcal.evaluate.target_times import TargetTime, of_latency
from trtcal.evidence.layers.inspector import Profile, join_times
from trtcal.evidence.layers.layer import UNKNOWN, Layer
from trtcal.evidence.layers.outcomes import built_coverage, find_outcomes
from trtcal.evidence.layers.roofline import capability_of
from trtcal.evidence.manifest import Build
from trtcal.model import Model
from trtcal.quantization.qdq import asked_precisions, quantization_record
from trtcal.reporting.measured import Measured
from trtcal.stats import median_interval
from trtcal.wings.devices import nsight, tools
from trtcal.wings.devices.differing import first_difference, sentence_of, shaped
from trtcal.wings.devices.measure import is_result, read_result
from trtcal.wings.devices.tools import Quantiles

MOST_FILES = 10_000
NOWHERE = Path(os.devnull) / "imported"
ALONE = "trtexec times one engine in a process (processes for each: {}), not all engines in turns"
NO_INTERVAL = "its log gives no interval: add `--exportTimes=FILE` to trtexec"
NO_TRANSFERS = "the times are without transfers between host and GPU"
UNKNOWN_INPUTS = (
    "its outputs were not compared, because the inputs are not known: add `--measured INPUT=FILE`, or "
    "what Polygraphy's --save-inputs wrote"
)
HINT = "name the variant: --measured VARIANT=FILE; the variants are "


@dataclass
class Engine:
    """What all files of one variant say of its engine."""

    device: str = ""
    files: list[Document] = field(default_factory=list)
    times: list[Array] = field(default_factory=list)
    layers: tuple[Layer, ...] = ()
    profile: Profile | None = None
    log: tools.Log = field(default_factory=tools.Log)
    tensors: dict[str, Array] = field(default_factory=dict)
    raw: dict[str, bytes] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def add(self, piece: tools.Piece) -> None:
        """Add what one file holds; `InputError` if two files say the same thing differently."""
        self.files.append({"file": piece.name, "kind": piece.kind, "digest": piece.digest})
        value = piece.value
        if piece.kind == tools.TIMES:
            self.times.append(value)
        elif piece.kind == tools.LOG:
            self.log = self.log.joined(value)
            self.layers, self.profile = self.layers or value.layers, self.profile or value.profile
        elif piece.kind == tools.TENSORS:
            self.tensors.update(value)
        elif piece.kind == tools.RAW:
            self.raw.update(value)
        else:
            self._describe(piece)

    def _describe(self, piece: tools.Piece) -> None:
        name = "layers" if piece.kind == tools.LAYERS else "profile"
        value = piece.value
        if isinstance(value, nsight.Kernels):
            self.log = self.log.joined(tools.Log(gpu=value.gpu))
            if value.outside_ms:
                self.warnings.append(f"kernels of no layer took {value.outside_ms:.3g} ms")
            value = value.profile
        if len([file for file in self.files if file["kind"] == piece.kind]) > 1:
            raise InputError(f"{piece.name} is a second file of {name}", "give one of them")
        setattr(self, name, value)

    @property
    def on(self) -> str:
        """The device: as it was given, else as files name it, else "a device"."""
        gpu, capability = self.log.gpu, self.log.capability
        return self.device or capability_of(gpu or "") or capability or gpu or "a device"

    @property
    def hardware(self) -> str:
        """The GPU and the version of TensorRT, as far as files name them."""
        version = f"TensorRT {self.log.version or ''}".rstrip()
        return f"{self.log.gpu or 'a GPU that no file names'}, {version}"

    def timed_layers(self) -> tuple[Layer, ...]:
        """Return the layers with their times; those of a profile alone have only names."""
        if self.profile is None:
            return self.layers
        named = (Layer(time.names[-1], UNKNOWN) for time in self.profile.times)
        timed = join_times(self.layers or tuple(named), self.profile)
        if all(layer.time_ms is None for layer in timed.layers):
            hint = "give the profile of the same engine"
            raise InputError("a profile and the layers given with it have no name in common", hint)
        if timed.without_layer:
            lost = math.fsum(time.average_ms or 0.0 for time in timed.without_layer)
            count = len(timed.without_layer)
            self.warnings.append(f"{count} times ({lost:.3g} ms) belong to no layer of its list")
        return timed.layers


def read_measured(
    files: Sequence[str], rows: Sequence[Row], models: Mapping[str, Model]
) -> list[Measured]:
    """Read files, each `[VARIANT[@DEVICE]=]FILE`; `InputError` if one has no variant, or two."""
    gathered = _Gathered(rows, models)
    for text in files:
        gathered.read(text)
    known = [(row, gathered.engines[row.name]) for row in rows if row.name in gathered.engines]
    if not known:
        raise InputError("these files measure no variant", f"{HINT}{gathered.shown}")
    latencies = {row.name: _latency_of(engine, models.get(row.model)) for row, engine in known}
    times = dict(_in_relation(latencies, rows[0].name))
    return [
        _measured(row, engine, times.get(row.name), models.get(row.model), gathered.feeds)
        for row, engine in known
    ]


class _Gathered:
    """The engines by variant, and the inputs that all of them were run on."""

    def __init__(self, rows: Sequence[Row], models: Mapping[str, Model]) -> None:
        self.rows, self.engines, self.feeds = rows, dict[str, Engine](), dict[str, Array]()
        self.names = [row.name for row in rows]
        self.inputs = {spec.name: spec for model in models.values() for spec in model.inputs}
        self.shown = some(self.names, len(self.names))

    def read(self, text: str) -> None:
        name, device, path = self._split(text)
        if path.is_file() and is_result(path):
            for variant, piece in read_result(path, self.rows):
                self._add(variant, device, piece)
            return
        for file in _files_at(path):
            self._read(name, device, file, f"{path.name}/{file.name}" if path.is_dir() else "")

    def _split(self, text: str) -> tuple[str | None, str, Path]:
        head, sign, tail = text.partition("=")
        if Path(text).exists() or not sign:
            return None, "", Path(text)
        name, at, device = head.partition("@")
        if name not in (*self.names, *self.inputs, *([""] if at else [])):
            raise InputError(
                f"--measured {text}: {name!r} is neither a variant nor an input", HINT + self.shown
            )
        return name or None, f"@{device}" if device else "", Path(tail)

    def _read(self, name: str | None, device: str, file: Path, shown: str) -> None:
        if name in self.inputs and name not in self.names:
            self.feeds[str(name)] = shaped(read_bytes(file), self.inputs[str(name)], file)
            return
        if _start(file, len(nsight.MAGIC)) == nsight.MAGIC:
            kernels = nsight.read_kernels(file)
            piece = tools.Piece(file.name, digest_file(file), tools.KERNELS, kernels)
        else:
            data = read_bytes(file)
            piece = tools.Piece(file.name, digest_bytes(data), *tools.read_piece(file, data))
        owner = None if piece.kind == tools.INPUTS else name or self._owner(shown or file.name)
        self._add(owner, device, piece)

    def _add(self, variant: str | None, device: str, piece: tools.Piece) -> None:
        if variant is None:
            self.feeds.update(piece.value)
            return
        engine = self.engines.setdefault(variant, Engine())
        engine.device = device or engine.device
        engine.add(piece)

    def _owner(self, file: str) -> str:
        """Return the variant that a file's name bears, the longest of several within one another."""
        fits = [n for n in self.names if re.search(rf"(?<![^\W_]){re.escape(n)}(?![^\W_])", file)]
        longest = [n for n in fits if not any(n != other and n in other for other in fits)]
        if len(longest) == 1:
            return longest[0]
        what = f"may be of {some(longest)}" if longest else "names no variant"
        raise InputError(f"{file} {what}", f"{HINT}{self.shown}")


def _files_at(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    files = sorted(each for each in path.iterdir() if not each.name.startswith("."))
    if len(files) > MOST_FILES:
        raise InputError(f"{path} has {len(files)} files", f"give a folder of {MOST_FILES} at most")
    yield from (file for file in files if file.is_file())


def _start(file: Path, size: int) -> bytes:
    if not file.is_file():
        return b""
    with file.open("rb") as stream:
        return stream.read(size)


def _latency_of(engine: Engine, model: Model | None) -> Latency | None:
    """Return the latency of an engine, its speed-up not yet known; None if no file has times."""
    quantiles, log = engine.log.latency, engine.log
    runs, compute = log.runs, log.compute_ms
    ends = (quantiles.median, quantiles.median) if quantiles else (0.0, 0.0)
    if engine.times:
        times = np.concatenate(engine.times)
        median, runs, compute = (
            median_interval(times[:, 0]),
            len(times),
            float(np.median(times[:, 1])),
        )
        p90, p99 = np.quantile(times[:, 0], [0.9, 0.99])
        quantiles, ends = Quantiles(median.value, float(p90), float(p99)), (median.low, median.high)
        engine.warnings += [NO_TRANSFERS] * (not times[:, 2:].any())
    if quantiles is None:
        return None
    engine.warnings += [ALONE.format(max(len(engine.times), 1))] * (not log.in_turns)
    engine.warnings += [NO_INTERVAL] * (not engine.times)
    return Latency(
        batch=log.batch or _batch(engine.layers) or (model and fixed_batch(model)) or 0,
        runs=runs,
        p50_ms=quantiles.median,
        p90_ms=quantiles.p90,
        p99_ms=quantiles.p99,
        p50_interval_ms=ends,
        speedup=1.0,
        speedup_interval=(1.0, 1.0),
        on=engine.on,
        hardware=engine.hardware,
        is_gpu=not (log.gpu or "").startswith("CPU"),
        compute_p50_ms=compute,
    )


def _batch(layers: Sequence[Layer]) -> int | None:
    shapes = (tensor.shape for layer in layers for tensor in layer.inputs)
    return next((shape[0] for shape in shapes if shape and shape[0] > 0), None)


def _in_relation(
    latencies: Mapping[str, Latency | None], reference: str
) -> Iterator[tuple[str, TargetTime]]:
    """Yield each variant's time with its speed-up over the reference, where that was measured there."""
    first = latencies.get(reference)
    for name, latency in latencies.items():
        if latency is None:
            continue
        if first is None or first.on != latency.on:
            yield name, replace(of_latency(latency), latency=None)
            continue
        (low, high), (least, most) = first.p50_interval_ms, latency.p50_interval_ms
        ends = (1.0, 1.0) if name == reference else (low / most, high / least)
        ratio = first.p50_ms / latency.p50_ms
        yield name, of_latency(replace(latency, speedup=ratio, speedup_interval=ends))


def _measured(
    row: Row,
    engine: Engine,
    time: TargetTime | None,
    model: Model | None,
    feeds: Mapping[str, Array],
) -> Measured:
    layers = engine.timed_layers()
    warnings = [*dict.fromkeys((*engine.log.warnings, *engine.warnings))]
    has_tensors = bool(engine.tensors or engine.raw)
    if has_tensors and not feeds:
        warnings.append(UNKNOWN_INPUTS)
    difference = None
    if has_tensors and feeds and model:
        difference = first_difference(model, feeds, engine.tensors, engine.raw)
    known = [sentence_of(difference)] if difference else []
    if difference and difference["tensor"]:
        warnings.append(known.pop())
    facts = {
        "variant": row.name,
        "on": engine.on,
        "hardware": engine.hardware,
        "ms": time and time.ms,
        "interval_ms": time and [time.low_ms, time.high_ms],
        "files": engine.files,
        "notes": [*known, *warnings],
        "warnings": warnings,
        "difference": difference,
    }
    return Measured(row.name, _build(row, engine, layers, model) if layers else None, time, facts)


def _build(row: Row, engine: Engine, layers: tuple[Layer, ...], model: Model | None) -> Build:
    """Return the engine as a build of trtcal's describes it, without its file."""
    outcomes = find_outcomes(asked_precisions(model.proto), layers, 1) if model else ()
    record = quantization_record(model.proto) if model else {}
    return Build(
        folder=NOWHERE,
        backend="tensorrt",
        backend_version=engine.log.version or "unknown",
        target=engine.on,
        model=row.model,
        model_name=row.name,
        layers=layers,
        outcomes=outcomes,
        skipped=record.get("skipped", {}),
        quantization=row.quantization,
        engine_file="",
        measured={"engine_bytes": None},
        gpu=engine.log.gpu,
        coverage=built_coverage(model, outcomes) if model else None,
    )
