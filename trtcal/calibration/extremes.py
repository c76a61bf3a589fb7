"""Which samples made a tensor's largest values: those that stretch its range, by name."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.backends.taps import Inside, Origin, Reading
from trtcal.data import Dataset
from trtcal.documents import Sealed
from trtcal.model import Model

TAILS_KIND = "tails"
REACHES = 3
TENSORS = 24  # in a run, whose ranges cut most
BATCH = 16
Farthest = list[tuple[float, int]]
"""Largest magnitude and sample, the largest first; those of equal ones by sample."""
UNKNOWN = (math.inf, -1)  # whose value is whose is not known: it stays the first


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
    model: Model,
    dataset: Dataset,
    tensors: Sequence[str],
    progress: Callable[[int], None] = lambda done: None,
) -> Tails:
    """Run all samples once, and keep for each tensor the three that reach farthest.

    Memory does not grow with samples. A tensor whose first axis is not that of the samples is left
    out: whose value is whose is not known there.
    """
    kept: dict[str, Farthest] = {name: [] for name in tensors}
    inside, start = Inside(model.proto, tensors), 0
    for feeds in dataset.batches(BATCH):
        size = len(next(iter(feeds.values())))
        for name, array in inside.read(feeds).items():
            kept[name] = farther([*kept[name], *_reaches(array, (start, size))])
        start += size
        progress(size)
    return tails_of(model, dataset, known({name: [name] for name in tensors}, kept), tensors)


def tails_of(
    model: Model, dataset: Dataset, reaches: Mapping[str, Farthest], tensors: Sequence[str]
) -> Tails:
    """Return the samples that reach farthest, by name, of the tensors of which they are known."""
    files = dataset.files
    tails = {
        name: tuple(Reach(value, i, files[i] if files else None) for value, i in reaches[name])
        for name in tensors
        if name in reaches
    }
    return Tails(model.fingerprint, dataset.fingerprint, len(dataset), tails)


def farther(reaches: Iterable[tuple[float, int]]) -> Farthest:
    """Return the samples that reach farthest, each once."""
    largest: dict[int, float] = {}
    for value, index in reaches:
        largest[index] = max(value, largest.get(index, 0.0))
    every = ((value, index) for index, value in largest.items())
    return heapq.nsmallest(REACHES, every, key=_order)


def _order(reach: tuple[float, int]) -> tuple[float, int]:
    return -reach[0], reach[1]


def known(
    grouped: Mapping[str, Sequence[str]], reaches: Mapping[str, Farthest]
) -> dict[str, Farthest]:
    """Return the farthest of tensors, each with the parts that it is made of, where all are known."""
    of_parts = {
        name: farther(chain(*(reaches.get(part, [UNKNOWN]) for part in each)))
        for name, each in grouped.items()
    }
    return {name: farthest for name, farthest in of_parts.items() if UNKNOWN not in farthest}


def see(farthest: Farthest, reading: Reading, largest: float) -> Farthest:
    """Return the farthest with a reading, of which `largest` is the largest magnitude."""
    sizes = {samples for _, samples in reading.origins} - {0}
    if not sizes <= {*reading.values.shape[1:2]}:
        return farther([*farthest, UNKNOWN])
    most = largest, min(start for start, _ in reading.origins)
    if len(farthest) == REACHES and _order(most) >= _order(farthest[-1]):
        return farthest
    pairs = zip(reading.values, reading.origins, strict=True)
    return farther(chain(farthest, *(_reaches(*pair) for pair in pairs)))


def _reaches(array: npt.NDArray[Any], origin: Origin) -> Iterator[tuple[float, int]]:
    """Yield each sample's reach; values that are not finite do not count, they are in no range."""
    start, samples = origin
    array = array if samples else array[None]
    if array.shape[:1] != (samples or 1,):
        return iter([UNKNOWN])
    flat = array.reshape(len(array), -1).astype(np.float32, copy=False)
    ends = np.maximum(flat.max(axis=1, initial=0.0), -flat.min(axis=1, initial=0.0))
    if not np.isfinite(ends).all():
        ends = np.max(np.abs(flat), axis=1, initial=0.0, where=np.isfinite(flat))
    return zip((ends + 0.0).tolist(), range(start, start + len(array)), strict=True)
