"""What `quantize --improve` gains: accuracy, time and memory, with each optimization on and off.

    python -m benchmarks.improve MODEL --calibration NPZ --test DATA [--subsets N]
        [--optimizations] [--target TARGET]

All lines use the same calibration samples, none the test samples. First one line each for FP32, plain
`percentile`, `--improve fast` and `best`: top-1 (%), agreement with FP32's top-1 (%), SQNR of the
outputs (dB), seconds and peak memory (MB) of the whole command in a process of its own, and the
seconds over those of a plain `trtcal calibrate`.

With --subsets all of it N times, each with every N-th of the calibration samples, so that no two
subsets share one; then the points of top-1 that each line loses to FP32, in the mean of the subsets
with its standard error, which is that of the subsets alone: the test samples are the same.

With --optimizations each try of one run of `best`, with what it gains (dB) on the samples held back
over the best try before it; then the result on the test samples, with and without each one kept.
With --target what TensorRT-RTX makes of `percentile`, `fast` and `best` for it, a line below each:
heavy nodes asked in INT8, those that it gives, kernels, layers, and megabytes that they read and write.
Other quantizers beside it: `python -m benchmarks.accuracy_table --peers`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from benchmarks.int8_speed import describe_machine
from benchmarks.peers import TRTCAL, Cost, run
from benchmarks.placement import BACKEND, figures
from trtcal.backends.building import build
from trtcal.backends.lowering import lower
from trtcal.backends.options import BuildOptions
from trtcal.backends.sessions import Array, open_session, run_session
from trtcal.data import Dataset, batch_for, open_dataset
from trtcal.data.dataset import Labels
from trtcal.evaluate.accuracy import Accuracy, AccuracyMeter
from trtcal.evaluate.tasks import find_task
from trtcal.model import Model, load_model
from trtcal.ptq.improver import improve
from trtcal.ptq.optimizations import ImproveOptions
from trtcal.quantization import prepare

LIMIT_S = 3600
BATCH = 32


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


def measured(arguments: list[str], folder: Path) -> Cost | None:
    """Run a command of trtcal; None if it failed."""
    cost = run(sys.executable, TRTCAL, arguments, folder, LIMIT_S)
    if isinstance(cost, str):
        print(f"# failed: {cost}", file=sys.stderr)
        return None
    return cost


class Bench:
    """One model with its data, and the outputs of FP32 on the test samples."""

    def __init__(self, model: Model, calibration: Path, test: Dataset, target: str | None) -> None:
        self.model, self.calibration, self.test = model, calibration, test
        self.target = target
        self.reference = infer(model.proto, test, self.batch)
        self.shown: dict[str, list[Accuracy]] = {}

    @property
    def batch(self) -> int:
        """Samples run together."""
        return batch_for(self.model, BATCH)

    def judged(self, proto: onnx.ModelProto) -> Accuracy:
        """Return a quantized model's figures."""
        return judge(self.reference, infer(proto, self.test, self.batch), self.test.labels)

    def show(
        self, label: str, accuracy: Accuracy, cost: Cost | None = None, base: Cost | None = None
    ) -> None:
        """Print one line."""
        self.shown.setdefault(label, []).append(accuracy)
        figures = [accuracy.top1, accuracy.agreement, accuracy.sqnr_db]
        cells = [f"{'-' if one is None else format(one, '.2f'):>8}" for one in figures]
        if cost:
            cells += [f"{cost.seconds:8.1f}", f"{cost.peak_mb:8.0f}"]
        if cost and base:
            cells.append(f"{cost.seconds / base.seconds:6.2f}")
        print(f"{label:44}" + " ".join(cells), flush=True)

    def commands(self, folder: Path) -> None:
        """Print FP32, plain percentile, and what the two efforts make."""
        self.show("FP32", judge(self.reference, self.reference, self.test.labels))
        given = str(self.model.path.resolve())
        data = str(self.calibration.resolve())
        made = folder / "int8.onnx"
        ranges = str(folder / "calibration.json")
        arguments = ["calibrate", given, "--data", data, "--method", "percentile", "-o", ranges]
        plain = measured(arguments, folder)
        quantized = ["quantize", given, "--calibration", ranges, "-o", str(made)]
        if measured(quantized, folder):
            self.show("percentile", self.judged(onnx.load(made)), plain, plain)
            self.build(made)
        for effort in ("fast", "best"):
            arguments = ["quantize", given, "--improve", effort, "--data", data, "-o", str(made)]
            if cost := measured(arguments, folder):
                self.show(f"--improve {effort}", self.judged(onnx.load(made)), cost, plain)
                self.build(made)

    def build(self, path: Path) -> None:
        """Print what the compiler makes of a quantized model, if there is a target."""
        if self.target is not None:
            options = BuildOptions(self.target)
            made = build(load_model(path), BACKEND, options, path.with_suffix(".engine"))
            print(f"{'  asked, got, kernels, layers, MB':44}{figures(made)}", flush=True)

    def means(self) -> None:
        """Print the losses of each line, and its other figures, in the mean of the subsets."""
        print(f"{'':36}{'points lost':>16} {'agree %':>8} {'SQNR dB':>8}")
        for label, accuracies in self.shown.items():
            lost = [one.top1_drop for one in accuracies if one.top1_drop is not None]
            error = np.std(lost, ddof=1) / len(lost) ** 0.5
            agreement = np.mean([one.agreement for one in accuracies if one.agreement is not None])
            sqnr = np.mean(
                [one.sqnr_db for one in accuracies if one.sqnr_db is not None] or [np.inf]
            )
            print(f"{label:36}{np.mean(lost):8.2f} ±{error:6.2f} {agreement:8.2f} {sqnr:8.2f}")

    def optimizations(self) -> None:
        """Print the gain of each try, and the result without each optimization that was kept."""
        dataset = open_dataset(self.calibration, self.model)
        kept = self._with("all of them", dataset, ImproveOptions("best"))
        for name in kept:
            self._with(f"all without {name}", dataset, ImproveOptions("best", leave_out=(name,)))

    def _with(self, label: str, dataset: Dataset, options: ImproveOptions) -> list[str]:
        """Print the result of improvement with these options; return the optimizations kept."""
        result = improve(prepare(self.model), dataset, options, silent)
        first, *tries = result.tries
        if not options.leave_out:
            best = first.value
            for attempt in tries:
                print(f"  {attempt.name:28}{best - attempt.value:+8.2f}{' kept' * attempt.kept}")
                best = attempt.value if attempt.kept else best
        self.show(label, self.judged(result.quantized.proto))
        return [attempt.name for attempt in tries if attempt.kept]


def part(data: Path, number: int, subsets: int, folder: Path) -> Path:
    """Write every subsets-th sample, from the number-th on, into a file of its own."""
    path = folder / "part.npz"
    arrays = np.load(data)
    np.savez(path, **{name: arrays[name][number::subsets] for name in arrays.files})
    return path


@contextlib.contextmanager
def silent(title: str, total: int) -> Iterator[object]:
    """Report nothing."""
    yield lambda done: None


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--subsets", type=int, default=1)
    parser.add_argument("--optimizations", action="store_true")
    parser.add_argument("--target")
    options = parser.parse_args()
    model = load_model(options.model)
    test = open_dataset(options.test, model)
    bench = Bench(model, options.calibration, test, options.target)
    samples = len(open_dataset(options.calibration, model)) // options.subsets
    print(f"# {model.name}, {describe_machine()}, {samples} samples, tested on {len(test)}")
    head = ("top-1 %", "agree %", "SQNR dB", "s", "MB", "times")
    print(f"{'':44}" + " ".join(f"{one:>8}" for one in head[:5]) + f" {head[5]:>6}")
    with tempfile.TemporaryDirectory() as name:
        for subset in range(options.subsets):
            if options.subsets > 1:
                bench.calibration = part(options.calibration, subset, options.subsets, Path(name))
            bench.commands(Path(name))
            if options.optimizations:
                bench.optimizations()
    if options.subsets > 1:
        bench.means()


if __name__ == "__main__":
    main()
