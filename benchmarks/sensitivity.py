"""What sensitivity costs: the time of all layers' against FP32 passes over the same samples.

    python -m benchmarks.sensitivity [network] [--samples 64]

Prints the layers (those that multiply, and residual additions beside them), the seconds of one FP32
pass by ONNX Runtime with all cores (mean of one before and one after), those of the sensitivities of
all layers (each quantized alone and each left alone in float), their ratio per ten layers that
multiply, the same of CPU seconds, and the peak of resident memory with 16 samples and with all.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from benchmarks.int8_speed import describe_machine
from benchmarks.networks import light_network, random_images
from trtcal.backends.sessions import open_session, run_session
from trtcal.calibration import ObserveOptions, calibrate, observe
from trtcal.data import Dataset, open_dataset
from trtcal.evaluate.search.sensitivity import Sampling, measure_sensitivities
from trtcal.model import Model, load_model
from trtcal.model.ops import MULTIPLIES
from trtcal.quantization import find_layers, prepare, tensors_to_observe

Seconds = tuple[float, float]


def with_logits(name: str, folder: Path) -> Model:
    """Return a network without its last Softmax, which random weights saturate."""
    proto = light_network(name, folder).proto
    last = proto.graph.node[-1]
    if last.op_type == "Softmax":
        proto.graph.output[0].name = last.input[0]
        del proto.graph.node[-1]
    onnx.save(proto, folder / "logits.onnx")
    return load_model(folder / "logits.onnx")


def timed(work: Callable[[], object]) -> Seconds:
    """Return wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def float_pass(model: Model, dataset: Dataset) -> Seconds:
    """Return the seconds of one pass, the session opened and warm."""
    session = open_session(model.proto)
    batches = list(dataset.batches(1))
    run_session(session, None, batches[0])
    return timed(lambda: [run_session(session, None, feeds) for feeds in batches])


def measure(name: str, samples: int) -> None:
    """Print the figures of one network on some samples."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = with_logits(name, folder)
        np.savez(folder / "data.npz", **{model.inputs[0].name: random_images(model, samples)})
        dataset = open_dataset(folder / "data.npz", model)
        prepared = prepare(model)
        placement = find_layers(prepared)
        seen = observe(prepared, dataset, tensors_to_observe(placement), ObserveOptions(batch=1))
        calibration = calibrate(seen, "percentile")
        residual = [layer for layer in placement.layers if layer.op not in MULTIPLIES]
        heavy = len(placement.layers) - len(residual)
        before = float_pass(prepared, dataset)
        sampling = Sampling(samples)
        seconds = timed(lambda: measure_sensitivities(prepared, calibration, dataset, sampling))
        after = float_pass(prepared, dataset)
        one = [(a + b) / 2 for a, b in zip(before, after, strict=True)]
        ratios = [spent / single / heavy * 10 for spent, single in zip(seconds, one, strict=True)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(
            f"{name:12} {samples:7} {heavy:6} {len(residual):9} {one[0]:9.2f} "
            f"{seconds[0]:9.1f} {ratios[0]:16.2f} {ratios[1]:15.2f} {peak:8}",
            flush=True,
        )


def main() -> None:
    """Print the table, each line from a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("network", nargs="?", default="resnet50")
    parser.add_argument("--samples", type=int, default=64)
    options = parser.parse_args()
    print(f"# {describe_machine()}")
    print(
        "network      samples  heavy additions FP32 pass s sensitivity s wall/pass/10 layers "
        "CPU/pass/10 layers peak MB"
    )
    for samples in (16, options.samples):
        work = multiprocessing.get_context("spawn").Process(
            target=measure, args=(options.network, samples)
        )
        work.start()
        work.join()


if __name__ == "__main__":
    main()
