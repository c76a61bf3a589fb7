"""Records what TensorRT-RTX makes of small graphs, for the figures: `python -m docs.compiled`.

Needs the extra `rtx`, no GPU, and about two minutes. `docs/graph_figures.py` reads the file that
it writes, so that the figures need no compiler.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import trtcal
from tests.fixtures.zoo import ZOO, Net
from tests.fixtures.zoo_convolutions import image
from trtcal.backends.options import BuildOptions
from trtcal.errors import BackendError
from trtcal.evidence.layers.roofline import bytes_of
from trtcal.evidence.manifest import Build

RECORD = Path(__file__).parent / "images" / "concepts" / "compiled.json"
TARGETS = ("sm75", "sm80", "sm89", "sm120")
OPERATORS = {
    "Conv": ("conv2d", "one"),
    "Conv, groups": ("grouped", "one"),
    "Conv, depthwise": ("depthwise", "depth"),
    "Conv, 3-D": ("conv3d", "one"),
    "ConvTranspose": ("transposed", "up"),
    "Gemm": ("gemm", "one"),
    "MatMul": ("matmul3d", "one"),
    "attention": ("attention_block", "scores"),
    "LSTM": ("recurrent", "lstm"),
}
"""Row of the figure -> the graph of the zoo, and the node whose precision counts."""
FLOAT_SKIP = {"rules": [{"match": "glob", "pattern": "*", "op": "Add", "precision": "fp32"}]}
PLANS: dict[str, dict[str, Any] | None] = {
    "fp16": {"default": "fp16"},
    "int8": None,
    "int8, skip in float": FLOAT_SKIP,
}


def residual_block() -> Net:
    """Return a residual block between two convolutions, 32 channels of 28 x 28."""
    net = image(16, 28, 28)
    a = net.relu(net.conv("a", "x", (32, 16, 3, 3)))
    b = net.relu(net.conv("b", a, (32, 32, 3, 3)))
    added = net.relu(net.add("Add", net.conv("c", b, (32, 32, 3, 3)), a))
    return net.done(net.conv("d", added, (16, 32, 3, 3)))


def write(net: Net, folder: Path) -> tuple[Path, Path]:
    """Write a graph and 64 samples of noise for it."""
    model, data = folder / "float.onnx", folder / "samples.npz"
    onnx.save(net.proto(), model)
    np.savez(data, **net.samples(64))
    return model, data


def operator(name: str, node: str) -> dict[str, str]:
    """Return what a node that is asked in INT8 gets on every target."""
    with tempfile.TemporaryDirectory() as folder:
        model, data = write(ZOO[name].make(), Path(folder))
        quantized = trtcal.quantize(model, trtcal.calibrate(model, data, "minmax"))
        got = {}
        for target in TARGETS:
            options = BuildOptions(target, ZOO[name].shapes)
            try:
                build = trtcal.build(quantized, Path(folder) / target, options=options)
            except BackendError:
                got[target] = "no engine"
            else:
                got[target] = _precision(build, node)
        return got


def _precision(build: Build, node: str) -> str:
    outcomes = {one.node: one.got for one in build.outcomes}
    return outcomes.get(node, "float")


def kernels(plan: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the kernels of the residual block under a plan, and the bytes that they move."""
    with tempfile.TemporaryDirectory() as folder:
        model, data = write(residual_block(), Path(folder))
        quantized = trtcal.quantize(model, trtcal.calibrate(model, data, "minmax"), plan=plan)
        build = trtcal.build(quantized, Path(folder) / "build", "sm89")
    layers = [layer for layer in build.layers if not layer.is_idle]
    listed = [
        {
            "kind": layer.kind,
            "reads": [tensor.dtype for tensor in layer.inputs],
            "writes": [tensor.dtype for tensor in layer.outputs],
            "nodes": [node for node in layer.nodes if "/" not in node],
        }
        for layer in layers
    ]
    return {"layers": listed, "bytes": bytes_of(layers), "version": build.backend_version}


def record() -> dict[str, Any]:
    """Return all that the figures need of the compiler."""
    return {
        "block": {name: kernels(plan) for name, plan in PLANS.items()},
        "operators": {row: operator(*place) for row, place in OPERATORS.items()},
    }


if __name__ == "__main__":
    RECORD.write_text(json.dumps(record(), indent=1) + "\n")
    sys.stdout.write(f"wrote {RECORD}\n")
