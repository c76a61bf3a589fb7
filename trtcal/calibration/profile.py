"""Where the time of an observation went: by stage, waiting for data, and how many cores were busy."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from trtcal.calibration.accumulator import HistogramAccumulator
from trtcal.data import Dataset, batch_for
from trtcal.documents import Sealed
from trtcal.model import Model
from trtcal.model.files import fits

STAGES = ("open", "load", "infer", "count", "checkpoint")
FIGURES = ("seconds", "bytes", "samples", "elapsed_s", "waited_s", "busy", "phases", "limits")
MEASURED = ("settings", "cores", *FIGURES)


@dataclass(frozen=True)
class Settings:
    """Who does the work: a number of workers with as many threads each, here or of a cluster."""

    workers: int
    threads: int
    cluster: str | None = None

    @property
    def alone(self) -> bool:
        """Whether the work is done in this process."""
        return self.workers == 1 and self.cluster is None

    def __str__(self) -> str:
        where = f" of {self.cluster}" if self.cluster else ""
        return f"{self.workers or 'all'} workers{where} with {self.threads} threads"


@dataclass(frozen=True)
class Profile(Sealed, kind="profile", command="trtcal calibrate --profile", measured=MEASURED):
    """Seconds and bytes of each stage of observing a model, summed over workers.

    `elapsed_s` is the time from begin to end, `waited_s` that in which workers had no data to work on,
    `busy` the mean number of cores that were busy, of `cores`. `phases` are the seconds of all that the
    command did one after the other, `limits` the least seconds that a stage could take: see
    `measure_limits`.
    """

    model: str
    dataset: str
    settings: Settings
    seconds: dict[str, float]
    bytes: dict[str, int]
    samples: int
    elapsed_s: float
    waited_s: float = 0.0
    busy: float = 0.0
    cores: int = 1
    phases: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """Yield the profile as lines for people."""
        whole = sum(self.phases.values())
        for name, seconds in self.phases.items():
            yield f"{name:17} {seconds:8.2f} s {seconds / whole:6.1%}"
        yield f"{self.samples} samples in {self.elapsed_s:.1f} s by {self.settings}"
        for stage, seconds in self.seconds.items():
            yield f"  {stage:10} {seconds:8.2f} s of the workers' time{self._speed(stage)}"
        yield f"  waited for data: {self.waited_s:.1f} s; cores busy: {self.busy:.1f} of {self.cores}"

    def _speed(self, stage: str) -> str:
        """Return how fast a stage was, and how far from its limit, as far as that is known."""
        seconds, size = self.seconds[stage], self.bytes.get(stage, 0) / 1e6
        rate = f", {size:.0f} MB at {size / seconds:.0f} MB/s" if size and seconds else ""
        least = self.limits.get(stage)
        return rate + (f", {seconds / least:.2f} of {LIMITS[stage]}" if least else "")


class Phases:
    """The seconds of what is done one after the other, from the start of this process on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {"start-up": 0.0}
        self.last = time.perf_counter() - process_age_s()
        self.lap("start-up")

    def lap(self, name: str) -> None:
        """Add the time since the last lap to a phase."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.last
        self.last = now


def process_age_s() -> float:
    """Return how long this process has been running, in seconds; 0 where the system does not say."""
    try:
        ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        now = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, now - ticks / os.sysconf("SC_CLK_TCK"))


LIMITS = {"infer": "bare inference", "count": "reading the values once"}
LIMIT_S = 1.0  # that may be spent on measuring bare inference
BUFFER = 1 << 26  # bytes that are copied to see how fast memory is


def measure_limits(profile: Profile, model: Model, dataset: Dataset) -> Profile:
    """Return the profile with the least time of inference and of counting.

    That is the time of inference of the same samples without any tensor read (measured for a second),
    and of copying as many bytes, in seconds of all threads.
    """
    from trtcal.backends.sessions import open_session, run_session

    session = open_session(
        model.proto if fits(model.proto) else model.path, profile.settings.threads
    )
    size = batch_for(model, 1)
    run_session(session, None, next(dataset.batches(size)))
    seconds, done = 0.0, 0
    for feeds in dataset.batches(size):
        started = time.perf_counter()
        run_session(session, None, feeds)
        seconds += time.perf_counter() - started
        done += size
        if seconds > LIMIT_S:
            break
    source, target = np.ones(BUFFER, np.uint8), np.ones(BUFFER, np.uint8)
    started = time.perf_counter()
    np.copyto(target, source)
    copied = (time.perf_counter() - started) / BUFFER
    cores = profile.settings.threads
    limits = {
        "infer": seconds / done * profile.samples * cores,
        "count": copied * profile.bytes.get("count", 0),
    }
    return replace(profile, limits=limits)


class Stopwatch:
    """Time and processor time of this process and its children since it was made."""

    def __init__(self) -> None:
        self.started, self.spent = time.perf_counter(), _cpu_s()

    def profile(
        self,
        model: str,
        dataset: str,
        settings: Settings,
        accumulator: HistogramAccumulator,
        samples: int,
    ) -> Profile:
        """Return the profile of what was done up to now, with what the workers measured."""
        elapsed_s = time.perf_counter() - self.started
        seconds, sizes = accumulator.seconds, accumulator.bytes
        spent = {stage: seconds[stage] for stage in STAGES}
        read = {stage: sizes[stage] for stage in STAGES if sizes[stage]}
        waited_s = seconds["wait for data"] / max(settings.workers, 1)
        cores = (_cpu_s() - self.spent) / elapsed_s, os.cpu_count() or 1
        facts = model, dataset, settings, spent, read, samples
        return Profile(*facts, elapsed_s, waited_s, *cores)


def _cpu_s() -> float:
    """Return the processor time of this process and of its ended children, in seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
