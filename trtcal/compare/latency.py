"""Latency of several engines, measured in turns so that a drifting machine is fair to all.

A round runs each of them twice, in an order and back again (ABC CBA), and the order turns: so the
mean place of all is the same. Rounds begin once times have settled. Each is held against the reference
round by round, as `trtcal ab` does with two. It knows nothing of GPUs: times are those of whole calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trtcal.compare.interleaved import MAX_WARM_UP, WINDOW, Blocks, pinned, warm_up
from trtcal.compare.paired import ratio_of_blocks
from trtcal.compare.statistics import Interval, median_interval

Times = npt.NDArray[np.float64]
Run = Callable[[], object]

MOST_RUNS = 1280  # of each, however wide the interval
RUNS_AT_A_SIZE = 24


@dataclass(frozen=True)
class Throughput:
    """Median time of one batch of a size, samples a second, and times as fast as the reference."""

    batch: int
    p50_ms: float
    samples_per_s: float
    speedup: float


@dataclass(frozen=True)
class Latency:
    """One engine's latency for one batch, in milliseconds, and its speed-up over the reference.

    Intervals are 95 %. `speedup` is the median over rounds of the reference's time over this one's.
    `warm_up` counts the rounds before, `outliers` those in which either took unusually long; `drift` is
    by how much times changed from the first half to the second (0.1 is 10 %).
    """

    batch: int
    runs: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p50_interval_ms: tuple[float, float]
    speedup: float
    speedup_interval: tuple[float, float]
    warm_up: int = 0
    outliers: int = 0
    drift: float = 0.0
    remarks: tuple[str, ...] = ()
    throughput: tuple[Throughput, ...] = ()

    @property
    def samples_per_s(self) -> float:
        """Samples a second at the median."""
        return 1e3 * self.batch / self.p50_ms


def measure(
    runs: Sequence[Run], batch: int, count: int, width: float | None = None
) -> list[Latency]:
    """Time each callable `count` times (one more if odd), the first being the reference.

    With a `width` it goes on until the interval of every speed-up is as narrow as that, relative to
    it, or all ran 1280 times. How wide they are decides when to stop, never what they say. It warms up
    until times have settled, but for no more than half as many runs as are timed.
    """
    most = min(max(count // 2, 2 * WINDOW), MAX_WARM_UP)
    with pinned() as is_pinned:
        warm = warm_up(runs, most=most)
        times = _rounds(runs, (count + 1) // 2, 0)
        blocks = _against_first(times, warm, is_pinned)
        while width is not None and 2 * len(times) < MOST_RUNS and max(map(_width, blocks)) > width:
            times = np.concatenate([times, _rounds(runs, len(times), len(times))])
            blocks = _against_first(times, warm, is_pinned)
    rough = (f"times had not settled after {most} runs of warm-up",) if warm == most else ()
    return [_summary(one, batch, rough) for one in blocks]


def _rounds(runs: Sequence[Run], count: int, first: int) -> Times:
    """Return times in milliseconds, of shape (rounds, runs, 2)."""
    times = np.zeros((count, len(runs), 2))
    for number in range(count):
        shift = (first + number) % len(runs)
        order = [*range(shift, len(runs)), *range(shift)]
        for turn, indexes in enumerate((order, order[::-1])):
            for index in indexes:
                started = time.perf_counter()
                runs[index]()
                times[number, index, turn] = (time.perf_counter() - started) * 1e3
    return times


def _against_first(times: Times, warm: int, is_pinned: bool) -> list[Blocks]:
    return [Blocks(times[:, 0], times[:, i], warm, is_pinned) for i in range(times.shape[1])]


def _width(blocks: Blocks) -> float:
    interval = _speedup(blocks)[0]
    return (interval.high - interval.low) / interval.value


def _speedup(blocks: Blocks) -> tuple[Interval, bool]:
    """Return the speed-up, and whether there were rounds enough for its interval."""
    found, _ = ratio_of_blocks(blocks.baseline, blocks.candidate)
    if found.low > 0 and np.isfinite(found.high):
        return found, True
    ratios = blocks.baseline / blocks.candidate
    return Interval(found.value, float(ratios.min()), float(ratios.max())), False


def _summary(blocks: Blocks, batch: int, remarks: tuple[str, ...] = ()) -> Latency:
    times = blocks.candidate_ms.reshape(-1)
    p90, p99 = np.quantile(times, [0.9, 0.99])
    median = median_interval(times)
    speedup, is_enough = _speedup(blocks)
    few = () if is_enough else (f"{len(times)} runs are too few for a 95 % interval",)
    return Latency(
        batch=batch,
        runs=len(times),
        p50_ms=median.value,
        p90_ms=float(p90),
        p99_ms=float(p99),
        p50_interval_ms=(median.low, median.high),
        speedup=speedup.value,
        speedup_interval=(speedup.low, speedup.high),
        warm_up=blocks.warm_up,
        outliers=blocks.outliers,
        drift=blocks.drift,
        remarks=(*blocks.remarks, *remarks, *few),
    )


def measure_throughput(runs: Sequence[Run], batch: int) -> list[Throughput]:
    """Time each callable on batches of one size."""
    return [
        Throughput(batch, one.p50_ms, one.samples_per_s, one.speedup)
        for one in measure(runs, batch, RUNS_AT_A_SIZE)
    ]
