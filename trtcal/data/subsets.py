"""Datasets made of another dataset: some of its samples, or all of them with their reads counted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any

import numpy as np

from trtcal.data.dataset import Dataset, Digests, Feeds, Labels, Runs, Samples, Span, spans
from trtcal.data.feeds import Cursor
from trtcal.documents import canonical_json, digest_bytes

RUNS = 8  # in which samples are held back


@dataclass(frozen=True)
class Subset(Samples):
    """The samples of `whole` in `spans`, one after the other; the first of them is number 0 here."""

    name: str
    whole: Dataset
    spans: tuple[Span, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The model's inputs that every batch feeds."""
        return self.whole.inputs

    @property
    def labels(self) -> Labels | None:
        """One class a sample (int64, shape (samples,)), None if the data have none."""
        labels = self.whole.labels
        return None if labels is None else np.concatenate([labels[a:b] for a, b in self.spans])

    @property
    def files(self) -> tuple[str, ...] | None:
        """The samples' files relative to their folder, None if they have none of their own."""
        files = self.whole.files
        return None if files is None else tuple(file for a, b in self.spans for file in files[a:b])

    @property
    def unused(self) -> tuple[str, ...]:
        """Arrays or files among the data that are not used."""
        return self.whole.unused

    @property
    def batch(self) -> int | None:
        """The batch size that the model prescribes, None where it is dynamic."""
        return self.whole.batch

    @property
    def shapes(self) -> Runs:
        """The shapes of the samples; a batch ends where they change."""
        ends = list(accumulate(count for count, _ in self.whole.shapes))
        kinds = [shapes for _, shapes in self.whole.shapes]
        runs = self.whole.shapes
        pieces = [(a, b) for span in self.spans for a, b in spans(len(self.whole), *span, runs)]
        each = ((kinds[bisect_right(ends, first)], last - first) for first, last in pieces)
        same = ((kind, list(group)) for kind, group in groupby(each, itemgetter(0)))
        return tuple((sum(count for _, count in group), kind) for kind, group in same)

    @property
    def identity(self) -> str:
        """Digest that is known before the samples are read, if that of the whole is."""
        return self._derived(self.whole.identity)

    @property
    def fingerprint(self) -> str:
        """Digest made of that of the whole, which may have to be read for it, and of the spans."""
        return self._derived(self.whole.fingerprint)

    def _derived(self, digest: str) -> str:
        return digest_bytes(canonical_json({"whole": digest, "spans": self.spans}))

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.spans)

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Feeds]:
        """Yield feeds of the model's batch size, else of `size`, from `start` up to `stop`."""
        size = self.batch or size
        stop = len(self) if stop is None else min(stop, len(self))
        cursor = Cursor(self._pieces(size, start, stop))
        for first, last in spans(size, start, stop, self.shapes):
            yield cursor.take(last - first)

    def _pieces(self, size: int, start: int, stop: int) -> Iterator[Feeds]:
        """Yield feeds of at most `size` samples, which end where a span does."""
        before = 0
        for first, last in self.spans:
            begin, end = max(start - before, 0), min(stop - before, last - first)
            if begin < end:
                yield from self.whole.batches(size, first + begin, first + end)
            before += last - first

    def witnessed(self) -> Digests:
        """Return the digests of its samples read so far; (0, 32) if the fingerprint needs none."""
        known = self.whole.witnessed()
        return np.concatenate([known[start:stop] for start, stop in self.spans])

    def learn(self, witnessed: Digests) -> None:
        """Take in what another process witnessed; `InputError` if it read other samples."""
        if not len(self.whole.witnessed()):
            return
        known, before = np.zeros((len(self.whole), witnessed.shape[1]), np.uint8), 0
        for start, stop in self.spans:
            known[start:stop] = witnessed[before : before + stop - start]
            before += stop - start
        self.whole.learn(known)


def held_back(dataset: Dataset, samples: int, unit: int = 1) -> tuple[Subset, Subset]:
    """Return most of a dataset, and so many samples of it, in runs from all over it.

    Data are often in the order of their classes. All runs are multiples of `unit`.
    """
    runs = max(min(RUNS, samples // unit), 1)
    ends = [len(dataset) * (i + 1) // runs // unit * unit for i in range(runs)]
    each = [samples // unit * (i + 1) // runs * unit for i in range(runs)]
    most, judged, before, taken = [], [], 0, 0
    for end, upto in zip(ends, each, strict=True):
        if before < end - (upto - taken):
            most.append((before, end - (upto - taken)))
        judged.append((end - (upto - taken), end))
        before, taken = end, upto
    return (
        Subset(f"most of {dataset.name}", dataset, tuple(most)),
        Subset(f"held back of {dataset.name}", dataset, tuple(judged)),
    )


def spread_over(dataset: Dataset, samples: int, unit: int = 1) -> Dataset:
    """Return so many samples from all over a dataset, at least `unit`; all where it has no more."""
    whole = max(samples // unit, 1) * unit
    return held_back(dataset, whole, unit)[1] if whole < len(dataset) else dataset


@dataclass(frozen=True)
class DataRead:
    """How many samples were read for one purpose, and how many passes over the data that is."""

    purpose: str
    samples: int
    passes: float


@dataclass(frozen=True)
class CountedDataset(Subset):
    """All samples of a dataset, which counts those that are read by purpose. See `counted`."""

    reads: dict[str, int] = field(default_factory=dict)
    purposes: list[str] = field(default_factory=lambda: ["other"])

    @property
    def identity(self) -> str:
        """Digest that is known before the samples are read."""
        return self.whole.identity

    @property
    def fingerprint(self) -> str:
        """Digest of samples and labels; samples that are read for it are counted."""
        known = self.whole.witnessed()
        self.add(int((~known.any(axis=1)).sum()), "fingerprint")
        return self.whole.fingerprint

    @contextmanager
    def reading_for(self, purpose: str) -> Iterator[None]:
        """Count what is read in the block under a purpose, such as "data check"."""
        self.purposes.append(purpose)
        try:
            yield
        finally:
            self.purposes.pop()

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Feeds]:
        """Yield feeds of `size` samples in order from `start` up to `stop`; the last may be smaller."""
        for feeds in self.whole.batches(size, start, stop):
            self.add(len(next(iter(feeds.values()))))
            yield feeds

    def add(self, samples: int, purpose: str | None = None) -> None:
        """Count samples that were read, by this process or by others."""
        if samples:
            purpose = purpose or self.purposes[-1]
            self.reads[purpose] = self.reads.get(purpose, 0) + samples

    def summary(self) -> tuple[DataRead, ...]:
        """Return what was read for what, in the order of the first read."""
        return tuple(
            DataRead(purpose, samples, round(samples / len(self), 3))
            for purpose, samples in self.reads.items()
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the dataset alone: what another process reads is added with `count_read`."""
        return itemgetter(0), ((self.whole,),)


def counted(dataset: Dataset) -> CountedDataset:
    """Return the dataset with its reads counted; the pass that opened it is the first entry.

    >>> import numpy as np
    >>> from trtcal.data.dataset import ArrayDataset
    >>> data = counted(ArrayDataset("ones", {"x": np.ones((4, 3), np.float32)}, None, "sha256:1"))
    >>> with data.reading_for("histograms"):
    ...     batches = list(data.batches(2))
    >>> [(read.purpose, read.passes) for read in data.summary()]
    [('opening: check and fingerprint', 1.0), ('histograms', 1.0)]
    """
    counted_dataset = CountedDataset(dataset.name, dataset, ((0, len(dataset)),))
    known = dataset.witnessed()  # none at all where the fingerprint was taken when it was opened
    opened = int(known.any(axis=1).sum()) if len(known) else len(dataset)
    counted_dataset.add(opened, "opening: check and fingerprint")
    return counted_dataset


def count_read(dataset: Dataset, samples: int) -> None:
    """Count samples that other processes read of a dataset, if its reads are counted."""
    while isinstance(dataset, Subset):
        if isinstance(dataset, CountedDataset):
            dataset.add(samples)
            return
        dataset = dataset.whole
