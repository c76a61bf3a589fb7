"""What a model loses in every precision, beside files that another quantizer made of it.

    python -m benchmarks.precisions_accuracy MODEL --calibration NPZ --test NPZ
        [--samples N] [--peers ONNX ...]

A line each: SQNR of the first output against FP32 (dB), top-1 (%), perplexity, and the file's size
(kB). Labels are classes, or tokens if the scores have one more axis.
trtcal calibrates by `percentile`; all
files run on ONNX Runtime's CPU by the same code, FP4 weights folded.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx

from benchmarks.int8_speed import describe_machine
from trtcal.backends.lowering import lower
from trtcal.backends.sessions import open_session, run_session
from trtcal.calibration import ObserveOptions, calibrate, observe
from trtcal.data import open_dataset
from trtcal.errors import BackendError
from trtcal.model import load_model
from trtcal.quantization import Plan, find_layers, prepare, quantize, tensors_to_observe
from trtcal.quantization.formats import NARROW

BATCH = 16


def outputs(proto: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Return the first output of all samples."""
    session, name = open_session(lower(proto)), proto.graph.output[0].name
    found = []
    for start in range(0, len(next(iter(arrays.values()))), BATCH):
        fed = {one: values[start : start + BATCH] for one, values in arrays.items()}
        found.append(run_session(session, [name], fed)[0])
    return np.concatenate(found).astype(np.float64)


def figures(made: np.ndarray, wanted: np.ndarray, labels: np.ndarray) -> tuple[float, ...]:
    """Return SQNR (dB), top-1 (%) and perplexity."""
    noise = np.square(made - wanted).sum()
    sqnr = 10 * np.log10(np.square(wanted).sum() / noise) if noise else np.inf
    peak = made.max(-1)
    total = peak + np.log(np.exp(made - peak[..., None]).sum(-1))
    chosen = np.take_along_axis(made, labels[..., None], -1)[..., 0]
    top1 = 100 * (made.argmax(-1) == labels).mean()
    return float(sqnr), float(top1), float(np.exp((total - chosen).mean()))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--peers", type=Path, nargs="*", default=[])
    parser.add_argument("--samples", type=int, default=512, help="of the test, at most")
    options = parser.parse_args()
    given = load_model(options.model)
    model, dataset = prepare(given), open_dataset(options.calibration, given)
    arrays = {one: values[: options.samples] for one, values in np.load(options.test).items()}
    labels = arrays.pop("labels").astype(np.int64)
    wanted = outputs(given.proto, arrays)
    tensors = tensors_to_observe(find_layers(model))
    ranges = calibrate(observe(model, dataset, tensors, ObserveOptions(batch=BATCH)), "percentile")
    print(f"# {given.name}, {describe_machine()}, {len(dataset)} samples, tested on {len(labels)}")
    print(f"{'':24}{'SQNR dB':>9}{'top-1 %':>9}{'perplexity':>12}{'kB':>9}")

    def show(name: str, proto: onnx.ModelProto) -> None:
        try:
            made = outputs(proto, arrays)
        except BackendError as error:
            print(f"{name:24} refused: {str(error)[:60]}", flush=True)
            return
        sqnr, top1, perplexity = figures(made, wanted, labels)
        size = proto.ByteSize() / 1000
        print(f"{name:24}{sqnr:9.2f}{top1:9.2f}{perplexity:12.3f}{size:9.0f}", flush=True)

    show("FP32", given.proto)
    for precision in NARROW:
        show(precision, quantize(model, ranges, Plan(precision)).proto)
    for path in options.peers:
        show(path.stem, onnx.load(path))


if __name__ == "__main__":
    main()
