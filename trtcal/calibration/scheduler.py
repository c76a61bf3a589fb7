"""Give tasks to workers, on this machine or others, and give those of a lost worker again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import util
from multiprocessing.synchronize import Event
from types import ModuleType
from typing import Protocol

from trtcal.calibration.accumulator import HistogramAccumulator
from trtcal.calibration.job import Job, Task, count
from trtcal.calibration.lanes import AfterBatch, TaskResult, TaskRunner
from trtcal.data.dataset import Span
from trtcal.documents.streams import guard
from trtcal.errors import BackendError, TrtcalError
from trtcal.model.isolated import ISOLATED

TASK_S = 10.0  # about how long a worker is on its own
LEAST_S = 1.0  # about how long at the end, where smaller pieces would cost more than they even out
CHANCES = 3  # that a piece of work gets before it is held to be what kills workers
WAIT_S = 0.2
NO_WORKER_S = 120.0


class Worker(Protocol):
    """One worker, here or on another machine."""

    @property
    def lost(self) -> type[BaseException]:
        """What a future raises if the worker is gone."""

    @property
    def ready(self) -> bool:
        """Whether it can be given a task."""

    def submit(self, task: Task) -> Future[TaskResult]:
        """Begin a task."""

    def again(self) -> Worker:
        """Return a worker in the place of this one, which is lost."""

    def stop(self) -> None:
        """Ask it to end its task soon."""

    def close(self) -> None:
        """End it."""


class LocalWorker:
    """A worker process on this machine."""

    lost: type[BaseException] = BrokenProcessPool
    ready = True  # a process can always be given a task

    def __init__(self, job: Job) -> None:
        self.job = job
        context = multiprocessing.get_context("spawn")
        with _alone():  # it may start a process too, which counts such things
            self.asked: Event = context.Event()
        self.pool = ProcessPoolExecutor(1, context, _begin, (job, self.asked))

    def submit(self, task: Task) -> Future[TaskResult]:
        """Begin a task."""
        with _alone():
            return self.pool.submit(_work, task)

    def again(self) -> LocalWorker:
        """Return a new process."""
        self.pool.shutdown(wait=False)
        return LocalWorker(self.job)

    def stop(self) -> None:
        """Ask it to end its task after the current batch."""
        self.asked.set()

    def close(self) -> None:
        """End the process."""
        self.pool.shutdown()


@contextmanager
def _alone() -> Iterator[None]:
    """Let a process that starts meanwhile import trtcal, not the user's script once more.

    So a script, a notebook or standard input needs no `if __name__ == "__main__":`. Nor does it import
    anything from the current folder: multiprocessing itself would be looked for there first.
    """
    main, flags = sys.modules["__main__"], util._args_from_interpreter_flags  # type: ignore[attr-defined]
    sys.modules["__main__"] = ModuleType("__main__")
    util._args_from_interpreter_flags = lambda: [ISOLATED, *flags()]  # type: ignore[attr-defined]
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        util._args_from_interpreter_flags = flags  # type: ignore[attr-defined]


_process: TaskRunner
"""What a worker process has; set when it begins."""


def _begin(job: Job, stop: Event) -> None:
    """Make this process a worker: it leaves Ctrl-C to its parent, and ends when that does."""
    global _process
    guard()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _process = TaskRunner(job, lambda: not stop.is_set())


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
    os._exit(1)


def _work(task: Task) -> TaskResult:
    return _process.run(task)


def run_parallel(
    job: Job, accumulator: HistogramAccumulator, workers: Sequence[Worker], after_task: AfterBatch
) -> None:
    """Do what the accumulator lacks, with all workers, and add it to the accumulator.

    `after_task` is called whenever something was added, with the number of samples, and now and then
    with 0; once it returns False, no more is begun. `BackendError` if workers die again and again.
    """
    scheduler = Scheduler(job, accumulator, list(workers))
    try:
        while (scheduler.queue or scheduler.running) and after_task(0):
            scheduler.assign()
            for added in scheduler.collect():
                if not after_task(added):
                    return
    finally:
        scheduler.close()


class Scheduler:
    """Which worker does what, what is left, and what each task took."""

    def __init__(self, job: Job, accumulator: HistogramAccumulator, workers: list[Worker]) -> None:
        self.accumulator, self.workers = accumulator, workers
        self.queue: deque[tuple[int, Span]] = deque(job.left(accumulator))
        self.running: dict[Future[TaskResult], tuple[int, Task, float]] = {}
        self.deaths: Counter[tuple[int, Span]] = Counter()
        self.pace_s = TASK_S  # of a shard; so that the first task is a single one
        self.idle_since = time.perf_counter()

    def assign(self) -> None:
        """Give each idle worker a task; `BackendError` if none has been there for long."""
        busy = {number for number, _, _ in self.running.values()}
        for number, worker in enumerate(self.workers):
            if number not in busy and self.queue and worker.ready:
                task = self._next_task()
                self.running[worker.submit(task)] = number, task, time.perf_counter()
        if self.running:
            self.idle_since = time.perf_counter()
        elif time.perf_counter() - self.idle_since > NO_WORKER_S:
            hint = "check the state of the cluster with `ray status`"
            raise BackendError(f"no worker has been available for {NO_WORKER_S:.0f} s", hint)

    def _next_task(self) -> Task:
        """Take work for about `TASK_S`, less towards the end, so that all end together."""
        fair = len(self.queue) // (2 * len(self.workers))
        length = max(1, int(LEAST_S / self.pace_s), min(fair, int(TASK_S / self.pace_s)))
        number, span = self.queue.popleft()
        spans = [span]
        while len(spans) < length and self.queue and self.queue[0][0] == number:
            spans.append(self.queue.popleft()[1])
        return number, spans

    def collect(self) -> list[int]:
        """Wait a little; add what is done, and return the numbers of samples."""
        if not self.running:
            time.sleep(WAIT_S)
        done, _ = wait(self.running, WAIT_S, FIRST_COMPLETED)
        results = [result for future in done if (result := self._result(future))]
        self.assign()  # before the sums are made, so that nobody waits for them
        for result in results:
            self.accumulator.add(result)
        return [sum(count(spans) for spans in result.done.values()) for result in results]

    def _result(self, future: Future[TaskResult]) -> HistogramAccumulator | None:
        """Return what a task gave; None if its worker was lost."""
        number, task, started = self.running.pop(future)
        try:
            result = future.result()
        except self.workers[number].lost as error:
            self._replace(number, task, error)
            return None
        if isinstance(result, TrtcalError):
            raise result
        self.pace_s = (time.perf_counter() - started) / len(task[1])
        return result

    def _replace(self, number: int, task: Task, error: BaseException) -> None:
        """Put back what a lost worker had, and start another."""
        pieces = [(task[0], span) for span in task[1]]
        self.deaths.update(pieces)
        if self.deaths[pieces[0]] >= CHANCES:
            raise BackendError(
                f"a worker died {CHANCES} times at samples {pieces[0][1][0]} to {pieces[-1][1][1]}",
                "if memory ran out, give fewer --workers or set --max-memory",
            ) from error
        self.queue.extendleft(reversed(pieces))
        self.workers[number] = self.workers[number].again()

    def close(self) -> None:
        """Let workers finish their batch, add what they have, and end them."""
        for worker in self.workers:
            worker.stop()
        for future in wait(self.running).done:
            result = None if future.exception() else future.result()
            if isinstance(result, HistogramAccumulator):
                self.accumulator.add(result)
        for worker in self.workers:
            worker.close()
