"""Runs a format's inputs in a child process, and starts another where one died of an input."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


@dataclass
class Outcomes:
    """How the inputs of a format went: `problems` by number, the longest time, the most memory."""

    statuses: Counter[int] = field(default_factory=Counter)
    problems: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    cpu_s: float = 0.0
    mb: int = 0
    inputs: int = 0

    def add(self, found: dict[str, Any]) -> None:
        """Count one input."""
        self.inputs += 1
        self.statuses[found["status"]] += 1
        self.seconds = max(self.seconds, found["seconds"])
        self.cpu_s = max(self.cpu_s, found["cpu_s"])
        self.mb = max(self.mb, found["mb"])
        if found["problem"]:
            self.problems[f"{found['form']}:{found['number']}"] = found["problem"]


CHUNK = 500
Inputs = tuple[str, int, int]
"""A format, the number of its first input, and that after its last."""


def run_format(
    form: str,
    first: int,
    count: int,
    seeds: Path,
    limit_s: float | None = None,
    timed: bool = False,
) -> Outcomes:
    """Run a format's inputs from `first` on, up to `count` or for so many seconds.

    `timed` makes a command that takes long a problem.
    """
    outcomes, started = Outcomes(), time.monotonic()
    stop = first + count
    while first < stop and (limit_s is None or time.monotonic() - started < limit_s):
        last = min(stop, first + (CHUNK if limit_s is None else CHUNK // 10))
        first = _run_chunk((form, first, last), seeds, outcomes, timed)
    return outcomes


def _run_chunk(inputs: Inputs, seeds: Path, outcomes: Outcomes, timed: bool) -> int:
    """Run one child until it is done or dead; return the number of the next input."""
    form, first, stop = inputs
    results = seeds.parent / f"{form[:40]}-{first}.jsonl"
    state = {"XDG_STATE_HOME": str(seeds.parent), "XDG_DATA_HOME": str(seeds.parent)}
    words = [str(seeds), str(results), form, str(first), str(stop), *["timed"] * timed]
    child = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.worker", *words],
        cwd=ROOT,
        env={**os.environ, **state, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    done = [line for line in lines if "status" in line]
    for line in done:
        outcomes.add(line)
    if child.returncode == 0:
        return stop
    how = f"the process ended with {child.returncode}"
    outcomes.add({**lines[-1], "status": -1, "seconds": 0, "cpu_s": 0, "mb": 0, "problem": how})
    return int(lines[-1]["number"]) + 1
