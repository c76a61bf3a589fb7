"""A run of a network with hundreds of layers, with something of everything that a report shows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.reporting.samples import (
    LOG,
    accuracy,
    build,
    comparison,
    improvement,
    latency,
    row,
    write_build,
    write_improvement,
)
from trtcal.calibration import calibrate, observe, write_observation
from trtcal.calibration.extremes import tails_of
from trtcal.data import open_dataset
from trtcal.evaluate.layerwise import compare_layers
from trtcal.evidence.diagnosis.build_diagnosis import Diagnosis, write_diagnosis
from trtcal.evidence.findings import Cost, Evidence, Finding
from trtcal.evidence.manifest import Build
from trtcal.model import load_model
from trtcal.model.passes import prepare
from trtcal.quantization import find_layers, quantize, tensors_to_observe, write_quantized
from trtcal.ranges import most_stretched

VARIANTS = ("int8-percentile", "int8-mse", "int8-minmax")
FINDINGS = 60
FLOAT = onnx.TensorProto.FLOAT


def write_large_run(folder: Path, layers: int = 500) -> Path:
    """Write a run of three variants, each with a build of so many layers; return `folder`.

    Model, data, histograms, ranges, Q/DQ and the figures of every tensor are real; what was built of
    them and how well it does is made up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    real = _calibrated(folder, layers)
    rows = (
        row(VARIANTS[0], accuracy(5, 1), latency(1.0, 2.0)),
        row(VARIANTS[1], accuracy(30, 12), latency(1.1, 1.8)),
        row(VARIANTS[2], accuracy(180, 12), latency(0.9, 2.2)),
    )
    rows = tuple(replace(one, **real[one.name]) for one in rows)
    write_improvement(folder, improvement(layers=_optimized(layers)))
    compared = comparison(*rows, limits=("top1 >= -1.0",), reference="backbone")
    compared.write(folder / "comparison.json")
    for number, name in enumerate(VARIANTS):
        own = {key: real[name][key] for key in ("model", "quantization")}
        made = replace(build(name, _outcomes(layers, number)), **own)
        place = folder / "builds" / f"{name}-sm89"
        write_build(place, made, LOG * 10)
        write_diagnosis(place, Diagnosis(_findings(made)))
    return folder


def _calibrated(folder: Path, layers: int) -> dict[str, dict[str, Any]]:
    """Calibrate and quantize a chain of small convolutions; return what variants have of it."""
    path = folder / "float.onnx"
    onnx.save(_chain(layers), path)
    numbers = np.random.default_rng(0)
    np.savez(folder / "data.npz", x=numbers.standard_normal((8, 2, 4, 4)).astype(np.float32))
    model = load_model(path)
    data = open_dataset(folder / "data.npz", model)
    prepared = prepare(model)
    seen = observe(prepared, data, tensors_to_observe(find_layers(prepared)))
    write_observation(folder / "histograms.npz", seen)
    found = {}
    for name in VARIANTS:
        ranges = calibrate(seen, name.removeprefix("int8-"))
        ranges.write(folder / "calibrations" / f"{ranges.method}.json")
        output = folder / "models" / f"{name}.onnx"
        quantized = quantize(prepared, ranges)
        write_quantized(output, quantized)
        made = load_model(output)
        record = {"method": ranges.method, "calibration": ranges.digest, "plan": "sha256:p"}
        figures = compare_layers(model, [made], data)[0] if name == VARIANTS[0] else None
        found[name] = {"model": made.fingerprint, "quantization": record, "layers": figures}
    stretched = most_stretched([calibrate(seen, "percentile")], 24)
    tails_of(seen, data.files, stretched).write(folder / "tails.json")
    return found


def _chain(layers: int) -> onnx.ModelProto:
    """Return convolutions and ReLUs one after another, small enough for hundreds of them."""
    numbers = np.random.default_rng(1)
    nodes, weights, last = [], [], "x"
    for place in range(layers):
        name = _node(place)
        kernel = np.eye(2) + 0.02 * numbers.standard_normal((2, 2))  # what goes in comes through
        kernel = kernel.astype(np.float32).reshape(2, 2, 1, 1)
        weights.append(numpy_helper.from_array(kernel, f"{name}.weight"))
        nodes.append(helper.make_node("Conv", [last, f"{name}.weight"], [f"{name}_out"], name))
        last = f"{name}_relu" if place < layers - 1 else "y"
        nodes.append(helper.make_node("Relu", [f"{name}_out"], [last], f"{name}/Relu"))
    shape = ["N", 2, 4, 4]
    ends = [helper.make_tensor_value_info(one, FLOAT, shape) for one in ("x", "y")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _outcomes(layers: int, lost: int) -> dict[str, str]:
    """Return what each node got; every twelfth or so lost INT8, and every fortieth is not known."""
    nodes = [_node(number) for number in range(layers)]
    got = ["fp32" if number % (12 - 3 * lost) == 5 else "int8" for number in range(layers)]
    got[::40] = ["unknown"] * len(got[::40])
    return dict(zip(nodes, got, strict=True))


def _optimized(layers: int) -> list[dict[str, Any]]:
    """Return what was made up that optimizations changed in each layer."""
    return [
        {"name": _node(place), "weights": 4, "rounded": place % 5, "bias": place / 1000}
        for place in range(layers)
    ]


def _node(number: int) -> str:
    return f"backbone/stage{number // 100}/block{number // 10 % 10}/conv{number % 10}/Conv"


def _findings(made: Build) -> tuple[Finding, ...]:
    lost = [outcome.node for outcome in made.outcomes if outcome.is_lost][:FINDINGS]
    return tuple(
        Finding(
            *("silent_fallback", node, f"{node} was asked in INT8 and runs in FP32"),
            "its input has no range, so that TensorRT found no INT8 kernel for it",
            "observe its input tensor, or name the node in the plan as fp32",
            (
                Evidence("node", node, "asked int8, got fp32"),
                Evidence("log", f"build.log:{number + 1}", LOG),
            ),
            Cost(moved_bytes=1_000_000 // (number + 1), risk="low"),
        )
        for number, node in enumerate(lost)
    )
