"""Observe samples in this process: batches are run and counted in lanes, while others are loaded."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from queue import SimpleQueue
from threading import Event, Lock

from trtcal.backends.sessions import give_back
from trtcal.backends.taps import Lane, Reading, Taps
from trtcal.calibration.accumulator import HistogramAccumulator
from trtcal.calibration.job import Job, Task
from trtcal.data import Feeds
from trtcal.data.dataset import Span
from trtcal.data.dataset import spans as split
from trtcal.errors import TrtcalError

BATCH_BYTES = 1 << 24  # of tensors of a batch, unless one sample takes more
AfterBatch = Callable[[int], bool]
"""Called after each batch with its number of samples; returns whether to go on."""


class Observer(AbstractContextManager["Observer"]):
    """Counts into one accumulator. A context manager."""

    def __init__(self, job: Job) -> None:
        self.job, self.accumulator = job, HistogramAccumulator()
        self.number = -1
        self.taps: Taps | None = None
        self.lanes: list[_CountingLane] = []
        self.loader = ThreadPoolExecutor(1, "load")
        self.runners = ThreadPoolExecutor(job.threads, "lane")
        self.locks: dict[str, Lock] = {name: Lock() for name in job.into.values()}
        self.guard = Lock()  # of what the accumulator knows beside the histograms
        self.going = Event()  # clear while lanes have to wait
        self.going.set()

    def __exit__(self, *exception: object) -> None:
        self.loader.shutdown(cancel_futures=True)
        self.runners.shutdown(cancel_futures=True)
        self._close()

    def run(self, task: Task, accumulator: HistogramAccumulator, after_batch: AfterBatch) -> None:
        """Count the samples of a task batch by batch, while `after_batch` returns True."""
        number, spans = task
        self.accumulator = accumulator
        self._open(number)
        batches = _Batches(self._read(spans), self.loader, len(self.lanes))
        done, ended = SimpleQueue[int](), Event()
        works = [self.runners.submit(self._work, lane, batches, done, ended) for lane in self.lanes]
        try:
            for _ in works:
                while samples := done.get():
                    if not (ended.is_set() or after_batch(samples)):
                        ended.set()
        finally:
            ended.set()
            wait(works)
            batches.close()
        for work in works:
            work.result()

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Hold the lanes up; meanwhile the accumulator has every sample that was run."""
        self.going.clear()
        try:
            with ExitStack() as stack:
                for lane in self.lanes:
                    stack.enter_context(lane.lock)
                    lane.settle()
                yield
        finally:
            self.going.set()

    def _work(
        self, lane: _CountingLane, batches: _Batches, done: SimpleQueue[int], ended: Event
    ) -> None:
        """Run and count batches until there is none left; 0 says that it is done."""
        try:
            while not ended.is_set():
                self.going.wait()
                with lane.lock:
                    samples = lane.run(batches)
                    if not samples:
                        break
                done.put(samples)
            with lane.lock:
                lane.settle()
        except BaseException:
            ended.set()
            raise
        finally:
            done.put(0)

    def _open(self, number: int) -> None:
        if number == self.number:
            return
        if self.taps is not None:
            self._close()
            for histogram in self.accumulator.histograms.values():  # of the pass before
                histogram.compact()
        job = self.job
        first = next(job.dataset.batches(job.unit, 0, job.unit))
        computed = [name for name in job.passes[number] if name not in first]
        self.inputs = [name for name in job.passes[number] if name in first]
        started = time.perf_counter()
        self.taps = Taps(job.folder, computed, first, job.threads, job.room)
        self.accumulator.seconds["open"] += time.perf_counter() - started
        self.lanes = [_CountingLane(self, *each) for each in enumerate(self.taps.lanes)]
        most = max(self.taps.batch_bytes, sum(array.nbytes for array in first.values()), 1)
        self.size = max(job.unit, min(job.batch, BATCH_BYTES * job.unit // most))
        self.number = number

    def _close(self) -> None:
        """Let go of the session and the lanes' buffers, before anything else takes memory."""
        self.lanes = []
        if self.taps is not None:
            self.taps.close()
            self.taps = None
            give_back()

    def _read(self, spans: list[Span]) -> Iterator[tuple[Span, Feeds]]:
        for span in spans:
            feeds = self.job.dataset.batches(self.size, *span)
            yield from zip(split(self.size, *span), feeds, strict=False)


class _CountingLane:
    """Runs batches, and counts what they gave: on the same core, while it is still in its cache."""

    def __init__(self, observer: Observer, place: int, lane: Lane) -> None:
        self.observer, self.place, self.lane = observer, place, lane
        self.lock, self.own = Lock(), HistogramAccumulator()  # of what the last readings were of

    def run(self, batches: _Batches) -> int:
        """Run the next batch and return its number of samples, 0 if there is none."""
        with self._timed("wait for data"):
            batch, seconds = batches.take()
        if batch is None:
            return 0
        span, feeds = batch
        self.own.seconds["load"] += seconds
        self.own.bytes["load"] += sum(array.nbytes for array in feeds.values())
        with self._timed("infer"):
            readings = self.lane.read(feeds, range(*span))
        self.own.finish(self.observer.number, [span])
        self._count([Reading(n, feeds[n][None], 0, (range(*span),)) for n in self.observer.inputs])
        if readings or not self.lane.taps.tensors:
            self._finish(readings)
        return span[1] - span[0]

    def settle(self) -> None:
        self._finish(self.lane.rest())

    def _finish(self, readings: list[Reading]) -> None:
        self._count(readings)
        with self.observer.guard:
            self.observer.accumulator.add(self.own)
        self.own.clear()

    def _count(self, readings: list[Reading]) -> None:
        """Count each tensor, those last which another lane is counting now."""
        first = len(readings) * self.place // len(self.observer.lanes)
        turned = readings[first:] + readings[:first]
        with self._timed("count"):
            for reading in [each for each in turned if not self._counted(each, blocking=False)]:
                self._counted(reading, blocking=True)
        self.own.bytes["count"] += sum(reading.values.nbytes for reading in readings)

    def _counted(self, reading: Reading, blocking: bool) -> bool:
        name = self.observer.job.into[reading.tensor]
        lock = self.observer.locks[name]
        if not lock.acquire(blocking):
            return False
        try:
            self.observer.accumulator.count(name, reading)
        finally:
            lock.release()
        return True

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.own.seconds[stage] += time.perf_counter() - started


class _Batches:
    """Batches for many threads, loaded ahead by another one."""

    def __init__(
        self, batches: Iterator[tuple[Span, Feeds]], loader: ThreadPoolExecutor, ahead: int
    ) -> None:
        self.batches, self.loader, self.lock = batches, loader, Lock()
        self.coming = deque(loader.submit(_next, batches) for _ in range(ahead))

    def take(self) -> tuple[tuple[Span, Feeds] | None, float]:
        with self.lock:
            self.coming.append(self.loader.submit(_next, self.batches))
            following = self.coming.popleft()
        return following.result()

    def close(self) -> None:
        for future in self.coming:
            future.cancel()
        wait(self.coming)


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


def _next(batches: Iterator[tuple[Span, Feeds]]) -> tuple[tuple[Span, Feeds] | None, float]:
    started = time.perf_counter()
    batch = next(batches, None)
    return batch, time.perf_counter() - started
