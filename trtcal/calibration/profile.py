"""Where the time of an observation went, what limits it, and what a change would bring.

Predictions are made from what was measured in the same run: the time in which the data were waited for,
and how many cores were busy. The next run of the same work says whether they came true.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from trtcal.calibration.accumulator import HistogramAccumulator
from trtcal.documents import Document, seal

KIND = "profile"
STAGES = ("load", "infer", "count", "checkpoint")
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


@dataclass
class Profile:
    """Seconds and bytes of each stage, summed over workers; `elapsed_s` is what the user waited.

    `waited_s` is the time in which workers had no data to work on, `begun_s` what the process had
    cost before, `busy` the mean number of cores that were busy, of `cores`.
    """

    settings: Settings
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    samples: int = 0
    elapsed_s: float = 0.0
    waited_s: float = 0.0
    busy: float = 0.0
    cores: int = 1

    @classmethod
    @contextmanager
    def measuring(cls, settings: Settings) -> Iterator[Profile]:
        """Yield a profile; time and cores are measured until the block ends."""
        profile = cls(settings, cores=os.cpu_count() or 1)
        started, spent = time.perf_counter(), _cpu_s()
        yield profile
        profile.elapsed_s = time.perf_counter() - started
        profile.busy = (_cpu_s() - spent) / profile.elapsed_s

    def of(self, accumulator: HistogramAccumulator, samples: int) -> None:
        """Take in what the workers measured."""
        self.samples = samples
        self.seconds = {stage: accumulator.seconds[stage] for stage in STAGES}
        self.bytes = {
            stage: accumulator.bytes[stage] for stage in STAGES if accumulator.bytes[stage]
        }
        self.waited_s = accumulator.seconds["wait for data"] / max(self.settings.workers, 1)

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
            return Advice(
                f"{longest}, with {busy:.1f} of {self.cores} cores busy", change, by_cores
            )
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

    def to_document(self, model: str, dataset: str) -> Document:
        """Return the profile of observing this model over these data, as a document."""
        advice = dataclasses.asdict(self.advice())
        measured = {**dataclasses.asdict(self), "advice": advice}
        fields = {"kind": KIND, "schema_version": 1, "model": model, "dataset": dataset}
        return seal({**fields, "measured": measured})

    def checked(self, earlier: Document) -> str | None:
        """Say whether what an earlier profile of the same work predicted came true.

        None if that predicted nothing, or nothing was changed since.
        """
        before = earlier["measured"]
        advice, same = before["advice"], Settings(**before["settings"]) == self.settings
        if advice["gain"] <= 1.0 or (same and advice["change"] != DATA):
            return None
        gain = before["elapsed_s"] / before["samples"] / (self.elapsed_s / self.samples)
        return f"predicted: {advice['gain']:.2f} times as fast; it is {gain:.2f} times as fast"


DATA = "write the preprocessed samples once, uncompressed (numpy.savez), and calibrate from that"
MACHINES = "nothing to gain here; --cluster ray takes more machines"


def _cpu_s() -> float:
    """Return the processor time of this process and of its ended children, in seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
