"""Samples that two datasets share, by their digests: a calibration keeps them, an evaluation looks.

A calibration keeps 64 bits of each sample's digest, of no more than `DIGESTS` samples: the smallest of
them, which are as good as drawn at random, whatever the order of the samples or who read them.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trtcal.data.dataset import Dataset, digests_of

DIGESTS = 4096
BATCH = 8
Numbers = npt.NDArray[np.uint64]
BIG = np.dtype(">u8")


@dataclass(frozen=True)
class Overlap:
    """How many of an evaluation's samples a calibration has, as far as its kept digests show.

    `estimate` is of all of them where the calibration had more samples than it keeps, else None.
    """

    shared: int
    samples: int
    estimate: int | None = None

    def __str__(self) -> str:
        more = "" if self.estimate is None else f" for certain, about {self.estimate:,} in total"
        return f"{self.shared:,} of {self.samples:,} samples are calibration samples{more}"


def numbers_of(dataset: Dataset, stop: int | None = None) -> Numbers:
    """Return the first 64 bits of the digest of each sample up to `stop`, shape (samples,).

    Samples whose digests are not known are read.
    """
    samples = len(dataset) if stop is None else min(stop, len(dataset))
    known = dataset.witnessed()[:samples]
    if len(known) < samples or not known.any(axis=1).all():
        batches = dataset.batches(BATCH, 0, samples)
        known = np.concatenate([digests_of(feeds) for feeds in batches])
    return np.ascontiguousarray(known[:, : BIG.itemsize]).view(BIG).ravel().astype(np.uint64)


def keep(numbers: Numbers) -> str:
    """Return the smallest `DIGESTS` of them as text, base64 of big-endian integers in order."""
    return base64.b64encode(np.unique(numbers)[:DIGESTS].astype(BIG).tobytes()).decode()


def overlap(kept: str, numbers: Numbers) -> Overlap | None:
    """Return what an evaluation shares with a calibration, None for nothing that is known.

    Text that is none of `keep`'s says nothing.
    """
    try:
        data = base64.b64decode(kept, validate=True)
        known = np.frombuffer(data, BIG).astype(np.uint64)
    except ValueError:
        return None
    shared = int(np.isin(numbers, known).sum())
    if not shared:
        return None
    if len(known) < DIGESTS:
        return Overlap(shared, len(numbers))
    part = float(known.max()) / 2**64
    return Overlap(shared, len(numbers), min(round(shared / part), len(numbers)))
