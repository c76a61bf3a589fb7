"""What a dataset is: samples in a fixed order, in batches, with a fingerprint and perhaps labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trtcal.data.fingerprint import Array, Fingerprint, Labels
from trtcal.errors import InputError
from trtcal.model import Model

Feeds = dict[str, Array]

BLOCK = 1 << 22  # elements looked at together when arrays are checked or digested


class Dataset(Protocol):
    """Samples that can be gone through again and again, always the same and in the same order."""

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
    def fingerprint(self) -> str:
        """Digest of samples and labels; the same for the same data in another container."""

    def __len__(self) -> int: ...

    def batches(self, size: int) -> Iterator[Feeds]:
        """Yield feeds of `size` samples in order; the last one may be smaller."""


@dataclass(frozen=True)
class ArrayDataset:
    """Samples along the first axis of arrays that are in memory, or mapped from files."""

    name: str
    arrays: Feeds
    labels: Labels | None
    fingerprint: str
    unused: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The model's inputs that every batch feeds."""
        return tuple(self.arrays)

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def batches(self, size: int) -> Iterator[Feeds]:
        """Yield feeds of `size` samples in order; the last one may be smaller."""
        for start in range(0, len(self), size):
            yield {name: array[start : start + size] for name, array in self.arrays.items()}


class StreamedDataset(ABC):
    """Samples that are read anew in each pass, a batch at a time.

    The first complete pass, whoever makes it, gives the fingerprint; every later one has to give
    the same, else `InputError`.
    """

    changed_hint = "leave the files alone while trtcal reads them"

    def __init__(self, path: Path, labels: Labels | None, unused: tuple[str, ...]) -> None:
        self.path, self.labels, self.unused = path, labels, unused
        self._fingerprint: str | None = None

    @property
    def name(self) -> str:
        """The name of the file or folder."""
        return name_of(self.path)

    @property
    def fingerprint(self) -> str:
        """Digest of samples and labels; reads everything if nobody has yet."""
        while self._fingerprint is None:
            for _ in self.batches(32):
                pass
        return self._fingerprint

    def batches(self, size: int) -> Iterator[Feeds]:
        """Yield feeds of `size` samples in order; the last one may be smaller."""
        seen = Fingerprint()
        for feeds in self.read(size):
            seen.update(feeds)
            yield feeds
        self._settle(seen.digest(self.labels))

    def _settle(self, fingerprint: str) -> None:
        if self._fingerprint not in (None, fingerprint):
            raise self.changed()
        self._fingerprint = fingerprint

    def changed(self) -> InputError:
        """Return the error for data that were not the same in two passes."""
        return InputError(
            f"data {self.path} were not the same when read once more", self.changed_hint
        )

    @abstractmethod
    def read(self, size: int) -> Iterator[Feeds]:
        """Yield fresh arrays of `size` samples in order."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """The model's inputs that every batch feeds."""

    @abstractmethod
    def __len__(self) -> int: ...


def name_of(path: Path) -> str:
    """Return what people call the data at `path`: a folder's name, a file's without its ending."""
    return path.resolve().name if path.is_dir() else path.stem


def fixed_batch(model: Model) -> int | None:
    """Return the batch size that the model's shapes prescribe, None where it is dynamic."""
    sizes = {spec.shape[0] for spec in model.inputs if spec.shape}
    fixed = [size for size in sizes if isinstance(size, int)]
    return max(fixed) if fixed else None
