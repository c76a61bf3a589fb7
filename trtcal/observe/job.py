"""What there is to look at: everything that a worker needs, wherever it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtcal.data import Dataset
from trtcal.observe.shards import Span, joined, missing, shards
from trtcal.observe.tally import Tally

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

    def left(self, tally: Tally) -> list[tuple[int, Span]]:
        """Return what a tally lacks, in pieces that are no longer than a shard."""
        return [
            (number, span)
            for number in range(len(self.passes))
            for span in missing(self.spans(), joined(tally.done.get(number, [])))
        ]
