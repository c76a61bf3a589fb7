"""Backends by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from trtcal.backends.base import Backend, is_recorded
from trtcal.backends.onnxruntime import OnnxRuntime
from trtcal.backends.targets import (
    PROVIDERS,
    Gpu,
    canonical,
    find_gpu,
    has_provider,
    named_gpus,
    runs_on,
)
from trtcal.backends.tensorrt import TensorRT, TensorRTRTX
from trtcal.documents import digest_bytes
from trtcal.documents.bounds import ARRAYS_BYTES, read_bytes
from trtcal.errors import InputError
from trtcal.evidence.manifest import MANIFEST, Build, read_manifest
from trtcal.model import Model, TensorSpec
from trtcal.model.cut import metadata_of, tail_of

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (OnnxRuntime(), TensorRTRTX(), TensorRT())
}


def find_backend(name: str | None, target: str | None) -> tuple[Backend, str]:
    """Return the backend and target for what was given; one of them may be left out.

    A target may be a GPU's name. `InputError` if there is no such backend or it has no such target,
    and if no target is given to one that has several.
    """
    chosen = canonical(target) if target is not None else None
    backend = BACKENDS.get(name or _backend_for(chosen))
    if backend is None:
        raise InputError(f"unknown backend {name!r}", f"choose one of: {', '.join(BACKENDS)}")
    chosen = chosen or (backend.default_target if name else None)
    if chosen is None:
        raise InputError(
            "no target is given", _offer(backend.targets() if name else targets_here())
        )
    backend.check_target(chosen)
    return backend, chosen


def _backend_for(target: str | None) -> str:
    if target is None or target in PROVIDERS:
        return "onnxruntime"
    return "tensorrt" if target == "gpu" else "tensorrt-rtx"


def targets_here() -> dict[str, str]:
    """Return what can be built for here, GPUs before this machine's CPU, with the backend of each."""
    found = {one: backend.name for backend in BACKENDS.values() for one in backend.targets()}
    return dict(sorted(found.items(), key=lambda pair: pair[0] in PROVIDERS))


def _offer(targets: Iterable[str]) -> str:
    every = ", ".join(f"--target {one}{named_gpus(one)}" for one in targets)
    return (
        f"the targets on this machine are: {every}"
        if every
        else "`trtcal doctor` says what is missing"
    )


AGAIN = "build it again with what is installed here"


@dataclass(frozen=True)
class CheckedEngine:
    """An engine that may be loaded: its build, and the bytes that were checked."""

    build: Build
    data: bytes


def check_engine(place: Path, trust: bool = False, model: Model | None = None) -> CheckedEngine:
    """Check an engine, given by its folder or file, and return its bytes; never loads it.

    `InputError` if it is not the one that its manifest describes; if the manifest is not one that
    this user's trtcal wrote, unless `trust`; or if it does not fit the backend installed, the GPU, the
    plug-ins here, or the inputs and outputs of `model`.
    """
    made, manifest = _read_manifest(place)
    data, engine = _read_engine(made)
    if not trust and not is_recorded(engine, manifest):
        raise InputError(
            f"the engine in {made.folder} was not built by you on this machine",
            "an engine is a program: build it here, or give --trust if you trust the person who "
            "built it",
        )
    _check_version(made)
    _check_place(made)
    if model is not None:
        _check_signature(made, "input", made.inputs, model.inputs)
        is_cut = tail_of(metadata_of(model.proto)) is not None
        ours = made.outputs if is_cut or not made.whole else made.whole
        _check_signature(made, "output", ours, model.outputs)
    _check_plugins(made)
    return CheckedEngine(made, data)


def _read_manifest(place: Path) -> tuple[Build, str]:
    folder = place if place.is_dir() else place.parent
    if not (folder / MANIFEST).is_file():
        raise InputError(
            f"{folder} is not a build folder: it has no {MANIFEST} that describes an engine",
            "give an ONNX file, or a folder that `trtcal build` wrote",
        )
    made, digest = read_manifest(folder)
    if place != folder and place.name != made.engine_file:
        raise InputError(f"{place} is not the engine that {MANIFEST} describes", "give its folder")
    return made, digest


def _read_engine(made: Build) -> tuple[bytes, str]:
    data = read_bytes(made.engine, ARRAYS_BYTES)
    digest = digest_bytes(data)
    if digest != made.measured.get("engine_digest"):
        raise InputError(
            f"{made.engine} is not the engine that was built: its digest differs",
            "restore the original file, or build it again",
        )
    return data, digest


def _check_version(made: Build) -> None:
    backend = BACKENDS.get(made.backend)
    if backend is None:
        raise InputError(f"the engine in {made.folder} is for {made.backend!r}", "update trtcal")
    here = backend.availability().version
    if here != made.backend_version:
        raise InputError(
            f"the engine in {made.folder} was built by {made.backend} {made.backend_version}, "
            + (f"and {here} is installed" if here else "which is not installed"),
            AGAIN,
        )


def _check_place(made: Build) -> None:
    """Check the GPU, or ONNX Runtime's provider. The GPU's part has never been run on one."""
    if made.backend == "onnxruntime":
        if made.target not in PROVIDERS or not has_provider(made.target):
            raise InputError(f"this ONNX Runtime cannot run {made.target!r}", AGAIN)
        return
    gpu = find_gpu()
    wanted = made.gpu or made.target
    if gpu is None:
        raise InputError(
            f"the engine in {made.folder} is for {made.backend} {wanted}, which this machine does "
            "not have",
            "load it on a machine with that GPU",
        )
    if not _fits(made, gpu):
        raise InputError(f"the engine in {made.folder} is for {wanted}, not for the {gpu}", AGAIN)


def _fits(made: Build, gpu: Gpu) -> bool:
    """TensorRT's engines are for the GPU that they were built on, TensorRT-RTX's for their target."""
    if made.backend == "tensorrt":
        return made.gpu == str(gpu)
    return runs_on(made.target, gpu.capability)


def _check_signature(
    made: Build, side: str, recorded: tuple[TensorSpec, ...], wanted: tuple[TensorSpec, ...]
) -> None:
    ours = {spec.name: spec for spec in recorded}
    theirs = {spec.name: spec for spec in wanted}
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs or not _alike(ours[name], theirs[name]):
            raise InputError(
                f"the engine in {made.folder} has {side} {ours.get(name, 'no ' + repr(name))}, "
                f"the model has {theirs.get(name, 'no ' + repr(name))}",
                "give an engine that was built from this model",
            )


def _alike(one: TensorSpec, other: TensorSpec) -> bool:
    """Whether two tensors have one type and shape; how a dynamic size is called is no matter."""
    first, second = (
        tuple(None if isinstance(size, str) else size for size in spec.shape)
        for spec in (one, other)
    )
    return one.dtype == other.dtype and first == second


def _check_plugins(made: Build) -> None:
    """Ask the runtime for every plug-in. Never yet run on a GPU."""
    if not made.plugins:
        return
    runtime = import_module(made.backend.replace("-", "_"))
    missing = sorted(set(made.plugins) - _registered(runtime))
    if missing:
        raise InputError(
            f"the engine in {made.folder} needs the plug-in {missing[0]!r}, which is not installed",
            "install the plug-in library that the engine was built with",
        )


def _registered(runtime: Any) -> set[str]:
    if hasattr(runtime, "init_libnvinfer_plugins"):
        runtime.init_libnvinfer_plugins(None, "")
    registry = runtime.get_plugin_registry()
    creators = getattr(registry, "all_creators", None)
    creators = registry.plugin_creator_list if creators is None else creators
    return {f"{creator.name} {creator.plugin_version}" for creator in creators}
