"""Run the FP32 model over a dataset and count the values of the tensors that a plan can quantize."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from calibrators import Histogram
from trtcal.backends.taps import COLLECTED_BYTES, lay_out
from trtcal.calibration.accumulator import Checkpoint, HistogramAccumulator, resumed
from trtcal.calibration.extremes import REACHES, UNKNOWN, farther
from trtcal.calibration.job import Job, count, passes_within
from trtcal.calibration.lanes import Observer
from trtcal.calibration.observation import Observation
from trtcal.calibration.profile import Settings, Stopwatch
from trtcal.calibration.scheduler import LocalWorker, Worker, run_parallel
from trtcal.data import Dataset, batch_for, count_read, size_ranges
from trtcal.data.overlap import keep, numbers_of
from trtcal.documents import Document, Workplace, removing
from trtcal.errors import InputError, Interrupted
from trtcal.extensions import WORKERS, load
from trtcal.model import Model
from trtcal.model.tensors import groups, sources

Progress = Callable[[int], None]
"""Called with the number of samples just done."""
Say = Callable[[str], None]
"""Called with a message about the work."""


@dataclass(frozen=True)
class ObserveOptions:
    """How to observe a model.

    `batch` is an upper limit: batches end where a shard (1/64 of the samples) does, and their tensors
    take no more than 16 MiB. `workers` processes have `threads` each; 0 threads shares out all cores.
    `cluster` "ray" takes the workers from a Ray cluster, of one thread each if nothing is given, and
    as many as it has cores for. `max_memory` (bytes) is a ceiling for all processes on this machine:
    the data are then read in several passes if need be. `checkpoint` is a file from which the same
    call goes on after it was killed; in the end it is deleted.
    """

    batch: int = 32
    threads: int = 0
    workers: int = 0
    cluster: str | None = None
    max_memory: int | None = None
    checkpoint: Path | None = None

    @property
    def settings(self) -> Settings:
        """The number of workers and of threads in each."""
        cores = 1 if self.cluster else (os.cpu_count() or 1) // max(self.workers, 1)
        workers = self.workers if self.cluster else max(self.workers, 1)
        return Settings(workers, self.threads or max(cores, 1), self.cluster)


def observe(
    model: Model,
    dataset: Dataset,
    tensors: Sequence[str],
    options: ObserveOptions | None = None,
    progress: Progress = lambda done: None,
    say: Say = lambda message: None,
) -> Observation:
    """Fill one histogram a tensor, holding a few batches at a time.

    `model` is the prepared float model; `tensors` are names of its float inputs and activations. The
    observation's `profile` has where the time went.

    `InputError` if a tensor takes a NaN, which no range can hold; `ResourceError` if memory does not
    suffice; `BackendError` if workers die; `Interrupted` after Ctrl-C, once the batch is done.
    """
    options = options or ObserveOptions()
    watch, settings = Stopwatch(), options.settings
    into, grouped = groups(sources(model.proto, tensors), [spec.name for spec in model.inputs])
    with Workplace() as name:
        lay_out(model.proto, Path(name))
        job = _job(model, dataset, into, Path(name), options)
        kept = _checkpoint(model, dataset, into, options)
        accumulator, passes, message = resumed(kept, job.passes)
        if message:
            say(message)
        job = replace(job, passes=passes)
        _Work(job, accumulator, kept, progress).do(settings)
    samples = len(dataset) * len(passes)
    profile = watch.profile(model.fingerprint, dataset.fingerprint, settings, accumulator, samples)
    for histogram in accumulator.histograms.values():
        histogram.compact()
    histograms = {name: _sum([*map(accumulator.of, each)]) for name, each in grouped.items()}
    unknown, reaches = [UNKNOWN], accumulator.reaches
    far = {n: farther(*(reaches.get(part, unknown) for part in grouped[n])) for n in grouped}
    for tensor, histogram in histograms.items():
        _check(tensor, histogram)
    if kept:
        removing(kept.path)
    facts = dataset.fingerprint, len(dataset), histograms, profile
    more = size_ranges(model, dataset), keep(numbers_of(dataset))
    return Observation(model.fingerprint, *facts, *more, far)


def _job(
    model: Model, dataset: Dataset, into: dict[str, str], folder: Path, options: ObserveOptions
) -> Job:
    unit, settings = batch_for(model, 1), options.settings
    passes, room = [sorted(into)], COLLECTED_BYTES
    if options.max_memory is not None:
        first = next(dataset.batches(unit, 0, unit))
        processes = 1 if settings.alone else settings.workers + 1
        passes = passes_within(options.max_memory, folder, sorted(into), first, processes)
        room = 0
    size = batch_for(model, options.batch)
    return Job(folder, dataset, passes, into, unit, size, settings.threads, room)


def _checkpoint(
    model: Model, dataset: Dataset, into: dict[str, str], options: ObserveOptions
) -> Checkpoint | None:
    work: Document = {"model": model.fingerprint, "tensors": into}
    work |= {"batch": options.batch, "memory": options.max_memory, "reaches": REACHES}
    return None if options.checkpoint is None else Checkpoint(options.checkpoint, work, dataset)


@dataclass
class _Work:
    job: Job
    accumulator: HistogramAccumulator
    checkpoint: Checkpoint | None
    progress: Progress
    seen: int = 0

    def do(self, settings: Settings) -> None:
        self._report(self._done())
        workers = [] if settings.alone else start_workers(self.job, settings)
        with finishing_on_interrupt() as interrupt:  # Ray sets signal handlers when it starts
            if workers:
                self._in_parallel(workers, interrupt.is_set)
            else:
                self._alone(interrupt.is_set)
        if interrupt.is_set() and self.job.left(self.accumulator):
            self._interrupted()

    def _done(self) -> int:
        return count(span for spans in self.accumulator.done.values() for span in spans)

    def _report(self, samples: int) -> None:
        """Report progress in samples of the dataset, whatever the number of passes."""
        passes = len(self.job.passes)
        before, self.seen = self.seen // passes, self.seen + samples
        if self.seen // passes > before:
            self.progress(self.seen // passes - before)

    def _alone(self, is_interrupted: Callable[[], bool]) -> None:
        with Observer(self.job) as observer:

            def after_batch(samples: int) -> bool:
                if self.checkpoint and self.checkpoint.due:
                    with observer.settled():
                        self._keep()
                self._report(samples)
                return not is_interrupted()

            for number in range(len(self.job.passes)):
                spans = [span for other, span in self.job.left(self.accumulator) if other == number]
                if spans and not is_interrupted():
                    observer.run((number, spans), self.accumulator, after_batch)

    def _in_parallel(self, workers: Sequence[Worker], is_interrupted: Callable[[], bool]) -> None:
        def after_task(samples: int) -> bool:
            count_read(self.job.dataset, samples)
            if samples and self.checkpoint and self.checkpoint.due:
                self._keep()
            self._report(samples)
            return not is_interrupted()

        run_parallel(self.job, self.accumulator, workers, after_task)

    def _keep(self) -> None:
        if self.checkpoint:
            self.checkpoint.write(self.accumulator, self.job.passes)

    def _interrupted(self) -> None:
        self._keep()
        done = self._done() / (len(self.job.dataset) * len(self.job.passes))
        where = f"saved in {self.checkpoint.path}" if self.checkpoint else "and not saved"
        raise Interrupted(
            f"interrupted: {done:.0%} of the observation is done, {where}",
            "start the same command again: it resumes from there" if self.checkpoint else None,
        )


def start_workers(job: Job, settings: Settings) -> Sequence[Worker]:
    """Return the workers, on this machine or of a cluster."""
    if settings.cluster:
        workers: Sequence[Worker] = load(WORKERS, "ray", "clusters")(job, settings.workers)
        return workers
    return [LocalWorker(job) for _ in range(settings.workers)]


def _sum(parts: list[Histogram]) -> Histogram:
    if len(parts) == 1:
        return parts[0]
    total = Histogram()
    for part in parts:
        total.merge(part)
    return total


def _check(name: str, histogram: Histogram) -> None:
    if histogram.nan:
        raise InputError(
            f"tensor {name!r} has {histogram.nan} NaN values in the FP32 model",
            "find the cause by running the FP32 model on the same data, and correct the model or "
            "the data",
        )


SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def finishing_on_interrupt() -> Iterator[threading.Event]:
    """Yield an event that the first signal sets; a second one interrupts at once.

    Outside the main thread signals are not ours, and the event stays unset.
    """
    interrupt = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if interrupt.is_set():
            raise KeyboardInterrupt
        interrupt.set()

    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
