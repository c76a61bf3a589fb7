"""Whether INT8 accuracy measured on this CPU is that of the same Q/DQ executed in float.

    python -m benchmarks.faithful MODEL --calibration DATA --test DATA [--method NAME ...]

DATA is whatever `trtcal calibrate --data` takes. Prints one line a method: top-1 of the test samples
(agreement with FP32 without labels) with integer kernels and in the float simulation, the difference
in points with its 95 % interval, the percentage of samples to which both give one class, the SQNR of
one's outputs against the other's (dB), and FLAGGED where `trtcal compare` warns.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.int8_speed import describe_machine
from trtcal.calibration import Observation, ObserveOptions, calibrate, observe
from trtcal.data import Dataset, batch_for, open_dataset
from trtcal.evaluate.collectors import CollectSettings, Evaluation, evaluate, read_task
from trtcal.evaluate.variants import open_variant
from trtcal.model import Model, load_model
from trtcal.quantization import find_layers, prepare, quantize, tensors_to_observe, write_quantized

BATCH = 32
METHODS = ("minmax", "percentile", "entropy", "mse", "auto")


def look(model: Model, path: Path) -> tuple[Model, Observation]:
    """Return the model prepared for Q/DQ, and its histograms."""
    prepared = prepare(model)
    tensors = tensors_to_observe(find_layers(prepared))
    dataset = open_dataset(path, model)
    return prepared, observe(
        prepared, dataset, tensors, ObserveOptions(batch=batch_for(model, BATCH))
    )


def both_modes(model: Model, path: Path, dataset: Dataset) -> Evaluation:
    """Return what the INT8 model in `path` reaches in both modes."""
    everyone = [open_variant(model.path), open_variant(path)]
    task, batch = read_task(everyone[0], dataset, batch_for(model, BATCH))
    return evaluate(everyone, dataset, batch, task, CollectSettings())[0][1]


def line(method: str, found: Evaluation) -> str:
    """Return one line of the table."""
    simulation = found["simulation"]
    if simulation is None:
        raise AssertionError("a quantized model has Q/DQ")
    pairs = [(one.top1, one.agreement) for one in (found["accuracy"], simulation.accuracy)]
    figures = [agreement if top1 is None else top1 for top1, agreement in pairs]
    cells = [*figures, simulation.gap, simulation.same, simulation.sqnr_db]
    shown = " ".join(f"{'-' if one is None else format(one, '.2f'):>9}" for one in cells)
    low, high = simulation.gap_interval or (float("nan"), float("nan"))
    flag = "FLAGGED" if simulation.differs else ""
    chance = ", may be chance" if flag and simulation.may_be_chance else ""
    return f"{method:12}{shown}  {low:+.2f} to {high:+.2f}  {flag}{chance}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--method", nargs="+", default=METHODS)
    options = parser.parse_args()
    model = load_model(options.model)
    test = open_dataset(options.test, model)
    print(f"# {describe_machine()}, {model.name}, tested on {len(test)}")
    print(f"{'method':12}{'integer':>9} {'float':>9} {'distance':>9} {'same %':>9} {'SQNR dB':>9}")
    prepared, observation = look(model, options.calibration)
    with tempfile.TemporaryDirectory() as folder:
        for method in options.method:
            path = Path(folder) / f"{method}.onnx"
            write_quantized(path, quantize(prepared, calibrate(observation, method)))
            print(line(method, both_modes(model, path, test)), flush=True)


if __name__ == "__main__":
    main()
