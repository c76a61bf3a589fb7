"""Readers of the files that trtexec and Polygraphy write: each is recognized by what is in it.

trtexec writes JSON by hand: it escapes no name, and NaN and Inf stand as C++ prints them (read in
NVIDIA's sources of 8.6.1, 10.8 and 11.1). So its outputs and profiles are cut at fixed sequences.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trtcal.backends.sessions import Array
from trtcal.data.arrays import read_header
from trtcal.data.polygraphy import class_of, read_feeds
from trtcal.documents.bounds import parse_json
from trtcal.errors import InputError
from trtcal.evidence.layers.inspector import (
    Profile,
    profile_in_log,
    read_inspector,
    read_profile,
)
from trtcal.evidence.layers.layer import Layer
from trtcal.evidence.log.reader import parse_file

TIMES, PROFILE, LAYERS, KERNELS = "times", "profile", "layers", "kernels"
TENSORS, RAW, INPUTS, LOG = "tensors", "raw tensor", "inputs", "log"
HEAD = 4096
MOST_TIMES, LEAST_MS, MOST_MS = 1_000_000, 1e-6, 1e9
KINDS_HINT = (
    "give what trtexec's --exportTimes, --exportProfile, --exportLayerInfo, --exportOutput or "
    "--saveAllDebugTensors=numpy wrote, its log, Polygraphy's --save-outputs, or an export of Nsight"
)


class Piece(NamedTuple):
    """What one file holds: its name, its digest, and a value of the kind that it has."""

    name: str
    digest: str
    kind: str
    value: Any


class Quantiles(NamedTuple):
    """Times in milliseconds."""

    median: float
    p90: float
    p99: float


@dataclass(frozen=True)
class Log:
    """What a log of trtexec says: GPU, version, batch, latency of whole inferences, warnings."""

    gpu: str | None = None
    capability: str | None = None
    version: str | None = None
    batch: int | None = None
    latency: Quantiles | None = None
    compute_ms: float | None = None
    runs: int = 0
    in_turns: bool = False
    warnings: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()
    profile: Profile | None = None

    def joined(self, other: Log) -> Log:
        """Return this with what only the other one says."""
        names = [each.name for each in fields(self)]
        return Log(**{name: getattr(self, name) or getattr(other, name) for name in names})


def read_piece(file: Path, data: bytes) -> tuple[str, Any]:
    """Return the kind of a file and what it holds; `InputError` if it is of no known kind."""
    if data.startswith(b"\x93NUMPY"):
        return TENSORS, {file.name: read_array(file.name, data)}
    head = data[:HEAD].decode("latin-1")
    for mark, kind, reader in MARKS:
        if re.search(mark, head):
            return kind, reader(file, data)
    if b"\0" not in data[:HEAD] and re.search(rb"\[TRT\]|trtexec|=== [A-Z]", data):
        return LOG, read_log(file, data)
    if file.suffix in (".raw", ".bin", ".dat"):
        return RAW, {file.name: data}
    raise InputError(f"{file} is not a file that trtcal recognizes", KINDS_HINT)


def read_array(name: str, data: bytes) -> Array:
    """Return the array of a `.npy`; `InputError` if it is none, cut short, or holds objects."""
    try:
        read_header(io.BytesIO(data), len(data))
        array: Array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError, MemoryError) as error:
        raise InputError(f"{name} cannot be read: {error}", "export it again") from error
    return array


def _json(file: Path, data: bytes) -> Any:
    try:
        return parse_json(data, strict=False)
    except ValueError as error:
        raise InputError(f"{file} is not JSON: {error}", KINDS_HINT) from error


def read_times(file: Path, data: bytes) -> Array:
    """Return times of shape (inferences, 4): whole, compute, to the GPU, from it, in milliseconds."""
    names = ("latencyMs", "computeMs", "h2dMs", "d2hMs")
    try:
        items = parse_json(data, strict=False)[:MOST_TIMES]
        times = np.array([[float(item[name]) for name in names] for item in items])
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise InputError(f"{file} is not a list of times: {error}", KINDS_HINT) from error
    if not len(times) or not ((times >= 0) & (times < MOST_MS)).all():
        raise InputError(f"{file} has no times, or negative ones", "measure again")
    _check_times(file, times[:, :2])
    return times


def _check_times(file: Path, times_ms: Array) -> None:
    if not ((times_ms >= LEAST_MS) & (times_ms < MOST_MS)).all():
        raise InputError(f"{file} has times that no inference takes", "measure again")


OUTPUT = re.compile(r'\{\s{0,64}"name"\s{0,64}:\s{0,64}"')
VALUES = re.compile(
    r'"\s{0,64},\s{0,64}"dimensions"\s{0,64}:\s{0,64}"([\dx(), a-z]{0,256})"\s{0,64},\s{0,64}'
    r'"values"\s{0,64}:\s{0,64}\[([^\]"]*)\]'
)


def read_outputs(file: Path, data: bytes) -> dict[str, Array]:
    """Return the tensors of `--exportOutput` by name; numbers have six digits there."""
    text, start = data.decode("utf-8", "backslashreplace"), 0
    tensors = {}
    for values in VALUES.finditer(text):
        if opening := OUTPUT.search(text, start, values.start() + 1):
            shape = [int(size) for size in re.findall(r"\d+", values[1])]
            tensors[text[opening.end() : values.start()]] = _array(file, values[2], shape)
        start = values.end()
    if not tensors:
        raise InputError(f"{file} has no output with its values", KINDS_HINT)
    return tensors


def _array(file: Path, text: str, shape: Sequence[int]) -> Array:
    try:
        return np.array(text.split(",") if text.strip() else [], np.float64).reshape(shape)
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"{file}: values do not fit their dimensions: {error}", KINDS_HINT
        ) from error


def read_results(file: Path, data: bytes) -> dict[str, Array]:
    """Return the outputs of the first iteration of TensorRT's runner in Polygraphy's RunResults."""
    try:
        runs = parse_json(data)["lst"]
        own = [items for name, items in runs if len(runs) == 1 or "trt" in str(name).lower()]
        if len(own) != 1:
            names = ", ".join(str(name) for name, _ in runs)
            raise InputError(
                f"{file} has several runners: {names}", "save the outputs of one runner"
            )
        return {str(name): _decoded(file, value) for name, value in own[0][0]["outputs"].items()}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise InputError(f"{file} is not RunResults of Polygraphy: {error}", KINDS_HINT) from error


def _decoded(file: Path, value: dict[str, Any]) -> Array:
    inner: dict[str, Any] = value["values"] if class_of(value) == "LazyArray" else value
    if class_of(inner) != "ndarray":
        raise InputError(f"{file} holds a {class_of(inner)}, not an array", KINDS_HINT)
    return read_array(file.name, base64.b64decode(inner["array"], validate=True))


def _layers(file: Path, data: bytes) -> tuple[Layer, ...]:
    layers = read_inspector(data)
    if not layers:
        raise InputError(f"{file} lists no layers", "build with --profilingVerbosity=detailed")
    return layers


NUMBER = r"(\d{1,12}(?:\.\d{1,12})?(?:e[-+]?\d{1,3})?)"
SUMMARY = re.compile(
    rf"\] (?P<what>Latency|GPU Compute Time): min = {NUMBER} ms, max = (?P<most>{NUMBER}) ms, "
    rf"mean = {NUMBER} ms, median = (?P<median>{NUMBER}) ms(?P<rest>[^\n]{{0,400}})"
)
PERCENTILE = re.compile(rf"percentile\((\d{{1,2}})%\) = {NUMBER} ms")
GPU = re.compile(r"Selected Device: ([^\r\n]{1,120})")
CAPABILITY = re.compile(r"Compute Capability: (\d{1,2})\.(\d)")
VERSION = re.compile(r"TensorRT version: (\d{1,2}(?:\.\d{1,3}){1,3})|\[TensorRT v(\d{4,6})\]")
BINDING = re.compile(r"Input binding for [^\r\n]{1,300} with dimensions \(?(\d{1,9})[x,]")
QUERIES = re.compile(r"Timing trace has (\d{1,9}) queries")
DISTURBED = re.compile(
    r"\[W\] (?:\* )?(GPU compute time is unstable[^\r\n]{0,200}|Throughput may be[^\r\n]{0,300})"
)
WARNING = re.compile(r"^\[W\] ([^\r\n]{1,300})", re.MULTILINE)


def read_log(file: Path, data: bytes) -> Log:
    """Return what a log of trtexec says."""
    text = data.decode("utf-8", "backslashreplace")
    gpu, capability, batch, runs = (
        pattern.search(text) for pattern in (GPU, CAPABILITY, BINDING, QUERIES)
    )
    summary = {match["what"]: match for match in SUMMARY.finditer(text)}
    whole, compute = summary.get("Latency"), summary.get("GPU Compute Time")
    in_turns = "] Timed in turns with the other engines" in text
    parsed = parse_file(file) if file.is_file() else None
    return Log(
        gpu=gpu[1].strip() if gpu else None,
        capability=f"sm{capability[1]}{capability[2]}" if capability else None,
        version=_version(text),
        batch=int(batch[1]) if batch else None,
        latency=_quantiles(file, whole) if whole else None,
        compute_ms=float(compute["median"]) if compute else None,
        runs=int(runs[1]) if runs else 0,
        in_turns=in_turns,
        warnings=tuple(dict.fromkeys((WARNING if in_turns else DISTURBED).findall(text))),
        layers=parsed.layers if parsed else (),
        profile=profile_in_log(parsed.events) if parsed else None,
    )


def _quantiles(file: Path, summary: re.Match[str]) -> Quantiles:
    known = {int(percent): float(ms) for percent, ms in PERCENTILE.findall(summary["rest"])}
    most = float(summary["most"])
    quantiles = Quantiles(float(summary["median"]), known.get(90, most), known.get(99, most))
    _check_times(file, np.array(quantiles))
    return quantiles


def _version(text: str) -> str | None:
    """Return TensorRT's version; 8601 is 8.6.1, 100300 is 10.3.0."""
    match = VERSION.search(text)
    if match is None or match[1]:
        return match[1] if match else None
    number = int(match[2])
    major, rest = divmod(number, 1_000 if number < 10_000 else 10_000)
    return f"{major}.{rest // 100}.{rest % 100}"


MARKS: tuple[tuple[str, str, Callable[[Path, bytes], Any]], ...] = (
    (r'"latencyMs"', TIMES, read_times),
    (r'"(averageMs|timeMs)"', PROFILE, lambda _, data: read_profile(data)),
    (r'"dimensions"\s{0,64}:\s{0,64}"', TENSORS, read_outputs),
    (r'^\s{0,64}\{\s{0,64}"(Layers|Bindings|I/O Tensors)"', LAYERS, _layers),
    (r'^\s{0,64}\{\s{0,64}"lst"', TENSORS, read_results),
    (r"^\s{0,64}[\[{][^\0]{0,3000}\"array\"", INPUTS, lambda file, _: next(read_feeds(file))),
)
"""What stands in the first bytes of a file, the kind that it then is, and its reader."""
