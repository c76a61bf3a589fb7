"""What `quantize --improve` gains: accuracy, time and memory, with each optimization on and off.

    python -m benchmarks.improve MODEL --calibration NPZ --test DATA [--subsets N]
        [--optimizations] [--target TARGET] [--peers PYTHON ...]

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
With --peers, in each Python given: NNCF's default, if it has nncf and openvino (for transformers
its own settings), and ModelOpt's `max` and `entropy`, if it has modelopt; time and memory are those
of the peer's process, with its imports.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from benchmarks.accuracy import BATCH, infer, judge
from benchmarks.costs import MODELOPT, NNCF
from benchmarks.int8_speed import describe_machine
from benchmarks.placement import BACKEND, figures
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.sessions import Array
from trtcal.data import Dataset, batch_for, open_dataset
from trtcal.evaluate.accuracy import Accuracy
from trtcal.model import Model, load_model
from trtcal.ptq.improver import improve
from trtcal.ptq.optimizations import ImproveOptions
from trtcal.quantization import prepare

# Linux counts what the parent had into a child's ru_maxrss, so the child reads its own peak.
PEAK = """
import pathlib
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
print(*[line for line in lines if line.startswith("VmHWM")])
"""
CHILD = f"""
import sys
from trtcal.cli.main import run_command
status = run_command(sys.argv[1:])
{PEAK}
sys.exit(status)
"""
RUN_OPENVINO = """
import sys
import numpy as np, openvino as ov
path, data, out = sys.argv[1:]
model = ov.Core().compile_model(path, "CPU")
of = dict(np.load(data))
rows = ({name: of[name][i:i + 1] for name in of} for i in range(len(next(iter(of.values())))))
np.save(out, np.concatenate([model(row)[0] for row in rows]))
"""


@dataclass(frozen=True)
class Cost:
    """What a process took."""

    seconds: float
    peak_mb: float


def run(python: str, code: str, arguments: list[str], folder: Path) -> Cost | None:
    """Run code in a process of its own; None if it failed."""
    started = time.perf_counter()
    command = [python, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)  # noqa: S603
    seconds = time.perf_counter() - started
    peaks = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("VmHWM")]
    if done.returncode or not peaks:
        print(f"# failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return Cost(seconds, int(peaks[0]) / 1024)


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

    @property
    def _is_transformer(self) -> bool:
        """Whether it is a transformer, for which NNCF has settings of its own."""
        ops = {node.op_type for node in self.model.proto.graph.node}
        return {"LayerNormalization", "Softmax", "MatMul"} <= ops

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
        plain = run(sys.executable, CHILD, arguments, folder)
        quantized = ["quantize", given, "--calibration", ranges, "-o", str(made)]
        if run(sys.executable, CHILD, quantized, folder):
            self.show("percentile", self.judged(onnx.load(made)), plain, plain)
            self.build(made)
        for effort in ("fast", "best"):
            arguments = ["quantize", given, "--improve", effort, "--data", data, "-o", str(made)]
            if cost := run(sys.executable, CHILD, arguments, folder):
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

    def peer(self, python: str, folder: Path) -> None:
        """Print what other quantizers make of the same samples."""
        names = ",".join(one.name for one in self.model.inputs)
        paths = (self.model.path.resolve(), self.calibration.resolve())
        files = [*map(str, paths), names, str(folder)]
        kind = "transformer" if self._is_transformer else ""
        if cost := run(python, NNCF + PEAK, [*files, kind], folder):
            self.show("NNCF", self._by_openvino(python, folder), cost)
        for method in ("max", "entropy"):
            if cost := run(python, MODELOPT + PEAK, [*files, "int8", method], folder):
                made = onnx.load(folder / "modelopt.onnx")
                self.show(f"ModelOpt {method}", self.judged(made), cost)

    def _by_openvino(self, python: str, folder: Path) -> Accuracy:
        """Return NNCF's figures, run by OpenVINO, for whose kernels it is made."""
        given = [dict(one) for one in self.test.batches(self.batch)]
        feeds = {name: np.concatenate([one[name] for one in given]) for name in given[0]}
        np.savez(folder / "test.npz", **feeds)  # type: ignore[arg-type]  # its stub says bool
        arguments = [str(folder / one) for one in ("nncf.xml", "test.npz")]
        out = str(folder / "said.npy")
        run(python, RUN_OPENVINO + PEAK, [*arguments, out], folder)
        said, done, outputs = np.load(out), 0, list[list[Array]]()
        for batch in self.reference:
            outputs.append([said[done : done + len(batch[0])]])
            done += len(batch[0])
        return judge(self.reference, outputs, self.test.labels)


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
    parser.add_argument("--peers", nargs="*", default=[])
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
            for python in options.peers:
                bench.peer(python, Path(name))
            if options.optimizations:
                bench.optimizations()
    if options.subsets > 1:
        bench.means()


if __name__ == "__main__":
    main()
