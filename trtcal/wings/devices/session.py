"""A session on a device: takes the place of one of ONNX Runtime, and times several there in turns.

Arrays go there and come back as a description in JSON, and their bytes one by one.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from trtcal.backends.sessions import Array, Feeds, Session
from trtcal.documents import replacing
from trtcal.errors import BackendError, InputError
from trtcal.evaluate.latency import Timing
from trtcal.evidence.manifest import Build
from trtcal.model import TensorSpec
from trtcal.stats import Values
from trtcal.wings.devices.connection import Connection
from trtcal.wings.devices.registry import Facts

TITLES = {"onnxruntime": "ONNX Runtime", "tensorrt": "TensorRT", "trtexec": "TensorRT"}
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading a value raises that has not the form of what a worker sends."""
REPORT = "report it (SECURITY.md has the address), or update trtcal"
DTYPE = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)|bfloat16|float8_\w+")


def packed(feeds: Feeds) -> tuple[list[dict[str, Any]], bytes]:
    """Return what describes arrays, and their bytes one behind the other."""
    arrays = {n: np.asarray(x, x.dtype.newbyteorder("<"), order="C") for n, x in feeds.items()}
    described = [
        {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)}
        for name, array in arrays.items()
    ]
    return described, b"".join(array.tobytes() for array in arrays.values())


def as_blob(feeds: Feeds) -> bytes:
    """Return a batch as a file: its description on one line, then its bytes."""
    described, data = packed(feeds)
    return json.dumps(described).encode() + b"\n" + data


def write_batches(path: Path, batches: Iterable[Feeds]) -> None:
    """Write batches to a file, one behind the other."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.writelines(map(as_blob, batches))


def unpacked(described: Any, data: bytes) -> dict[str, Array]:
    """Return the arrays that a device described and sent; `BackendError` if they do not fit."""
    arrays, offset = {}, 0
    try:
        for item in described:
            dtype, shape = type_of(item["dtype"]), tuple(map(int, item["shape"]))
            if any(size < 0 for size in shape):
                raise ValueError(f"{shape} is not a shape")
            count = int(np.prod(shape, dtype=object))
            values = np.frombuffer(data, dtype, count, offset) if count else np.empty(0, dtype)
            arrays[str(item["name"])] = values.reshape(shape)
            offset += values.nbytes
    except MALFORMED as error:
        raise BackendError(f"the device sent outputs that do not fit: {error}", REPORT) from error
    if offset != len(data):
        raise BackendError("the device sent outputs of another size than it says", REPORT)
    return arrays


def type_of(name: Any) -> np.dtype[Any]:
    """Return a type by its name; `ValueError` if it is no number's."""
    if not isinstance(name, str) or not DTYPE.fullmatch(name):
        raise ValueError(f"{name!r} is not a type of arrays")
    return np.dtype(name)


@dataclass(frozen=True)
class Value:
    """An input or output of an engine; `shape` has None where a size is dynamic."""

    name: str
    type: str
    shape: list[int | None]


class DeviceSession(Session):
    """An engine that a device runs; `device` is `@NAME`, `hardware` what computes, and with what.

    `engine` has its `runtime`, its digest as `engine`, and the runtime's `options`.
    """

    def __init__(self, build: Build, connection: Connection, engine: dict[str, Any]) -> None:
        # Not that of ONNX Runtime: there is no session here.
        self.device, self.is_gpu = build.target, connection.facts.is_gpu
        self.hardware = computing(connection.facts)
        self.connection, self.engine = connection, engine
        answer, _ = connection.call("open", engine, limit=0)
        self._inputs, self._outputs = (_values(answer.get(side)) for side in ("inputs", "outputs"))
        self._metadata = _texts(answer.get("metadata"))
        self._specs = {spec.name: spec for spec in build.outputs}
        inputs, outputs = ({v.name for v in side} for side in (self._inputs, self._outputs))
        if inputs - {spec.name for spec in build.inputs} or self._specs.keys() - outputs:
            what = (
                f"{self.device} opened an engine with other inputs or outputs than {build.folder}"
            )
            raise BackendError(what, REPORT)
        self.ranks = {value.name: len(value.shape) or None for value in self._inputs}
        self.ranks |= {spec.name: len(spec.shape) for spec in build.inputs}
        self.firsts = {value.name: (value.shape or [None])[0] for value in self._outputs}
        self.rounds = False

    def get_inputs(self) -> list[Value]:
        """Return its inputs."""
        return self._inputs

    def get_outputs(self) -> list[Value]:
        """Return its outputs."""
        return self._outputs

    def get_modelmeta(self) -> SimpleNamespace:
        """Return its metadata."""
        return SimpleNamespace(custom_metadata_map=self._metadata)

    def get_providers(self) -> list[str]:
        """Return what computes."""
        return [self.hardware]

    def run(self, names: Sequence[str] | None, feeds: Feeds, _options: Any = None) -> list[Array]:
        """Run one batch there and return the outputs named, all without names."""
        chosen = [value.name for value in self._outputs] if names is None else list(names)
        described, data = packed(feeds)
        fields = {**self.engine, "feeds": described, "outputs": chosen}
        answer, data = self.connection.call("run", fields, data)
        outputs = unpacked(answer.get("outputs"), data)
        if list(outputs) != chosen:
            raise BackendError(f"the device {self.device} sent other outputs than {chosen}", REPORT)
        for name in outputs.keys() & self._specs.keys():
            self._check(self._specs[name], outputs[name])
        return list(outputs.values())

    def _check(self, spec: TensorSpec, array: Array) -> None:
        """`BackendError` if an output is not the model's: rank, sizes but the first, kind of type."""
        sizes = zip(spec.shape[1:], array.shape[1:], strict=False)
        has_sizes = all(size == there for size, there in sizes if isinstance(size, int))
        is_whole = spec.dtype.startswith(("int", "uint", "bool"))
        has_rank = not spec.shape or len(spec.shape) == array.ndim
        if not (has_rank and has_sizes) or is_whole != (array.dtype.kind in "iub"):
            what = f"the device {self.device} sent {array.dtype}{list(array.shape)} for {spec}"
            raise BackendError(what, REPORT)

    def time(self, sessions: Sequence[DeviceSession], feeds: Feeds, rounds: int) -> Timing:
        """Time sessions of this device in turns, on one batch and in so many rounds."""
        runs = self.runs_of(feeds)
        if len(runs) > 1:
            what = "the model takes one sample at a time, so a batch of several cannot be timed"
            raise InputError(f"{what} on {self.device}", "give --batch 1")
        job = {
            "kind": "measurement",
            "runtime": self.engine["runtime"],
            "options": self.engine["options"],
            "engines": [session.engine["engine"] for session in sessions],
            "engine_options": [session.engine["options"] for session in sessions],
            "feeds": self.connection.upload(as_blob(runs[0])),
            "rounds": rounds,
            "cuda_graph": self.is_gpu,
            "nonce": secrets.token_hex(8),
        }
        return timing_of(self.connection.job(job), rounds, len(sessions))


def computing(facts: Facts) -> str:
    """Return what computes on a device, and with what: "CPU, ONNX Runtime 1.23.2"."""
    where = str(facts.hardware) if facts.is_gpu else "CPU"
    return f"{where}, {TITLES.get(facts.runtime or '', '')} {facts.version}"


def _values(described: Any) -> list[Value]:
    try:
        types = [f"tensor({type_of(item['dtype']).name})" for item in described]
        shapes = [
            [size if type(size) is int and size >= 0 else None for size in item["shape"]]
            for item in described
        ]
        names = [str(item["name"]) for item in described]
        return [*map(Value, names, types, shapes)]
    except MALFORMED as error:
        raise BackendError(f"the device describes an engine wrongly: {error}", REPORT) from error


def _texts(table: Any) -> dict[str, str]:
    items = table.items() if isinstance(table, dict) else ()
    return {str(name): text for name, text in items if isinstance(text, str)}


def timing_of(result: Any, rounds: int, count: int) -> Timing:
    """Return what a device measured; `BackendError` if it is not of so many rounds and engines."""
    try:
        compute, clocks = result["compute_ms"], result["clocks_mhz"]
        energy = tuple(None if mj is None else _positive(mj) for mj in result["energy_mj"])
        if len(energy) != count:
            raise ValueError(f"they are not the energies of {count} engines")
        return Timing(
            _times(result["times_ms"], rounds, count),
            None if compute is None else _times(compute, rounds, count),
            energy,
            None if clocks is None else (_positive(clocks[0]), _positive(clocks[1])),
            int(result["warm_up"]),
            tuple(map(str, result["warnings"])),
        )
    except MALFORMED as error:
        raise BackendError(f"the device sent times that do not fit: {error}", REPORT) from error


def _times(table: Any, rounds: int, count: int) -> Values:
    times = np.asarray(table, np.float64)
    if times.shape != (rounds, count, 2) or not (np.isfinite(times) & (times > 0)).all():
        raise ValueError(f"they are not {rounds} rounds of {count} engines")
    return times


def _positive(value: Any) -> float:
    number = float(value)
    if not 0 <= number < float("inf"):
        raise ValueError(f"{value!r} is not a measurement")
    return number
