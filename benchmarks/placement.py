"""Where Q/DQ stand and what the compiler makes of them: trtcal beside other quantizers, in one run.

    python -m benchmarks.placement [--targets sm86,sm89,sm120] [--zoo] [--peers PYTHON ...] [name ...]

Builds every network with TensorRT-RTX and prints one line a network, target and tool: heavy nodes
asked in INT8, those that the compiler gives, kernels of the engine (layers that read or write), all
its layers, megabytes that they read and write (every tensor as listed, batch 1), and for trtcal's the
SQNR of the outputs against the float model (dB, Q/DQ run literally). Then the nodes that fell back or
were left, with the reason, and nodes of which the report says other than a second reading of the log.
Networks are five `light_*` topologies, and with --zoo the tests' graphs.

With --peers also ONNX Runtime's quantizer, with the settings that TensorRT accepts, and NVIDIA
ModelOpt's, in the Pythons that have them. All begin with the model as trtcal prepares it, and wherever
they quantize a tensor that has a range of trtcal's, they are given that range.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.accuracy_figures import joined, sqnr_db
from benchmarks.networks import NETWORKS, light_network, random_images
from benchmarks.peers import MODELOPT, ORT, run, version_in
from tests.backends.listing import precisions
from tests.fixtures.zoo import ZOO
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.sessions import Array, open_session, run_session
from trtcal.backends.tensorrt import TensorRTRTX
from trtcal.calibration import ObserveOptions, calibrate, observe
from trtcal.data import Dataset, open_dataset
from trtcal.errors import BackendError
from trtcal.evidence.manifest import Build
from trtcal.model import Model, load_model
from trtcal.quantization import find_layers, prepare, quantize, tensors_to_observe
from trtcal.ranges import Calibration

TARGETS = "sm86,sm89,sm120"
BACKEND = TensorRTRTX()
PEERS = {"onnxruntime": ("onnxruntime", ORT), "modelopt": ("modelopt", MODELOPT)}
LIMIT_S = 900


@dataclass(frozen=True)
class Candidate:
    """A quantized model, and what its tool says that it left."""

    tool: str
    proto: onnx.ModelProto
    skipped: dict[str, str]


@dataclass(frozen=True)
class Subject:
    """A prepared network, its samples, and the ranges that trtcal finds in them."""

    name: str
    prepared: Model
    dataset: Dataset
    calibration: Calibration


def light(name: str, folder: Path) -> Subject:
    """Return one of the topologies, with two random images."""
    model = light_network(name, folder)
    return subject(name, model, {model.inputs[0].name: random_images(model, 2)}, folder)


def of_zoo(name: str, folder: Path) -> Subject:
    """Return one of the tests' graphs with its batch fixed to 1, and 16 samples."""
    net = ZOO[name].make()
    proto = net.proto()
    for value in proto.graph.input:
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:
                size.dim_value = 1 if size.dim_param == "n" else 8
    onnx.save(onnx.shape_inference.infer_shapes(proto), folder / f"{name}.onnx")
    return subject(name, load_model(folder / f"{name}.onnx"), net.samples(16), folder)


def subject(name: str, model: Model, samples: dict[str, Array], folder: Path) -> Subject:
    """Prepare and calibrate a network on samples."""
    np.savez(folder / "samples.npz", **samples)  # type: ignore[arg-type]  # its stub says bool
    dataset = open_dataset(folder / "samples.npz", model)
    prepared = prepare(model)
    tensors = tensors_to_observe(find_layers(prepared))
    seen = observe(prepared, dataset, tensors, ObserveOptions(batch=1))
    return Subject(name, prepared, dataset, calibrate(seen, "minmax"))


def candidates(network: Subject, folder: Path, pythons: list[str]) -> Iterator[Candidate]:
    """Yield the network quantized by every tool."""
    ours = quantize(network.prepared, network.calibration)
    yield Candidate("trtcal", ours.proto, ours.skipped)
    given = folder / "prepared.onnx"
    onnx.save(network.prepared.proto, given)
    for python, (tool, (package, code)) in itertools.product(pythons, PEERS.items()):
        if version_in(python, package):
            words = [str(given), str(folder / "samples.npz"), str(folder)]
            cost = run(python, code, words, folder, LIMIT_S)
            if isinstance(cost, str):
                print(f"  {tool}: {cost}")
                continue
            proto = onnx.load(folder / "quantized.onnx")
            yield Candidate(tool, with_our_ranges(proto, network.calibration), {})


def with_our_ranges(proto: onnx.ModelProto, calibration: Calibration) -> onnx.ModelProto:
    """Put trtcal's range on every quantized tensor that has one."""
    scales = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] in calibration.ranges:
            scale = scales[node.input[1]]
            value = calibration.ranges[node.input[0]].amax / 127
            old = numpy_helper.to_array(scale)
            scale.CopyFrom(numpy_helper.from_array(np.full_like(old, value), scale.name))
    return proto


def sqnr(network: Subject, candidate: Candidate) -> float:
    """Return the SQNR of a candidate's worst output on the samples."""
    given, made = (
        outputs(proto, network.dataset) for proto in (network.prepared.proto, candidate.proto)
    )
    return min(values for values in map(sqnr_db, *map(joined, (given, made))) if values is not None)


def outputs(proto: onnx.ModelProto, dataset: Dataset) -> list[list[Array]]:
    """Run a model without any optimization, sample by sample."""
    session = open_session(proto, as_it_is=True)
    unit = session.get_inputs()[0].shape[0]
    batches = dataset.batches(unit if isinstance(unit, int) else 1)
    return [run_session(session, None, feeds) for feeds in batches]


def show(
    network: Subject, candidate: Candidate, quality: float | None, target: str, folder: Path
) -> None:
    """Build one quantized network and print what became of it."""
    label = f"{network.name:24}{target:7}{candidate.tool:12}"
    path = folder / f"{candidate.tool}.int8.onnx"
    onnx.save(candidate.proto, path)
    try:
        made = build(load_model(path), BACKEND, BuildOptions(target), folder / "build")
    except BackendError as error:
        print(f"{label} refused: {error.message[:150]}", flush=True)
        return
    print(label, figures(made), "-" if quality is None else f"{quality:7.2f}", flush=True)
    for node, why in {**fallen_back(made, candidate), **false_reports(made)}.items():
        print(f"    {node}: {why}")


def figures(made: Build) -> str:
    """Return the figures of one build."""
    asked = [outcome for outcome in made.outcomes if outcome.asked == "int8"]
    given = sum(outcome.got == "int8" for outcome in asked)
    sizes = [layer.bytes_moved or 0 for layer in made.layers]
    kernels = len(list(filter(None, sizes)))
    return f"{len(asked):5} {given:5} {kernels:7} {len(sizes):7} {sum(sizes) / 1e6:9.4f}"


def false_reports(made: Build) -> dict[str, str]:
    """Return the nodes of which a plain reading of the log says other than the report."""
    seen = precisions(made.log)
    return {
        outcome.node: f"FALSE REPORT: {outcome.got}, but its kernels are {seen.get(outcome.node)}"
        for outcome in made.outcomes
        if (outcome.got == "int8") != (seen.get(outcome.node) == {"int8"})
    }


def fallen_back(made: Build, candidate: Candidate) -> dict[str, str]:
    """Return why nodes asked in INT8, or left by trtcal, are not INT8."""
    lost = {
        outcome.node: str(outcome.reason)
        for outcome in made.outcomes
        if outcome.asked == "int8" and outcome.got != "int8"
    }
    return {**lost, **candidate.skipped}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--targets", default=TARGETS)
    parser.add_argument("--zoo", action="store_true")
    parser.add_argument("--peers", nargs="*", default=[], type=os.path.abspath)
    options = parser.parse_args()
    names = options.names or [*NETWORKS, *(ZOO if options.zoo else ())]
    print(f"# TensorRT-RTX {BACKEND.availability().version}, samples random")
    print(f"{'network':24}{'target':7}{'tool':12} asked   got kernels  layers        MB SQNR dB")
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            network = (light if name in NETWORKS else of_zoo)(name, folder)
            for candidate in candidates(network, folder, options.peers):
                quality = sqnr(network, candidate) if candidate.tool == "trtcal" else None
                for target in options.targets.split(","):
                    show(network, candidate, quality, target, folder)


if __name__ == "__main__":
    main()
