"""How fast `trtcal log FILE --json` reads a large build log, and in how much memory.

    python -m benchmarks.log_speed [--mb 1000] [log ...]

Each log is repeated to the size given. Without one, a verbose log is made by building a small network
with TensorRT-RTX, where that is installed. Prints the speed and the peak memory of the whole program,
and beside it what Python takes for nothing but iterating over the lines, and `grep -c` for one word.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.int8_speed import describe_machine
from benchmarks.networks import light_network
from trtcal.backends.base import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.registry import BACKENDS, find_backend
from trtcal.errors import InputError

TRTCAL = ("-m", "trtcal.cli.main", "log", "--json")
LINES = ("-c", "import sys\nfor line in open(sys.argv[1], 'rb'): pass")

# A process of its own, since a child counts its parent's memory as its own until it starts.
LAUNCHER = """
import resource, subprocess, sys, time
started = time.perf_counter()
subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
print(time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def verbose_log(folder: Path) -> Path:
    """Build a network with TensorRT-RTX and return its log; `InputError` without TensorRT-RTX."""
    available = BACKENDS["tensorrt-rtx"].availability()
    if not available.works:
        raise InputError(f"no log is given, and {available.missing}", "give a log's path")
    backend, target = find_backend("tensorrt-rtx", "sm89")
    model = light_network("squeezenet", folder)
    return build(model, backend, BuildOptions(target), folder / "build").log


def repeated(log: Path, size_bytes: int, folder: Path) -> Path:
    """Write a log again and again into one file of about a size."""
    data = log.read_bytes().removesuffix(b"\n") + b"\n"
    path = folder / "large.log"
    with path.open("wb") as file:
        for _ in range(max(1, size_bytes // len(data))):
            file.write(data)
    return path


def measure(command: list[str]) -> tuple[float, float]:
    """Run a command for its own sake; return the seconds, and the peak of its memory in MB."""
    launched = [sys.executable, "-c", LAUNCHER, *command]
    said = subprocess.run(launched, stdout=subprocess.PIPE, check=True)  # noqa: S603  # our own
    seconds, memory_kb = said.stdout.split()
    return float(seconds), float(memory_kb) / 1e3


def report(log: Path, size_bytes: int, folder: Path) -> None:
    """Print the figures of one log."""
    large = repeated(log, size_bytes, folder)
    megabytes = large.stat().st_size / 1e6
    print(f"{log.name}: {log.stat().st_size} bytes, repeated to {megabytes:.0f} MB")
    commands = {
        "trtcal log --json": [sys.executable, *TRTCAL, str(large)],
        "Python, lines alone": [sys.executable, *LINES, str(large)],
        "grep -c": ["sh", "-c", 'grep -c Tactic "$0" | cat', str(large)],
    }
    for name, command in commands.items():
        seconds, memory = measure(command)
        print(
            f"  {name:20s} {megabytes / seconds:7.0f} MB/s  {seconds:6.1f} s  {memory:5.0f} MB peak"
        )


def main() -> None:
    """Measure every log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", nargs="*", type=Path)
    parser.add_argument("--mb", type=int, default=1000)
    given = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory() as name:
        for log in given.logs or [verbose_log(Path(name))]:
            report(log, given.mb * 10**6, Path(name))


if __name__ == "__main__":
    main()
