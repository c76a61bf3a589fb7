"""TensorRT and TensorRT-RTX, through Polygraphy, in a child process.

TensorRT-RTX builds ahead of time on a machine without a GPU. TensorRT itself needs the GPU that it
builds for: its authors ran 8.6.0 on an H200 (`benchmarks/results/tensorrt_gpu.txt`), no other version.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
from copy import deepcopy
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from trtcal.backends.base import Availability, Backend, Made
from trtcal.backends.cuda import find_device
from trtcal.backends.options import ROUTES, BuildOptions, ShapeRanges, shape_ranges
from trtcal.backends.targets import (
    CAPABILITY,
    PORTABLE,
    Gpu,
    find_gpu,
    named_gpus,
    parse_target,
    version_of,
)
from trtcal.backends.trtexec_words import build_words
from trtcal.backends.weakly_typed import for_tensorrt_8, kept_in_float32
from trtcal.documents import replacing
from trtcal.errors import BackendError, InputError
from trtcal.formats import RANGED
from trtcal.model import Model
from trtcal.model.files import write_onnx
from trtcal.model.ops import FLOATED
from trtcal.quantization.qdq import fp16_tensors

if TYPE_CHECKING:
    from trtcal.evidence.layers.layer import Layer
    from trtcal.evidence.layers.outcomes import Outcome
    from trtcal.evidence.manifest import Build

Profiles = tuple[ShapeRanges, ...]
STRONGLY_TYPED = range(9, 11)
"""The major versions of TensorRT in which strong typing has to be asked for."""


def trtexec_command(
    version: str, options: BuildOptions, profiles: Profiles, quantized: bool, onnx: str, engine: str
) -> str | None:
    """Return the shell line of `trtexec`, None where this version's can't do the same."""
    major = int(version.split(".")[0])
    if len(profiles) > 1 and major < 10:
        return None
    typing = ["--int8"] if quantized and major < min(STRONGLY_TYPED) else []
    if major in STRONGLY_TYPED:
        typing = ["--stronglyTyped"]
    cache = [f"--timingCacheFile={options.timing_cache}"] if options.timing_cache else []
    common = _common(options, profiles, onnx, engine)
    return shlex.join(["trtexec", *common, *typing, "--noTF32", *cache])


def rtx_command(options: BuildOptions, profiles: Profiles, onnx: str, engine: str) -> str:
    """Return the shell line of `tensorrt_rtx`."""
    capabilities = ",".join(f"{major}{minor}" for major, minor in parse_target(options.target))
    target = [f"--computeCapabilities={capabilities}"] if capabilities else []
    return shlex.join(["tensorrt_rtx", *_common(options, profiles, onnx, engine), *target])


def _common(options: BuildOptions, profiles: Profiles, onnx: str, engine: str) -> list[str]:
    words = [f"--onnx={onnx}", f"--saveEngine={engine}", "--skipInference", "--verbose"]
    return words + build_words({**vars(options), "profiles": profiles})


TIMING_CACHE = "timing.cache"
PLUGINS = "plugins.json"
TAKEN = ("several --shapes", "--workspace", "--profiling-verbosity", "--optimization-level")


class TensorRTRTX(Backend):
    """Builds for named compute capabilities, such as `sm89`, on any x86-64 or ARM machine."""

    name = "tensorrt-rtx"
    engine_file = "engine.plan"
    extra = "rtx"
    parses_qdq = True
    takes = TAKEN

    def targets(self) -> tuple[str, ...]:
        """Return the compute capabilities that the package here compiles for, and `portable`."""
        return (*_capabilities(), PORTABLE) if self.availability().works else ()

    def claims(self, target: str) -> bool:
        """Tell whether a target names compute capabilities, or all of them."""
        return target == PORTABLE or all(map(CAPABILITY.fullmatch, target.split(",")))

    def check_target(self, target: str) -> None:
        """`InputError` unless it has the form `sm89`, `sm86,sm120` or `portable`."""
        parse_target(target)

    def check_target_here(self, target: str) -> None:
        """`InputError` if the installed compiler does not know one of the targets."""
        if self.availability().works:
            _refuse_unknown(target)

    def build_in(self, model: Model, options: BuildOptions, folder: Path) -> Made:
        """Build a strongly typed engine; the layer list, one for all targets, comes from the log."""
        _refuse_unknown(options.target)
        request = {"module": "tensorrt_rtx", "capabilities": parse_target(options.target)}
        return _build(request, model, options, folder)

    def command(self, model: Model, options: BuildOptions, onnx: str, engine: str) -> str | None:
        """Return the `tensorrt_rtx` line that builds the same."""
        return rtx_command(options, _profiles(model, options), onnx, engine)

    def explain(self, outcome: Outcome, op: str, target: str) -> Outcome:
        """Name what this compiler has no narrow kernel for, on any target or on Turing."""
        if outcome.asked not in RANGED:
            return outcome
        if op in FLOATED[self.name]:
            narrow = outcome.asked.upper()
            reason = f"TensorRT-RTX has no {narrow} kernel for {op} and reports no fallback"
            hint = "leave the node in float, or upsample with a Resize and a convolution"
        elif op == "Conv" and (7, 5) in parse_target(target):
            reason = "TensorRT-RTX has no INT8 convolution for sm75"
            hint = "use fp16 for sm75, or a newer GPU"
            if len(parse_target(target)) > 1:
                reason += ", and all targets share the layers"
                hint = "build for sm75 separately"
        else:
            return outcome
        return dataclasses.replace(outcome, reason=reason, hint=hint, cause="no_kernel")


@cache
def _capabilities() -> tuple[str, ...]:
    trt = import_module("tensorrt_rtx")
    names = trt.ComputeCapability.__members__
    return tuple(name.lower() for name in names if name.startswith("SM"))


def _refuse_unknown(target: str) -> None:
    known = _capabilities()
    for part in target.split(","):
        if part != PORTABLE and part not in known:
            what = f"TensorRT-RTX {version_of('tensorrt-rtx')} cannot build for {part}"
            command = "trtcal build MODEL.onnx --backend tensorrt --target gpu"
            hint = f"build on a machine that has the GPU: `{command}`"
            raise InputError(f"{what}{named_gpus(part)}, only for {', '.join(known)}", hint)


class TensorRT(Backend):
    """Builds for the GPU of this machine."""

    name = "tensorrt"
    engine_file = "engine.plan"
    default_target = "gpu"
    extra = "tensorrt"
    parses_qdq = True
    takes = (*TAKEN, "--timing-cache", "--layer-times")
    routes = ROUTES

    def availability(self) -> Availability:
        """Needs the package, and a CUDA device: without one TensorRT's runtime crashes."""
        available = super().availability()
        if available.works and (device := find_device()).missing:
            return Availability(False, available.version, device.missing, device.hint)
        return available

    def targets(self) -> tuple[str, ...]:
        """Return `gpu` where there is one, and the package."""
        return ("gpu",) if self.availability().works else ()

    def claims(self, target: str) -> bool:
        """Tell whether a target is this machine's GPU."""
        return target == "gpu"

    def fits(self, build: Build, gpu: Gpu) -> bool:
        """Tell whether a GPU is the one that an engine was built on."""
        return build.gpu == str(gpu)

    def check_target(self, target: str) -> None:
        """`InputError` unless it is `gpu`."""
        if target != "gpu":
            what = f"backend 'tensorrt' builds for the GPU it runs on, not for {target!r}"
            hint = "take the target gpu, or the backend tensorrt-rtx for other targets"
            raise InputError(what, hint)

    def build_in(self, model: Model, options: BuildOptions, folder: Path) -> Made:
        """Build an engine; the layer list comes from the inspector, else from the verbose log."""
        request = {"module": "tensorrt", "inspect": True, "layer_times": options.layer_times}
        if options.timing_cache is None:
            return _build(request, model, options, folder)
        cache = folder / TIMING_CACHE
        if options.timing_cache.exists():
            shutil.copyfile(options.timing_cache, cache)
        product = _build({**request, "timing_cache": TIMING_CACHE}, model, options, folder)
        with replacing(options.timing_cache) as temporary:
            shutil.copyfile(cache, temporary)
        return product

    def command(self, model: Model, options: BuildOptions, onnx: str, engine: str) -> str | None:
        """Return the `trtexec` line that builds the same with the installed version, if one does."""
        return trtexec_line(model, options, _installed(), onnx, engine)


def _build(request: dict[str, Any], model: Model, options: BuildOptions, folder: Path) -> Made:
    from trtcal.backends.child import run_worker

    version = _installed() if request["module"] == "tensorrt" else None
    proto, settings = request_of(model, options, version)
    write_onnx(folder / "model.onnx", proto)
    body = {"model": "model.onnx", "engine": "engine.plan", **settings, **request}
    run_worker("trtcal.backends.tensorrt_worker", body, folder, options.time_limit_s)
    gpu = find_gpu() if request["module"] == "tensorrt" else None
    plugins = folder / PLUGINS
    names = json.loads(plugins.read_text()) if plugins.exists() else ()
    return Made(listed_layers(folder, options), tuple(names), str(gpu) if gpu else None)


def request_of(
    model: Model, options: BuildOptions, version: str | None
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return the model as TensorRT of a version gets it, and the worker's settings as JSON.

    `version` is None for TensorRT-RTX.
    """
    profiles = _profiles(model, options)
    proto = _without_false_names(model.proto, profiles)
    if version is not None and _is_weakly_typed(version):
        proto = for_tensorrt_8(proto)
    quantized, float32 = _is_quantized(model), kept_in_float32(model.proto)
    # TensorRT 8.6 fails where a quantized network has both (benchmarks/results/tensorrt_gpu.txt).
    fp16 = bool(fp16_tensors(model.proto.graph)) and not (quantized and float32)
    return proto, {
        "quantized": quantized,
        "fp16": fp16,
        "float32": float32 if fp16 else {},
        "profiles": [profile for profile in profiles if profile],
        "workspace_bytes": options.workspace_bytes,
        "verbosity": options.verbosity,
        "optimization_level": options.optimization_level,
        **options.route.to_request(model.inputs, shape_ranges(model.inputs, options.shapes)),
    }


def _profiles(model: Model, options: BuildOptions) -> Profiles:
    return tuple(shape_ranges(model.inputs, profile) for profile in options.profiles)


def _without_false_names(proto: onnx.ModelProto, profiles: Profiles) -> onnx.ModelProto:
    """Return a model whose axes of one name have one size: TensorRT holds them to it.

    Some exporters call every size that they do not know `?`.
    """
    sizes: dict[str, set[tuple[tuple[int, ...], ...]]] = {}
    for value in proto.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param:
                taken = tuple(tuple(s[axis] for s in profile[value.name]) for profile in profiles)
                sizes.setdefault(dim.dim_param, set()).add(taken)
    false = {name for name, different in sizes.items() if len(different) > 1}
    if not false:
        return proto
    copy = deepcopy(proto)
    for value in copy.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in false:
                dim.ClearField("dim_param")
    return copy


def trtexec_line(
    model: Model, options: BuildOptions, version: str, onnx: str, engine: str
) -> str | None:
    """Return the `trtexec` line of a version that builds the same, None if none does."""
    if _is_weakly_typed(version) and for_tensorrt_8(model.proto) is not model.proto:
        return None
    profiles = _profiles(model, options)
    return trtexec_command(version, options, profiles, _is_quantized(model), onnx, engine)


def _installed() -> str:
    return version_of("tensorrt") or "11"


def _is_weakly_typed(version: str) -> bool:
    return int(version.split(".")[0]) < min(STRONGLY_TYPED)


def _is_quantized(model: Model) -> bool:
    return any(node.op_type == "QuantizeLinear" for node in model.proto.graph.node)


def listed_layers(folder: Path, options: BuildOptions) -> tuple[Layer, ...]:
    """Return the layers that the inspector listed in a folder, else those of the verbose log."""
    from trtcal.evidence.layers.inspector import read_inspector, with_types
    from trtcal.evidence.log.reader import parse_file
    from trtcal.evidence.manifest import INSPECTED, LOG

    layers = parse_file(folder / LOG).layers
    if (folder / INSPECTED).exists():
        return with_types(read_inspector((folder / INSPECTED).read_bytes()), layers)
    if not layers and options.verbosity != "none":
        what = "the build ended, but its log lists no layers"
        raise BackendError(what, "send us the build log (SECURITY.md has the address)")
    return layers
