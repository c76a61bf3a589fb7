"""Share the work out over workers, on this machine or others, and do again what a lost one had."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from types import ModuleType
from typing import Protocol

from trtcal.calibration.accumulator import HistogramAccumulator
from trtcal.calibration.shards import Job, Span, Task, count
from trtcal.calibration.worker import Observer
from trtcal.errors import BackendError, TrtcalError

TASK_S = 10.0  # about how long a worker is on its own
LEAST_S = 1.0  # about how long at the end, where smaller pieces would cost more than they even out
CHANCES = 3  # that a piece of work gets before it is held to be what kills workers
PATIENCE_S = 0.2
LONELY_S = 120.0


class Worker(Protocol):
    """One worker, here or on another machine."""

    @property
    def lost(self) -> type[BaseException]:
        """What a future raises if the worker is gone."""

    @property
    def ready(self) -> bool:
        """Whether it can be given a task."""

    def submit(self, task: Task) -> Future[HistogramAccumulator | TrtcalError]:
        """Begin a task."""

    def again(self) -> Worker:
        """Return a worker in the place of this one, which is lost."""

    def stop(self) -> None:
        """Ask it to end its task soon."""

    def close(self) -> None:
        """Send it home."""


class LocalWorker:
    """A worker process on this machine."""

    lost: type[BaseException] = BrokenProcessPool

    def __init__(self, job: Job) -> None:
        self.job = job
        context = multiprocessing.get_context("spawn")
        self.asked: Event = context.Event()
        self.pool = ProcessPoolExecutor(1, context, _begin, (job, self.asked))

    @property
    def ready(self) -> bool:
        """A process can always be given a task."""
        return True

    def submit(self, task: Task) -> Future[HistogramAccumulator | TrtcalError]:
        """Begin a task."""
        with _alone():
            return self.pool.submit(_work, task)

    def again(self) -> LocalWorker:
        """Return a new process."""
        self.pool.shutdown(wait=False)
        return LocalWorker(self.job)

    def stop(self) -> None:
        """Ask it to end its task after the batch at hand."""
        self.asked.set()

    def close(self) -> None:
        """End the process."""
        self.pool.shutdown()


@contextmanager
def _alone() -> Iterator[None]:
    """Let a process that starts meanwhile import trtcal, not the user's script once more.

    So a script, a notebook or standard input needs no `if __name__ == "__main__":`.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


_looker: Observer
_tally: HistogramAccumulator
_stop: Event


def _begin(job: Job, stop: Event) -> None:
    """Make this process a worker: it leaves Ctrl-C to its parent, and ends when that does."""
    global _looker, _tally, _stop
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _looker, _tally, _stop = Observer(job), HistogramAccumulator(), stop


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _work(task: Task) -> HistogramAccumulator | TrtcalError:
    _tally.clear()  # what it had was sent when the last task was done
    _looker.look(task, _tally, lambda samples: not _stop.is_set())
    return _tally


def share_out(
    job: Job,
    accumulator: HistogramAccumulator,
    hands: Sequence[Worker],
    between: Callable[[int], bool],
) -> None:
    """Do what the accumulator lacks, with all hands, and add it to the accumulator.

    `between` is called whenever something was added, with the number of samples, and now and then
    with 0; once it returns False, no more is begun. `BackendError` if workers die again and again.
    """
    office = _Scheduler(job, accumulator, list(hands))
    try:
        while office.unfinished() and between(0):
            office.assign()
            for added in office.collect():
                if not between(added):
                    return
    finally:
        office.close()


class _Scheduler:
    """Knows which hand does what."""

    def __init__(self, job: Job, accumulator: HistogramAccumulator, hands: list[Worker]) -> None:
        self.accumulator, self.hands = accumulator, hands
        self.queue: deque[tuple[int, Span]] = deque(job.left(accumulator))
        self.running: dict[Future[HistogramAccumulator | TrtcalError], tuple[int, Task, float]] = {}
        self.deaths: Counter[tuple[int, Span]] = Counter()
        self.pace_s = TASK_S  # of a shard; so that the first task is a single one
        self.idle_since = time.perf_counter()

    def unfinished(self) -> bool:
        """Return whether there is anything to do or to wait for."""
        return bool(self.queue or self.running)

    def assign(self) -> None:
        """Give everybody something to do; `BackendError` if nobody has been there for long."""
        working = {number for number, _, _ in self.running.values()}
        for number, hand in enumerate(self.hands):
            if number not in working and self.queue and hand.ready:
                task = self._next_task()
                self.running[hand.submit(task)] = number, task, time.perf_counter()
        if self.running:
            self.idle_since = time.perf_counter()
        elif time.perf_counter() - self.idle_since > LONELY_S:
            raise BackendError(
                f"no worker has been there for {LONELY_S:.0f} s",
                "see what the cluster says of itself",
            )

    def _next_task(self) -> Task:
        """Take work for about `TASK_S`, less towards the end, so that all end together."""
        fair = len(self.queue) // (2 * len(self.hands))
        wanted = max(1, int(LEAST_S / self.pace_s), min(fair, int(TASK_S / self.pace_s)))
        number, span = self.queue.popleft()
        spans = [span]
        while len(spans) < wanted and self.queue and self.queue[0][0] == number:
            spans.append(self.queue.popleft()[1])
        return number, spans

    def collect(self) -> list[int]:
        """Wait a little; add what is done, and return the numbers of samples."""
        if not self.running:
            time.sleep(PATIENCE_S)
        done, _ = wait(self.running, PATIENCE_S, FIRST_COMPLETED)
        made = [accumulator for future in done if (accumulator := self._taken(future))]
        self.assign()  # before the sums are made, so that nobody waits for them
        for accumulator in made:
            self.accumulator.add(accumulator)
        return [sum(count(spans) for spans in accumulator.done.values()) for accumulator in made]

    def _taken(
        self, future: Future[HistogramAccumulator | TrtcalError]
    ) -> HistogramAccumulator | None:
        """Return what a task gave; None if its worker was lost."""
        number, task, started = self.running.pop(future)
        hand = self.hands[number]
        try:
            made = future.result()
        except hand.lost as error:
            self._again(number, task, error)
            return None
        if isinstance(made, TrtcalError):
            raise made
        self.pace_s = (time.perf_counter() - started) / len(task[1])
        return made

    def _again(self, number: int, task: Task, error: BaseException) -> None:
        """Put back what a lost worker had, and hire another."""
        pieces = [(task[0], span) for span in task[1]]
        self.deaths.update(pieces)
        if self.deaths[pieces[0]] >= CHANCES:
            raise BackendError(
                f"a worker died {CHANCES} times at samples {pieces[0][1][0]} to {pieces[-1][1][1]}",
                "if memory ran out, give fewer --workers or set --max-memory",
            ) from error
        self.queue.extendleft(reversed(pieces))
        self.hands[number] = self.hands[number].again()

    def close(self) -> None:
        """Let workers finish their batch, take what they have, and send them home."""
        for hand in self.hands:
            hand.stop()
        for future in wait(self.running).done:
            if future.exception() is None and isinstance(
                made := future.result(), HistogramAccumulator
            ):
                self.accumulator.add(made)
        for hand in self.hands:
            hand.close()
