"""Feeds as a dataset: `{input: array}` after another, as Polygraphy and DataLoaders give them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from trtcal.data.checks import LABELS, Layout, check_batch, check_finite, empty, labels_in
from trtcal.data.dataset import (
    PADDING,
    Array,
    Feeds,
    Labels,
    SampleShapes,
    StreamedDataset,
    changed,
    digests_of,
    labels_digest,
    shape_runs,
    spans,
)
from trtcal.errors import InputError
from trtcal.model import Model, TensorSpec
from trtcal.model.model import Shape

Source = Callable[[], Iterable[object]]
"""Gives the feeds of one pass; called again for the next, perhaps in another process."""


class FeedDataset(StreamedDataset):
    """The rows of feeds one after another, whatever the number of rows in each.

    The feeds are gone through once at the start, which counts, checks and fingerprints them. A
    later pass that begins behind the one before goes on with its feeds.
    """

    def __init__(self, path: Path, layout: Layout, source: Source) -> None:
        self._layout, self._source, self.batch = layout, source, layout.batch
        self._cursor: Cursor | None = None
        first = _Pass(str(path), layout)
        digests = [digests_of(feeds) for feeds in first.feeds(source())]
        if not first.samples:
            raise empty(str(path))
        self.shapes, self.starts = shape_runs(first.shapes), frozenset(first.starts)
        for samples, _ in self.shapes if first.in_batches else ():
            check_batch(str(path), samples, layout.batch)
        inputs, unused = (spec.name for spec in layout.specs), sorted(first.unused)
        super().__init__(path, tuple(inputs), first.samples, first.all_labels(), tuple(unused))
        self.learn(np.concatenate(digests))

    def read(self, size: int, start: int, stop: int) -> Iterator[Feeds]:
        """Yield fresh arrays of `size` samples in order, from `start` up to `stop`."""
        if start >= stop:
            return
        cursor = self._cursor_at(start)
        for _, last in spans(size, start, stop, self.shapes):
            try:
                feeds = cursor.take(last - cursor.position)
            except ValueError as error:
                raise self.changed() from error
            if cursor.position != last or (last == len(self) and cursor.take(1)):
                raise self.changed()
            if last == stop < len(self):
                self._cursor = cursor
            yield feeds

    def changed(self) -> InputError:
        """Return the error for feeds that were not the same in two passes."""
        hint = "yield the same feeds in every pass: do not shuffle, and seed random numbers"
        return changed(self.path, hint)

    def _cursor_at(self, start: int) -> Cursor:
        """Return a cursor at a sample; it is kept only by the one who uses it, until he is done."""
        cursor, self._cursor = self._cursor, None
        if cursor is None or cursor.position > start:
            cursor = Cursor(self._again())
        cursor.skip(start - cursor.position)
        return cursor

    def _again(self) -> Iterator[Feeds]:
        """Yield the feeds of a new pass; `InputError` at its end if the labels are others."""
        again = _Pass(str(self.path), self._layout)
        yield from again.feeds(self._source())
        if labels_digest(again.all_labels()) != labels_digest(self.labels):
            raise self.changed()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_cursor": None}


class _Pass:
    """Checks each feed against the model, and remembers what it saw."""

    def __init__(self, where: str, layout: Layout) -> None:
        self.where, self.layout = where, layout
        self.in_batches = False
        self.unused: set[str] = set()
        self.shapes: list[SampleShapes] = []
        self.starts: list[int] = []
        self._labels: list[Labels] = []

    @property
    def samples(self) -> int:
        return len(self.shapes)

    def feeds(self, source: Iterable[object]) -> Iterator[Feeds]:
        """Yield the model's inputs out of each feed, checked; arrays are the source's own."""
        for number, feed in enumerate(source):
            where = f"{self.where}, feed {number}"
            named = arrays_in(where, feed, self.layout.fed)
            placed = self.layout.place(where, named)
            arrays = {name: array[:] for name, array in placed.arrays.items()}
            for name, array in arrays.items():
                check_finite(where, name, array, self.samples)
            self._keep_labels(where, labels_in(where, named, arrays, placed.samples))
            self.unused |= {str(name) for name in set(named) - set(arrays) - {LABELS}}
            self.in_batches |= placed.in_batches
            self.starts.append(self.samples)
            self.shapes += [{n: array.shape[1:] for n, array in arrays.items()}] * placed.samples
            yield arrays

    def all_labels(self) -> Labels | None:
        return joined_labels(self._labels) if self._labels else None

    def _keep_labels(self, where: str, labels: Labels | None) -> None:
        if self.samples and (labels is None) != (not self._labels):
            hint = "give labels in every feed, or in none"
            raise InputError(f"data {where}: some feeds have labels and others have none", hint)
        if labels is not None:
            self._labels.append(labels)


def joined_labels(parts: Sequence[Labels]) -> Labels:
    """Return the labels of all feeds; rows of shorter samples end with `PADDING`."""
    most = max(part[0].size for part in parts)
    if len({part.shape[1:] for part in parts}) == 1 or max(part.ndim for part in parts) > 2:
        return np.concatenate(parts)
    rows = (part.reshape(len(part), -1) for part in parts)
    ends = ((row, [(0, 0), (0, most - row.shape[1])]) for row in rows)
    return np.concatenate([np.pad(row, end, constant_values=PADDING) for row, end in ends])


@runtime_checkable
class ArrayLike(Protocol):
    """What numpy can take as an array: its own, PyTorch's tensors, data frames."""

    def __array__(self) -> Array: ...


TO_NUMPY = ("detach", "cpu", "numpy")  # methods of PyTorch's tensors; Polygraphy's views have one


def is_array(value: object) -> bool:
    """Whether a value is an array of any library."""
    return isinstance(value, ArrayLike) or callable(getattr(value, "numpy", None))


def arrays_in(where: str, feed: object, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Return a feed as a dictionary of numpy arrays; `InputError` if it is none.

    Arrays without names are the model's inputs in their order; one more is the labels. A plain number
    becomes what its input is of.
    """
    if not isinstance(feed, Mapping):
        feed = _named(where, feed, specs)
    types = {spec.name: spec.dtype for spec in specs}
    return {name: _array(where, name, value, types.get(name)) for name, value in feed.items()}


def _named(where: str, feed: object, specs: Sequence[TensorSpec]) -> dict[str, object]:
    names = [spec.name for spec in specs]
    values = [feed] if is_array(feed) else feed
    if not isinstance(values, (tuple, list)) or not all(map(is_array, values)):
        raise InputError(
            f"data {where}: the feed is a {type(feed).__name__}, not a dictionary of arrays",
            'give one dictionary for each feed, like {"input": array}',
        )
    if len(values) not in (len(names), len(names) + 1):
        raise InputError(
            f"data {where}: {len(values)} arrays have no names, and the model has {len(names)} "
            f"inputs ({', '.join(names)})",
            "give the arrays in the order of the inputs, then the labels, or give a dictionary",
        )
    return dict(zip([*names, LABELS], values, strict=False))


def _array(where: str, name: object, value: object, dtype: str | None) -> Array:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (bool, int, float)) and dtype is not None:
        return constant(where, name, value, dtype)
    if not is_array(value):
        raise _no_array(where, name, f"is a {type(value).__name__}, not an array")
    try:
        for step in TO_NUMPY:
            method = getattr(value, step, None)
            value = method() if callable(method) else value
        return np.asarray(value)
    except Exception as error:
        raise _no_array(where, name, f"cannot become a numpy array: {error}") from error


def constant(where: str, name: object, value: object, dtype: str) -> Array:
    """Return a number, or lists of them, as an array; `InputError` if the type does not hold them."""
    try:
        array = np.array(value)
        converted = array.astype(dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise _no_array(where, name, f"is not {dtype}: {error}") from error
    if converted.dtype.kind in "biu" and not np.array_equal(converted, array):
        raise _no_array(where, name, f"is {value}, which is out of the range of {dtype}")
    return converted


def _no_array(where: str, name: object, what: str) -> InputError:
    return InputError(
        f"data {where}: {name!r} {what}", "give numpy arrays whose first axis is the samples"
    )


class Cursor:
    """Takes samples out of feeds in order, whatever the number of rows in each."""

    def __init__(self, feeds: Iterable[Feeds]) -> None:
        self.position = 0
        self._feeds = iter(feeds)
        self._rest: Feeds = {}  # of the feed that was taken from last

    def take(self, count: int) -> Feeds:
        """Return copies of the next samples: fewer than `count` at the end, and then nothing.

        `ValueError` if they are not of one size.
        """
        pieces = self._pieces(count)
        parts = [{name: array.copy() for name, array in piece.items()} for piece in pieces]
        return _joined(parts) if parts else {}

    def skip(self, count: int) -> None:
        """Leave out the next samples."""
        for _ in self._pieces(count):
            pass

    def _pieces(self, count: int) -> Iterator[Feeds]:
        """Yield the next samples, as many together as one feed holds; good until the next ones."""
        while count:
            feed = self._rest or next(self._feeds, {})
            if not feed:
                return
            rows = min(count, len(next(iter(feed.values()))))
            count, self.position = count - rows, self.position + rows
            self._rest = {name: array[rows:] for name, array in feed.items() if len(array) > rows}
            yield {name: array[:rows] for name, array in feed.items()}


def _joined(parts: list[Feeds]) -> Feeds:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


FLOATS = ("float16", "float32", "float64")
WHOLE = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def draw_batches(model: Model, samples: int, most: int = 32, seed: int = 0) -> Iterator[Feeds]:
    """Yield feeds of `samples` in all, up to `most` in a batch: a fixed batch size is kept.

    Floats are standard normal, whole numbers and booleans 0 or 1. The same seed gives the same ones.
    `InputError` if an input has a size of its own that is not fixed, or another type.
    """
    layout = Layout.of(model)
    shapes = {spec: layout.sample_shape(spec) for spec in layout.specs}
    for spec, shape in shapes.items():
        _check(spec, shape)
    rng = np.random.default_rng(seed)
    done = 0
    while done < samples:
        count = layout.batch or min(most, samples - done)
        yield {spec.name: _draw(spec, (count, *shape), rng) for spec, shape in shapes.items()}
        done += count


def _check(spec: TensorSpec, shape: Shape) -> None:
    if not all(isinstance(size, int) for size in shape):
        raise InputError(f"random inputs need fixed sizes, and the model has {spec}", "give --data")
    if spec.dtype not in (*FLOATS, *WHOLE):
        raise InputError(f"random inputs are numbers, and the model has {spec}", "give --data")


def _draw(spec: TensorSpec, shape: Shape, rng: np.random.Generator) -> Array:
    sizes = [int(size) for size in shape]
    drawn = rng.standard_normal(sizes) if spec.dtype in FLOATS else rng.integers(0, 2, sizes)
    return drawn.astype(spec.dtype)
