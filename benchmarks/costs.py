"""What trtcal's commands cost as processes, beside another checkout and other tools, in turns.

    python -m benchmarks.costs FOLDER [NAME ...] [--samples 8 64 512] [--rounds 1]
        [--commands quantize run search fast best ...] [--before PYTHON] [--peers PYTHON ...]

FOLDER has NAME.onnx, and NAME.npz or the images NAME/*.jpg, and NAME.toml where trtcal needs it, such
as what `python -m benchmarks.made_networks` writes. `--before` is the Python of another checkout. Each
of `--peers` is a Python with NNCF, ModelOpt or ONNX Runtime: their `quantize` runs beside `quantize`.

One line for each tool: wall clock of all its commands and of each, CPU seconds, peak memory (of the
largest process). Imports and writing are included. The first N samples calibrate, the last `--test`
samples test. Medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.peers import MODELOPT, NNCF, ORT, ROWS

BARE = f"""{ROWS}
import time, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
count, started = 0, time.perf_counter()
for row in rows(sys.argv[2], {{value.name: len(value.shape) for value in session.get_inputs()}}):
    session.run(None, row)
    count += 1
print(f"bare inference of {{count}} samples: {{time.perf_counter() - started:.2f}} s")
"""
PEERS = {"NNCF": ("nncf", NNCF), "ModelOpt max": ("modelopt", MODELOPT)}
PEERS |= {"ORT MinMax": ("onnxruntime.quantization", ORT)}

CALIBRATE = "calibrate {model} --data {data} {toml} --method {method} -o {out}/calibration.json"
QUANTIZE = "quantize {model} --calibration {out}/calibration.json {toml} -o {out}/int8.onnx"
IMPROVE = "quantize {model} --improve %s --data {data} {toml} -o {out}/%s.onnx"
BY_CALIBRATION = "{model} --calibration {out}/calibration.json --data {test} {toml}"
COMMANDS = {
    "help": ("--help",),
    "check-data": ("check-data {model} --data {data} {toml}",),
    "calibrate": (CALIBRATE,),
    "quantize": (CALIBRATE, QUANTIZE),
    "fast": (IMPROVE % ("fast", "fast"),),
    "best": (IMPROVE % ("best", "best"),),
    "compare": (CALIBRATE, QUANTIZE, "compare {model} {out}/int8.onnx --data {test} {toml}"),
    "ab": (CALIBRATE, QUANTIZE, "ab {model} {out}/int8.onnx --data {test} {toml}"),
    "sensitivity": (CALIBRATE, f"sensitivity {BY_CALIBRATION}"),
    "search": (CALIBRATE, f"search {BY_CALIBRATION} -o {{out}}/search"),
    "run": ("run {model} --data {data} --test {test} {toml} --output {out}/run",),
    "report": ("report {large} -o {out}/report.html",),
    "dashboard": ("history dashboard --db {history} -o {out}/dashboard",),
}
MACHINE = """
import platform, pathlib
from benchmarks.int8_speed import describe_machine
flags = set(pathlib.Path("/proc/cpuinfo").read_text().split())
known = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8") if flag in flags]
print(f"# {describe_machine()}, instructions: {' '.join(known)}")
"""
CUT = """
import sys, numpy as np
model, first, last, out = sys.argv[1:]
data = np.load(model[:-5] + ".npz")
cut = slice(int(first) or None, int(last) or None)
np.savez(out, **{name: data[name][cut] if data[name].ndim else data[name] for name in data.files})
"""
COUNT = """
import sys, pathlib, onnx
for path in pathlib.Path(sys.argv[1]).glob("*.onnx"):
    nodes = onnx.load(path, load_external_data=False).graph.node
    read = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear"}
    kinds = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU")
    products = [node for node in nodes if node.op_type in kinds]
    print(sum({*node.input[:2]} <= read for node in products), "of", len(products), "products INT8")
"""
LARGE = """
import sys, pathlib
from tests.reporting.large import write_large_run
write_large_run(pathlib.Path(sys.argv[1]))
"""
HISTORY = """
import sys, pathlib, shutil
from benchmarks.history import filled
shutil.move(filled(pathlib.Path(sys.argv[1]).parent, 10_000), sys.argv[1])
"""


@dataclass(frozen=True)
class Cost:
    """What a process took: seconds of wall clock and of processors, peak MB; what it quantized."""

    seconds: float
    cpu: float
    megabytes: float
    outcome: str = ""


def run(command: list[str], folder: Path) -> Cost | None:
    """Run a process and what it starts; None if it fails. 1 is an answer: a limit is broken.

    The peak that the system names is at least that of the process that starts another, so that this
    program imports no library.
    """
    started = time.perf_counter()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)  # noqa: S603
        _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1) or (process.returncode and "-c" in command):
        last = (folder / "log").read_text(errors="replace").strip()[-300:]
        print(f"# failed: {last}", file=sys.stderr, flush=True)
        return None
    return Cost(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6)


def run_here(code: str, *words: object) -> str:
    """Run a program of this checkout in a process of its own; return what it printed."""
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.check_output(command, text=True).strip()  # noqa: S603


@dataclass(frozen=True)
class Tool:
    """Commands to run one after the other: a program, and its words, in which paths stand in braces."""

    program: tuple[str, ...]
    commands: tuple[str, ...]

    def costs(self, paths: dict[str, str]) -> list[Cost] | None:
        """Return the cost of each command, all in a new folder; None if one fails."""
        costs = []
        with tempfile.TemporaryDirectory() as name:
            for line in self.commands:
                cost = run([*self.program, *line.format(**paths, out=name).split()], Path(name))
                if cost is None:
                    return None
                costs.append(cost)
            costs[-1] = replace(costs[-1], outcome=run_here(COUNT, name))
        return costs


def tools(command: str, options: argparse.Namespace, arrays: bool) -> dict[str, Tool]:
    """Return the tools that do what a command does, trtcal first."""
    pythons = {"trtcal": sys.executable} | ({"before": options.before} if options.before else {})
    folders = {name: Path(python).parent for name, python in pythons.items()}
    chosen = {name: Tool((str(at / "trtcal"),), COMMANDS[command]) for name, at in folders.items()}
    if command != "quantize" or not arrays:
        return chosen
    chosen["bare"] = Tool((sys.executable, "-c", BARE), ("{model} {data}",))
    for python in options.peers:
        for name, (module, code) in PEERS.items():
            known = [str(python), "-c", f"import {module}"]
            if name not in chosen and not subprocess.run(known, capture_output=True).returncode:  # noqa: S603
                chosen[name] = Tool((str(python), "-c", code), ("{model} {data} {out}",))
    return chosen


def measure(tools: dict[str, Tool], rounds: int, paths: dict[str, str]) -> dict[str, list[Cost]]:
    """Return the median costs of the commands of each tool that works, measured in turns."""
    costs: dict[str, list[list[Cost]]] = {}
    for _ in range(rounds):
        for name, tool in tools.items():
            if spent := tool.costs(paths):
                costs.setdefault(name, []).append(spent)
    return {
        name: [_median(each) for each in zip(*known, strict=True)] for name, known in costs.items()
    }


def _median(costs: tuple[Cost, ...]) -> Cost:
    columns = ([getattr(cost, name) for cost in costs] for name in ("seconds", "cpu", "megabytes"))
    seconds, cpu, megabytes = map(statistics.median, columns)
    return Cost(seconds, cpu, megabytes, costs[0].outcome)


def show(label: str, costs: dict[str, list[Cost]]) -> None:
    """Print a line for each tool; the last column is its time over that of trtcal."""
    whole = {name: sum(cost.seconds for cost in each) for name, each in costs.items()}
    for name, each in costs.items():
        parts = " + ".join(f"{cost.seconds:.2f}" for cost in each)
        cpu, peak = sum(cost.cpu for cost in each), max(cost.megabytes for cost in each)
        ratio = f"{whole[name] / whole['trtcal']:.2f}" if "trtcal" in whole else ""
        spent = f"{whole[name]:8.2f} s {cpu:8.2f} CPU s {peak:6.0f} MB"
        print(f"{label} {name:12} {spent} {ratio:>6}  {parts}  {each[-1].outcome}", flush=True)


def write_paths(options: argparse.Namespace, name: str, count: int, folder: Path) -> dict[str, str]:
    """Write the samples that calibrate and that test; return where all is that commands need."""
    model, toml = options.folder / f"{name}.onnx", options.folder / f"{name}.toml"
    data, test = folder / "data.npz", folder / "test.npz"
    images = sorted((options.folder / name).glob("*.jpg"))
    if images:
        data, test = folder / "data", folder / "test"
        for target, chosen in (data, images[:count]), (test, images[-options.test :]):
            target.mkdir()
            for path in chosen:
                shutil.copy(path, target)
    else:
        run_here(CUT, model, 0, count, data)
        run_here(CUT, model, -options.test, 0, test)
    config = f"--config {toml}" if toml.exists() else ""
    paths = {"model": str(model), "data": str(data), "test": str(test)}
    paths |= {"toml": config, "method": options.method}
    for word, command, code in (("large", "report", LARGE), ("history", "dashboard", HISTORY)):
        paths[word] = str(folder / word)
        if command in options.commands:
            run_here(code, folder / word)
    return paths


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--samples", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--test", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--commands", nargs="+", default=["quantize"], choices=COMMANDS)
    parser.add_argument("--method", default="percentile")
    parser.add_argument("--before", type=os.path.abspath)
    parser.add_argument("--peers", type=os.path.abspath, nargs="*", default=[])
    options = parser.parse_args()
    options.folder = options.folder.absolute()
    print(run_here(MACHINE), flush=True)
    for name in options.names or sorted(path.stem for path in options.folder.glob("*.onnx")):
        for count in options.samples:
            with tempfile.TemporaryDirectory() as folder:
                paths = write_paths(options, name, count, Path(folder))
                for command in options.commands:
                    chosen = tools(command, options, "data.npz" in paths["data"])
                    label = f"{name:12} {count:4} {command:10}"
                    show(label, measure(chosen, options.rounds, paths))


if __name__ == "__main__":
    main()
