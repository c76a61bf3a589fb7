"""Observe samples in this process: load, infer and count, each going on while the others do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

import numpy as np

from trtcal.backends.sessions import give_back
from trtcal.backends.taps import Reading, Taps
from trtcal.calibration.accumulator import HistogramAccumulator
from trtcal.calibration.job import Job, Task
from trtcal.data import Feeds
from trtcal.data.dataset import Span
from trtcal.data.dataset import spans as split
from trtcal.errors import TrtcalError

BATCH_BYTES = 1 << 28  # of tensors held at once, unless one sample takes more
AfterBatch = Callable[[int], bool]
"""Called after each batch with its number of samples; returns whether to go on."""


class Observer:
    """Counts into one accumulator. A context manager."""

    def __init__(self, job: Job) -> None:
        self.job, self.accumulator = job, HistogramAccumulator()
        self.number = -1
        self.taps: Taps | None = None
        self.loader = ThreadPoolExecutor(1, "load")
        self.counters = ThreadPoolExecutor(job.threads, "count")
        self.collected: list[Span] = []
        self.counting: tuple[list[Future[float]], list[Span]] = ([], [])

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.loader.shutdown(cancel_futures=True)
        self.counters.shutdown(cancel_futures=True)
        if self.taps is not None:
            self.taps.close()

    def run(self, task: Task, accumulator: HistogramAccumulator, after_batch: AfterBatch) -> None:
        """Count the samples of a task batch by batch, while `after_batch` returns True."""
        number, spans = task
        self.accumulator = accumulator
        self._open(number)
        parts = [part for span in spans for part in split(self.size, *span)]
        for part, feeds in zip(parts, self._loaded(spans), strict=False):
            self._count_inputs(feeds)
            with self._timed("infer"):
                readings = self._taps.read(feeds)
            self.collected.append(part)
            if readings or not self.computed:
                self._count(readings)
            if not after_batch(part[1] - part[0]):
                break
        self.settle()

    def settle(self) -> None:
        """Count what is collected; afterwards the accumulator holds every sample that was run."""
        self._count(self._taps.rest())
        self._wait()

    @property
    def _taps(self) -> Taps:
        assert self.taps is not None  # noqa: S101  # run opens them
        return self.taps

    def _open(self, number: int) -> None:
        if number == self.number:
            return
        if self.taps is not None:
            self.taps.close()
            self.taps = None
            for histogram in self.accumulator.histograms.values():  # of the pass before
                histogram.compact()
            give_back()
        job = self.job
        first = next(job.dataset.batches(job.unit, 0, job.unit))
        self.computed = [name for name in job.passes[number] if name not in first]
        self.inputs = [name for name in job.passes[number] if name in first]
        turns = 2 if job.threads > 1 else 1
        self.taps = Taps(job.folder, self.computed, first, job.threads, turns, job.room // turns)
        most = BATCH_BYTES * job.unit // max(self.taps.batch_bytes, 1)
        self.size = max(job.unit, min(job.batch, most))
        self.number = number

    def _loaded(self, spans: Sequence[Span]) -> Iterator[Feeds]:
        """Yield batches, loading the next one while the last is worked on."""
        feeds = (batch for span in spans for batch in self.job.dataset.batches(self.size, *span))
        following = self.loader.submit(_next, feeds)
        try:
            while True:
                with self._timed("wait for data"):
                    batch, seconds = following.result()
                if batch is None:
                    return
                following = self.loader.submit(_next, feeds)
                self.accumulator.seconds["load"] += seconds
                self.accumulator.bytes["load"] += sum(array.nbytes for array in batch.values())
                yield batch
        finally:
            wait([following])

    def _count_inputs(self, feeds: Feeds) -> None:
        with self._timed("count"):
            for name in self.inputs:
                self.accumulator.of(self.job.into[name]).update(feeds[name])

    def _count(self, readings: list[Reading]) -> None:
        """Count readings: here, or in threads while the model runs on into other buffers."""
        self._wait()
        self.accumulator.bytes["count"] += sum(reading.values.nbytes for reading in readings)
        done, self.collected = self.collected, []
        for reading in readings:
            self.accumulator.of(self.job.into[reading.tensor])
        if self.job.threads == 1:
            self.accumulator.seconds["count"] += self._fill(readings)
            self.accumulator.finish(self.number, done)
        else:
            parts = shared_out(readings, self.job.into, self.job.threads)
            self.counting = [self.counters.submit(self._fill, part) for part in parts], done

    def _fill(self, readings: list[Reading]) -> float:
        started = time.perf_counter()
        for reading in readings:
            histogram = self.accumulator.of(self.job.into[reading.tensor])
            histogram.update(reading.values, reading.padding)
        return time.perf_counter() - started

    def _wait(self) -> None:
        tasks, done = self.counting
        with self._timed("wait for counts"):
            counted = [task.result() for task in tasks]
        self.accumulator.seconds["count"] += sum(counted)
        if done:
            self.accumulator.finish(self.number, done)
        self.counting = [], []

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.accumulator.seconds[stage] += time.perf_counter() - started


TaskResult = HistogramAccumulator | TrtcalError
"""What a task gives; an error of ours is returned, as pools and clusters wrap what is raised."""


class TaskRunner:
    """An observer for one task after the other, for worker processes and actors."""

    def __init__(self, job: Job, go_on: Callable[[], bool] = lambda: True) -> None:
        self.observer, self.accumulator, self.go_on = Observer(job), HistogramAccumulator(), go_on

    def run(self, task: Task) -> TaskResult:
        """Count the samples of a task; what it holds was sent when the last task was done."""
        self.accumulator.clear()
        try:
            self.observer.run(task, self.accumulator, lambda samples: self.go_on())
        except TrtcalError as error:
            return error
        return self.accumulator


def _next(feeds: Iterator[Feeds]) -> tuple[Feeds | None, float]:
    started = time.perf_counter()
    batch = next(feeds, None)
    return batch, time.perf_counter() - started


def shared_out(
    readings: list[Reading], into: Mapping[str, str], workers: int
) -> list[list[Reading]]:
    """Split tensors over workers, each time giving the largest left to the least busy.

    Those that are counted into one histogram go to one worker.
    """
    together: dict[str, list[Reading]] = {}
    for reading in readings:
        together.setdefault(into[reading.tensor], []).append(reading)
    parts: list[list[Reading]] = [[] for _ in range(workers)]
    load = np.zeros(workers)
    for group in sorted(together.values(), key=_size, reverse=True):
        least = int(load.argmin())
        parts[least] += group
        load[least] += _size(group)
    return [part for part in parts if part]


def _size(readings: list[Reading]) -> int:
    return sum(reading.values.size for reading in readings)
