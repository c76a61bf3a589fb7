"""How fast `trtcal log FILE --json` reads a large build log, and in how much memory.

    python -m benchmarks.log_speed [--mb 200] [log ...]

Each log is brought to the size given in three ways: repeated as it is; with the names and numbers of
each copy changed, as a large network would have them; with no line equal to another. Without a log,
a verbose one is made by building a small network with TensorRT-RTX, where that is installed. Prints
the speed and the peak memory of the whole program, and which share of the lines was passed over
unread and was read; beside it what Python takes for nothing but
iterating over the lines, and `grep -c` for one word.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.int8_speed import describe_machine
from benchmarks.networks import light_network
from trtcal.backends.building import build
from trtcal.backends.options import BuildOptions
from trtcal.backends.registry import BACKENDS, find_backend
from trtcal.errors import InputError
from trtcal.evidence.log import reader
from trtcal.evidence.log.files import portions_of_file
from trtcal.evidence.log.prefilter import Quiet
from trtcal.evidence.log.summary import LogWriter

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


# All numbers but those of a time, a type and a version belong to names and measurements.
NUMBER = re.compile(
    rb"\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\]|(?i:float|int|fp|bf|half|bool)\d+|(?P<number>\d+)"
)


def numbered(text: bytes, suffix: int) -> bytes:
    """Put some more digits behind each number in a text."""
    digits = str(suffix).encode()
    return NUMBER.sub(lambda one: one[0] + digits if one["number"] else one[0], text)


def repeated(data: bytes) -> Iterator[bytes]:
    """Yield a log again and again."""
    while True:
        yield data


def varied(data: bytes) -> Iterator[bytes]:
    """Yield a log with other names and numbers each time."""
    return (numbered(data, copy) for copy in count(1))


def unique(data: bytes) -> Iterator[bytes]:
    """Yield a log again and again so that no line that says anything comes twice."""
    number = count(1)
    while True:
        for line in data.splitlines():
            after = numbered(line, next(number))
            if after == line and line.strip() and not line.endswith(b":"):
                after += b" %d" % next(number)
            yield after + b"\n"


KINDS: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "repeated": repeated,
    "varied names": varied,
    "all unique": unique,
}


def enlarged(log: Path, kind: str, size_bytes: int, folder: Path) -> Path:
    """Write a log of one kind, of about a size."""
    path = folder / "large.log"
    pieces = KINDS[kind](log.read_bytes().removesuffix(b"\n") + b"\n")
    with path.open("wb") as file:
        while file.tell() < size_bytes:
            file.writelines(islice(pieces, 1000 if kind == "all unique" else 1))
    return path


def shares(path: Path) -> str:
    """Return which share of a log's lines was passed over, was known, and was read."""
    lines = {"passed": 0, "read": 0}
    pass_over, take = reader.quiet_lines, reader.Reader._take

    def passing(text: bytes, start: int) -> Quiet:
        quiet = pass_over(text, start)
        lines["passed"] += quiet.lines
        return quiet

    def taking(*args: Any) -> Any:
        lines["read"] += 1
        return take(*args)

    with (
        patch.object(reader, "quiet_lines", passing),
        patch.object(reader.Reader, "_take", taking),
    ):
        writer = LogWriter("", lambda data: None)
        writer.write(portions_of_file(path))
    total = writer.reader.number
    return f"lines passed over {lines['passed'] / total:.1%}, read {lines['read'] / total:.1%}"


def measure(command: list[str]) -> tuple[float, float]:
    """Run a command for its own sake; return the seconds, and the peak of its memory in MB."""
    launched = [sys.executable, "-c", LAUNCHER, *command]
    said = subprocess.run(launched, stdout=subprocess.PIPE, check=True)  # noqa: S603  # our own
    seconds, memory_kb = said.stdout.split()
    return float(seconds), float(memory_kb) / 1e3


def report(log: Path, kind: str, size_bytes: int, folder: Path) -> None:
    """Print the figures of one log, made large in one way."""
    large = enlarged(log, kind, size_bytes, folder)
    megabytes = large.stat().st_size / 1e6
    print(f"{log.name}, {kind}: {megabytes:.0f} MB; {shares(large)}")
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
    parser.add_argument("--mb", type=int, default=200)
    given = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory() as name:
        for log in given.logs or [verbose_log(Path(name))]:
            for kind in KINDS:
                report(log, kind, given.mb * 10**6, Path(name))


if __name__ == "__main__":
    main()
