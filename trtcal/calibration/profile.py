"""Where the time of an observation went, what limits it, and what a change would bring.

Predictions are made from what was measured in the same run: the time in which the data were waited for,
and how many cores were busy. The next run of the same work shows whether they came true.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from trtcal.calibration.accumulator import HistogramAccumulator
from trtcal.documents import Document, Sealed

STAGES = ("load", "infer", "count", "checkpoint")
MEASURED = ("settings", "seconds", "bytes", "samples", "elapsed_s", "waited_s", "busy", "cores")
WORTH = 1.1  # a change that is not predicted to bring more is not proposed


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
class Advice:
    """What limits the work, what to change, and how many times faster it should then be."""

    limit: str
    change: str
    gain: float


@dataclass(frozen=True)
class Profile(Sealed, kind="profile", command="trtcal calibrate --profile", measured=MEASURED):
    """Seconds and bytes of each stage of observing a model, summed over workers.

    `elapsed_s` is the time from begin to end, `waited_s` that in which workers had no data to work on,
    `busy` the mean number of cores that were busy, of `cores`.
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

    def to_document(self) -> Document:
        """Return the sealed document, with the advice."""
        document = super().to_document()
        document["measured"]["advice"] = dataclasses.asdict(self.advice())
        return document

    def advice(self) -> Advice:
        """Return the change that should bring most."""
        longest = max(self.seconds, key=lambda stage: self.seconds[stage])
        by_data = self.elapsed_s / max(self.elapsed_s - self.waited_s, 1e-9)
        busy = max(self.busy * by_data, 1e-9)  # while there were data
        by_cores = self.cores / busy if self.settings.workers < self.cores else 1.0
        if by_data >= max(by_cores, WORTH):
            return Advice("loading the data", DATA, by_data)
        if by_cores >= WORTH and not self.settings.cluster:
            change = f"use {self.cores} workers with a thread each: --workers {self.cores}"
            limit = f"{longest}, with {busy:.1f} of {self.cores} cores busy"
            return Advice(limit, change, by_cores)
        return Advice(f"{longest}, and this machine's cores are busy", MACHINES, 1.0)

    def lines(self) -> Iterator[str]:
        """Yield the profile as lines for people."""
        yield f"{self.samples} samples in {self.elapsed_s:.1f} s by {self.settings}"
        for stage, seconds in self.seconds.items():
            size = self.bytes.get(stage, 0)
            rate = (
                f", {size / 1e6:.0f} MB at {size / 1e6 / seconds:.0f} MB/s"
                if size and seconds
                else ""
            )
            yield f"  {stage:10} {seconds:8.1f} s of the workers' time{rate}"
        yield f"  waited for data: {self.waited_s:.1f} s; cores busy: {self.busy:.1f} of {self.cores}"
        advice = self.advice()
        yield f"limited by {advice.limit}"
        gain = f" (predicted: {advice.gain:.2f} times as fast)" if advice.gain > 1 else ""
        yield f"{advice.change}{gain}"

    def compare_prediction(self, earlier: Profile) -> str | None:
        """Return whether what an earlier profile of the same work predicted came true.

        None if that predicted nothing, or nothing was changed since.
        """
        advice, same = earlier.advice(), earlier.settings == self.settings
        if advice.gain <= 1.0 or (same and advice.change != DATA):
            return None
        gain = earlier.elapsed_s / earlier.samples / (self.elapsed_s / self.samples)
        return f"predicted: {advice.gain:.2f} times as fast; it is {gain:.2f} times as fast"


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
        return Profile(
            model,
            dataset,
            settings,
            {stage: seconds[stage] for stage in STAGES},
            {stage: sizes[stage] for stage in STAGES if sizes[stage]},
            samples,
            elapsed_s,
            seconds["wait for data"] / max(settings.workers, 1),
            (_cpu_s() - self.spent) / elapsed_s,
            os.cpu_count() or 1,
        )


DATA = "write the preprocessed samples once, uncompressed (numpy.savez), and calibrate from that"
MACHINES = "nothing to gain here; --cluster ray takes more machines"


def _cpu_s() -> float:
    """Return the processor time of this process and of its ended children, in seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
