"""ONNX Runtime on the CPU: the FP32 reference, and INT8 in real integer kernels.

Its providers for CUDA and TensorRT are targets too, where they are installed. They have never been
run by the authors.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from trtcal.backends.base import BUILD_AGAIN, Availability, Backend, Made
from trtcal.backends.narrow_floats import ADDED, WIDE
from trtcal.backends.options import BuildOptions
from trtcal.backends.targets import PROVIDERS, has_provider
from trtcal.errors import BackendError, InputError
from trtcal.evidence.layers.layer import Layer, TensorInfo
from trtcal.formats import NARROW
from trtcal.model import Model
from trtcal.model.files import write_onnx
from trtcal.model.ops import INTEGER, MULTIPLIES
from trtcal.model.passes.bfloat16 import refuse_bfloat16
from trtcal.model.tensors import producers_of

if TYPE_CHECKING:
    from trtcal.backends.sessions import Session
    from trtcal.evidence.layers.outcomes import Outcome
    from trtcal.evidence.manifest import Build

OPTIMIZED = "optimized.onnx"
FLOAT_KERNELS = MULTIPLIES | {"FusedConv", "FusedGemm", "FusedMatMul"}

LITERAL = "ONNX Runtime rounds as the Q/DQ say on the CPU, and computes the product in float"
OF_TENSORRT = "this says nothing about TensorRT: check its build with `trtcal diagnose`"


class OnnxRuntime(Backend):
    """Builds a lowered ONNX file, and reads the layers off the graph that ONNX Runtime will run."""

    name = "onnxruntime"
    engine_file = "engine.onnx"
    default_target = "cpu"

    def availability(self) -> Availability:
        """Return that it works: it is a dependency of trtcal."""
        import onnxruntime

        return Availability(True, onnxruntime.__version__)

    def targets(self) -> tuple[str, ...]:
        """Return the targets whose provider this ONNX Runtime has."""
        return tuple(filter(has_provider, PROVIDERS))

    def claims(self, target: str) -> bool:
        """Tell whether a target is one of its providers."""
        return target in PROVIDERS

    def check_target(self, target: str) -> None:
        """`InputError` for any target but `cpu`, `cuda` and `tensorrt-ep`."""
        if target not in PROVIDERS:
            known = f"use one of {', '.join(PROVIDERS)}"
            raise InputError(f"backend 'onnxruntime' has no target {target!r}", known)

    def build_in(self, model: Model, options: BuildOptions, folder: Path) -> Made:
        """Lower the model, let ONNX Runtime optimize it in a child process, and list its nodes.

        The other providers take Q/DQ as it stands; TensorRT's lists its layers in the log, if at all.
        """
        from trtcal.backends.child import run_worker

        target = options.target
        if target == "cpu":
            refuse_bfloat16(model)
        if not has_provider(target):
            what = f"this ONNX Runtime {self.availability().version} has no {PROVIDERS[target]}"
            hint = "install onnxruntime-gpu instead of onnxruntime, together with CUDA or TensorRT"
            raise BackendError(what, hint)
        write_onnx(folder / "model.onnx", model.proto)
        request = {
            "model": "model.onnx",
            "engine": self.engine_file,
            "optimized": None if target == "tensorrt-ep" else OPTIMIZED,
            "provider": PROVIDERS[target],
            "lowered": target == "cpu",
        }
        run_worker("trtcal.backends.onnxruntime_worker", request, folder, options.time_limit_s)
        if target == "tensorrt-ep":
            from trtcal.evidence.log.reader import parse_file
            from trtcal.evidence.manifest import LOG

            return Made(parse_file(folder / LOG).layers)
        optimized = onnx.load(folder / OPTIMIZED, load_external_data=False)
        return Made(read_layers(optimized, model.proto))

    def check_place(self, build: Build) -> None:
        """`InputError` if this ONNX Runtime lacks the provider."""
        if build.target not in PROVIDERS or not has_provider(build.target):
            raise InputError(f"this ONNX Runtime cannot run {build.target!r}", BUILD_AGAIN)

    def open(self, build: Build, data: bytes) -> Session:
        """Load an engine into a session of its provider."""
        from trtcal.backends.sessions import open_session

        return open_session(data, provider=PROVIDERS[build.target])

    def explain(self, outcome: Outcome, op: str, target: str) -> Outcome:
        """Name what ONNX Runtime's CPU kernels want and TensorRT does not."""
        if outcome.asked not in NARROW or target != "cpu":
            return outcome
        needs = ": the kernel needs a quantized output directly after the node, and an int32 bias"
        reason = "ONNX Runtime has no integer kernel for this node on the CPU"
        reason = LITERAL if outcome.asked != "int8" else reason + needs * (op == "Conv")
        return dataclasses.replace(outcome, reason=reason, hint=OF_TENSORRT, cause="no_kernel")


def read_layers(optimized: onnx.ModelProto, original: onnx.ModelProto) -> tuple[Layer, ...]:
    """Return one layer for each node of the optimized graph, in the order of their names.

    ONNX Runtime numbers and orders what it makes differently from run to run: neither is kept. Nodes
    that only round to a narrow type (`backends.narrow_floats`) are left out.
    """
    producers = producers_of(original.graph)
    heavy = {node.name for node in original.graph.node if node.op_type in MULTIPLIES}
    nodes = (node for node in optimized.graph.node if not node.name.endswith(ADDED))
    layers = (_layer(node, producers, heavy) for node in nodes)
    return tuple(sorted(layers, key=lambda layer: (layer.name, layer.kind, str(layer))))


def _layer(node: onnx.NodeProto, producers: dict[str, onnx.NodeProto], heavy: set[str]) -> Layer:
    name = _without_number(node.name)
    if node.op_type not in INTEGER | FLOAT_KERNELS:
        return Layer(name, node.op_type)
    dtype = "int8" if node.op_type in INTEGER else "fp32"
    inputs = (TensorInfo(_without_number(node.input[0]), dtype),)
    nodes = tuple(filter(None, [_source(node, producers, heavy)]))
    return Layer(name, node.op_type, inputs, nodes=nodes)


def _without_number(name: str) -> str:
    return re.sub(r"_token_\d+", "", name)


def _source(node: onnx.NodeProto, producers: dict[str, onnx.NodeProto], heavy: set[str]) -> str:
    """Return the heavy node that a kernel came from.

    ONNX Runtime keeps its name with a running number, or names the kernel after its output tensor.
    """
    plain = _without_number(node.name)
    if plain in heavy:
        return plain
    tensor = re.sub(rf"({WIDE}(_\d+)?)?(_nchwc)?$", "", plain)
    source = producers.get(tensor) or producers.get(node.output[0].removesuffix(WIDE))
    for _ in range(8):  # an activation or two after it, never a long chain
        if source is None or source.name in heavy:
            break
        source = producers.get(source.input[0]) if source.input else None
    return source.name if source is not None and source.name in heavy else ""
