"""Times two runnables in blocks of ABBA, so that a machine that drifts is fair to both.

A block runs each of them twice, in an order whose mean place is the same: a clock that rises or a
neighbour that comes slows both alike. Blocks begin once times have settled.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trtcal.compare.paired import ratio_of_blocks

Values = npt.NDArray[np.float64]
Run = Callable[[], object]
Clock = Callable[[], float]

FIRST_BLOCKS = 40
MOST_BLOCKS = 640
WIDTH = 0.02  # wanted of the speed-up's interval
MAX_WARM_UP = 50  # runs of each
WINDOW = 5  # runs whose median is held against that of the runs before
STEADY = 0.02  # relative change of that median that counts as settled
OUTLIER = 5.0  # median absolute deviations
SHIFTED = 0.1  # relative change between the halves that is told of


@dataclass(frozen=True)
class Blocks:
    """Times in milliseconds, of shape (blocks, 2) for each of two, and how the machine behaved.

    `outliers` counts blocks in which either took unusually long; they stay in. `drift` is by how much
    the median of all times changed from the first half to the second (0.1 is 10 %).
    """

    baseline_ms: Values
    candidate_ms: Values
    warm_up: int
    is_pinned: bool

    @property
    def baseline(self) -> Values:
        """The baseline's mean time in each block."""
        means: Values = self.baseline_ms.mean(1)
        return means

    @property
    def candidate(self) -> Values:
        """The candidate's mean time in each block."""
        means: Values = self.candidate_ms.mean(1)
        return means

    @property
    def outliers(self) -> int:
        """Blocks in which either took unusually long."""
        return int((_is_outlier(self.baseline) | _is_outlier(self.candidate)).sum())

    @property
    def drift(self) -> float:
        """Relative change of the median block from the first half to the second."""
        both = self.baseline + self.candidate
        half = len(both) // 2
        if not half:
            return 0.0
        return float(np.median(both[half:]) / np.median(both[:half]) - 1.0)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What somebody should know who reads the times."""
        found = []
        if self.outliers > len(self.baseline) // 10:
            found.append(f"{self.outliers} of {len(self.baseline)} blocks hold an outlier")
        if abs(self.drift) > SHIFTED:
            found.append(f"all times changed by {100 * self.drift:+.0f} % during the measurement")
        if not self.is_pinned:
            found.append("the measuring thread could not be held to one processor")
        return tuple(found)

    def joined(self, other: Blocks) -> Blocks:
        """Return these blocks and those of a later measurement."""
        return Blocks(
            np.concatenate([self.baseline_ms, other.baseline_ms]),
            np.concatenate([self.candidate_ms, other.candidate_ms]),
            self.warm_up,
            self.is_pinned and other.is_pinned,
        )


def _is_outlier(times: Values) -> npt.NDArray[np.bool_]:
    middle = np.median(times)
    spread = np.median(np.abs(times - middle))
    return np.asarray(times > middle + OUTLIER * max(spread, 1e-3 * middle))


def warm_up(runs: Sequence[Run], clock: Clock = time.perf_counter, most: int = MAX_WARM_UP) -> int:
    """Run all until their times have settled, `most` times at most; return how often."""
    times: list[float] = []
    for number in range(1, most + 1):
        times.append(sum(_timed(run, clock) for run in runs))
        if number >= 2 * WINDOW:
            late, early = (
                np.median(times[a:b]) for a, b in ((-WINDOW, None), (-2 * WINDOW, -WINDOW))
            )
            if abs(late / early - 1.0) < STEADY:
                return number
    return most


def measure_blocks(
    baseline: Run,
    candidate: Run,
    blocks: int,
    is_warm: bool = False,
    clock: Clock = time.perf_counter,
) -> Blocks:
    """Time both in `blocks` blocks, ABBA and BAAB by turns."""
    runs = (baseline, candidate)
    with pinned() as is_pinned:
        warm = 0 if is_warm else warm_up(runs, clock)
        times = np.zeros((blocks, 2, 2))
        for block in range(blocks):
            seen = [0, 0]
            for index in (0, 1, 1, 0) if block % 2 == 0 else (1, 0, 0, 1):
                times[block, index, seen[index]] = 1e3 * _timed(runs[index], clock)
                seen[index] += 1
    return Blocks(times[:, 0], times[:, 1], warm, is_pinned)


def measure_until(
    baseline: Run, candidate: Run, width: float = WIDTH, most: int = MOST_BLOCKS
) -> Blocks:
    """Time both until the 95 % interval of the speed-up is as narrow as `width`, relative to it.

    How wide it is decides when to stop, never what it says.
    """
    blocks = measure_blocks(baseline, candidate, FIRST_BLOCKS)
    while len(blocks.baseline) < most and _width(blocks) > width:
        more = measure_blocks(baseline, candidate, len(blocks.baseline), is_warm=True)
        blocks = blocks.joined(more)
    return blocks


def _width(blocks: Blocks) -> float:
    interval, _ = ratio_of_blocks(blocks.baseline, blocks.candidate)
    return (interval.high - interval.low) / interval.value


def _timed(run: Run, clock: Clock) -> float:
    started = clock()
    run()
    return clock() - started


@contextlib.contextmanager
def pinned() -> Iterator[bool]:
    """Hold the calling thread to one processor; yield whether that can be done here."""
    if not hasattr(os, "sched_setaffinity"):
        yield False
        return
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(allowed)})
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setaffinity(0, allowed)
