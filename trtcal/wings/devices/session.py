"""A session on a device: takes the place of one of ONNX Runtime, and times several there in turns."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from trtcal.backends.sessions import Array, Feeds, Session
from trtcal.documents import canonical_json, digest_bytes
from trtcal.errors import BackendError, InputError
from trtcal.evaluate.latency import Timing
from trtcal.evidence.manifest import Build
from trtcal.stats import Values
from trtcal.wings.devices.arrays import REPORT, as_blob, packed, type_of, unpacked
from trtcal.wings.devices.connection import Connection
from trtcal.wings.devices.registry import Facts

TITLES = {"onnxruntime": "ONNX Runtime", "tensorrt": "TensorRT", "trtexec": "TensorRT"}


@dataclass(frozen=True)
class Engine:
    """An engine on a device: the runtime that loads it, its digest, and the runtime's options.

    `rounds` tells whether it rounds to float16 on a CPU.
    """

    runtime: str
    digest: str
    options: dict[str, Any]
    rounds: bool = False


@dataclass(frozen=True)
class Value:
    """An input or output of an engine; `shape` has None where a size is dynamic."""

    name: str
    type: str
    shape: list[int | None]


class DeviceSession(Session):
    """An engine that a device runs; `device` is `@NAME`, `hardware` what computes, and with what."""

    def __init__(
        self, target: str, connection: Connection, facts: Facts, engine: Engine, build: Build
    ) -> None:
        # Not that of ONNX Runtime: there is no session here.
        self.device, self.is_gpu = target, facts.is_gpu
        self.hardware = computing(facts)
        self.connection, self.engine = connection, engine
        answer, _ = connection.call("open", self._about(), limit=0)
        self._inputs, self._outputs = (_values(answer.get(side)) for side in ("inputs", "outputs"))
        self._metadata = _texts(answer.get("metadata"))
        self.ranks = {value.name: len(value.shape) or None for value in self._inputs}
        self.ranks |= {spec.name: len(spec.shape) for spec in build.inputs}
        self.firsts = {value.name: (value.shape or [None])[0] for value in self._outputs}
        self.rounds = engine.rounds

    def _about(self) -> dict[str, Any]:
        engine = self.engine
        return {"runtime": engine.runtime, "engine": engine.digest, "options": engine.options}

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
        fields = {**self._about(), "feeds": described, "outputs": chosen}
        answer, data = self.connection.call("run", fields, data)
        outputs = unpacked(answer.get("outputs"), data)
        if list(outputs) != chosen:
            raise BackendError(f"the device {self.device} sent other outputs than {chosen}", REPORT)
        return list(outputs.values())

    def time(self, sessions: Sequence[DeviceSession], feeds: Feeds, rounds: int) -> Timing:
        """Time sessions of this device in turns, on one batch and in so many rounds."""
        runs = self.runs_of(feeds)
        if len(runs) > 1:
            what = "the model takes one sample at a time, so a batch of several cannot be timed"
            raise InputError(f"{what} on {self.device}", "give --batch 1")
        job = {
            "kind": "time",
            **{name: self._about()[name] for name in ("runtime", "options")},
            "engines": [session.engine.digest for session in sessions],
            "feeds": self.connection.upload(as_blob(runs[0])),
            "rounds": rounds,
            "cuda_graph": False,
            "nonce": secrets.token_hex(8),
        }
        key = digest_bytes(canonical_json(job))
        return timing_of(self.connection.job(job, key), rounds, len(sessions))


def computing(facts: Facts) -> str:
    """Return what computes on a device, and with what: "CPU, ONNX Runtime 1.23.2"."""
    where = str(facts.hardware) if facts.is_gpu else "CPU"
    return f"{where}, {TITLES.get(facts.runtime or '', '')} {facts.version}"


def _values(described: Any) -> list[Value]:
    try:
        return [
            Value(
                str(item["name"]), f"tensor({type_of(item['dtype']).name})", _sizes(item["shape"])
            )
            for item in described
        ]
    except (LookupError, TypeError, ValueError) as error:
        raise BackendError(f"the device describes an engine wrongly: {error}", REPORT) from error


def _sizes(shape: Any) -> list[int | None]:
    return [size if type(size) is int and size >= 0 else None for size in shape]


def _texts(table: Any) -> dict[str, str]:
    items = table.items() if isinstance(table, dict) else ()
    return {str(name): text for name, text in items if isinstance(text, str)}


def timing_of(result: Any, rounds: int, count: int) -> Timing:
    """Return what a device measured; `BackendError` if it is not of so many rounds and engines."""
    try:
        times = _times(result["times_ms"], rounds, count)
        compute = result["compute_ms"]
        energy = tuple(None if mj is None else _positive(mj) for mj in result["energy_mj"])
        clocks = (
            None if result["clocks_mhz"] is None else tuple(map(_positive, result["clocks_mhz"]))
        )
        if len(energy) != count or (clocks is not None and len(clocks) != 2):
            raise ValueError("energies or clocks are missing")
        return Timing(
            times,
            None if compute is None else _times(compute, rounds, count),
            energy,
            clocks,
            int(result["warm_up"]),
            tuple(map(str, result["warnings"])),
        )
    except (LookupError, TypeError, ValueError) as error:
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
