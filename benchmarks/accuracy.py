"""Accuracy after INT8: every method of trtcal, and of other quantizers, on one model in one run.

    python -m benchmarks.accuracy MODEL --calibration DATA --test DATA [--samples N] [--peers]

DATA is whatever `trtcal calibrate --data` takes. Prints one line a tool and method: top-1 of the
labelled test samples (%), agreement of the top-1 with FP32's (%), and SQNR of the outputs against FP32
(dB). All are calibrated on the same first N samples, and run in the same way, by ONNX Runtime, on the
same test samples.

With --peers also ONNX Runtime's quantizer, with the settings that TensorRT accepts (Q/DQ, symmetric
int8, weights per channel, bias in float), and NVIDIA ModelOpt's, if it is installed; every method with
its tool's own parameters; and for each the probability that its top-1 and that of the same method of
trtcal would differ as much by chance (exact McNemar test on the same samples).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from scipy.stats import binomtest

from benchmarks.int8_speed import describe_machine
from trtcal.backends.lowering import lower
from trtcal.backends.sessions import Array, open_session, run_session
from trtcal.calibration import ObserveOptions, calibrate, observe
from trtcal.data import Dataset, batch_for, open_dataset
from trtcal.data.dataset import Labels
from trtcal.evaluate.accuracy import Accuracy, AccuracyMeter
from trtcal.evaluate.per_sample import class_scores
from trtcal.evaluate.tasks import find_task
from trtcal.model import Model, load_model
from trtcal.quantization import find_layers, prepare, quantize, tensors_to_observe

BATCH = 32
METHODS: tuple[tuple[str, Mapping[str, float]], ...] = (
    ("minmax", {}),
    ("percentile", {}),
    ("percentile", {"percentile": 99.99}),
    ("entropy", {}),
    ("mse", {}),
    ("auto", {}),
)
TENSORRT_ACCEPTS = {"ActivationSymmetric": True, "WeightSymmetric": True, "QuantizeBias": False}

SAME_METHOD = {
    "MinMax": "minmax",
    "max": "minmax",
    "Entropy": "entropy",
    "entropy": "entropy",
    "Percentile": "percentile",
}

Candidate = tuple[str, str, onnx.ModelProto]


class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    """Feeds samples to ONNX Runtime's calibrators, as few at a time as the model takes."""

    def __init__(self, model: Model, dataset: Dataset) -> None:
        self.feeds = dataset.batches(batch_for(model, 1))

    def get_next(self) -> dict[str, Array] | None:
        """Return the next feeds, None at the end."""
        return next(self.feeds, None)


def first_samples(dataset: Dataset, count: int) -> dict[str, Array]:
    """Return arrays of the first `count` samples by input name."""
    feeds = list(itertools.islice(dataset.batches(1), count))
    return {name: np.concatenate([one[name] for one in feeds]) for name in dataset.inputs}


def ours(model: Model, dataset: Dataset) -> Iterator[Candidate]:
    """Yield the model quantized by each of trtcal's methods, all from one observation."""
    prepared = prepare(model)
    tensors = tensors_to_observe(find_layers(prepared))
    observation = observe(prepared, dataset, tensors, ObserveOptions(batch=batch_for(model, BATCH)))
    for method, parameters in METHODS:
        label = " ".join([method, *(str(value) for value in parameters.values())])
        calibration = calibrate(observation, method, parameters)
        yield "trtcal", label, quantize(prepared, calibration).proto


def onnxruntimes(model: Model, dataset: Dataset, folder: Path) -> Iterator[Candidate]:
    """Yield the model quantized by ONNX Runtime, preprocessed as its documentation advises."""
    given, ready, done = (str(folder / f"{name}.onnx") for name in ("given", "ready", "done"))
    onnx.save(model.proto, given)
    quant_pre_process(given, ready, skip_symbolic_shape=True)
    for method in ("MinMax", "Entropy", "Percentile"):
        with contextlib.redirect_stdout(sys.stderr):
            quantize_static(
                ready,
                done,
                Reader(model, dataset),
                per_channel=True,
                calibrate_method=CalibrationMethod[method],
                extra_options=TENSORRT_ACCEPTS,
            )
        yield "onnxruntime", method, onnx.load(done)


def modelopts(model: Model, samples: Mapping[str, Array], folder: Path) -> Iterator[Candidate]:
    """Yield the model quantized by NVIDIA ModelOpt, nothing if that is not installed."""
    if importlib.util.find_spec("modelopt") is None:
        print("# modelopt is not installed", file=sys.stderr)
        return
    from modelopt.onnx.quantization import quantize as modelopt_quantize

    for method in ("max", "entropy"):
        given, done = folder / f"{method}.onnx", folder / f"{method}.quant.onnx"
        onnx.save(model.proto, given)
        with contextlib.redirect_stdout(sys.stderr):
            modelopt_quantize(
                str(given),
                calibration_method=method,
                calibration_data=dict(samples),
                calibration_eps=["cpu"],
                high_precision_dtype="fp32",
                output_path=str(done),
                log_level="ERROR",
            )
        yield "modelopt", method, onnx.load(done)


def infer(proto: onnx.ModelProto, dataset: Dataset, batch: int) -> list[list[Array]]:
    """Return the outputs of every batch."""
    session = open_session(lower(proto))
    return [run_session(session, None, feeds) for feeds in dataset.batches(batch)]


def judge(reference: list[list[Array]], said: list[list[Array]], labels: Labels | None) -> Accuracy:
    """Return the figures of a candidate's outputs."""
    names = [f"output {i}" for i in range(len(reference[0]))]
    first = dict(zip(names, reference[0], strict=True))
    task, done = find_task(first, len(reference[0][0])), 0
    meter = AccuracyMeter(task)
    for expected, outputs in zip(reference, said, strict=True):
        size = len(expected[0])
        rows = [task.rows(dict(zip(names, one, strict=True)), size) for one in (expected, outputs)]
        meter.update(rows[0], rows[1], None if labels is None else labels[done : done + size])
        done += size
    return meter.result()


def right(said: list[list[Array]], labels: Labels | None) -> Array | None:
    """Return for each sample whether its top-1 is its label; None if that cannot be said."""
    scores = [class_scores(outputs[0]) for outputs in said]
    if labels is None or any(score is None for score in scores):
        return None
    return np.concatenate(scores).argmax(axis=1) == labels  # type: ignore[arg-type]


def chance(ours: Array | None, theirs: Array | None) -> str:
    """Return the p-value of McNemar's exact test."""
    if ours is None or theirs is None:
        return ""
    won, lost = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    return f"  p {binomtest(won, won + lost).pvalue:.2f}" if won + lost else "  p 1.00"


def line(tool: str, method: str, accuracy: Accuracy) -> str:
    """Return one line of the table."""
    figures = [accuracy.top1, accuracy.agreement, accuracy.sqnr_db]
    cells = [f"{'-' if figure is None else format(figure, '.2f'):>7}" for figure in figures]
    return f"{tool:12}{method:18}" + " ".join(cells)


def candidates(model: Model, dataset: Dataset, options: argparse.Namespace) -> Iterator[Candidate]:
    """Yield every quantized model, made from the same samples.

    ModelOpt comes last: it replaces parts of ONNX Runtime's quantizer in this process.
    """
    samples = first_samples(dataset, options.samples)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "samples.npz", **samples)  # type: ignore[arg-type]  # its stub says bool
        same = open_dataset(folder / "samples.npz", model)
        yield from ours(model, same)
        if options.peers:
            yield from onnxruntimes(model, same, folder)
            yield from modelopts(model, samples, folder)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--peers", action="store_true")
    options = parser.parse_args()
    model = load_model(options.model)
    test = open_dataset(options.test, model)
    print(f"# {describe_machine()}, {options.samples} samples, tested on {len(test)}")
    print(f"{'tool':12}{'method':18}{'top-1 %':>7} {'agree %':>7} {'SQNR dB':>7}")
    batch = batch_for(model, BATCH)
    reference = infer(model.proto, test, batch)
    print(line("fp32", "", judge(reference, reference, test.labels)), flush=True)
    calibration = open_dataset(options.calibration, model)
    hits: dict[str, Array | None] = {}
    for tool, method, proto in candidates(model, calibration, options):
        outputs = infer(proto, test, batch)
        hit, note = right(outputs, test.labels), ""
        if tool == "trtcal":
            hits[method] = hit
        else:
            note = chance(hits[SAME_METHOD[method]], hit)
        accuracy = judge(reference, outputs, test.labels)
        print(line(tool, method, accuracy) + note, flush=True)


if __name__ == "__main__":
    main()
