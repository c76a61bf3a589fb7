"""Which samples made a tensor's largest values: those that stretch its range, by name."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from trtcal.backends.taps import Reading
from trtcal.data import Dataset
from trtcal.documents import Sealed
from trtcal.model import Model

TAILS_KIND = "tails"
REACHES = 3
TENSORS = 24  # in a run, whose ranges cut most
Farthest = list[tuple[float, int]]
"""Largest magnitude and sample, the largest first; those of equal ones by sample."""
Reaches = dict[str, Farthest]
UNKNOWN = (math.inf, -1)  # stays the first where nobody knows whose value is whose


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


def tails_of(
    model: Model, dataset: Dataset, reaches: Reaches | None, tensors: Sequence[str]
) -> Tails:
    """Return the samples that reach farthest, by name, of the tensors of which they are known."""
    files = dataset.files
    tails = {
        name: tuple(Reach(value, i, files[i] if files else None) for value, i in reaches[name])
        for name in tensors
        if reaches and name in reaches
    }
    return Tails(model.fingerprint, dataset.fingerprint, len(dataset), tails)


def farther(reaches: Iterable[tuple[float, int]]) -> Farthest:
    """Return the samples that reach farthest, each once."""
    largest: dict[int, float] = {}
    for value, index in reaches:
        largest[index] = max(value, largest.get(index, 0.0))
    return heapq.nsmallest(REACHES, ((value, i) for i, value in largest.items()), key=_order)


def _order(reach: tuple[float, int]) -> tuple[float, int]:
    return -reach[0], reach[1]


def known(grouped: Mapping[str, Sequence[str]], reaches: Reaches) -> Reaches:
    """Return the farthest of tensors, each with the parts that it is made of, where all are known."""
    of_parts = {
        name: farther(chain(*(reaches.get(part, [UNKNOWN]) for part in each)))
        for name, each in grouped.items()
    }
    return {name: farthest for name, farthest in of_parts.items() if UNKNOWN not in farthest}


def see(farthest: Farthest, reading: Reading, largest: float) -> Farthest:
    """Return the farthest with a reading, of which `largest` is the largest magnitude.

    Values that are not finite do not count: they are in no range.
    """
    values, first = reading.values, reading.samples[0]
    if len(first) > 1 and values.shape[1:2] != (len(first),):
        return farther([*farthest, UNKNOWN])
    most = largest, min(samples.start for samples in reading.samples)
    if len(farthest) == REACHES and _order(most) >= _order(farthest[-1]):
        return farthest
    flat = values.reshape(len(values) * len(first), -1)
    ends = np.maximum(flat.max(axis=1, initial=0.0), np.abs(flat.min(axis=1, initial=0.0)))
    if not np.isfinite(ends).all():
        ends = np.max(np.abs(flat), axis=1, initial=0.0, where=np.isfinite(flat))
    return farther(chain(farthest, zip(ends.tolist(), chain(*reading.samples), strict=False)))
