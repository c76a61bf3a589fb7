"""`trtcal calibrate` as a process, beside bare inference and ONNX Runtime's calibrators as processes.

    python -m benchmarks.calibration_cost [--samples 8 64 512] [--rounds 3] [--peers] [network ...]
    python -m benchmarks.calibration_cost --data images.npz model.onnx

Prints a line for each network, number of samples and tool: wall clock and peak memory of the process,
imports and writing included, the median of several rounds in turns. Every tool may use all cores. A
network is one of ONNX's light ones with random weights and random images, or a file with its data.
The last line of a network has (T(most) - T(fewest)) over that of bare inference: what a sample costs.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.int8_speed import describe_machine
from benchmarks.networks import light_network, random_images
from trtcal.model import load_model

NETWORKS = ("resnet50", "squeezenet", "shufflenet", "densenet121", "inception_v2")
PEERS = ("MinMax", "Entropy", "Percentile")

TRTCAL = """
import sys
from trtcal.cli.main import run_command
if run_command(["calibrate", sys.argv[1], "--data", sys.argv[2], "-o", sys.argv[3], "-q"]):
    sys.exit(1)
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


def cost(code: str, *arguments: object) -> Cost:
    """Run a Python program as a process of its own; `SystemExit` if it fails."""
    started = time.perf_counter()
    words = [sys.executable, "-c", code + PEAK, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    spent = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(done.stderr)
    return Cost(spent, float(done.stdout.rpartition("peak ")[2]) * 1024 / 1e6)


def measure(model: Path, data: Path, options: argparse.Namespace) -> dict[str, Cost]:
    """Return the median cost of each tool, measured in turns."""
    made = data.with_suffix(".out")
    work = {"trtcal": (TRTCAL, model, data, made), "bare": (BARE, model, data)}
    if options.peers:
        work |= {f"ORT {name}": (PEER, model, data, made, name) for name in PEERS}
    rounds = [{name: cost(*words) for name, words in work.items()} for _ in range(options.rounds)]
    return {
        name: Cost(
            statistics.median(one[name].seconds for one in rounds),
            statistics.median(one[name].megabytes for one in rounds),
        )
        for name in work
    }


def line(name: str, options: argparse.Namespace) -> float:
    """Measure and print one network; return what a sample costs over bare inference."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        model = load_model(Path(name)) if options.data else light_network(name, here)
        given = np.load(options.data)[model.inputs[0].name] if options.data else None
        costs = {}
        for count in sorted(options.samples):
            data = here / f"{count}.npz"
            images = random_images(model, count) if given is None else given[:count]
            np.savez(data, **{model.inputs[0].name: images})
            costs[count] = measure(model.path, data, options)
            shown = (f"{k} {v.seconds:.2f} s {v.megabytes:.0f} MB" for k, v in costs[count].items())
            print(f"{model.path.stem:16} {count:4} samples: {'; '.join(shown)}", flush=True)
            data.unlink()
    first, last = costs[min(costs)], costs[max(costs)]
    gained = {one: last[one].seconds - first[one].seconds for one in ("trtcal", "bare")}
    ratio = gained["trtcal"] / gained["bare"]
    print(f"{model.path.stem:16} a sample more costs {ratio:.2f} of bare inference", flush=True)
    return ratio


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--samples", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    print(f"# {describe_machine()}")
    found = [line(name, options) for name in options.networks]
    print(f"geometric mean {statistics.geometric_mean(found):.2f}")


if __name__ == "__main__":
    main()
