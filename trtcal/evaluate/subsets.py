"""Which samples ranges are chosen from, and which are held back to judge them.

Subsets are made of chunks of consecutive samples: each chunk is observed once, and a subset's
histograms are the sums of those of its chunks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from calibrators import Histogram
from trtcal.calibration import Observation, ObserveOptions, observe
from trtcal.calibration.observation import pack, unpack
from trtcal.data import Dataset, fixed_batch, part, whole_batches
from trtcal.data.dataset import ArrayDataset
from trtcal.errors import InputError
from trtcal.evaluate.caches import SpillCache
from trtcal.model import Model

CHUNK = 8
HELD_BACK = 16, 256  # samples, at least and at most
POOL = 1024  # samples to choose from, at most
MOST_SUBSETS = 8  # of each size
FEW = 4  # disjoint subsets, below which overlapping subsets are used
LARGEST = 0.75  # of the pool: with all of it there would be one subset only
NEXT_TO_LARGEST = 0.8  # of the largest size: others are below that

Subset = tuple[int, ...]
"""Numbers of chunks, rising."""


@dataclass(frozen=True)
class Subsets:
    """Sets of chunks by size in samples, rising; the `pool` is the first so many samples.

    `held_back` samples from number `first` on are in no chunk. Subsets of one size have no chunk in
    common where that size is in `disjoint`.
    """

    chunk: int
    pool: int
    first: int
    held_back: int
    seed: int
    of: dict[int, tuple[Subset, ...]]
    disjoint: tuple[int, ...]

    @property
    def largest(self) -> int:
        """The largest size."""
        return max(self.of)

    @property
    def work(self) -> int:
        """Samples to run in all."""
        return self.pool + self.held_back * sum(len(subsets) for subsets in self.of.values())


def choose_subsets(model: Model, dataset: Dataset, seed: int = 0) -> Subsets:
    """Hold back the last quarter and choose subsets of the rest; `InputError` for too few samples."""
    batch, samples = fixed_batch(model) or 1, len(dataset)
    chunk, least = (whole_batches(one, model) for one in (CHUNK, HELD_BACK[0]))
    held_back = max(least, min(samples // 4, HELD_BACK[1]) // batch * batch)
    pool = min(samples - held_back, POOL) // chunk * chunk
    if pool < 2 * chunk:
        raise InputError(
            f"data {dataset.name} have {samples} samples, too few for a learning curve",
            f"give {least + 2 * chunk} samples or more; 128 or more make the curve more precise",
        )
    random = np.random.default_rng(seed)
    chosen = {
        size: _subsets_of(size // chunk, pool // chunk, random) for size in _sizes(pool, chunk)
    }
    disjoint = tuple(size for size, subsets in chosen.items() if _are_disjoint(subsets))
    return Subsets(chunk, pool, samples - held_back, held_back, seed, chosen, disjoint)


def _sizes(pool: int, chunk: int) -> Iterator[int]:
    largest = max(2, int(LARGEST * pool / chunk)) * chunk
    size = chunk
    while size < NEXT_TO_LARGEST * largest:
        yield size
        size *= 2
    yield largest


def _subsets_of(length: int, chunks: int, random: np.random.Generator) -> tuple[Subset, ...]:
    """Return up to `MOST_SUBSETS` sets of chunks: disjoint if there are enough, else different."""
    if length == 1 or chunks // length >= FEW:
        order = random.permutation(chunks)[: chunks // length * length].reshape(-1, length)
        return tuple(_rising(row) for row in order[:MOST_SUBSETS])
    wanted, found = min(MOST_SUBSETS, math.comb(chunks, length)), set[Subset]()
    while len(found) < wanted:
        found.add(_rising(random.choice(chunks, length, replace=False)))
    return tuple(sorted(found))


def _rising(chunks: Collection[int]) -> Subset:
    return tuple(sorted(int(one) for one in chunks))


def _are_disjoint(subsets: Sequence[Subset]) -> bool:
    everything = [chunk for one in subsets for chunk in one]
    return len(everything) == len(set(everything))


class Chunks:
    """The histograms of all chunks, in temporary files. A context manager."""

    def __init__(self, model: Model, dataset: Dataset, chunk: int) -> None:
        self.model, self.dataset, self.chunk = model, dataset, chunk
        self.spill = SpillCache()

    def __enter__(self) -> Chunks:
        return self

    def __exit__(self, *exception: object) -> None:
        self.spill.close()

    def observe(self, number: int, tensors: Sequence[str]) -> None:
        """Run the samples of one chunk, which are read once: scripts need not begin again."""
        start = number * self.chunk
        read = list(self.dataset.batches(self.chunk, start, start + self.chunk))
        samples: Dataset = part(self.dataset, start, start + self.chunk)
        if len(read) == 1:
            samples = ArrayDataset(self.dataset.name, read[0], None, self.dataset.identity)
        seen = observe(self.model, samples, tensors, ObserveOptions(batch=self.chunk))
        self.spill.keep("histograms", number, dict(pack(seen.histograms)))

    def seen(self, subset: Subset) -> Observation:
        """Return what a run over the samples of a subset would have seen."""
        total: dict[str, Histogram] = {}
        for number in subset:
            for name, histogram in unpack(self.spill.get("histograms", number)).items():
                total.setdefault(name, Histogram()).merge(histogram)
        samples = self.chunk * len(subset)
        return Observation(self.model.fingerprint, self.dataset.identity, samples, total)
