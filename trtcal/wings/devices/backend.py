"""A device as a backend: engines are built there, and come back with all that a local build leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from trtcal.backends.base import Availability, Backend, Made
from trtcal.backends.child import MONTH_S, transcribing
from trtcal.backends.lowering import lower
from trtcal.backends.narrow_floats import is_narrow, rounded
from trtcal.backends.onnxruntime import OnnxRuntime, read_layers
from trtcal.backends.options import CACHE, BuildOptions
from trtcal.backends.sessions import ENTRIES, Array, Session, disabled_optimizers
from trtcal.backends.tensorrt import TensorRT, listed_layers, request_of, trtexec_line
from trtcal.backends.worker import ERROR
from trtcal.config import DeviceConfig
from trtcal.data import Dataset, open_dataset
from trtcal.documents import write_bytes, write_json, write_text
from trtcal.documents.bounds import ARRAYS_BYTES
from trtcal.documents.streams import command_line
from trtcal.errors import BackendError, InputError
from trtcal.evidence.layers.outcomes import Outcome
from trtcal.evidence.manifest import INSPECTED, LAYER_TIMES, LOG, Build
from trtcal.model import Model, TensorSpec
from trtcal.model.files import OnnxFile
from trtcal.model.passes.bfloat16 import refuse_bfloat16
from trtcal.wings.devices.connection import Connection
from trtcal.wings.devices.registry import Facts, find_device, recall, remember
from trtcal.wings.devices.session import MALFORMED, REPORT, DeviceSession, write_batches

NOT_THERE = ("--timing-cache",)
MEASURED, BATCHES = "measured.json", "batches.bin"
BROUGHT = {"layers": INSPECTED, "layer_times": LAYER_TIMES, "cache": CACHE}
"""The files of a job that become files of the build folder."""


_connected: dict[DeviceConfig, Connection] = {}


def connect(name: str, device: DeviceConfig) -> Connection:
    """Return a device, connected once in a process; `BackendError` if it cannot be reached."""
    if device not in _connected:
        connection = Connection(device, f"@{name}")
        remember(name, device, connection.facts)
        _connected[device] = connection
    return _connected[device]


class DeviceBackend(Backend):
    """Builds and runs on a device, `@NAME`, with the runtime that it has.

    What it says of itself is what the device said when it last answered; `availability`,
    `check_target_here` and all that works there connect.
    """

    def __init__(self, target: str) -> None:
        self.target, self._name = target, target[1:]

    @property
    def device(self) -> DeviceConfig:
        """Where it is; `InputError` if no configuration has it."""
        return find_device(self._name)

    @property
    def facts(self) -> Facts | None:
        """What the device said, in this process or an earlier one."""
        connected = _connected.get(self.device)
        return connected.facts if connected else recall(self._name, self.device)

    @property
    def hardware_target(self) -> str:
        """The target that its hardware is, `sm87` or `cpu`; its own where that is not known."""
        with suppress(InputError):
            if facts := self.facts:
                return (facts.hardware.capability or self.target) if facts.is_gpu else "cpu"
        return self.target

    def connect(self) -> Connection:
        """Return the device, connected."""
        return connect(self._name, self.device)

    @property
    def _twin(self) -> Backend:
        return OnnxRuntime() if self.name == OnnxRuntime.name else TensorRT()

    # What follows is known once the device has answered.

    @property
    def name(self) -> str:  # type: ignore[override]
        """The backend that its engines are of."""
        facts = self.facts
        return facts.backend if facts else "device"

    engine_file = property(lambda self: self._twin.engine_file)
    parses_qdq = property(lambda self: self._twin.parses_qdq)
    routes = property(lambda self: self._twin.routes)

    @property
    def takes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The options that it takes."""
        return tuple(name for name in self._twin.takes if name not in NOT_THERE)

    def availability(self) -> Availability:
        """Return whether it answers, and has what builds."""
        try:
            facts = self.connect().facts
        except (BackendError, InputError) as error:
            return Availability(False, None, error.message, error.hint)
        if facts.version is None:
            what = f"the device {self.target} has nothing that builds engines for its "
            hint = f"`trtcal device check {self._name}` says what it lacks"
            return Availability(False, None, what + facts.hardware.kind, hint)
        return Availability(True, facts.version)

    def targets(self) -> tuple[str, ...]:
        """Return its own."""
        return (self.target,)

    def check_target(self, target: str) -> None:
        """`InputError` if no configuration has the device."""
        find_device(target[1:])

    def check_target_here(self, target: str) -> None:
        """`BackendError` if it does not answer, or has nothing that builds."""
        available = self.availability()
        if not available.works:
            raise BackendError(available.missing or "", available.hint)

    def check_version(self, build: Build) -> None:
        """`InputError` if its runtime is not the one that built an engine."""
        facts = self.connect().facts
        here = facts.version if facts.backend == build.backend else None
        if here != build.backend_version:
            has = f"which has {here} now" if here else "which does not have it any more"
            builder = f"{build.backend} {build.backend_version} of {build.target}, {has}"
            raise InputError(f"the engine in {build.folder} was built by {builder}", again(build))

    def check_place(self, build: Build) -> None:
        """`InputError` if an engine was built for other hardware than the device has."""
        gpu = gpu_of(self.connect().facts)
        if gpu != build.gpu:
            what = f"the engine in {build.folder} is for {build.gpu or 'a CPU'}"
            raise InputError(f"{what}, and {build.target} has {gpu or 'a CPU'} now", again(build))

    def plugins(self) -> set[str]:
        """Return none: its runtime says what it lacks when it loads an engine."""
        return set()

    def command(self, model: Model, options: BuildOptions, onnx: str, engine: str) -> str | None:
        """Return the `trtexec` line that builds the same there."""
        if self.name == OnnxRuntime.name:
            return None
        version = self.connect().facts.version or ""
        return trtexec_line(model, options, version, onnx, engine)

    def trials(self, target: str, folder: Path, budget_s: float) -> Any:
        """Return what times the plans of a search there."""
        from trtcal.wings.devices.trials import DeviceTrials  # it takes the whole search

        return DeviceTrials(self, target, folder, budget_s)

    def explain(self, outcome: Outcome, op: str, target: str) -> Outcome:
        """Return the outcome with what is known of its runtime."""
        return self._twin.explain(outcome, op, self.hardware_target)

    def build_in(self, model: Model, options: BuildOptions, folder: Path) -> Made:
        """Have a model built there, with the log as it comes, and bring everything back."""
        device = self.connect()
        job = self._job(device, model, options, folder)
        with transcribing(folder / LOG) as write:
            try:
                result = _built(device, job, write, options.time_limit_s)
            except BackendError as error:
                if "crashed" not in error.message:
                    write_text(folder / ERROR, error.message)
                raise
        try:
            return _bring(device, model, options, folder, result)
        except (*MALFORMED, InputError, DecodeError) as error:
            raise BackendError(f"{self.target} sent a malformed build: {error}", REPORT) from error

    def _job(
        self, device: Connection, model: Model, options: BuildOptions, folder: Path
    ) -> dict[str, Any]:
        """Return a build as a job, its model sent."""
        facts = device.facts
        if facts.is_gpu:
            proto, settings = request_of(model, options, facts.version)
            settings["layer_times"] = options.layer_times
            if options.route.data is not None:
                data = open_dataset(options.route.data, model, options.route.images)
                write_batches(folder / BATCHES, _batches(data, settings))
                del settings["images"], settings["types"]
                settings["data"] = device.upload(folder / BATCHES)
        else:
            refuse_bfloat16(model)
            proto = lower(model.proto)
            proto = rounded(proto) if is_narrow(proto) else proto
            settings = cpu_settings(proto)
        file = OnnxFile(proto)
        if file.weights is not None:
            what = "the model is one ONNX file of more than 2 GB, which protobuf can't write"
            raise BackendError(what, "split the model: `trtcal prepare --outputs`")
        digest = device.upload(proto.SerializeToString())
        about = {"kind": "build", "runtime": facts.runtime, "version": facts.version}
        return {**about, "on": described(facts), "model": digest, "options": settings}

    def open(self, build: Build, data: bytes) -> Session:
        """Load an engine there into a session."""
        device = self.connect()
        runtime = device.facts.runtime or build.backend
        ends = {"inputs": _described(build.inputs), "outputs": _described(build.outputs)}
        proto = onnx.ModelProto.FromString(data) if build.is_for_cpu else None
        options = cpu_settings(proto) if proto else ends
        engine = {"runtime": runtime, "engine": device.upload(data), "options": options}
        session = DeviceSession(build, device, engine)
        session.rounds = proto is not None and is_narrow(proto)
        return session


@cache
def device_backend(target: str) -> DeviceBackend:
    """Return what builds and runs on a device, of a target such as `@orin`."""
    return DeviceBackend(target)


def cpu_settings(proto: onnx.ModelProto) -> dict[str, Any]:
    """Return what configures a session of ONNX Runtime there as here."""
    return {
        "config": dict(ENTRIES),
        "disabled_optimizers": disabled_optimizers(proto, is_narrow(proto)),
    }


def _described(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    """Return inputs or outputs for `trtexec`, which does not tell their types."""
    return [
        {
            "name": spec.name,
            "dtype": spec.dtype,
            "shape": [size if isinstance(size, int) else -1 for size in spec.shape],
        }
        for spec in specs
    ]


def _batches(dataset: Dataset, settings: Mapping[str, Any]) -> Iterator[dict[str, Array]]:
    """Yield the whole batches with which TensorRT's builder calibrates, in its types."""
    shapes, types = settings["feeds"], settings["types"]
    for feeds in dataset.batches(next(iter(shapes.values()))[0]):
        batch = {name: np.asarray(feeds[name], types[name]) for name in shapes}
        if all(list(array.shape) == shapes[name] for name, array in batch.items()):
            yield batch


def gpu_of(facts: Facts) -> str | None:
    """Return a device's GPU as a build names it, None without one."""
    return str(facts.hardware) if facts.is_gpu else None


def build_command(build: Build) -> str:
    """Return the command that builds an engine again."""
    from trtcal.cli.advice import recall as recall_files

    source = recall_files(build.folder).get("quantized", f"{build.model_name}.onnx")
    return command_line("build", source, target=build.target, o=build.folder)


def again(build: Build) -> str:
    """Return the hint that names this command."""
    return f"build it again: `{build_command(build)}`"


def _built(
    device: Connection, job: dict[str, Any], write: Callable[[bytes], None], limit_s: float
) -> dict[str, Any]:
    """Return the result of a build; `ResourceError` if it takes longer than `limit_s`."""
    if not 0 < limit_s < MONTH_S:
        raise InputError(f"{limit_s} s is not a time limit", "give a number of seconds above 0")
    return device.job(
        job,
        log=lambda text: write(text.encode("utf-8", "replace")),
        waiting=lambda ahead: write(f"[I] the device is in use by {ahead}\n".encode()),
        limit_s=limit_s,
    )


def _bring(
    device: Connection, model: Model, options: BuildOptions, folder: Path, result: dict[str, Any]
) -> Made:
    """Write the files of a job's result, and return what they show."""
    facts, files = device.facts, result["files"]
    seconds, plugins = round(float(result["seconds"]), 3), tuple(map(str, result["plugins"]))
    write_json(folder / MEASURED, {"seconds": seconds, "device": described(facts)})
    backend = TensorRT() if facts.is_gpu else OnnxRuntime()
    write_bytes(folder / backend.engine_file, _fetch(device, files["engine"]))
    for name in BROUGHT.keys() & files.keys():
        write_bytes(folder / BROUGHT[name], _fetch(device, files[name]))
    if facts.is_gpu:
        return Made(listed_layers(folder, options), plugins, gpu_of(facts))
    optimized = onnx.ModelProto.FromString(_fetch(device, files["optimized"]))
    return Made(read_layers(optimized, model.proto), plugins)


def described(facts: Facts) -> dict[str, Any]:
    """Return what of a device bears on an engine and its speed, besides what builds it."""
    hardware = facts.hardware
    known = {"driver": hardware.driver, "cuda": hardware.cuda, "power_mode": hardware.power_mode}
    return {"system": facts.system, "hardware": str(hardware), **known}


def _fetch(device: Connection, file: dict[str, Any]) -> bytes:
    if not 0 <= file["size"] <= ARRAYS_BYTES:
        raise ValueError(f"a file of {file['size']} bytes")
    return device.download(file["digest"], file["size"])
