"""Which samples are looked at together: a fixed number of shards, by index alone.

Batches never cross the end of a shard. So what runs together in a batch is the same for any number
of workers, however often the work was broken off.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.data import Dataset

SHARDS = 64

Span = tuple[int, int]
"""Samples from the first up to, not including, the second."""

if TYPE_CHECKING:
    from trtcal.calibration.accumulator import HistogramAccumulator


def shards(samples: int, unit: int = 1) -> list[Span]:
    """Cut samples into at most `SHARDS` equal spans, multiples of `unit`; the last may be shorter."""
    length = -(-samples // (SHARDS * unit)) * unit
    return [(start, min(start + length, samples)) for start in range(0, samples, length)]


def batches(span: Span, size: int) -> list[Span]:
    """Cut a span into batches."""
    return [(start, min(start + size, span[1])) for start in range(*span, size)]


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return the same samples in as few spans as possible, rising."""
    result: list[Span] = []
    for start, stop in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = result[-1][0], max(stop, result[-1][1])
        else:
            result.append((start, stop))
    return result


def missing(wanted: Iterable[Span], done: Iterable[Span]) -> list[Span]:
    """Return what is left of each wanted span; `done` are joined spans."""
    left: list[Span] = []
    for start, stop in wanted:
        for first, last in done:
            if first < stop and last > start:
                if start < first:
                    left.append((start, first))
                start = max(start, last)
        if start < stop:
            left.append((start, stop))
    return left


def count(spans: Iterable[Span]) -> int:
    """Return the number of samples in spans that do not overlap."""
    return sum(stop - start for start, stop in spans)


Task = tuple[int, list[Span]]
"""The number of a pass over the data, and the samples to look at in it."""


@dataclass(frozen=True)
class Job:
    """One model, laid out in `folder`, over one dataset, in one or more passes.

    `passes` are the tensors counted in each, `into` names the histogram of each tensor. `batch` is the
    most samples run together and `unit` the least: both are the model's batch where that is fixed.
    `threads` are those of each worker, `room` the bytes that collected tensors may take.
    """

    folder: Path
    dataset: Dataset
    passes: list[list[str]]
    into: dict[str, str]
    unit: int
    batch: int
    threads: int
    room: int

    def spans(self) -> list[Span]:
        """Return all shards of the data."""
        return shards(len(self.dataset), self.unit)

    def left(self, accumulator: HistogramAccumulator) -> list[tuple[int, Span]]:
        """Return what a accumulator lacks, in pieces that are no longer than a shard."""
        return [
            (number, span)
            for number in range(len(self.passes))
            for span in missing(self.spans(), joined(accumulator.done.get(number, [])))
        ]
