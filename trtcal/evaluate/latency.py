"""Latency of several engines, measured in turns so that a drifting machine is fair to all.

A round runs each of them twice, in an order and back again (ABC CBA), and the order turns: so the
mean place of all is the same. Rounds begin once times have settled. Each is held against the reference
round by round, as `trtcal ab` does with two. Times are those of whole calls, transfers included; what
runs on a device is timed there, in the same order.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trtcal.stats import Interval, Mask, Values, median_interval, ratio_of_blocks

Run = Callable[[], object]

FIRST_ROUNDS = 40  # of an A/B test
MOST_ROUNDS = 640  # however wide the interval
WIDTH = 0.02  # wanted of an A/B test's interval of the speed-up
RUNS_AT_A_SIZE = 24
ROUNDS = 60  # runs of each, where somebody asks for times
GLANCE = 6  # where nobody does, at most
GLANCED = GLANCE + 1  # batches of a replay whose times are kept: the first warms up
GLANCE_MS = 1000.0  # below which runs of their own, on one core and in turns, cost nearly nothing
MAX_WARM_UP = 50  # runs of each
WINDOW = 5  # runs whose median is held against that of the runs before
STEADY = 0.02  # relative change of that median that counts as settled
OUTLIER = 5.0  # median absolute deviations
SHIFTED = 0.1  # relative change between first and second part that is reported


@dataclass(frozen=True)
class Blocks:
    """Times in milliseconds, of shape (blocks, 2) for each of two, and how the machine behaved.

    `outliers` counts blocks in which either took unusually long; they stay in. `drift` is by how much
    the median of all times changed from their first to their second half (0.1 is 10 %);
    `disturbances` is what a device says of itself.
    """

    baseline_ms: Values
    candidate_ms: Values
    warm_up: int
    is_pinned: bool
    disturbances: tuple[str, ...] = ()

    @property
    def baseline(self) -> Values:
        """The baseline's mean time in each block."""
        return np.asarray(self.baseline_ms.mean(1))

    @property
    def candidate(self) -> Values:
        """The candidate's mean time in each block."""
        return np.asarray(self.candidate_ms.mean(1))

    @property
    def outliers(self) -> int:
        """Blocks in which either took unusually long."""
        return int((_is_outlier(self.baseline) | _is_outlier(self.candidate)).sum())

    @property
    def drift(self) -> float:
        """Relative change of the median block from the first half to the second."""
        both = self.baseline + self.candidate
        middle = len(both) // 2
        if not middle:
            return 0.0
        return float(np.median(both[middle:]) / np.median(both[:middle]) - 1.0)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What somebody should know who reads the times."""
        warnings = [*self.disturbances]
        if self.outliers > len(self.baseline) // 10:
            warnings.append(
                f"{self.outliers} of {len(self.baseline)} blocks of runs contain an outlier"
            )
        if abs(self.drift) > SHIFTED:
            warnings.append(
                f"all times changed by {100 * self.drift:+.0f} % during the measurement"
            )
        if not self.is_pinned:
            warnings.append("the measuring thread could not be pinned to one processor")
        return tuple(warnings)


def _is_outlier(times: Values) -> Mask:
    middle = np.median(times)
    deviation = np.median(np.abs(times - middle))
    return np.asarray(times > middle + OUTLIER * max(deviation, 1e-3 * middle))


def warm_up(runs: Sequence[Run], most: int = MAX_WARM_UP) -> int:
    """Run all until their times have settled, `most` times at most; return how often."""
    times: list[float] = []
    for number in range(1, most + 1):
        times.append(sum(map(_time_ms, runs)))
        if number >= 2 * WINDOW:
            late, early = np.median(times[-WINDOW:]), np.median(times[-2 * WINDOW : -WINDOW])
            if abs(late / early - 1.0) < STEADY:
                return number
    return most


def _time_ms(run: Run) -> float:
    started = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - started)


@contextlib.contextmanager
def pinned() -> Iterator[bool]:
    """Hold the calling thread to one processor; yield whether that can be done here."""
    try:
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(allowed)})
    except (AttributeError, OSError):  # a system without it, or that forbids it
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setaffinity(0, allowed)


def time_rounds(
    runs: Sequence[Run],
    rounds: int = FIRST_ROUNDS,
    width: float | None = WIDTH,
    warm_up_most: int = MAX_WARM_UP,
) -> list[Blocks]:
    """Time callables in so many rounds once times have settled; return each against the first.

    With a `width` it goes on until the 95 % interval of every speed-up is as narrow as that, relative
    to it, or there were 640 rounds. How wide they are decides when to stop, never the results.
    """
    with pinned() as is_pinned:
        warm = warm_up(runs, warm_up_most)
        times = _rounds(runs, rounds, 0)
        blocks = _against_first(times, warm, is_pinned)
        while width is not None and len(times) < MOST_ROUNDS and max(map(_width, blocks)) > width:
            times = np.concatenate([times, _rounds(runs, len(times), len(times))])
            blocks = _against_first(times, warm, is_pinned)
    return blocks


@dataclass(frozen=True)
class Timing:
    """What a device measured of several engines, timed in rounds in the order of this module.

    `times_ms` has shape (rounds, engines, 2): whole inferences with transfers; `compute_ms` the same
    without them, None where the runtime does not tell. `energy_mj` is by inference and engine, None
    where the device does not tell, `clocks_mhz` before and after. `warm_up` counts runs of each.
    `warnings` say what disturbed it: throttling, clocks that moved, other users of the GPU.
    """

    times_ms: Values
    compute_ms: Values | None
    energy_mj: tuple[float | None, ...]
    clocks_mhz: tuple[float, float] | None
    warm_up: int
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Throughput:
    """Median time of one batch of a size, samples a second, and times as fast as the reference."""

    batch: int
    p50_ms: float
    samples_per_s: float
    speedup: float


def place(device: str, is_gpu: bool) -> str:
    """Return a device as people read it, "" being this machine."""
    return (device if is_gpu else f"CPU {device}") if device else "this machine"


@dataclass(frozen=True)
class Latency:
    """One engine's latency for one batch, in milliseconds, and its speed-up over the reference.

    Intervals are 95 %. `speedup` is the median over rounds of the reference's time over this one's.
    `warm_up` counts the rounds before, `outliers` those in which either took unusually long; `drift` is
    by how much times changed from their first to their second half (0.1 is 10 %).
    `on` is the device that it was measured on, empty for this machine, `hardware` what that is and its
    runtime; `compute_p50_ms` is without transfers, `energy_mj` that of one inference of the batch,
    `clocks_mhz` before and after; None where the device does not tell.
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
    warnings: tuple[str, ...] = ()
    throughput: tuple[Throughput, ...] = ()
    on: str = ""
    hardware: str = ""
    is_gpu: bool = False
    compute_p50_ms: float | None = None
    energy_mj: float | None = None
    clocks_mhz: tuple[float, float] | None = None

    @property
    def where(self) -> str:
        """The machine as people read it: a CPU is never taken for a GPU."""
        return place(self.on, self.is_gpu)

    @property
    def samples_per_s(self) -> float:
        """Samples a second at the median."""
        return 1e3 * self.batch / self.p50_ms


def measure(
    runs: Sequence[Run], batch: int, count: int | None, width: float | None = None
) -> list[Latency]:
    """Time each callable `count` times (one more if odd), the first being the reference.

    `width` is that of `time_rounds`. It warms up for no more than half as many runs as are timed.
    Without a count it is a rough measure of a few runs after one, without warnings.
    """
    if count is None:
        return _roughly(time_rounds(runs, GLANCE // 2, None, 1), batch)
    most = min(max(count // 2, 2 * WINDOW), MAX_WARM_UP)
    blocks = time_rounds(runs, (count + 1) // 2, width, most)
    is_rough = blocks[0].warm_up == most
    rough = (f"the times were not stable after {most} warm-up runs",) if is_rough else ()
    return [_summary(block, batch, rough) for block in blocks]


def _roughly(blocks: Sequence[Blocks], batch: int) -> list[Latency]:
    return [replace(_summary(block, batch), warnings=()) for block in blocks]


def glance(times_ms: Sequence[Sequence[float]], batch: int) -> list[Latency]:
    """Return a rough measure from a replay: a row of everyone's times for each of its first batches.

    The first batch warms up; rows may be empty. Nothing comes of fewer than three others, or of less
    than a second in all.
    """
    known = [row for row in times_ms[1:] if len(row) and np.isfinite(row).all()]
    if len(known) < GLANCE // 2 or np.sum(known) < GLANCE_MS:
        return []
    return _roughly(_against_first(np.array(known)[:, :, None], 1, is_pinned=True), batch)


def measure_on_device(
    sessions: Sequence[Any], feeds: Any, count: int | None = None, width: float | None = None
) -> list[Latency]:
    """Time sessions of one device there, as `measure` does here; the first is the reference.

    There a few runs are never enough: without a count there are `ROUNDS`.
    """
    timing, blocks = rounds_on_device(sessions, feeds, ((count or ROUNDS) + 1) // 2, width)
    device, compute, batch = sessions[0], timing.compute_ms, len(next(iter(feeds.values())))
    return [
        replace(
            _summary(block, batch),
            on=device.device,
            hardware=device.hardware,
            is_gpu=device.is_gpu,
            compute_p50_ms=None if compute is None else float(np.median(compute[:, number])),
            energy_mj=energy,
            clocks_mhz=timing.clocks_mhz,
        )
        for number, (block, energy) in enumerate(zip(blocks, timing.energy_mj, strict=True))
    ]


def rounds_on_device(
    sessions: Sequence[Any], feeds: Any, rounds: int, width: float | None = None
) -> tuple[Timing, list[Blocks]]:
    """Time sessions of one device there, as `time_rounds` does here; more rounds are new ones."""
    while True:
        timing = sessions[0].time(sessions, feeds, rounds)
        blocks = _against_first(timing.times_ms, timing.warm_up, is_pinned=True)
        if width is None or rounds >= MOST_ROUNDS or max(map(_width, blocks)) <= width:
            return timing, [replace(each, disturbances=timing.warnings) for each in blocks]
        rounds *= 2


def _rounds(runs: Sequence[Run], count: int, first: int) -> Values:
    """Return times in milliseconds, of shape (rounds, runs, 2)."""
    times = np.zeros((count, len(runs), 2))
    for number in range(count):
        shift = (first + number) % len(runs)
        order = [*range(shift, len(runs)), *range(shift)]
        for turn, indexes in enumerate((order, order[::-1])):
            for index in indexes:
                times[number, index, turn] = _time_ms(runs[index])
    return times


def _against_first(times: Values, warm: int, is_pinned: bool) -> list[Blocks]:
    return [Blocks(times[:, 0], times[:, i], warm, is_pinned) for i in range(times.shape[1])]


def _width(blocks: Blocks) -> float:
    interval = _speedup(blocks)[0]
    return (interval.high - interval.low) / interval.value


def _speedup(blocks: Blocks) -> tuple[Interval, bool]:
    """Return the speed-up, and whether there were rounds enough for its interval."""
    interval, _ = ratio_of_blocks(blocks.baseline, blocks.candidate)
    if interval.low > 0 and np.isfinite(interval.high):
        return interval, True
    ratios = blocks.baseline / blocks.candidate
    return Interval(interval.value, float(ratios.min()), float(ratios.max())), False


def _summary(blocks: Blocks, batch: int, warnings: tuple[str, ...] = ()) -> Latency:
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
        warnings=(*warnings, *blocks.warnings, *few),
    )


def throughput(latencies: Sequence[Latency]) -> list[Throughput]:
    """Return what latencies for batches of one size say of throughput."""
    return [Throughput(row.batch, row.p50_ms, row.samples_per_s, row.speedup) for row in latencies]
