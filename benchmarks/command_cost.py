"""Every command as a process, beside plain `trtcal calibrate`: seconds, peak memory, multiples of that.

    python -m benchmarks.command_cost MODEL CALIBRATION TEST [--best]

CALIBRATION and TEST are .npz files. Each command works on what those before it wrote, once. Imports,
reading and writing are included. A report of 500 layers, and a dashboard of a history of 10,000 runs
stand below. `--best` runs `quantize --improve best` too, which takes minutes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.calibration_cost import Tool
from benchmarks.history import filled
from benchmarks.int8_speed import describe_machine
from tests.reporting.large import write_large_run

TRTCAL = """
import sys
from trtcal.cli.main import run_command
if run_command(sys.argv[1:]) > 1:  # 1 is an answer: a limit is broken, nothing is decided
    sys.exit(1)
"""
COMMANDS = {
    "help": "--help",
    "calibrate": "calibrate {model} --data {data} -o {out}/calibration.json",
    "check-data": "check-data {model} --data {data}",
    "quantize": "quantize {model} --calibration {out}/calibration.json -o {out}/int8.onnx",
    "improve fast": "quantize {model} --improve fast --data {data} -o {out}/fast.onnx",
    "improve best": "quantize {model} --improve best --data {data} -o {out}/best.onnx",
    "compare": "compare {model} {out}/int8.onnx --data {test} -o {out}/comparison.json",
    "ab": "ab {model} {out}/int8.onnx --data {test}",
    "sensitivity": "sensitivity {model} --calibration {out}/calibration.json --data {test}",
    "search": "search {model} --calibration {out}/calibration.json --data {test} -o {out}/search",
    "run": "run {model} --data {data} --test {test} --output {out}/run",
    "report, 500 layers": "report {large} -o {out}/report.html",
    "history, 10,000 runs": "history dashboard --db {history} -o {out}/dashboard",
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    for name in ("model", "data", "test"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--best", action="store_true")
    options = parser.parse_args()
    print(f"# {describe_machine()}")
    print(f"{options.model.stem}: seconds, peak MB, of plain calibration")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = {"model": options.model, "data": options.data, "test": options.test, "out": folder}
        given |= {"large": write_large_run(folder / "large"), "history": filled(folder, 10_000)}
        plain = None
        for label, line in COMMANDS.items():
            if label == "improve best" and not options.best:
                continue
            cost = Tool(TRTCAL, tuple(line.split())).cost(**given)
            plain = cost if label == "calibrate" else plain
            share = f"{cost.seconds / plain.seconds:6.2f}" if cost and plain else "      "
            print(f"  {label:22} {share}  {cost or 'failed'}", flush=True)


if __name__ == "__main__":
    main()
