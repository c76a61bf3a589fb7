"""Mutated inputs of every format through the program.

    python -m tests.fuzz [--minutes 10 | --inputs 800] [--only FORMAT[:NUMBER]] [--processes 2]

Of every input: status 0 to 4, one error line and a hint if it is 2 or more, nothing half-written,
at most 2 s and 1 GB. Too long is what takes over 2 s by the clock and of the processor (its own and
its child processes'), twice: a busy machine does not count. The same number is the same input. Prints
a table by format and every input that went wrong, which ends with status 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

from benchmarks.int8_speed import describe_machine
from tests.fuzz.formats import FORMATS, keep
from tests.fuzz.pool import Outcomes, run_format
from tests.fuzz.seeds import write_seeds
from tests.fuzz.worker import case_of


def main() -> int:
    """Run what the options say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, help="for each format; else --inputs")
    parser.add_argument("--inputs", type=int, default=800, help="of each format")
    parser.add_argument("--first", type=int, help="the number of the first input")
    parser.add_argument("--only", help="a format, or one input, which is kept in the corpus")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trtcal-fuzz-") as place:
        seeds = Path(place) / "seeds"
        seeds.mkdir()
        write_seeds(seeds)
        return _run(given, seeds)


def _run(given: argparse.Namespace, seeds: Path) -> int:
    only, _, number = (given.only or "").partition(":")
    first = int(number or (_fresh(given.minutes) if given.first is None else given.first))
    count = 1 if number else given.inputs if given.minutes is None else sys.maxsize
    names = [one for one in FORMATS if only in ("", one)]
    if number:
        _show(only, first, seeds)
    started = time.perf_counter()
    with ThreadPoolExecutor(given.processes) as pool:
        limit = None if given.minutes is None else 60 * given.minutes
        found = pool.map(
            lambda name: run_format(name, first, count, seeds, limit, timed=True), names
        )
        outcomes = dict(zip(names, found, strict=True))
    print(f"{describe_machine()}, inputs from number {first}")
    print_table(outcomes, time.perf_counter() - started)
    return int(any(one.problems for one in outcomes.values()))


def _fresh(minutes: float | None) -> int:
    """Return the first number: every night others, and always the same ones for a count."""
    return 0 if minutes is None else date.today().toordinal() * 1_000_000


def _show(form: str, number: int, seeds: Path) -> None:
    case = case_of(form, number, seeds)
    print(f"kept {keep(form, number, case)}: trtcal {' '.join(case.command)}")


def print_table(outcomes: dict[str, Outcomes], seconds: float) -> None:
    """Print how each format went, and what went wrong."""
    row = "{:13} {:>7} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}"
    print(row.format("format", "inputs", "0", "1", "2", "3", "4", "wrong", "max s", "CPU s", "MB"))
    for name, one in outcomes.items():
        counts = [one.statuses[status] for status in range(5)]
        figures = (len(one.problems), f"{one.seconds:.2f}", f"{one.cpu_s:.2f}", one.mb)
        print(row.format(name, one.inputs, *counts, *figures))
    inputs = sum(one.inputs for one in outcomes.values())
    wrong = sum(len(one.problems) for one in outcomes.values())
    print(f"{inputs} inputs of {len(outcomes)} formats in {seconds:.0f} s, {wrong} wrong")
    for one in outcomes.values():
        for name, problem in one.problems.items():
            print(f"{name}: {json.dumps(problem)[1:-1][:300]}")


if __name__ == "__main__":
    sys.exit(main())
