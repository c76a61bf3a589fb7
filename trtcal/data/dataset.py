"""What a dataset is: samples in a fixed order, in batches, with a fingerprint and perhaps labels."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from trtcal.documents import canonical_json, digest_bytes
from trtcal.documents.overview import Overview, Shown
from trtcal.errors import InputError
from trtcal.model import Model, without_samples

if TYPE_CHECKING:
    from trtcal.data.arrays import Rows

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
Labels = npt.NDArray[np.int64]
PADDING = -100
"""The label of what has none, as PyTorch's losses have it."""
Span = tuple[int, int]
"""Samples from the first up to, not including, the second."""
SampleShapes = Mapping[str, tuple[int, ...]]
"""The shape of one sample of each input, without an axis for samples."""
Runs = tuple[tuple[int, SampleShapes], ...]
"""How many samples in a row have which shapes, in the order of the data."""
SizeRanges = dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
"""By input: the least, median and most sizes."""
Digests = npt.NDArray[np.uint8]
"""The SHA-256 of each sample, shape (samples, 32); zeros where it is not known."""


class Fingerprint:
    """The digests of a known number of samples, taken in by parts, in any order."""

    def __init__(self, samples: int) -> None:
        self.digests: Digests = np.zeros((samples, hashlib.sha256().digest_size), np.uint8)

    def add(self, start: int, digests: Digests) -> bool:
        """Take in the digests of samples from `start` on; return False if they contradict."""
        kept = self.digests[start : start + len(digests)]
        if kept.shape != digests.shape:
            return False
        both = kept.any(axis=1) & digests.any(axis=1)
        if (kept[both] != digests[both]).any():
            return False
        kept |= digests  # each row is zeros on one side, or the same on both
        return True

    def gaps(self) -> list[tuple[int, int]]:
        """Return the runs of samples that are not known: the first, and one past the last."""
        unknown = np.flatnonzero(~self.digests.any(axis=1))
        runs = np.split(unknown, np.flatnonzero(np.diff(unknown) > 1) + 1)
        return [(int(run[0]), int(run[-1]) + 1) for run in runs if run.size]

    def digest(self, labels: Labels | None) -> str:
        """Return the digest of all samples and of their labels (int64, or None)."""
        samples = hashlib.sha256(self.digests.data).hexdigest()
        return digest_bytes(canonical_json({"samples": samples, "labels": labels_digest(labels)}))


def digests_of(feeds: Mapping[str, Array]) -> Digests:
    """Return the digest of each sample, over the names, types, shapes and bytes of all inputs."""
    names = sorted(feeds)
    forms = [[name, feeds[name].dtype.str, list(feeds[name].shape[1:])] for name in names]
    begun = hashlib.sha256(canonical_json(forms))
    digests = []
    for sample in zip(*(_bytes(feeds[name]) for name in names), strict=True):
        digest = begun.copy()
        for part in sample:
            digest.update(part)
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), -1)


def _bytes(array: Array) -> Digests:
    """Return the bytes of each sample, shape (samples, bytes)."""
    return np.ascontiguousarray(array).reshape(len(array), array[0].size).view(np.uint8)


def labels_digest(labels: Labels | None) -> str | None:
    """Return the digest of labels, None for none."""
    return None if labels is None else digest_bytes(labels.tobytes())


def changed(
    path: Path, hint: str = "do not change the files while trtcal reads them"
) -> InputError:
    """Return the error for data that were not the same in two passes."""
    return InputError(f"data {path} changed between two readings", hint)


class CarriedFeeds(Feeds):
    """A batch whose `states` (output -> input) were carried from sample to sample by the float model.

    `starts` says which of its samples begin a sequence.
    """

    def __init__(self, feeds: Feeds, states: Mapping[str, str], starts: Sequence[bool]) -> None:
        super().__init__(feeds)
        self.states, self.starts = states, starts


class Dataset(Protocol):
    """Samples that can be read again and again, always the same and in the same order.

    Every array of a batch has samples along its first axis, even for an input without such an
    axis: sessions (`trtcal.backends.sessions`) remove it. A dataset can be pickled: another
    process then reads the data without checking them again.

    >>> data = open_dataset("samples/digits/test.npz", "samples/digits/digits.onnx")
    >>> len(data), next(data.batches(8))["image"].shape
    (500, (8, 1, 8, 8))
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
    def files(self) -> tuple[str, ...] | None:
        """The samples' files relative to their folder, None if they have none of their own."""

    @property
    def unused(self) -> tuple[str, ...]:
        """Arrays or files among the data that are not used."""

    @property
    def about(self) -> str:
        """What a user should know of how the samples were made, "" if nothing."""

    @property
    def shapes(self) -> Runs:
        """The shapes of the samples; a batch ends where they change."""

    @property
    def batch(self) -> int | None:
        """The batch size that the model prescribes, None where it is dynamic."""

    @property
    def identity(self) -> str:
        """Digest that is known before the samples are read, to recognize unfinished work by."""

    @property
    def fingerprint(self) -> str:
        """Digest of samples and labels; the same for the same data in another container."""

    def __len__(self) -> int: ...

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Feeds]:
        """Yield feeds in order from `start` up to `stop`, in batches as the model takes them.

        These are of the size that it prescribes, else of `size` samples. The last one may be smaller,
        and the last of samples of one size.
        """

    def witnessed(self) -> Digests:
        """Return the digests of the samples read so far; (0, 32) if the fingerprint needs none."""

    def learn(self, witnessed: Digests) -> None:
        """Take in what another process witnessed; `InputError` if it read other samples."""


class Samples(Shown):
    """Base of datasets, which shows their number of samples, inputs and labels."""

    about = ""

    @property
    def identity(self: Dataset) -> str:
        """Digest to recognize unfinished work by: the fingerprint, unless one is known earlier."""
        return self.fingerprint

    def overview(self: Dataset) -> Overview:
        """Return the shapes of the samples, as many in a row as are the same."""
        labels = "no labels"
        if self.labels is not None:
            classes = f"{np.unique(self.labels).size} classes"
            shape = ", ".join(map(str, self.labels.shape[1:]))
            labels = f"labels of {f'shape ({shape})' if shape else classes}"
        title = (
            f"Dataset {self.name!r}: {len(self):,} samples of {', '.join(self.inputs)}, {labels}"
        )
        rows = [(count, *shape) for count, shapes in self.shapes for shape in shapes.items()]
        columns = {"input": "{1}", "shape": "{2}", "samples": "{0:,}"}
        return Overview(title, things=rows, columns=columns)


@dataclass(frozen=True)
class ArrayDataset(Samples):
    """Samples along the first axis of arrays, in memory or in files that tell if they are changed."""

    name: str
    arrays: Mapping[str, Rows]
    labels: Labels | None
    fingerprint: str
    unused: tuple[str, ...] = ()
    files: tuple[str, ...] | None = None
    batch: int | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The model's inputs that every batch feeds."""
        return tuple(self.arrays)

    @property
    def shapes(self) -> Runs:
        """The shapes of the samples, which are all the same."""
        return ((len(self), {name: array.shape[1:] for name, array in self.arrays.items()}),)

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Feeds]:
        """Yield feeds of the model's batch size, else of `size`, from `start` up to `stop`."""
        for first, last in spans(self.batch or size, start, _end(self, stop)):
            yield {name: array[first:last] for name, array in self.arrays.items()}

    def witnessed(self) -> Digests:
        """Return no digests: the fingerprint is known."""
        return Fingerprint(0).digests

    def learn(self, witnessed: Digests) -> None:
        """Do nothing: the fingerprint is known."""


class StreamedDataset(Samples, ABC):
    """Samples that are read anew in each pass, a batch at a time.

    Whoever first reads a sample gives its digest; every later pass has to give the same, else
    `InputError`. The fingerprint is made of the digests of all samples.
    """

    files: tuple[str, ...] | None = None
    batch: int | None = None
    shapes: Runs

    def __init__(
        self,
        path: Path,
        inputs: tuple[str, ...],
        samples: int,
        labels: Labels | None,
        unused: tuple[str, ...],
    ) -> None:
        self.path, self.inputs, self.labels, self.unused = path, inputs, labels, unused
        self._seen = Fingerprint(samples)

    @property
    def name(self) -> str:
        """The name of the file or folder."""
        return name_of(self.path)

    @property
    def fingerprint(self) -> str:
        """Digest of samples and labels; reads the samples that nobody has read yet."""
        for start, stop in self._seen.gaps():
            for _ in self._met(32, start, stop):
                pass
        return self._seen.digest(self.labels)

    def __len__(self) -> int:
        return len(self._seen.digests)

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[Feeds]:
        """Yield feeds of the model's batch size, else of `size`, from `start` up to `stop`."""
        yield from self._met(self.batch or size, start, _end(self, stop))

    def _met(self, size: int, start: int, stop: int) -> Iterator[Feeds]:
        for feeds in self.read(size, start, stop):
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


def spans(size: int, start: int, stop: int, runs: Runs = ()) -> Iterator[Span]:
    """Yield the first sample of each batch and one past its last; batches end where runs do."""
    ends = accumulate(count for count, _ in runs)
    for first, last in pairwise([start, *(end for end in ends if start < end < stop), stop]):
        for begin in range(first, last, size):
            yield begin, min(begin + size, last)


def shape_runs(shapes: Iterable[SampleShapes]) -> Runs:
    """Return how many samples in a row have which shapes."""
    return tuple((len(list(same)), sample_shapes) for sample_shapes, same in groupby(shapes))


def _end(dataset: Dataset, stop: int | None) -> int:
    return len(dataset) if stop is None else min(stop, len(dataset))


def name_of(path: Path) -> str:
    """Return what people call the data at `path`: a folder's name, a file's without its ending."""
    return path.resolve().name if path.is_dir() else path.stem


def size_ranges(model: Model, dataset: Dataset) -> SizeRanges:
    """Return the least, median and most sizes of the samples, as the model takes one of them.

    By input, for those with a dynamic size; the axis of samples has size 1.
    """
    ranges: SizeRanges = {}
    counts = [count for count, _ in dataset.shapes]
    for spec in model.inputs:
        if any(isinstance(size, str) for size in spec.shape):
            shapes = [shapes[spec.name] for _, shapes in dataset.shapes]
            axis = (1,) * (len(spec.shape) - len(shapes[0]))
            sizes = np.repeat(np.array(shapes).reshape(len(shapes), -1), counts, axis=0)
            middle = np.sort(sizes, axis=0)[(len(sizes) - 1) // 2]
            extremes = (sizes.min(axis=0), middle, sizes.max(axis=0))
            least, usual, most = ((*axis, *(int(size) for size in row)) for row in extremes)
            ranges[spec.name] = least, usual, most
    return ranges


def batch_for(model: Model, default: int) -> int:
    """Return the batch size to run a model with: its own where that is fixed."""
    return fixed_batch(model) or default


def fixed_batch(model: Model) -> int | None:
    """Return the batch size that the model's shapes prescribe, None where it is dynamic.

    Inputs without an axis for samples prescribe none. Where inputs disagree, one sample prevails, then
    a dynamic size, then the first input; where none has such an axis, samples are run one at a time.
    """
    alone = without_samples(model)
    sizes = [spec.shape[0] for spec in model.inputs if spec.name not in alone]
    if 1 in sizes or not sizes:
        return 1
    fixed = [size for size in sizes if isinstance(size, int)]
    return fixed[0] if len(fixed) == len(sizes) else None


def whole_batches(samples: int, model: Model) -> int:
    """Return a number of samples, raised to whole batches where the model prescribes their size."""
    size = batch_for(model, 1)
    return -(-samples // size) * size
