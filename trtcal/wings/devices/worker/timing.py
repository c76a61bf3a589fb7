"""The job that times engines in turns, so that a drifting device is fair to all.

A round runs each engine twice, in an order and back again (ABC CBA), and the order turns: so the mean
place of all is the same (`trtcal/evaluate/latency.py`). Rounds begin once times have settled.
"""

from __future__ import annotations

import statistics
from typing import Any, Callable

from .power import Meter, open_meter

MAX_WARM_UP = 50
WINDOW = 5
STEADY = 0.02
MOVED = 0.02
"""Relative change of the clock that is a warning."""

Times = "tuple[float, float | None]"


def time_engines(engines: list[Any], job: Any, log: Callable[[str], None]) -> dict[str, Any]:
    """Return times_ms and compute_ms (rounds, engines, 2), energy, clocks, warm_up, warnings."""
    rounds = int(job.fields["rounds"])
    meter = open_meter()
    warm = warm_up(engines, min(max(rounds, 2 * WINDOW), MAX_WARM_UP))
    log(f"{warm} warm-up runs of each engine")
    before = meter.clock_mhz()
    pairs = _rounds(engines, rounds, meter)
    after = meter.clock_mhz()
    energy = [meter.energy_per_run(engine.launch) for engine in engines]
    meter.close()
    warnings = [text for engine in engines for text in getattr(engine, "warnings", ())]
    times = [[[pair[0] for pair in cell] for cell in row] for row in pairs]
    compute = [[[pair[1] for pair in cell] for cell in row] for row in pairs]
    has_compute = all(ms is not None for row in compute for cell in row for ms in cell)
    return {
        "times_ms": times,
        "compute_ms": compute if has_compute else None,
        "energy_mj": energy,
        "clocks_mhz": [before, after] if before and after else None,
        "warm_up": warm,
        "warnings": warnings + moved(before, after) + meter.warnings(),
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
    pairs: list[Any] = [[[] for _ in engines] for _ in range(rounds)]
    for number in range(rounds):
        for index in order_of(number, len(engines)):
            pairs[number][index].append(engines[index].launch())
        meter.watch()
    return pairs


def moved(before: float | None, after: float | None) -> list[str]:
    """Return the warning about a clock in MHz that moved, if it did."""
    if not before or not after or abs(after / before - 1.0) <= MOVED:
        return []
    return [f"the clock moved from {before:.0f} to {after:.0f} MHz during the measurement"]
