"""Backends by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.backends.base import Backend, is_recorded
from trtcal.backends.onnxruntime import OnnxRuntime
from trtcal.backends.targets import PROVIDERS, canonical, named_gpus
from trtcal.backends.tensorrt import TensorRT, TensorRTRTX
from trtcal.config import hardware_of, is_device
from trtcal.documents import digest_bytes
from trtcal.documents.bounds import ARRAYS_BYTES, read_bytes
from trtcal.errors import InputError
from trtcal.extensions import DEVICES, load
from trtcal.model import Model, TensorSpec
from trtcal.model.cut import metadata_of, tail_of
from trtcal.model.ops import FLOATED

if TYPE_CHECKING:
    from trtcal.backends.sessions import Session
    from trtcal.evidence.manifest import Build

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (OnnxRuntime(), TensorRTRTX(), TensorRT())
}


def find_backend(name: str | None, target: str | None) -> tuple[Backend, str]:
    """Return the backend and target for what was given; one of them may be left out.

    A target may be a GPU's name. `InputError` if there is no such backend or it has no such target,
    and if no target is given to one that has several.
    """
    chosen = canonical(target) if target is not None else None
    if chosen is not None and is_device(chosen):
        if name is not None:
            what = f"--backend {name} is not for the device {chosen}, which has its own"
            raise InputError(what, "leave --backend out")
        return device_backend(chosen), chosen
    backend = BACKENDS.get(name or _claiming(chosen))
    if backend is None:
        raise InputError(f"unknown backend {name!r}", f"choose one of: {', '.join(BACKENDS)}")
    chosen = chosen or (backend.default_target if name else None)
    if chosen is None:
        known = backend.targets() if name else targets_here()
        raise InputError("no target is given", _offer(known))
    backend.check_target(chosen)
    return backend, chosen


def device_backend(target: str) -> Backend:
    """Return what builds and runs on a device, `@NAME`; `InputError` if it is not known."""
    backend: Backend = load(DEVICES, "ssh", "devices")(target)
    backend.check_target(target)
    return backend


def backend_of(build: Build) -> Backend:
    """Return what runs an engine: its backend, or that of the device that it was built on."""
    if is_device(build.target):
        return device_backend(build.target)
    if build.backend not in BACKENDS:
        raise InputError(f"the engine in {build.folder} is for {build.backend!r}", "update trtcal")
    return BACKENDS[build.backend]


def _claiming(target: str | None) -> str:
    """Return the backend for a target if none is named; the last resort says what is wrong with it."""
    claiming = (b.name for b in BACKENDS.values() if target is None or b.claims(target))
    return next(claiming, TensorRTRTX.name)


def floated(targets: Collection[str]) -> tuple[str, ...]:
    """Return the operators that the builders for all GPUs among the targets compute in float.

    >>> floated(["cpu", "sm89"]), floated(["sm89", "gpu"]), floated(["cpu"])
    (('ConvTranspose',), (), ())
    """
    names = {_building(canonical(target)) for target in targets} - {OnnxRuntime.name}
    operators = [FLOATED.get(name, frozenset[str]()) for name in names]
    return tuple(sorted(frozenset.intersection(*operators))) if operators else ()


def _building(target: str) -> str:
    if is_device(target):
        device_backend(target)
        return OnnxRuntime.name if hardware_of(target) == "cpu" else TensorRT.name
    return _claiming(target)


def targets_here() -> dict[str, str]:
    """Return what can be built for here, GPUs before this machine's CPU, with the backend of each."""
    pairs = ((target, b.name) for b in BACKENDS.values() for target in b.targets())
    return dict(sorted(dict(pairs).items(), key=lambda pair: pair[0] in PROVIDERS))


def likely_target() -> str:
    """Return the target that an advice names: what can be built for here, found without a builder."""
    if BACKENDS[TensorRTRTX.name].availability().works:
        return "sm89"
    return "gpu" if BACKENDS[TensorRT.name].availability().works else "cpu"


def _offer(targets: Iterable[str]) -> str:
    if every := ", ".join(f"--target {target}{named_gpus(target)}" for target in targets):
        return f"the targets on this machine are: {every}"
    return "`trtcal doctor` says what is missing"


@dataclass(frozen=True)
class CheckedEngine:
    """An engine that may be loaded: its build, and the bytes that were checked."""

    build: Build
    data: bytes

    def open(self) -> Session:
        """Load it into a session; `InputError` if trtcal does not run engines of its backend."""
        return backend_of(self.build).open(self.build, self.data)


def check_engine(place: Path, trust: bool = False, model: Model | None = None) -> CheckedEngine:
    """Check an engine, given by its folder or file, and return its bytes; never loads it.

    `InputError` if it is not the one that its manifest describes; if the manifest is not one that
    this user's trtcal wrote, unless `trust`; or if it does not fit the backend installed, the GPU, the
    plug-ins here, or the inputs and outputs of `model`.
    """
    build, manifest = _read_manifest(place)
    data, engine = _read_engine(build)
    if not trust and not is_recorded(engine, manifest):
        hint = "build it here, or give --trust if you trust the person who built it"
        what = f"the engine in {build.folder} was not built by you on this machine"
        raise InputError(what, f"an engine is a program: {hint}")
    backend = backend_of(build)
    backend.check_version(build)
    backend.check_place(build)
    if model is not None:
        _check_signature(build, "input", build.inputs, model.inputs)
        is_cut = tail_of(metadata_of(model.proto)) is not None
        outputs = build.outputs if is_cut or not build.whole else build.whole
        _check_signature(build, "output", outputs, model.outputs)
    _check_plugins(build, backend)
    return CheckedEngine(build, data)


def _read_manifest(place: Path) -> tuple[Build, str]:
    from trtcal.evidence.manifest import LOG, MANIFEST, read_manifest

    folder = place if place.is_dir() else place.parent
    if not (folder / MANIFEST).is_file():
        if (folder / LOG).is_file():
            from trtcal.evidence.diagnosis.failure import no_engine

            raise no_engine(folder / LOG)
        what = f"{folder} is not a build folder: it has no {MANIFEST} that describes an engine"
        raise InputError(what, "give an ONNX file, or a folder that `trtcal build` wrote")
    build, digest = read_manifest(folder)
    if place != folder and place.name != build.engine_file:
        raise InputError(f"{place} is not the engine that {MANIFEST} describes", "give its folder")
    return build, digest


def _read_engine(build: Build) -> tuple[bytes, str]:
    data = read_bytes(build.engine, ARRAYS_BYTES)
    digest = digest_bytes(data)
    if digest != build.measured.get("engine_digest"):
        what = f"{build.engine} is not the engine that was built: its digest differs"
        raise InputError(what, "restore the original file, or build it again")
    return data, digest


def _check_signature(
    build: Build, side: str, recorded: tuple[TensorSpec, ...], expected: tuple[TensorSpec, ...]
) -> None:
    ours, theirs = ({spec.name: spec for spec in specs} for specs in (recorded, expected))
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs or _form(ours[name]) != _form(theirs[name]):
            here, there = (specs.get(name, f"no {name!r}") for specs in (ours, theirs))
            what = f"the engine in {build.folder} has {side} {here}, the model has {there}"
            raise InputError(what, "give an engine that was built from this model")


def _form(spec: TensorSpec) -> object:
    """Return a tensor's type and shape; how a dynamic size is called is no matter."""
    return spec.dtype, [None if isinstance(size, str) else size for size in spec.shape]


def _check_plugins(build: Build, backend: Backend) -> None:
    """Ask the runtime for every plug-in. Never yet run on a GPU."""
    here = backend.plugins() if build.plugins else set()
    if missing := sorted(set(build.plugins) - here):
        what = f"the engine in {build.folder} needs the plug-in {missing[0]!r}"
        hint = "install the plug-in library that the engine was built with"
        raise InputError(f"{what}, which is not installed", hint)
