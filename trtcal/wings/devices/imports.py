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
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np

from trtcal.backends.sessions import Array
from trtcal.data.dataset import fixed_batch
from trtcal.documents.bounds import read_bytes
from trtcal.errors import InputError, some
from trtcal.evaluate.comparison import Row
from trtcal.evaluate.latency import Latency
from trtcal.evaluate.target_times import TargetTime, of_latency
from trtcal.evidence.layers.inspector import join_times
from trtcal.evidence.layers.layer import UNKNOWN, Layer
from trtcal.evidence.layers.outcomes import built_coverage, find_outcomes
from trtcal.evidence.manifest import Build
from trtcal.model import Model
from trtcal.quantization.qdq import asked_precisions, quantization_record
from trtcal.reporting.measured import Measured
from trtcal.stats import median_interval
from trtcal.wings.devices import nsight
from trtcal.wings.devices.differing import first_difference, sentence_of, shaped
from trtcal.wings.devices.measure import read_result
from trtcal.wings.devices.tools import INPUTS, LOG, Facts, Quantiles, read_piece

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


def read_measured(
    files: Sequence[str], rows: Sequence[Row], models: Mapping[str, Model]
) -> list[Measured]:
    """Read files, each `[VARIANT[@DEVICE]=]FILE`; `InputError` if one has no variant, or two."""
    gathered = _Gathered(rows, models)
    for text in files:
        gathered.read(text)
    if not gathered.pieces:
        raise InputError("these files measure no variant", f"{HINT}{gathered.shown}")
    engines = {name: gathered.engine(name) for name in gathered.pieces}
    first, _ = _latency_of(engines.get(rows[0].name, Facts()), models.get(rows[0].model))
    return [
        _measured(row, engines[row.name], first, models.get(row.model), gathered.feeds)
        for row in rows
        if row.name in engines
    ]


class _Gathered:
    """What files say by variant, and the inputs that all of them were run on."""

    def __init__(self, rows: Sequence[Row], models: Mapping[str, Model]) -> None:
        self.rows, self.pieces = rows, defaultdict[str, list[Facts]](list)
        self.feeds = dict[str, Array]()
        self.names = [row.name for row in rows]
        self.inputs = {spec.name: spec for model in models.values() for spec in model.inputs}
        self.shown = some(self.names, len(self.names))

    def engine(self, name: str) -> Facts:
        """Return what all files of a variant say; `InputError` if two say the same thing."""
        return reduce(Facts.joined, sorted(self.pieces[name], key=lambda piece: piece.kind == LOG))

    def read(self, text: str) -> None:
        """Read a file, a folder of files, or the result of measure.sh."""
        name, device, path = self._split(text)
        if _head(path)[257:] == b"ustar":
            for variant, piece in read_result(path, self.rows):
                self._add(variant, device, piece)
        elif name in self.inputs and name not in self.names:
            self.feeds[name] = shaped(read_bytes(path), self.inputs[name], path)
        else:
            for file in _files_at(path):
                self._add(name, device, _piece_of(file), str(file.relative_to(path.parent)))

    def _split(self, text: str) -> tuple[str, str, Path]:
        head, sign, tail = text.partition("=")
        if Path(text).exists() or not sign:
            return "", "", Path(text)
        name, at, device = head.partition("@")
        if name not in (*self.names, *self.inputs, *([""] if at else [])):
            what = f"--measured {text}: {name!r} is neither a variant nor an input"
            raise InputError(what, HINT + self.shown)
        return name, f"@{device}" if device else "", Path(tail)

    def _add(self, variant: str, device: str, piece: Facts, file: str = "") -> None:
        if piece.kind == INPUTS:
            self.feeds.update(piece.tensors)
        else:
            self.pieces[variant or self._owner(file)].append(replace(piece, device=device))

    def _owner(self, file: str) -> str:
        """Return the variant that a file's name bears, the longest of several within one another."""
        fits = [n for n in self.names if re.search(rf"(?<![^\W_]){re.escape(n)}(?![^\W_])", file)]
        longest = [n for n in fits if not any(n != other and n in other for other in fits)]
        if len(longest) == 1:
            return longest[0]
        what = f"may be of {some(longest)}" if longest else "names no variant"
        raise InputError(f"{file} {what}", f"{HINT}{self.shown}")


def _files_at(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.iterdir() if each.is_file() and each.name[0] != ".")
    if len(files) > MOST_FILES:
        raise InputError(f"{path} has {len(files)} files", f"give a folder of {MOST_FILES} at most")
    return files


def _piece_of(file: Path) -> Facts:
    if _head(file).startswith(nsight.MAGIC):
        return nsight.read_kernels(file)
    return read_piece(file, read_bytes(file), file.name)


def _head(file: Path) -> bytes:
    if not file.is_file():
        return b""
    with file.open("rb") as stream:
        return stream.read(262)


def _latency_of(engine: Facts, model: Model | None) -> tuple[Latency | None, list[str]]:
    """Return the latency of an engine, its speed-up not yet known, and warnings about it."""
    known, runs, compute, warnings = engine.latency, engine.runs, engine.compute_ms, list[str]()
    if engine.times:
        times = np.concatenate(engine.times)
        known, runs, compute = _quantiles(times[:, 0]), len(times), float(np.median(times[:, 1]))
        warnings += [NO_TRANSFERS] * (not times[:, 2:].any())
    if known is None:
        return None, warnings
    warnings += [ALONE.format(max(len(engine.times), 1))] * (not engine.in_turns)
    warnings += [NO_INTERVAL] * (not engine.times)
    latency = Latency(
        batch=engine.batch or _batch(engine.layers) or (model and fixed_batch(model)) or 0,
        runs=runs,
        p50_ms=known.median,
        p90_ms=known.p90,
        p99_ms=known.p99,
        p50_interval_ms=(known.low, known.high),
        speedup=1.0,
        speedup_interval=(1.0, 1.0),
        on=engine.on,
        hardware=engine.hardware,
        is_gpu=not (engine.gpu or "").startswith("CPU"),
        compute_p50_ms=compute,
    )
    return latency, warnings


def _quantiles(times_ms: Array) -> Quantiles:
    median, (p90, p99) = median_interval(times_ms), np.quantile(times_ms, [0.9, 0.99]).tolist()
    return Quantiles(median.value, median.low, median.high, p90, p99)


def _batch(layers: Sequence[Layer]) -> int | None:
    shapes = (tensor.shape for layer in layers for tensor in layer.inputs)
    return next((shape[0] for shape in shapes if shape and shape[0] > 0), None)


def _time_of(latency: Latency, first: Latency | None) -> TargetTime:
    """Return a time, with its speed-up over the reference if that was measured there."""
    if first is None or first.on != latency.on:
        return replace(of_latency(latency), latency=None)
    if first == latency:
        return of_latency(latency)
    (low, high), (least, most) = first.p50_interval_ms, latency.p50_interval_ms
    ratio, ends = first.p50_ms / latency.p50_ms, (low / most, high / least)
    return of_latency(replace(latency, speedup=ratio, speedup_interval=ends))


def _timed_layers(engine: Facts) -> tuple[tuple[Layer, ...], list[str]]:
    """Return the layers with their times, those of a profile alone have only names; and warnings."""
    if engine.profile is None:
        return engine.layers, []
    named = (Layer(time.names[-1], UNKNOWN) for time in engine.profile.times)
    timed = join_times(engine.layers or tuple(named), engine.profile)
    if all(layer.time_ms is None for layer in timed.layers):
        hint = "give the profile of the same engine"
        raise InputError("a profile and the layers given with it have no name in common", hint)
    lost = math.fsum(time.average_ms or 0.0 for time in timed.without_layer)
    count = len(timed.without_layer)
    lost_times = f"{count} times ({lost:.3g} ms) belong to no layer of its list"
    return timed.layers, [lost_times] * bool(count)


def _measured(
    row: Row, engine: Facts, first: Latency | None, model: Model | None, feeds: Mapping[str, Array]
) -> Measured:
    layers, of_layers = _timed_layers(engine)
    latency, of_times = _latency_of(engine, model)
    time = _time_of(latency, first) if latency else None
    warnings, known = [*engine.warnings, *of_layers, *of_times], list[str]()
    difference = None
    if engine.tensors and not feeds:
        warnings.append(UNKNOWN_INPUTS)
    elif engine.tensors and model:
        difference = first_difference(model, feeds, engine.tensors)
        (warnings if difference["tensor"] else known).append(sentence_of(difference, model))
    warnings = [*dict.fromkeys(warnings)]
    facts = {
        "variant": row.name,
        "on": engine.on,
        "hardware": engine.hardware,
        "ms": time and time.ms,
        "interval_ms": time and [time.low_ms, time.high_ms],
        "files": list(engine.files),
        "notes": [*known, *warnings],
        "warnings": warnings,
        "difference": difference,
    }
    return Measured(row.name, _build(row, engine, layers, model) if layers else None, time, facts)


def _build(row: Row, engine: Facts, layers: tuple[Layer, ...], model: Model | None) -> Build:
    """Return the engine as a build of trtcal's describes it, without its file."""
    outcomes = find_outcomes(asked_precisions(model.proto), layers, 1) if model else ()
    record = quantization_record(model.proto) if model else {}
    return Build(
        folder=NOWHERE,
        backend="tensorrt",
        backend_version=engine.version or "unknown",
        target=engine.on,
        model=row.model,
        model_name=row.name,
        layers=layers,
        outcomes=outcomes,
        skipped=record.get("skipped", {}),
        quantization=row.quantization,
        engine_file="",
        measured={"engine_bytes": None},
        gpu=engine.gpu,
        coverage=built_coverage(model, outcomes) if model else None,
    )
