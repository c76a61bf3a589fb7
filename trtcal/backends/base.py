"""What every backend does: say whether it can work here, and build an engine in a child process."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtcal.backends.options import QDQ, BuildOptions
from trtcal.backends.targets import Gpu, find_gpu, runs_on, version_of
from trtcal.documents import append_line, state_path
from trtcal.errors import InputError, TrtcalError
from trtcal.model import Model

if TYPE_CHECKING:
    from trtcal.backends.sessions import Session
    from trtcal.evidence.layers.layer import Layer
    from trtcal.evidence.layers.outcomes import Outcome
    from trtcal.evidence.manifest import Build

BUILD_AGAIN = "build it again with what is installed here"
LEDGER = "engines.jsonl"


def ledger_path() -> Path:
    """Return where engines are written down."""
    return state_path(LEDGER)


def record_engine(engine: str, manifest: str) -> str | None:
    """Write down the digests of an engine and its manifest; return why not if that fails."""
    try:
        append_line(ledger_path(), _line(engine, manifest))
    except TrtcalError as error:
        return error.message
    return None


def is_recorded(engine: str, manifest: str) -> bool:
    """Whether `record_engine` wrote this pair down."""
    expected = _line(engine, manifest)
    try:
        with ledger_path().open(encoding="utf-8", errors="replace") as file:
            return any(line.rstrip("\n") == expected for line in file)
    except OSError:
        return False


def _line(engine: str, manifest: str) -> str:
    return json.dumps({"engine": engine, "manifest": manifest})


@dataclass(frozen=True)
class Availability:
    """Whether a backend can build here; if not, what is missing and how to get it."""

    works: bool
    version: str | None = None
    missing: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class Made:
    """What a backend reports of an engine: its layers, the plug-ins that it needs, and its GPU."""

    layers: tuple[Layer, ...]
    plugins: tuple[str, ...] = ()
    gpu: str | None = None


class Backend(ABC):
    """One builder of engines, in the Python package `name`, installed by the extra of that name.

    `takes` are those of `BuildOptions.named` that it takes, `routes` its ways to INT8. With
    `parses_qdq` TensorRT's parser reads the model, and refuses some forms of Q/DQ.
    """

    name: str
    engine_file: str
    default_target: str | None = None
    extra: str = ""
    parses_qdq: bool = False
    takes: tuple[str, ...] = ()
    routes: tuple[str, ...] = (QDQ,)

    def availability(self) -> Availability:
        """Return whether it can build here, which takes its package; never raises."""
        version = version_of(self.name)
        if version is None:
            hint = f"pip install 'trtcal[{self.extra}]'"
            return Availability(False, None, f"package {self.name} is not installed", hint)
        return Availability(True, version)

    def claims(self, target: str) -> bool:
        """Tell whether it builds for a target where no backend is named."""
        return False

    @abstractmethod
    def targets(self) -> tuple[str, ...]:
        """Return what it can build for here, nothing if it cannot build; never raises."""

    @abstractmethod
    def check_target(self, target: str) -> None:
        """`InputError` if it cannot build for this target."""

    def check_target_here(self, target: str) -> None:  # noqa: B027  # most have nothing to add
        """`InputError` if the installed version does not know this target."""

    @abstractmethod
    def build_in(self, model: Model, options: BuildOptions, folder: Path) -> Made:
        """Build inside `folder`, and leave the engine and the log there."""

    def check_version(self, build: Build) -> None:
        """`InputError` if an engine was built by another version than the one installed."""
        here = self.availability().version
        if here != build.backend_version:
            builder = f"{build.backend} {build.backend_version}"
            what = f"the engine in {build.folder} was built by {builder}"
            state = f"and {here} is installed" if here else "which is not installed"
            raise InputError(f"{what}, {state}", BUILD_AGAIN)

    def check_place(self, build: Build) -> None:
        """`InputError` if an engine does not run on this machine. Never yet run on a GPU."""
        gpu, expected = find_gpu(), build.gpu or build.target
        what = f"the engine in {build.folder} is for"
        if gpu is None:
            what += f" {build.backend} {expected}, which this machine does not have"
            raise InputError(what, "load it on a machine with that GPU")
        if not self.fits(build, gpu):
            raise InputError(f"{what} {expected}, not for the {gpu}", BUILD_AGAIN)

    def fits(self, build: Build, gpu: Gpu) -> bool:
        """Tell whether an engine runs on a GPU, by its target."""
        return runs_on(build.target, gpu.capability)

    def open(self, build: Build, data: bytes) -> Session:
        """Load an engine into a session; `InputError` if trtcal does not run those of this backend."""
        what = f"the engine in {build.folder} is for {self.name}"
        how = "which trtcal builds but does not run"
        raise InputError(f"{what}, {how}", "compare ONNX models or onnxruntime builds")

    def trials(self, target: str, folder: Path, budget_s: float) -> Any:
        """Return what times the plans of a search on a device, kept in a folder."""
        raise InputError(f"{target} is no device", "`trtcal device list` shows those known")

    def plugins(self) -> set[str]:
        """Return the plug-ins that its runtime has here, as a build names them."""
        runtime = import_module(self.name.replace("-", "_"))
        if hasattr(runtime, "init_libnvinfer_plugins"):
            runtime.init_libnvinfer_plugins(None, "")
        registry = runtime.get_plugin_registry()
        creators = getattr(registry, "all_creators", None)
        creators = registry.plugin_creator_list if creators is None else creators
        return {f"{creator.name} {creator.plugin_version}" for creator in creators}

    def command(self, model: Model, options: BuildOptions, onnx: str, engine: str) -> str | None:
        """Return the shell line with which NVIDIA's own program builds the same, if it can."""
        return None

    def explain(self, outcome: Outcome, op: str, target: str) -> Outcome:
        """Return the outcome with what this backend alone knows of why the node was lost."""
        return outcome
