"""The job that times engines in turns, so that a drifting device is fair to all.

A round runs each engine twice, in an order and back again (ABC CBA), and the order turns: so the mean
place of all is the same (`trtcal/evaluate/latency.py`). Rounds begin once times have settled.
"""

from __future__ import annotations

import statistics
from contextlib import closing
from typing import Any, Callable, Sequence

from .power import Meter, open_meter

MAX_WARM_UP = 50
WINDOW = 5
STEADY = 0.02
MAX_CLOCK_CHANGE = 0.02
DIGITS = 5  # of milliseconds: all times are one line of an answer


def time_engines(engines: list[Any], job: Any, log: Callable[[str], None]) -> dict[str, Any]:
    """Time engines that are prepared; see `timing_result`."""
    rounds = int(job.fields["rounds"])
    is_cpu = job.fields.get("runtime") == "onnxruntime"  # a meter is of the GPU
    with closing(Meter() if is_cpu else open_meter()) as meter:
        warm = warm_up(engines, min(max(rounds, 2 * WINDOW), MAX_WARM_UP))
        log(f"{warm} warm-up runs of each engine")
        before = meter.clock_mhz()
        runs = _rounds(engines, rounds, meter)
        clocks = before, meter.clock_mhz()
        energy = [meter.energy_per_run(engine.launch) for engine in engines]
    warnings = [text for engine in engines for text in getattr(engine, "warnings", ())]
    result = timing_result(runs, clocks, warnings + meter.warnings())
    return dict(result, energy_mj=energy, warm_up=warm)


def timing_result(
    runs: Sequence[Any], clocks: tuple[float | None, float | None], warnings: list[str]
) -> dict[str, Any]:
    """Return a job's result without energy; `runs` are (ms, compute_ms), (rounds, engines, 2)."""
    has_compute = runs[0][0][0][1] is not None
    times, *compute = [
        [[[round(run[part], DIGITS) for run in cell] for cell in row] for row in runs]
        for part in range(1 + has_compute)
    ]
    before, after = clocks
    if before and after and abs(after / before - 1.0) > MAX_CLOCK_CHANGE:
        moved = f"the clock moved from {before:.0f} to {after:.0f} MHz during the measurement"
        warnings = [moved, *warnings]
    return {
        "times_ms": times,
        "compute_ms": compute[0] if compute else None,
        "energy_mj": [None] * len(times[0]),
        "clocks_mhz": [before, after] if before and after else None,
        "warm_up": 0,
        "warnings": warnings,
    }


def warm_up(engines: list[Any], most: int) -> int:
    """Run all until their times have settled, `most` times at most; return how often."""
    times = []
    for number in range(1, most + 1):
        times.append(sum(engine.launch()[0] for engine in engines))
        if number >= 2 * WINDOW:
            late = statistics.median(times[-WINDOW:])
            early = statistics.median(times[-2 * WINDOW : -WINDOW])
            if abs(late / early - 1.0) < STEADY:
                return number
    return most


def order_of(number: int, count: int) -> list[int]:
    """Return in which order a round runs engines: there, and back again."""
    shift = number % count
    order = [*range(shift, count), *range(shift)]
    return order + order[::-1]


def _rounds(engines: list[Any], rounds: int, meter: Meter) -> list[Any]:
    runs: list[Any] = [[[] for _ in engines] for _ in range(rounds)]
    for row_number, row in enumerate(runs):
        for index in order_of(row_number, len(engines)):
            row[index].append(engines[index].launch())
        meter.watch()
    return runs
