"""Readers of the files that trtexec and Polygraphy write: each is recognized by what is in it.

trtexec writes JSON by hand: it escapes no name, and NaN and Inf stand as C++ prints them (read in
NVIDIA's sources of 8.6.1, 10.8 and 11.1). So its outputs and profiles are cut at fixed sequences.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trtcal.backends.sessions import Array
from trtcal.data.arrays import parse_array
from trtcal.data.polygraphy import array_of, class_of, read_feeds
from trtcal.documents import Document, digest_bytes
from trtcal.documents.bounds import in_time, parse_json
from trtcal.errors import InputError
from trtcal.evidence.gpus import capability_of
from trtcal.evidence.layers.inspector import Profile, profile_in_log, read_inspector, read_profile
from trtcal.evidence.layers.layer import Layer
from trtcal.evidence.log.files import portions_of_input
from trtcal.evidence.log.reader import parse
from trtcal.evidence.log.recognition import Event
from trtcal.evidence.log.summary import summarize

INPUTS, LOG = "inputs", "log"
HEAD = 4096
MOST_TIMES, LEAST_MS, MOST_MS = 1_000_000, 1e-6, 1e9
KINDS_HINT = (
    "give what trtexec's --exportTimes, --exportProfile, --exportLayerInfo, --exportOutput or "
    "--saveAllDebugTensors=numpy wrote, its log, Polygraphy's --save-outputs, or an export of Nsight"
)


class Quantiles(NamedTuple):
    """Times in milliseconds; `low` and `high` are the ends of the median's 95 % interval."""

    median: float
    low: float
    high: float
    p90: float
    p99: float


@dataclass(frozen=True)
class Facts:
    """What one file says of an engine, or several of them joined.

    `times` are of shape (inferences, 4): whole, compute, to the GPU, from it, in milliseconds;
    `latency` is what a log says. `tensors` are by name, or by the name of their file; those of a raw
    file are its bytes.
    """

    files: tuple[Document, ...] = ()
    device: str = ""
    gpu: str | None = None
    capability: str | None = None
    version: str | None = None
    batch: int | None = None
    latency: Quantiles | None = None
    compute_ms: float | None = None
    runs: int = 0
    in_turns: bool = False
    times: tuple[Array, ...] = ()
    layers: tuple[Layer, ...] = ()
    profile: Profile | None = None
    tensors: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What kind of file this is."""
        return str(self.files[0]["kind"])

    @property
    def on(self) -> str:
        """The device: as it was given, else as files name it, else "a device"."""
        named = capability_of(self.gpu or "") or self.capability or self.gpu
        return self.device or named or "a device"

    @property
    def hardware(self) -> str:
        """The GPU and the version of TensorRT, as far as files name them."""
        version = f"TensorRT {self.version or ''}".rstrip()
        return f"{self.gpu or 'a GPU that no file names'}, {version}"

    def joined(self, other: Facts) -> Facts:
        """Return this with what only another file says; `InputError` if both list layers or times.

        A log comes last: what it says beside files of their own is left.
        """
        for name in ("layers", "profile"):
            if getattr(self, name) and getattr(other, name) and other.kind != LOG:
                file = other.files[0]["file"]
                raise InputError(f"{file} is a second file of {name}", "give one of them")
        return Facts(**{each.name: self._joined(each.name, other) for each in fields(self)})

    def _joined(self, name: str, other: Facts) -> Any:
        ours, theirs = getattr(self, name), getattr(other, name)
        if name == "tensors":
            return {**ours, **theirs}
        return ours + theirs if name in ("files", "times", "warnings") else ours or theirs


def read_piece(file: Path, data: bytes, shown: str) -> Facts:
    """Return what a file says; `InputError` if it is of no known kind. `shown` is its name."""
    kind, reader = _reader_of(file, data)
    try:
        facts = reader(file, data)
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        OverflowError,
        MemoryError,
    ) as error:
        raise InputError(f"{file} cannot be read as {kind}: {error}", KINDS_HINT) from error
    return replace(facts, files=({"file": shown, "kind": kind, "digest": digest_bytes(data)},))


def _reader_of(file: Path, data: bytes) -> tuple[str, Reader]:
    head = data[:HEAD].decode("latin-1")
    for mark, kind, reader in MARKS:
        if re.search(mark, head):
            return kind, reader
    if "\0" not in head and re.search(rb"\[TRT\]|trtexec|=== [A-Z]", data):
        return LOG, _log
    if file.suffix in (".raw", ".bin", ".dat"):
        return "raw tensor", lambda file, data: Facts(tensors={file.name: data})
    raise InputError(f"{file} is not a file that trtcal recognizes", KINDS_HINT)


def _times(_: Path, data: bytes) -> Facts:
    names = ("latencyMs", "computeMs", "h2dMs", "d2hMs")
    items = parse_json(data, strict=False)[:MOST_TIMES]
    times = np.array([[float(item[name]) for name in names] for item in items])
    _check_times(times[:, :2], LEAST_MS)
    _check_times(times[:, 2:], 0.0)
    return Facts(times=(times,))


def _check_times(times_ms: Array, least: float) -> None:
    if not ((times_ms >= least) & (times_ms < MOST_MS)).all():
        raise ValueError("it has times that no inference takes")


OUTPUT = re.compile(r'\{\s{0,64}"name"\s{0,64}:\s{0,64}"')
VALUES = re.compile(
    r'"\s{0,64},\s{0,64}"dimensions"\s{0,64}:\s{0,64}"([\dx(), a-z]{0,256})"\s{0,64},\s{0,64}'
    r'"values"\s{0,64}:\s{0,64}\[([^\]"]*)\]'
)


def _outputs(_: Path, data: bytes) -> Facts:
    """Cut the text behind every name; numbers have six digits."""
    text, start = data.decode("utf-8", "backslashreplace"), 0
    tensors = {}
    for values in VALUES.finditer(text):
        if opening := OUTPUT.search(text, start, values.start() + 1):
            shape = [int(size) for size in re.findall(r"\d+", values[1])]
            numbers = values[2].split(",") if values[2].strip() else []
            array = np.array(numbers, np.float64).reshape(shape)
            tensors[text[opening.end() : values.start()]] = array
        start = values.end()
    if not tensors:
        raise ValueError("it has no output with its values")
    return Facts(tensors=tensors)


def _results(file: Path, data: bytes) -> Facts:
    """Return the outputs of the first iteration of TensorRT's runner in Polygraphy's RunResults."""
    runs = parse_json(data)["lst"]
    results = [items for name, items in runs if len(runs) == 1 or "trt" in str(name).lower()]
    if len(results) != 1:
        what = f"{file} has several runners: {', '.join(str(name) for name, _ in runs)}"
        raise InputError(what, "save the outputs of one runner")
    outputs = results[0][0]["outputs"].items()
    return Facts(tensors={name: _decoded(file, name, value) for name, value in outputs})


def _decoded(file: Path, name: str, value: dict[str, Any]) -> Array:
    inner = value["values"] if class_of(value) == "LazyArray" else value
    return array_of(str(file), name, inner, KINDS_HINT)


def _layers(file: Path, data: bytes) -> Facts:
    layers = read_inspector(data)
    if not layers:
        raise InputError(f"{file} lists no layers", "build with --profilingVerbosity=detailed")
    return Facts(layers=layers)


PERCENTILE = re.compile(r"percentile\((90|99)%\) = (\d[\d.e+-]{0,20}) ms")
CAPABILITY = re.compile(r"Compute Capability: (\d{1,2})\.(\d)")
BINDING = re.compile(r"Input binding for [^\r\n]{1,300} with dimensions \(?(\d{1,9})[x,]")
DISTURBED = "GPU compute time is unstable", "Throughput may be"


def _log(file: Path, data: bytes) -> Facts:
    """Return what a log of trtexec says, or one of the worker's, which says which engines it timed."""
    with in_time(file, len(data)):
        parsed = parse(portions_of_input(io.BytesIO(data), str(file)))
    text, known = data.decode("utf-8", "backslashreplace"), summarize(parsed.events)
    capability, batch = CAPABILITY.search(text), BINDING.search(text)
    in_turns = "] Timed in turns with the other engines" in text
    by_name = {event.fields.get("what", event.fields.get("rule")): event for event in parsed.events}
    whole, compute, queries = map(by_name.get, ("Latency", "GPU Compute Time", "time_queries"))
    warnings = (each.message.lstrip("* ") for each in parsed.events if each.severity == "warning")
    return Facts(
        gpu=known["gpu"],
        capability=f"sm{capability[1]}{capability[2]}" if capability else None,
        version=known["version"],
        batch=int(batch[1]) if batch else None,
        latency=_quantiles(whole) if whole else None,
        compute_ms=float(compute.fields["median_ms"]) if compute else None,
        runs=int(queries.fields["queries_count"]) if queries else 0,
        in_turns=in_turns,
        warnings=tuple(text for text in warnings if in_turns or text.startswith(DISTURBED)),
        layers=parsed.layers,
        profile=profile_in_log(parsed.events),
    )


def _quantiles(summary: Event) -> Quantiles:
    median, most = (float(summary.fields[name]) for name in ("median_ms", "max_ms"))
    known = {percent: float(ms) for percent, ms in PERCENTILE.findall(summary.message)}
    quantiles = Quantiles(median, median, median, known.get("90", most), known.get("99", most))
    _check_times(np.array(quantiles), LEAST_MS)
    return quantiles


Reader = Callable[[Path, bytes], Facts]
MARKS: tuple[tuple[str, str, Reader], ...] = (
    (r"^\x93NUMPY", "tensors", lambda file, data: Facts(tensors={file.name: parse_array(data)})),
    (r'"latencyMs"', "times", _times),
    (r'"(averageMs|timeMs)"', "profile", lambda _, data: Facts(profile=read_profile(data))),
    (r'"dimensions"\s{0,64}:\s{0,64}"', "tensors", _outputs),
    (r'^\s{0,64}\{\s{0,64}"(Layers|Bindings|I/O Tensors)"', "layers", _layers),
    (r'^\s{0,64}\{\s{0,64}"lst"', "tensors", _results),
    (
        r"^\s{0,64}[\[{][^\0]{0,3000}\"array\"",
        INPUTS,
        lambda file, _: Facts(tensors=next(read_feeds(file))),
    ),
)
"""What stands in the first bytes of a file, the kind that it then is, and its reader."""
