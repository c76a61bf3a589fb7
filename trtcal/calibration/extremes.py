"""Which samples made a tensor's largest values: those that stretch its range, by name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from trtcal.backends.taps import Reading
from trtcal.calibration.observation import Farthest, Observation
from trtcal.documents import Sealed

TAILS_KIND = "tails"
REACHES = 3
TENSORS = 24  # in a run, whose ranges cut most
UNKNOWN = (-sys.float_info.max, -1)  # stays the first where nobody knows whose value is whose


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


def tails_of(seen: Observation, files: Sequence[str] | None, tensors: Iterable[str]) -> Tails:
    """Return the samples that reach farthest, of the tensors of which they are known."""
    known = {n: own for n, own in (seen.reaches or {}).items() if UNKNOWN not in own}
    file_of = dict(enumerate(files or ())).get  # a file of observations may name samples beyond
    tails = {
        name: tuple(Reach(abs(least), i, file_of(i)) for least, i in known[name])
        for name in tensors
        if name in known
    }
    return Tails(seen.model, seen.dataset, seen.samples, tails)


def farther(*reaches: Iterable[tuple[float, int]]) -> Farthest:
    """Return the samples that reach farthest, each sample once."""
    each = {index: least for least, index in sorted(chain(*reaches), reverse=True)}
    return sorted((least, index) for index, least in each.items())[:REACHES]


def see(farthest: Farthest, reading: Reading, largest: float) -> Farthest:
    """Return the farthest with a reading, of which `largest` is the largest magnitude.

    Values that are not finite do not count: they are in no range.
    """
    values, first = reading.values, reading.samples[0]
    if len(first) > 1 and values.shape[1:2] != (len(first),):
        return farther(farthest, [UNKNOWN])
    most = -largest, min(samples.start for samples in reading.samples)
    if len(farthest) == REACHES and most >= farthest[-1]:
        return farthest
    flat = values.reshape(len(values) * len(first), -1)
    ends = np.minimum(-flat.max(axis=1, initial=0.0), flat.min(axis=1, initial=0.0))
    if not np.isfinite(ends).all():
        ends = -np.max(np.abs(flat), axis=1, initial=0.0, where=np.isfinite(flat))
    return farther(farthest, zip(ends.tolist(), chain(*reading.samples), strict=False))
