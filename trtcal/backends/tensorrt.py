"""TensorRT and TensorRT-RTX, through Polygraphy, in a child process.

TensorRT-RTX builds ahead of time on a machine without a GPU. TensorRT itself needs the GPU that it
builds for: that route has never been run on one and is marked so in `availability`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trtcal.backends.base import LOG, Availability, BuildOptions, ShapeRanges, work
from trtcal.buildlog.diagnosis import Outcome
from trtcal.buildlog.layers import Layer
from trtcal.buildlog.parser import parse_file
from trtcal.errors import BackendError, InputError
from trtcal.model import Model, TensorSpec
from trtcal.onnxfile import write_onnx

DEFAULT_BATCHES = (1, 8, 32)
TARGET = re.compile(r"sm(\d{1,2})(\d)")


class TensorRTRTX:
    """Builds for a named compute capability, such as `sm89`, on any x86-64 or ARM machine."""

    name = "tensorrt-rtx"
    engine_file = "engine.plan"
    default_target = "sm89"

    def availability(self) -> Availability:
        """Needs the package only."""
        found = _version("tensorrt-rtx")
        if found is None:
            return Availability(
                False, None, "package tensorrt-rtx is not installed", "pip install 'trtcal[rtx]'"
            )
        return Availability(True, found)

    def check_target(self, target: str) -> None:
        """`InputError` unless it has the form `sm89`."""
        if not TARGET.fullmatch(target):
            raise InputError(f"target {target!r} is no compute capability", "write it like sm89")

    def build_in(self, model: Model, options: BuildOptions, folder: Path) -> tuple[Layer, ...]:
        """Build a strongly typed engine; the layer list comes from the verbose log."""
        major, minor = TARGET.fullmatch(options.target).groups()  # type: ignore[union-attr]
        return _build("tensorrt_rtx", model, options, folder, [int(major), int(minor)])

    def explain(self, outcome: Outcome, op: str) -> Outcome:
        """Name the operators for which this compiler has no INT8 kernel on any target."""
        if outcome.asked == "int8" and op == "ConvTranspose":
            reason = "TensorRT-RTX has no INT8 kernel for ConvTranspose and says nothing about it"
            hint = "leave the node in float, or upsample with Resize and a convolution"
            return dataclasses.replace(outcome, reason=reason, hint=hint)
        return outcome


class TensorRT:
    """Builds for the GPU of this machine. Never yet run on a GPU by its authors."""

    name = "tensorrt"
    engine_file = "engine.plan"
    default_target = "gpu"

    def availability(self) -> Availability:
        """Needs the package, and an NVIDIA driver: without one TensorRT's runtime crashes."""
        found = _version("tensorrt")
        if found is None:
            return Availability(
                False, None, "package tensorrt is not installed", "pip install 'trtcal[tensorrt]'"
            )
        if not _driver_present():
            return Availability(
                False, found, "no NVIDIA driver on this machine", "build on the GPU's own machine"
            )
        return Availability(True, found)

    def check_target(self, target: str) -> None:
        """`InputError` unless it is `gpu`."""
        if target != "gpu":
            raise InputError(
                f"backend 'tensorrt' builds for the GPU it runs on, not for {target!r}",
                "use --target gpu, or --backend tensorrt-rtx for other targets",
            )

    def build_in(self, model: Model, options: BuildOptions, folder: Path) -> tuple[Layer, ...]:
        """Build an engine; the layer list comes from the verbose log."""
        return _build("tensorrt", model, options, folder, None)

    def explain(self, outcome: Outcome, op: str) -> Outcome:
        """Add nothing to what the layer list tells."""
        return outcome


def _build(
    module: str, model: Model, options: BuildOptions, folder: Path, capability: list[int] | None
) -> tuple[Layer, ...]:
    write_onnx(folder / "model.onnx", model.proto)
    shapes = shape_ranges(model.inputs, options.shapes)
    request = {
        "module": module,
        "model": "model.onnx",
        "engine": "engine.plan",
        "capability": capability,
        "quantized": any(node.op_type == "QuantizeLinear" for node in model.proto.graph.node),
        "shapes": shapes,
        **options.route.to_request(model.inputs, shapes),
    }
    work("trtcal.backends.tensorrt_worker", request, folder, options)
    layers = parse_file(folder / LOG).layers
    if not layers:
        raise BackendError(
            "the builder finished but its log lists no layers",
            "send us the build log: see SECURITY.md",
        )
    return layers


def shape_ranges(inputs: tuple[TensorSpec, ...], given: ShapeRanges) -> ShapeRanges:
    """Return minimum, optimum and maximum shape of every input with a dynamic size.

    A dynamic first axis is taken as the batch (1, 8, 32); `InputError` for other dynamic axes
    without a given range.
    """
    dynamic = [spec for spec in inputs if any(isinstance(size, str) for size in spec.shape)]
    return {spec.name: given.get(spec.name) or _default_shapes(spec) for spec in dynamic}


def _default_shapes(spec: TensorSpec) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    if any(isinstance(size, str) for size in spec.shape[1:]):
        raise InputError(
            f"input {spec} has dynamic sizes besides the batch",
            f"give --shapes {spec.name}=MIN:OPT:MAX, such as {spec.name}=1x3x224x224:8x3x224x224:"
            "32x3x224x224",
        )
    rest = tuple(int(size) for size in spec.shape[1:])
    low, usual, high = ((batch, *rest) for batch in DEFAULT_BATCHES)
    return low, usual, high


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _driver_present() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
