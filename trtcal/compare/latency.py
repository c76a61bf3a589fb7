"""Latency of several engines, measured in turns so that a drifting machine is fair to all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trtcal.compare.statistics import Times, median_interval, ratio_interval

Run = Callable[[], object]
WARM_UP_ROUNDS = 5


@dataclass(frozen=True)
class Latency:
    """One engine's latency for one batch, in milliseconds, and its speed-up over the reference.

    Intervals are 95 %. `speedup` is the reference's median over this one's.
    """

    batch: int
    runs: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p50_interval_ms: tuple[float, float]
    speedup: float
    speedup_interval: tuple[float, float]


def measure(runs: Sequence[Run], batch: int, rounds: int) -> list[Latency]:
    """Time each callable once a round, in turning order, the first being the reference."""
    times = np.zeros((len(runs), rounds))
    for number in range(-WARM_UP_ROUNDS, rounds):
        order = list(range(len(runs)))
        shift = number % len(runs)
        order = order[shift:] + order[:shift]
        for index in order if number % 2 else reversed(order):
            started = time.perf_counter()
            runs[index]()
            if number >= 0:
                times[index, number] = (time.perf_counter() - started) * 1e3
    return [_summary(row, times[0], batch) for row in times]


def _summary(times: Times, reference: Times, batch: int) -> Latency:
    p90, p99 = np.quantile(times, [0.9, 0.99])
    median = median_interval(times)
    speedup = ratio_interval(reference, times)
    return Latency(
        batch=batch,
        runs=len(times),
        p50_ms=median.value,
        p90_ms=float(p90),
        p99_ms=float(p99),
        p50_interval_ms=(median.low, median.high),
        speedup=speedup.value,
        speedup_interval=(speedup.low, speedup.high),
    )
