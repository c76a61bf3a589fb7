"""A graph of the zoo, made, observed, calibrated and quantized."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from tests.zoo_net import Entry
from trtcal.calibration import ObserveOptions, calibrate, observe
from trtcal.data import open_dataset
from trtcal.model import Model, load_model
from trtcal.quantization import find_layers, prepare, quantize, tensors_to_observe, write_quantized
from trtcal.quantization.qdq import QuantizedModel
from trtcal.ranges import Calibration

SAMPLES = 256
HEAVY = {"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"}


@dataclass(frozen=True)
class Scene:
    """The given model, the written INT8 model, and what was said of it on the way."""

    given: Model
    model: Model
    calibration: Calibration
    quantized: QuantizedModel

    @property
    def heavy(self) -> set[str]:
        """Names of the nodes that multiply or convolve."""
        return {node.name for node in self.given.proto.graph.node if node.op_type in HEAVY}


def scene(entry: Entry, folder: Path, samples: int = SAMPLES) -> Scene:
    """Take a graph through calibrating and quantizing, all INT8, in `folder`."""
    net = entry.make()
    onnx.save(net.proto(), folder / "float.onnx")
    np.savez(folder / "samples.npz", **net.samples(samples))
    return quantized_scene(folder / "float.onnx", folder / "samples.npz", folder)


def quantized_scene(path: Path, data: Path, folder: Path, batch: int = 32) -> Scene:
    """Calibrate a model on a data file and quantize it into `folder`."""
    given = load_model(path)
    prepared = prepare(given)
    tensors = tensors_to_observe(find_layers(prepared))
    seen = observe(
        prepared, open_dataset(data, given), tensors, ObserveOptions(batch=batch, threads=1)
    )
    calibration = calibrate(seen, "minmax")
    quantized = quantize(prepared, calibration)
    write_quantized(folder / "int8.onnx", quantized)
    return Scene(given, load_model(folder / "int8.onnx"), calibration, quantized)
