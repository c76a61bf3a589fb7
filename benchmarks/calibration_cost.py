"""`trtcal calibrate` as a process, beside bare inference and other tools' calibration as processes.

    python -m benchmarks.calibration_cost [--samples 8 64 512] [--rounds 3] [--peers [PYTHON]] [network]
    python -m benchmarks.calibration_cost --data images.npz model.onnx
    python -m benchmarks.calibration_cost --data images/ --toml trtcal.toml model.onnx

Prints a line for each network and number of samples: wall clock and peak memory of each process,
imports and writing included, the median of several rounds in turns. Every tool may use all cores. A
network is one of ONNX's light ones with random weights and random images, or a file with its data: an
array, or a folder of image files with the `[images]` that they need. The last line of a network has
(T(most) - T(fewest)) over that of bare inference: what a sample costs. With --peers, ONNX Runtime's
MinMax, Entropy and Percentile run too, and in each Python given NNCF or ModelOpt, whichever it has,
with their whole `quantize`; one that fails is left out.
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
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.improve import MODELOPT, NNCF
from benchmarks.int8_speed import describe_machine
from benchmarks.networks import NETWORKS, light_network, random_images
from trtcal.model import Model, load_model

PEERS = ("MinMax", "Entropy", "Percentile")

TRTCAL = """
import sys
from trtcal.cli.main import run_command
if run_command(["calibrate", sys.argv[1], "--data", sys.argv[2], "-o", sys.argv[3], "-q",
                "--config", sys.argv[4]]):
    sys.exit(1)
"""
BARE_FILES = """
import sys, pathlib, numpy as np, onnxruntime
from PIL import Image
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
name, (height, width) = session.get_inputs()[0].name, session.get_inputs()[0].shape[2:]
for path in sorted(pathlib.Path(sys.argv[2]).glob("*.jpg")):
    image = Image.open(path).convert("RGB")
    left, top = (image.width - width) // 2, (image.height - height) // 2
    if (image.height, image.width) != (height, width):
        box = (left, top, left + width, top + height)
        image = image.crop(box) if min(left, top) >= 0 else image.resize((width, height))
    pixels = np.asarray(image, np.float32) / 127.5 - 1
    session.run(None, {name: np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])})
"""
BARE = """
import sys, numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
name, data = session.get_inputs()[0].name, np.load(sys.argv[2])
for sample in data[name]:
    session.run(None, {name: sample[None]})
"""
PEER = """
import sys, numpy as np
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod
from onnxruntime.quantization.calibrate import create_calibrator
import onnx
name = onnx.load(sys.argv[1], load_external_data=False).graph.input[0].name

class Reader(CalibrationDataReader):
    def __init__(self):
        self.rows = iter(np.load(sys.argv[2])[name])
    def get_next(self):
        row = next(self.rows, None)
        return None if row is None else {name: row[None]}

calibrator = create_calibrator(sys.argv[1], None, sys.argv[3], CalibrationMethod[sys.argv[4]])
calibrator.collect_data(Reader())
calibrator.compute_data()
"""


# A child inherits its parent's ru_maxrss, so that each program says itself what its peak was.
PEAK = """
import pathlib
(line,) = [one for one in pathlib.Path("/proc/self/status").read_text().split("\\n") if "VmHWM" in one]
print("peak", line.split()[1])
"""


@dataclass(frozen=True)
class Cost:
    """Seconds of wall clock and peak memory in MB."""

    seconds: float
    megabytes: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s {self.megabytes:.0f} MB"


@dataclass(frozen=True)
class Tool:
    """A Python program and the Python that runs it; what it is called with stands for `{...}`."""

    code: str
    words: tuple[str, ...]
    python: str = sys.executable

    def cost(self, **given: object) -> Cost | None:
        """Run it as a process; None if it fails."""
        words = [one.format(**given) for one in self.words]
        started = time.perf_counter()
        done = subprocess.run(  # noqa: S603  # our own programs
            [self.python, "-c", self.code + PEAK, *words],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(Path.cwd())},
        )
        spent = time.perf_counter() - started
        if done.returncode:
            print(f"# failed: {done.stderr.strip()[-300:]}", file=sys.stderr)
            return None
        return Cost(spent, float(done.stdout.rpartition("peak ")[2]) * 1024 / 1e6)


def tools(options: argparse.Namespace) -> dict[str, Tool]:
    """Return the tools to measure; the peers last."""
    files = options.data is not None and options.data.is_dir()
    own = ("{model}", "{data}", "{out}/calibration.json", "{toml}")
    found = {
        "trtcal": Tool(TRTCAL, own),
        "bare": Tool(BARE_FILES if files else BARE, ("{model}", "{data}")),
    }
    if options.peers is None or files:
        return found
    found |= {
        f"ORT {name}": Tool(PEER, ("{model}", "{data}", "{out}/augmented.onnx", name))
        for name in PEERS
    }
    for python in options.peers:
        kinds = ("NNCF", NNCF, [""]), ("ModelOpt", MODELOPT, ["int8", "entropy"])
        for name, code, last in kinds:
            package = f"import {name.lower()}"
            if not subprocess.run([python, "-c", package], capture_output=True).returncode:  # noqa: S603
                found[name] = Tool(code, ("{model}", "{data}", "{name}", "{out}", *last), python)
    return found


def measure(tools: dict[str, Tool], rounds: int, **given: object) -> dict[str, Cost]:
    """Return the median cost of each tool that works, measured in turns."""
    costs = [{name: tool.cost(**given) for name, tool in tools.items()} for _ in range(rounds)]
    return {
        name: Cost(
            statistics.median(one.seconds for one in known),
            statistics.median(one.megabytes for one in known),
        )
        for name in tools
        if (known := [one for each in costs if (one := each[name])])
    }


def write_data(options: argparse.Namespace, model: Model, count: int, folder: Path) -> Path:
    """Write the first samples as they are given, or random ones; return where."""
    name = model.inputs[0].name
    if options.data is not None and options.data.is_dir():
        data = folder / str(count)
        data.mkdir()
        for path in sorted(options.data.glob("*.jpg"))[:count]:
            shutil.copy(path, data)
        return data
    data = folder / f"{count}.npz"
    given = None if options.data is None else np.load(options.data)[name][:count]
    np.savez(data, **{name: random_images(model, count) if given is None else given})
    return data


def line(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure and print one network; return what a sample costs over bare inference, by tool."""
    chosen = tools(options)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        model = load_model(Path(name)) if options.data else light_network(name, folder)
        costs: dict[int, dict[str, Cost]] = {}
        for count in sorted(options.samples):
            data = write_data(options, model, count, folder)
            given = {"model": model.path, "data": data, "out": folder, "toml": options.toml}
            costs[count] = measure(chosen, options.rounds, name=model.inputs[0].name, **given)
            shown = "; ".join(f"{tool} {cost}" for tool, cost in costs[count].items())
            print(f"{model.path.stem:16} {count:4} samples: {shown}", flush=True)
    first, last = costs[min(costs)], costs[max(costs)]
    gained = {tool: last[tool].seconds - first[tool].seconds for tool in last if tool in first}
    ratios = {tool: gained[tool] / gained["bare"] for tool in gained if tool != "bare"}
    shown = ", ".join(f"{tool} {ratio:.2f}" for tool, ratio in ratios.items())
    print(f"{model.path.stem:16} a sample more over bare inference: {shown}", flush=True)
    return ratios


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--samples", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="*")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--toml", type=Path, default=Path(os.devnull))
    options = parser.parse_args()
    print(f"# {describe_machine()}")
    found = [line(name, options)["trtcal"] for name in options.networks]
    print(f"geometric mean {statistics.geometric_mean(found):.2f}")


if __name__ == "__main__":
    main()
