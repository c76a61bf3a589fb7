"""What a model loses in every precision, in a mixture of them, and by ModelOpt's ONNX quantizer.

    python -m benchmarks.precisions_accuracy MODEL --calibration NPZ --test NPZ [--samples N]
        [--precisions A,B,...] [--improve fast|best] [--search GPU [--limit LIMIT ...]]
        [--modelopt PYTHON]

A line each: SQNR of the first output against FP32 (dB), top-1 (%), perplexity, how many MatMul,
Gemm and Conv read quantized values, and the file's size (kB). Labels are classes, or tokens if the
scores have one more axis. Without labels the outputs are embeddings, and top-1 is how often the
nearest of all samples 2i + 1 to a sample 2i, and the reverse, is its pair.

The files are those of `trtcal calibrate --method auto`, `quantize` and `search`, and, with
--modelopt, of ModelOpt in that interpreter, all from the same samples. What is not quantized stays
in FP32; in the plans of a search, which take all precisions of the GPU and are judged by the
samples of the calibration, in FP16. --limit adds the smallest file within limits. All files run on
ONNX Runtime's CPU by the same code, FP4 weights folded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx

from benchmarks.int8_speed import describe_machine
from benchmarks.peers import MODELOPT
from trtcal.backends.lowering import lower
from trtcal.backends.sessions import Array, open_session, run_session
from trtcal.errors import BackendError, TrtcalError
from trtcal.formats import NARROW

BATCH = 16
SECONDS = 1200  # after which a search ends with what it has; twice as long stops any command
METHODS = (
    *(("int8", "max"), ("int8", "entropy"), ("fp8", "max"), ("fp8", "entropy")),
    *(("int4", "rtn_dq"), ("int4", "awq_clip"), ("int4", "awq_lite")),
)
HEAVY = ("MatMul", "Gemm", "Conv")


def run(*words: object, folder: Path) -> None:
    """Run a command; `BackendError` with its message, or the last line that it wrote, if it fails."""
    command = [*map(str, words)]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, cwd=folder, timeout=2 * SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"not done in {2 * SECONDS} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise BackendError(next((one for one in lines if one.startswith("error: ")), lines[-1]))


class Files:
    """Makes the files in a folder; each method returns the path of one."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.model, self.data = options.model.resolve(), folder / "calibration.npz"
        self.ranges = folder / "calibration.json"
        arrays = np.load(options.calibration)
        kept = {one: arrays[one] for one in arrays if one != "labels" or arrays[one].ndim == 1}
        np.savez(self.data, **kept)  # trtcal takes no labels of tokens
        how = "--method", options.method, "-o", self.ranges
        self._trtcal("calibrate", self.model, "--data", self.data, *how)

    def rows(self) -> Iterator[tuple[str, Callable[[], Path]]]:
        """Yield the name of each row of the table, and what makes its file."""
        yield "FP32", lambda: self.model
        for one in self.options.precisions.split(","):
            yield one, partial(self.quantized, one, "--precision", one)
            if level := self.options.improve:
                yield f"{one}, improved", partial(self.improved, one, level)
        if self.options.search:
            limits = [word for one in self.options.limit for word in ("--limit", one)]
            yield "search, smallest", partial(self.searched, "smallest")
            yield "search, fastest", partial(self.searched, "fastest")
            if limits:
                name = " ".join(("search,", *self.options.limit))
                yield name, partial(self.searched, "smallest", *limits)
        for precision, method in METHODS if self.options.modelopt else ():
            yield f"ModelOpt {precision} {method}", partial(self.modelopts, precision, method)

    def _trtcal(self, *words: object) -> None:
        run(Path(sys.executable).with_name("trtcal"), *words, folder=self.folder)

    def quantized(self, name: str, *words: object) -> Path:
        """Return a file of `trtcal quantize`."""
        path = self.folder / f"{name}.onnx"
        self._trtcal("quantize", self.model, "--calibration", self.ranges, *words, "-o", path)
        return path

    def improved(self, precision: str, level: str) -> Path:
        """Return a file of `trtcal quantize --improve`, which calibrates by itself."""
        path = self.folder / f"{precision}-{level}.onnx"
        words = "--data", self.data, "--improve", level, "--precision", precision, "-o", path
        self._trtcal("quantize", self.model, *words)
        return path

    def searched(self, goal: str, *limits: str) -> Path:
        """Return the model by the plan that a search recommends; later ones reuse measurements."""
        out = self.folder / "search"
        given = "--calibration", self.ranges, "--data", self.data, "--gpu", self.options.search
        words = *given, "--precisions", "all", "--goal", goal, *limits, "--time-limit", SECONDS
        self._trtcal("search", self.model, *words, "-o", out)
        plan = json.loads((out / "search.json").read_text())["recommended"]
        return self.quantized("searched", "--plan", out / plan)

    def modelopts(self, precision: str, method: str) -> Path:
        """Return a file of ModelOpt's."""
        folder = self.folder / f"{precision}-{method}"
        folder.mkdir()
        words = self.model, self.data, folder, precision, method
        run(self.options.modelopt.absolute(), "-c", MODELOPT, *words, folder=folder)
        return folder / "quantized.onnx"


def correct_axes(proto: onnx.ModelProto) -> None:
    """Give weights of ModelOpt's AWQ the axis that their scales have.

    Those of a Gemm with transB have scales along axis 1, and the file says 0, which does not run.
    """
    shapes = {one.name: tuple(one.dims) for one in proto.graph.initializer}
    for node in proto.graph.node:
        sizes = [shapes.get(name, ()) for name in node.input[:2]]
        if node.op_type == "DequantizeLinear" and [len(one) for one in sizes] == [2, 2]:
            for one in node.attribute:
                if one.name == "axis" and sizes[0][1 - one.i] != sizes[1][1 - one.i]:
                    one.i = 1 - one.i


def quantized_layers(proto: onnx.ModelProto) -> int:
    """Return how many heavy nodes read a dequantized tensor, at once or through a Transpose."""
    made_by = {name: node for node in proto.graph.node for name in node.output}

    def is_quantized(name: str) -> bool:
        node = made_by.get(name)
        while node and node.op_type in ("Transpose", "Reshape", "Cast"):
            node = made_by.get(node.input[0])
        return node is not None and node.op_type == "DequantizeLinear"

    heavy = (node for node in proto.graph.node if node.op_type in HEAVY)
    return sum(any(map(is_quantized, node.input[:2])) for node in heavy)


def outputs(proto: onnx.ModelProto, arrays: dict[str, Array]) -> Array:
    """Return the first output of all samples."""
    session, name = open_session(lower(proto)), proto.graph.output[0].name
    found = []
    for start in range(0, len(next(iter(arrays.values()))), BATCH):
        fed = {one: values[start : start + BATCH] for one, values in arrays.items()}
        found.append(run_session(session, [name], fed)[0])
    return np.concatenate(found).astype(np.float64)


def figures(made: Array, wanted: Array, labels: Array | None) -> tuple[float, ...]:
    """Return SQNR (dB), top-1 (%) and perplexity."""
    noise = np.square(made - wanted).sum()
    sqnr = 10 * np.log10(np.square(wanted).sum() / noise) if noise else np.inf
    if labels is None:
        near = made[::2] @ made[1::2].T
        hits = [one.argmax(-1) == np.arange(len(near)) for one in (near, near.T)]
        return float(sqnr), float(100 * np.mean(hits)), np.nan
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
    parser.add_argument("--samples", type=int, default=1024, help="of the test, at most")
    parser.add_argument("--method", default="auto", help="of the calibration")
    parser.add_argument("--precisions", default=",".join(NARROW), metavar="A,B,...")
    parser.add_argument("--search", metavar="GPU")
    parser.add_argument("--limit", action="append", default=[])
    parser.add_argument("--improve", choices=("fast", "best"))
    parser.add_argument("--modelopt", type=Path, metavar="PYTHON")
    options = parser.parse_args()
    arrays = {one: values[: options.samples] for one, values in np.load(options.test).items()}
    labels = arrays.pop("labels", None)
    wanted = outputs(onnx.load(options.model), arrays)
    samples = len(next(iter(np.load(options.calibration).values())))
    tested = f"{samples} samples, tested on {len(wanted)}"
    print(f"# {options.model.stem}, {describe_machine()}, trtcal {version('trtcal')}, {tested}")
    print(f"{'':24}{'SQNR dB':>9}{'top-1 %':>9}{'perplexity':>12}{'layers':>8}{'kB':>9}")
    with tempfile.TemporaryDirectory() as name:
        files = Files(options, Path(name))
        print(f"# ranges by {json.loads(files.ranges.read_text())['method']}")
        for label, make in files.rows():
            try:
                proto = onnx.load(make())
                correct_axes(proto)
                found = figures(outputs(proto, arrays), wanted, labels)
            except TrtcalError as error:
                print(f"{label:24} refused: {str(error)[:200]}", flush=True)
                continue
            sqnr, top1, perplexity = found
            last = f"{quantized_layers(proto):8}{proto.ByteSize() / 1000:9.0f}"
            print(f"{label:24}{sqnr:9.2f}{top1:9.2f}{perplexity:12.3f}{last}", flush=True)


if __name__ == "__main__":
    main()
