"""Observing a network for every method, against bare FP32 inference over the same samples.

    python -m benchmarks.calibration_cost [--samples N] [--threads N] [--peers] [network ...]

Prints one line a network: time of observing ÷ time of inference, the median of several rounds in
turns, and with --peers the same ratio for ONNX Runtime's own calibrators (one round: they are slow).
All run on as many cores as there are threads.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod
from onnxruntime.quantization.calibrate import create_calibrator

from benchmarks.int8_speed import describe_machine
from benchmarks.networks import light_network, random_images
from trtcal.backends.sessions import open_session, run_session
from trtcal.calibration import ObserveOptions, observe
from trtcal.data import Dataset, open_dataset
from trtcal.model import Model
from trtcal.quantization import find_layers, prepare, tensors_to_observe

NETWORKS = ("resnet50", "squeezenet", "shufflenet", "densenet121", "inception_v2")
ROUNDS = 3


class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """Feeds a dataset to ONNX Runtime's calibrators, one sample at a time."""

    def __init__(self, dataset: Dataset) -> None:
        self.feeds = dataset.batches(1)

    def get_next(self) -> dict[str, object] | None:
        """Return the next feeds, None at the end."""
        return next(self.feeds, None)


def seconds(work: Callable[[], object]) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def ratios(model: Model, dataset: Dataset, threads: int) -> list[float]:
    """Return observing over inference, one ratio a round."""
    prepared = prepare(model)
    tensors = tensors_to_observe(find_layers(prepared))
    session = open_session(model.proto, threads=threads)

    def infer() -> None:
        for feeds in dataset.batches(1):
            run_session(session, None, feeds)

    def run() -> None:
        observe(prepared, dataset, tensors, ObserveOptions(batch=1, threads=threads))

    infer()
    run()
    return [seconds(run) / seconds(infer) for _ in range(ROUNDS)]


def peer_ratio(model: Model, dataset: Dataset, method: CalibrationMethod, threads: int) -> float:
    """Return the ratio of one of ONNX Runtime's calibrators."""
    session = open_session(model.proto, threads=threads)
    with tempfile.TemporaryDirectory() as folder:
        augmented = str(Path(folder) / "augmented.onnx")
        calibrator = create_calibrator(model.path, None, augmented, method)

        def calibrate() -> None:
            calibrator.collect_data(Reader(dataset))
            calibrator.compute_data()

        spent = seconds(calibrate)
    bare = seconds(lambda: [run_session(session, None, feeds) for feeds in dataset.batches(1)])
    return spent / bare


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peers", action="store_true")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # the peers take no number of threads
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    print(f"# {describe_machine()}, {options.samples} samples, {options.threads} threads")
    medians = [line(name, options) for name in options.networks]
    print(f"geometric mean {statistics.geometric_mean(medians):.2f}")


def line(name: str, options: argparse.Namespace) -> float:
    """Measure and print one network; return the median ratio."""
    with tempfile.TemporaryDirectory() as folder:
        model = light_network(name, Path(folder))
        path = Path(folder) / "samples.npz"
        np.savez(path, **{model.inputs[0].name: random_images(model, options.samples)})
        dataset = open_dataset(path, model)
        measured = ratios(model, dataset, options.threads)
        low, middle, high = min(measured), statistics.median(measured), max(measured)
        text = f"{name:14} trtcal {middle:.2f} [{low:.2f}, {high:.2f}]"
        for method in CalibrationMethod if options.peers else ():
            if method.name in ("MinMax", "Entropy", "Percentile"):
                ratio = peer_ratio(model, dataset, method, options.threads)
                text += f"  onnxruntime {method.name} {ratio:.1f}"
        print(text, flush=True)
        return middle


if __name__ == "__main__":
    main()
