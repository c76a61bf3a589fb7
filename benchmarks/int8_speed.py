"""INT8 on ONNX Runtime's integer kernels against FP32, both timed in turns in one run.

    python -m benchmarks.int8_speed [network ...]

Prints the machine, then one line a network: the FP32 median over the INT8 median, with its 95 %
interval. One thread on both sides. Quantized by trtcal from two random samples: this is about speed,
not accuracy.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

from benchmarks.networks import light_network, random_images
from trtcal.backends.lowering import lower
from trtcal.backends.sessions import open_session, run_session
from trtcal.backends.targets import machine, packages
from trtcal.calibration import ObserveOptions, calibrate, observe
from trtcal.data import open_dataset
from trtcal.evaluate.latency import Latency, measure
from trtcal.model import Model
from trtcal.quantization import find_layers, prepare, quantize, tensors_to_observe

NETWORKS = ("vgg19", "squeezenet", "resnet50")
ROUNDS = 25


def quantized(model: Model, folder: Path) -> onnx.ModelProto:
    """Return the model in INT8, ranges from two random samples."""
    path = folder / "samples.npz"
    np.savez(path, **{model.inputs[0].name: random_images(model, 2)})
    prepared = prepare(model)
    tensors = tensors_to_observe(find_layers(prepared))
    observation = observe(prepared, open_dataset(path, model), tensors, ObserveOptions(batch=1))
    return quantize(prepared, calibrate(observation, "minmax")).proto


def compare_speed(name: str) -> Latency:
    """Return the INT8 latency of a network, with its speed-up over FP32."""
    with tempfile.TemporaryDirectory() as folder:
        model = light_network(name, Path(folder))
        feeds = {model.inputs[0].name: random_images(model, 1)}
        sessions = [
            open_session(model.proto, threads=1),
            open_session(lower(quantized(model, Path(folder))), threads=1),
        ]
        runs = [lambda one=one: run_session(one, None, feeds) for one in sessions]
        return measure(runs, 1, ROUNDS)[1]


def has_vnni() -> bool | None:
    """Return whether the CPU multiplies and adds int8 in one instruction, None if unknown."""
    information = Path("/proc/cpuinfo")
    return "vnni" in information.read_text() if information.exists() else None


def describe_machine() -> str:
    """Return what of this machine bears on the figures."""
    return f"{machine()}, VNNI: {has_vnni()}, onnxruntime {packages()['onnxruntime']}"


def main() -> None:
    """Print the ratios."""
    print(f"# {describe_machine()}")
    print("network      FP32 / INT8 (median, 95 % interval)")
    for name in sys.argv[1:] or NETWORKS:
        latency = compare_speed(name)
        low, high = latency.speedup_interval
        print(f"{name:12} {latency.speedup:.2f}  [{low:.2f}, {high:.2f}]", flush=True)


if __name__ == "__main__":
    main()
