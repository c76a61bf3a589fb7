"""A language model of 2.5 GB through trtcal: time, peak memory and files of each command.

    python -m benchmarks.language_model FOLDER [--small]

Writes a decoder of random weights with two texts to calibrate on and two to test, which it wrote
itself, runs the commands one after another, and prints a line for each. FOLDER takes up to 12 GB
until the end, when all that was written is deleted. The weights are random: the figures of accuracy
are those of a network that holds nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.fixtures.language_models import LARGE, SMALL, Size, prompt, texts, write_language_model

COUNTED = """
import resource, sys
from trtcal.cli.main import run_command
status = run_command(sys.argv[1:])
own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
seconds = sum(each.ru_utime + each.ru_stime for each in (own, children))
print(f"{seconds:.0f} {own.ru_maxrss >> 10} {children.ru_maxrss >> 10}", file=sys.stderr)
sys.exit(status)
"""
LENGTHS = {"calibration": (24, 32), "test": (20, 28)}


def write_data(folder: Path, size: Size) -> None:
    """Write a model, and texts of its own without caches."""
    path = write_language_model(folder / "model.onnx", size, embedded=size is SMALL)
    for seed, (part, lengths) in enumerate(LENGTHS.items()):
        (folder / part).mkdir()
        for number, tokens in enumerate(texts(path, lengths, size, seed)):
            feed = prompt(tokens, size)
            kept = {name: array for name, array in feed.items() if "past" not in name}
            np.savez(folder / part / f"{number}.npz", **kept)


def commands() -> Iterator[tuple[str, ...]]:
    """Yield the commands, in an order in which each has what it needs."""
    yield ("calibrate", "model.onnx", "--data", "calibration", "-o", "ranges.json")
    ranges = ("--calibration", "ranges.json")
    yield ("quantize", "model.onnx", *ranges, "-o", "int8/int8.onnx")
    yield ("compare", "model.onnx", "int8/int8.onnx", "--data", "test")
    yield ("quantize", "model.onnx", *ranges, "--precision", "fp8", "-o", "fp8/fp8.onnx")
    yield ("compare", "model.onnx", "fp8/fp8.onnx", "--data", "test")
    yield ("quantize", "model.onnx", "--precision", "int4", "-o", "int4/int4.onnx")
    yield ("compare", "model.onnx", "int4/int4.onnx", "--data", "test")
    yield ("run", "model.onnx", "--data", "calibration", "--test", "test", "-o", "run")


def measure(folder: Path, command: tuple[str, ...]) -> str:
    """Run a command, and return its line."""
    start = time.perf_counter()
    done = subprocess.run(  # noqa: S603  # a command of this file
        [sys.executable, "-c", COUNTED, *command], cwd=folder, text=True, capture_output=True
    )
    seconds = time.perf_counter() - start
    with (folder / "output.txt").open("a") as file:
        file.write(f"== {command}\n{done.stdout}\n{done.stderr}\n")
    counted = done.stderr.splitlines()[-1].split()
    cpu, own, children = counted if len(counted) == 3 else "???"
    line = f"{' '.join(command[:1] + command[-1:]):24} status {done.returncode}  {seconds:5.0f} s  "
    line += f"CPU {cpu:>5} s  peak {own:>6} MiB, children {children:>6} MiB"
    return line + of_comparison(folder / "comparison.json" if command[0] == "compare" else None)


def of_comparison(path: Path | None) -> str:
    """Return the perplexities and the agreement of a comparison."""
    if path is None or not path.exists():
        return ""
    rows = json.loads(path.read_text())["rows"]
    figures = (f"{row['means']['perplexity']['value']['mean']:.4g}" for row in rows)
    return f"  perplexity {' -> '.join(figures)}"


def main() -> None:
    """Write the model, and run the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true", help="a model of 350 kB instead")
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    write_data(options.folder, SMALL if options.small else LARGE)
    for command in commands():
        print(measure(options.folder, command), flush=True)
    for file in sorted(options.folder.glob("*/*.onnx")):
        beside = sum(each.stat().st_size for each in file.parent.glob("*.bin"))
        print(f"{file.parent.name}: {file.stat().st_size:,} bytes, {beside:,} beside it")


if __name__ == "__main__":
    main()
