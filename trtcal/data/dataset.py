"""What a dataset is: samples in a fixed order, in batches, with a fingerprint and perhaps labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trtcal.data.fingerprint import Digests, Feeds, Fingerprint, Labels, changed, digests_of
from trtcal.data.rows import Rows
from trtcal.errors import InputError
from trtcal.model import Model


class Dataset(Protocol):
    """Samples that can be gone through again and again, always the same and in the same order.

    It can be pickled: another process then reads the data without checking them once more.
    """

    @property
    def name(self) -> str:
        """What people call it: the name of its file or folder."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The model's inputs that every batch feeds."""

    @property
    def labels(self) -> Labels | None:
        """One class a sample (int64, shape (samples,)), None if the data have none."""

    @property
    def unused(self) -> tuple[str, ...]:
        """Arrays or files among the data that are not used."""

    @property
    def identity(self) -> str:
        """Digest that is known before the samples are read, to recognize unfinished work by."""

    @property
    def fingerprint(self) -> str:
        """Digest of samples and labels; the same for the same data in another container."""

    def __len__(self) -> int: ...

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Feeds]:
        """Yield feeds of `size` samples in order from `start` up to `stop`; the last may be smaller."""

    def witnessed(self) -> Digests:
        """Return the digests of the samples read so far; (0, 32) if the fingerprint needs none."""

    def learn(self, witnessed: Digests) -> None:
        """Take in what another process witnessed; `InputError` if it read other samples."""


@dataclass(frozen=True)
class ArrayDataset:
    """Samples along the first axis of arrays, in memory or in files that tell if they are changed."""

    name: str
    arrays: Mapping[str, Rows]
    labels: Labels | None
    fingerprint: str
    unused: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The model's inputs that every batch feeds."""
        return tuple(self.arrays)

    @property
    def identity(self) -> str:
        """The fingerprint, as it is known."""
        return self.fingerprint

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Feeds]:
        """Yield feeds of `size` samples in order from `start` up to `stop`; the last may be smaller."""
        for first, last in spans(size, start, _end(self, stop)):
            yield {name: array[first:last] for name, array in self.arrays.items()}

    def witnessed(self) -> Digests:
        """Return no digests: the fingerprint is known."""
        return Fingerprint(0).digests

    def learn(self, witnessed: Digests) -> None:
        """Do nothing: the fingerprint is known."""


class StreamedDataset(ABC):
    """Samples that are read anew in each pass, a batch at a time.

    Whoever first reads a sample gives its digest; every later pass has to give the same, else
    `InputError`. The fingerprint is made of the digests of all samples.
    """

    def __init__(
        self, path: Path, samples: int, labels: Labels | None, unused: tuple[str, ...]
    ) -> None:
        self.path, self.labels, self.unused = path, labels, unused
        self._seen = Fingerprint(samples)

    @property
    def name(self) -> str:
        """The name of the file or folder."""
        return name_of(self.path)

    @property
    def fingerprint(self) -> str:
        """Digest of samples and labels; reads the samples that nobody has read yet."""
        for start, stop in self._seen.gaps():
            for _ in self.batches(32, start, stop):
                pass
        return self._seen.digest(self.labels)

    def __len__(self) -> int:
        return len(self._seen.digests)

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Feeds]:
        """Yield feeds of `size` samples in order from `start` up to `stop`; the last may be smaller."""
        for feeds in self.read(size, start, _end(self, stop)):
            digests = digests_of(feeds)
            self._meet(start, digests)
            start += len(digests)
            yield feeds

    def witnessed(self) -> Digests:
        """Return the digests of the samples read so far, (samples, 32), zeros for the others."""
        return self._seen.digests.copy()

    def learn(self, witnessed: Digests) -> None:
        """Take in what another process witnessed; `InputError` if it read other samples."""
        self._meet(0, witnessed)

    def _meet(self, start: int, digests: Digests) -> None:
        if not self._seen.add(start, digests):
            raise self.changed()

    def changed(self) -> InputError:
        """Return the error for data that were not the same in two passes."""
        return changed(self.path)

    @abstractmethod
    def read(self, size: int, start: int, stop: int) -> Iterator[Feeds]:
        """Yield fresh arrays of `size` samples in order, from `start` up to `stop`."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Digest that is known before the samples are read."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """The model's inputs that every batch feeds."""


def spans(size: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the first sample of each batch and one past its last; the last batch may be smaller."""
    for first in range(start, stop, size):
        yield first, min(first + size, stop)


def _end(dataset: Dataset, stop: int | None) -> int:
    return len(dataset) if stop is None else min(stop, len(dataset))


def name_of(path: Path) -> str:
    """Return what people call the data at `path`: a folder's name, a file's without its ending."""
    return path.resolve().name if path.is_dir() else path.stem


def fixed_batch(model: Model) -> int | None:
    """Return the batch size that the model's shapes prescribe, None where it is dynamic."""
    sizes = {spec.shape[0] for spec in model.inputs if spec.shape}
    fixed = [size for size in sizes if isinstance(size, int)]
    return max(fixed) if fixed else None


def whole_batches(samples: int, model: Model) -> int:
    """Return a number of samples, raised to whole batches where the model prescribes their size."""
    size = fixed_batch(model) or 1
    return -(-samples // size) * size
