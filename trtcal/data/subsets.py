"""Parts of a dataset, as datasets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trtcal.data.dataset import Dataset, Digests, Feeds, Labels
from trtcal.documents import canonical_json, digest_bytes
from trtcal.errors import InputError

RUNS = 8  # in which samples are held back


@dataclass(frozen=True)
class Part:
    """The samples of `whole` from `start` up to `stop`; its first sample is number 0 here."""

    whole: Dataset
    start: int
    stop: int

    @property
    def name(self) -> str:
        """The name of the whole, and which samples of it."""
        return f"{self.whole.name}[{self.start}:{self.stop}]"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The model's inputs that every batch feeds."""
        return self.whole.inputs

    @property
    def labels(self) -> Labels | None:
        """One class a sample (int64, shape (samples,)), None if the data have none."""
        labels = self.whole.labels
        return None if labels is None else labels[self.start : self.stop]

    @property
    def unused(self) -> tuple[str, ...]:
        """Arrays or files among the data that are not used."""
        return self.whole.unused

    @property
    def identity(self) -> str:
        """Digest that is known before the samples are read, if that of the whole is."""
        return self._derived(self.whole.identity)

    @property
    def fingerprint(self) -> str:
        """Digest made of that of the whole, which may have to be read for it, and of the range."""
        return self._derived(self.whole.fingerprint)

    def _derived(self, digest: str) -> str:
        body = {"whole": digest, "start": self.start, "stop": self.stop}
        return digest_bytes(canonical_json(body))

    def __len__(self) -> int:
        return self.stop - self.start

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Feeds]:
        """Yield feeds of `size` samples in order from `start` up to `stop`; the last may be smaller."""
        end = self.stop if stop is None else min(self.start + stop, self.stop)
        return self.whole.batches(size, self.start + start, end)

    def witnessed(self) -> Digests:
        """Return the digests of its samples read so far; (0, 32) if the fingerprint needs none."""
        return self.whole.witnessed()[self.start : self.stop]

    def learn(self, witnessed: Digests) -> None:
        """Take in what another process witnessed; `InputError` if it read other samples."""
        before = np.zeros((self.start, witnessed.shape[1]), np.uint8)
        self.whole.learn(np.concatenate([before, witnessed]))


@dataclass(frozen=True)
class Pieces:
    """Several parts of one dataset, one after the other, of which `name` says what they are."""

    name: str
    parts: tuple[Part, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The model's inputs that every batch feeds."""
        return self.parts[0].inputs

    @property
    def labels(self) -> Labels | None:
        """One class a sample (int64, shape (samples,)), None if the data have none."""
        found = [one.labels for one in self.parts]
        known = [labels for labels in found if labels is not None]
        return np.concatenate(known) if len(known) == len(found) else None

    @property
    def unused(self) -> tuple[str, ...]:
        """Arrays or files among the data that are not used."""
        return self.parts[0].unused

    @property
    def identity(self) -> str:
        """Digest that is known before the samples are read, if that of the whole is."""
        return digest_bytes(canonical_json([one.identity for one in self.parts]))

    @property
    def fingerprint(self) -> str:
        """Digest made of those of the parts, for which the whole may have to be read."""
        return digest_bytes(canonical_json([one.fingerprint for one in self.parts]))

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Feeds]:
        """Yield feeds of `size` samples in order from `start` up to `stop`; the last may be smaller."""
        waiting: Feeds = {}
        for feeds in self._pieces(size, start, len(self) if stop is None else stop):
            waiting = _joined(waiting, feeds) if waiting else feeds
            while waiting and _count(waiting) >= size:
                yield {name: array[:size] for name, array in waiting.items()}
                rest = {name: array[size:] for name, array in waiting.items()}
                waiting = rest if _count(rest) else {}
        if waiting:
            yield waiting

    def _pieces(self, size: int, start: int, stop: int) -> Iterator[Feeds]:
        """Yield feeds of at most `size` samples, which end where a part does."""
        first = 0
        for one in self.parts:
            begin, end = max(start - first, 0), min(stop - first, len(one))
            if begin < end:
                yield from one.batches(size, begin, end)
            first += len(one)

    def witnessed(self) -> Digests:
        """Return the digests of the samples read so far; (0, 32) if the fingerprint needs none."""
        return np.concatenate([one.witnessed() for one in self.parts])

    def learn(self, witnessed: Digests) -> None:
        """Take in what another process witnessed; `InputError` if it read other samples."""
        first = 0
        for one in self.parts:
            one.learn(witnessed[first : first + len(one)])
            first += len(one)


def _count(feeds: Feeds) -> int:
    return len(next(iter(feeds.values())))


def _joined(first: Feeds, second: Feeds) -> Feeds:
    return {name: np.concatenate([array, second[name]]) for name, array in first.items()}


def held_back(dataset: Dataset, samples: int, unit: int = 1) -> tuple[Pieces, Pieces]:
    """Return most of a dataset, and so many samples of it, in runs from all over it.

    Data are often in the order of their classes. All runs are multiples of `unit`.
    """
    runs = max(min(RUNS, samples // unit), 1)
    ends = [len(dataset) * (i + 1) // runs // unit * unit for i in range(runs)]
    each = [samples // unit * (i + 1) // runs * unit for i in range(runs)]
    most, held, before, taken = [], [], 0, 0
    for end, upto in zip(ends, each, strict=True):
        most.append(part(dataset, before, end - (upto - taken)))
        held.append(part(dataset, end - (upto - taken), end))
        before, taken = end, upto
    return Pieces(f"most of {dataset.name}", tuple(most)), Pieces(
        f"held back of {dataset.name}", tuple(held)
    )


def part(dataset: Dataset, start: int, stop: int) -> Part:
    """Return a dataset's samples from `start` up to `stop`; `InputError` if there are no such ones.

    Where the model's batch is fixed, both are to be multiples of it; see `whole_batches`.
    """
    if not 0 <= start < stop <= len(dataset):
        raise InputError(
            f"data {dataset.name} have {len(dataset)} samples: there are none from {start} to {stop}",
            "take a part that lies among them",
        )
    return Part(dataset, start, stop)
