"""Which samples made a tensor's largest values: those that stretch its range, by name."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.backends.taps import Inside
from trtcal.calibration.observer import Progress
from trtcal.data import Dataset
from trtcal.documents import Sealed
from trtcal.model import Model

TAILS_KIND = "tails"
REACHES = 3
TENSORS = 24  # in a run, whose ranges cut most
BATCH = 16


@dataclass(frozen=True, order=True)
class Reach:
    """How far one sample goes: its largest magnitude, its place in the data, its file if it has one."""

    value: float
    index: int
    name: str | None = None


@dataclass(frozen=True)
class Tails(Sealed, kind=TAILS_KIND, command="trtcal ranges tails"):
    """Tensor -> the samples with its largest magnitudes, the largest first."""

    model: str
    dataset: str
    samples: int
    tensors: dict[str, tuple[Reach, ...]]


def find_tails(
    model: Model, dataset: Dataset, tensors: Sequence[str], progress: Progress = lambda done: None
) -> Tails:
    """Run all samples once, and keep for each tensor the three that reach farthest.

    Memory does not grow with samples. A tensor whose first axis is not that of the samples is left
    out: whose value is whose is not known there.
    """
    kept: dict[str, list[Reach]] = {name: [] for name in tensors}
    inside, start = Inside(model.proto, tensors), 0
    for feeds in dataset.batches(BATCH):
        size = len(next(iter(feeds.values())))
        for name, array in inside.read(feeds).items():
            if array.ndim and len(array) == size:
                reaches = _reaches(array, start, dataset.files)
                every = [*kept[name], *reaches]  # of equal ones the first
                kept[name] = heapq.nlargest(REACHES, every, key=lambda r: (r.value, -r.index))
        start += size
        progress(size)
    found_tails = {name: tuple(reaches) for name, reaches in kept.items() if reaches}
    return Tails(model.fingerprint, dataset.fingerprint, start, found_tails)


def _reaches(array: npt.NDArray[Any], start: int, files: Sequence[str] | None) -> Iterable[Reach]:
    """Yield each sample's reach; values that are not finite do not count, they are in no range."""
    flat = np.abs(array.reshape(len(array), -1).astype(np.float32))
    largest = np.max(flat, axis=1, initial=0.0, where=np.isfinite(flat))
    for row, value in enumerate(largest.tolist(), start):
        yield Reach(value, row, files[row] if files else None)
