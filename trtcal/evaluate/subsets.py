"""Which samples ranges are chosen from, and which are held back to judge them.

Samples that follow one another are drawn in chunks, so that each is looked at once and a draw's
histograms are sums of those of its chunks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from calibrators import Histogram
from trtcal.calibration import Observation, observe
from trtcal.calibration.observation import pack, unpack
from trtcal.data import Dataset, fixed_batch, whole_batches
from trtcal.data.dataset import ArrayDataset
from trtcal.errors import InputError
from trtcal.evaluate.caches import SpillCache
from trtcal.model import Model

CHUNK = 8
HELD_BACK = 16, 256  # samples, at least and at most
POOL = 1024  # samples to draw from, at most
DRAWS = 8  # of each size
FEW = 4  # disjoint subsets, below which subsets that overlap tell more
LARGEST = 0.75  # of the pool: with all of it there would be one draw only
APART = 0.8  # of the largest size: others are below that

Draw = tuple[int, ...]
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
    of: dict[int, tuple[Draw, ...]]
    disjoint: tuple[int, ...]

    @property
    def largest(self) -> int:
        """The largest size."""
        return max(self.of)

    @property
    def work(self) -> int:
        """Samples to run in all."""
        return self.pool + self.held_back * sum(len(subsets) for subsets in self.of.values())


def draw(model: Model, dataset: Dataset, seed: int = 0) -> Subsets:
    """Hold back the last quarter and draw from the rest; `InputError` if there are too few samples."""
    batch, samples = fixed_batch(model) or 1, len(dataset)
    chunk, least = (whole_batches(one, model) for one in (CHUNK, HELD_BACK[0]))
    held_back = max(least, min(samples // 4, HELD_BACK[1]) // batch * batch)
    pool = min(samples - held_back, POOL) // chunk * chunk
    if pool < 2 * chunk:
        raise InputError(
            f"data {dataset.name} have {samples} samples, too few for a learning curve",
            f"it takes {least + 2 * chunk}, and tells more with 128 or more",
        )
    random = np.random.default_rng(seed)
    drawn = {size: _draws(size // chunk, pool // chunk, random) for size in _sizes(pool, chunk)}
    disjoint = tuple(size for size, subsets in drawn.items() if _are_disjoint(subsets))
    return Subsets(chunk, pool, samples - held_back, held_back, seed, drawn, disjoint)


def _sizes(pool: int, chunk: int) -> Iterator[int]:
    largest = max(2, int(LARGEST * pool / chunk)) * chunk
    size = chunk
    while size < APART * largest:
        yield size
        size *= 2
    yield largest


def _draws(length: int, chunks: int, random: np.random.Generator) -> tuple[Draw, ...]:
    """Return up to `DRAWS` sets of chunks: disjoint ones if there are enough, else different ones."""
    if length == 1 or chunks // length >= FEW:
        order = random.permutation(chunks)[: chunks // length * length].reshape(-1, length)
        return tuple(_rising(row) for row in order[:DRAWS])
    wanted, found = min(DRAWS, math.comb(chunks, length)), set[Draw]()
    while len(found) < wanted:
        found.add(_rising(random.choice(chunks, length, replace=False)))
    return tuple(sorted(found))


def _rising(chunks: Collection[int]) -> Draw:
    return tuple(sorted(int(one) for one in chunks))


def _are_disjoint(subsets: Sequence[Draw]) -> bool:
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

    def look(self, number: int, tensors: Sequence[str]) -> None:
        """Run the samples of one chunk, which are read once: scripts need not begin again."""
        start = number * self.chunk
        feeds = next(self.dataset.batches(self.chunk, start, start + self.chunk))
        samples = ArrayDataset(self.dataset.name, feeds, None, self.dataset.identity)
        seen = observe(self.model, samples, tensors, self.chunk)
        self.spill.keep("histograms", number, dict(pack(seen.histograms)))

    def seen(self, draw: Draw) -> Observation:
        """Return what a run over the samples of a draw would have seen."""
        total: dict[str, Histogram] = {}
        for number in draw:
            for name, histogram in unpack(self.spill.get("histograms", number)).items():
                total.setdefault(name, Histogram()).merge(histogram)
        samples = self.chunk * len(draw)
        return Observation(self.model.fingerprint, self.dataset.identity, samples, total)
