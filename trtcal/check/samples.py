"""The samples that are read, the image input among them, and checks that need no change of values.

Layout is judged by smoothness: neighbouring pixels of real images are alike. Channels-last values that
were only reshaped to channels-first (or the other way round) put other channels and far rows beside
each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trtcal.data import Dataset, Feeds, batch_for
from trtcal.data.dataset import Array, digests_of
from trtcal.data.issues import WARNING, DataIssue
from trtcal.evaluate.per_sample import Labels, class_labels
from trtcal.model import Model

RUNS = 8  # neighbours show repeats, runs from all over show everything else
CHANNELS = (1, 3)


@dataclass(frozen=True)
class Samples:
    """Some samples of a dataset with `total`: feeds with all of them, labels, places in the data.

    Those with one `form` and place are the same ones.
    """

    feeds: Feeds
    labels: Labels | None
    total: int
    batch: int
    numbers: Array
    form: tuple[object, ...] = field(default_factory=lambda: (object(),))

    def __len__(self) -> int:
        return len(next(iter(self.feeds.values())))

    def batches(self, size: int) -> Iterator[Feeds]:
        """Yield the samples, so many at a time."""
        for start in range(0, len(self), size):
            yield {name: array[start : start + size] for name, array in self.feeds.items()}

    def fitting(self, most: int, room: int) -> int:
        """Return how many samples fit into `room` bytes, at least 4 and `most` at most."""
        size = sum(array.nbytes for array in self.feeds.values()) // max(1, len(self))
        return min(most, max(4, room // max(1, size)))

    def first(self, count: int) -> Samples:
        """Return about `count` of them, from all over; the first ones where the batch is fixed."""
        if self.batch > 1:
            return self.at(np.arange(min(len(self), -(-count // self.batch) * self.batch)))
        return self.at(np.arange(0, len(self), max(1, len(self) // count)))

    def at(self, rows: Array) -> Samples:
        """Return the samples at some places."""
        feeds = {name: array[rows] for name, array in self.feeds.items()}
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, feeds=feeds, labels=labels, numbers=self.numbers[rows])


def take_samples(model: Model, dataset: Dataset, count: int) -> Samples:
    """Return up to `count` samples in runs from all over the data, in whole batches if it is fixed."""
    total, batch = len(dataset), batch_for(model, 1)
    runs = max(1, min(RUNS, count // batch))
    size = -(-count // runs // batch) * batch
    starts = range(0, total, size)
    if total > size * runs:
        starts = (np.linspace(0, (total - size) // batch, runs).astype(int) * batch).tolist()
    feeds, rows = _of_one_size(dataset, [(n, min(n + size, total)) for n in starts])
    classes = class_labels(dataset.labels)
    labels = None if classes is None else classes[rows]
    return Samples(feeds, labels, total, batch, rows)


def _of_one_size(dataset: Dataset, spans: Sequence[tuple[int, int]]) -> tuple[Feeds, Array]:
    """Return the samples of the size that most of those in the spans have, and their numbers."""
    by_shape: dict[str, tuple[Feeds, list[int]]] = {}
    most = sum(stop - start for start, stop in spans)
    for start, stop in spans:
        for feeds in dataset.batches(stop - start, start, stop):
            forms = {name: ((most, *a.shape[1:]), a.dtype) for name, a in feeds.items()}
            if str(forms) not in by_shape:
                by_shape[str(forms)] = {name: np.empty(*form) for name, form in forms.items()}, []
            joined, rows = by_shape[str(forms)]
            first, last = len(rows), len(rows) + len(next(iter(feeds.values())))
            for name, array in feeds.items():
                joined[name][first:last] = array
            rows += range(start, start := start + last - first)
    joined, rows = max(by_shape.values(), key=lambda same: len(same[1]))
    return {name: array[: len(rows)] for name, array in joined.items()}, np.array(rows)


@dataclass(frozen=True)
class ImageInput:
    """Which input is an image, and whether its channels come last."""

    name: str
    channels_last: bool

    @classmethod
    def of(cls, model: Model) -> ImageInput | None:
        """Return the one input of rank 4 with 1 or 3 channels, None if there is none or several."""
        images = [
            cls(spec.name, spec.shape[1] not in CHANNELS)
            for spec in model.inputs
            if len(spec.shape) == 4 and (spec.shape[1] in CHANNELS or spec.shape[3] in CHANNELS)
        ]
        return images[0] if len(images) == 1 else None

    def planes(self, array: Array) -> Array:
        """Return an input as [n, C, H, W]."""
        return np.moveaxis(array, -1, 1) if self.channels_last else array

    def packed(self, planes: Array) -> Array:
        """Return planes as the input wants them."""
        return np.moveaxis(planes, 1, -1) if self.channels_last else planes


FEWEST = 16  # samples below which ranges hang on single ones
SHARE = 0.05  # of the samples; a blank or repeated one now and then is usual
SMALLEST = 16  # values below which an input may well be constant: a mask, a size


def check_samples(samples: Samples) -> list[DataIssue]:
    """Return what is wrong with the samples themselves: too few, zero, constant or repeated."""
    issues = []
    if samples.total < FEWEST:
        text = f"the data have only {samples.total} samples"
        fix = f"give at least {FEWEST}, better some hundreds, that cover what the model will see"
        about = "too_few_samples", "samples", text, {"samples": float(samples.total)}, fix
        issues.append(DataIssue(*about, severity=WARNING))
    zeros, constant = _zero_and_constant(samples.feeds)
    if constant.mean() > SHARE and constant.sum() > 1:
        issues.append(_constant_issue(zeros, constant))
    repeated = ~constant
    repeated[_first_of_each(samples.feeds)] = False
    if repeated.mean() > SHARE and repeated.sum() > 1:
        what = "are exact copies of others among them"
        fix = "remove the copies: they make ranges narrower than the data"
        repeats = _share_issue("repeated_samples", repeated, what, fix)
        issues.append(replace(repeats, severity=WARNING))
    return issues


def _constant_issue(zeros: Array, constant: Array) -> DataIssue:
    all_zero = zeros.sum() > constant.sum() / 2
    return _share_issue(
        "zero_samples" if all_zero else "constant_samples",
        constant,
        f"have {'nothing but zeros' if all_zero else 'one value everywhere in each channel'}",
        "check how these samples are read and prepared: no range can be chosen from them",
    )


def _share_issue(kind: str, concerned: Array, predicate: str, fix: str) -> DataIssue:
    count, checked = int(concerned.sum()), len(concerned)
    figures = {"samples": float(count), "checked": float(checked)}
    return DataIssue(
        kind, "samples", f"{count} of {checked} samples checked {predicate}", figures, fix
    )


def _zero_and_constant(feeds: Feeds) -> tuple[Array, Array]:
    """Return for each sample whether all its inputs are zero, and whether they are constant."""
    size = len(next(iter(feeds.values())))
    large = [array for array in feeds.values() if array[0].size >= SMALLEST]
    inputs = [array for array in large if array.dtype.kind == "f"] or large  # else tokens
    if not inputs:
        return np.zeros(size, bool), np.zeros(size, bool)
    zeros = np.logical_and.reduce([(a == 0).reshape(size, -1).all(1) for a in inputs])
    constant = np.logical_and.reduce([_constant_rows(a) for a in inputs])
    return zeros, constant


def _constant_rows(array: Array) -> Array:
    """Return for each sample whether its every channel, of an image on whichever axis, is constant."""
    constant: Array = np.ptp(array.reshape(len(array), -1), axis=1) == 0
    if array.ndim == 4 and min(array.shape[2:]) > 1 and array.shape[1] in CHANNELS:
        constant = constant | (np.ptp(array, axis=(2, 3)) == 0).all(1)
    if array.ndim == 4 and min(array.shape[1:3]) > 1 and array.shape[3] in CHANNELS:
        constant = constant | (np.ptp(array, axis=(1, 2)) == 0).all(1)
    return constant


def drop_duplicates(samples: Samples) -> Samples:
    """Leave out copies, which would count as evidence of their own; a fixed batch stays whole."""
    rows = _first_of_each(samples.feeds)
    return samples.at(rows) if samples.batch == 1 and len(rows) < len(samples) else samples


def _first_of_each(feeds: Feeds) -> Array:
    """Return the places of the samples without those that are copies of an earlier one."""
    _, first = np.unique(digests_of(feeds), axis=0, return_index=True)
    return np.sort(first)


LOOKED_AT = 24  # samples by which smoothness is judged
NOISE = 0.95  # roughness of white noise is 1, of photographs 0.1 to 0.4
SIDE = 16  # pixels along a side, below which an input may be no picture


def check_noise(image: ImageInput, array: Array) -> DataIssue | None:
    """Return the issue that what should be images is noise."""
    planes = image.planes(some(array))
    rough = roughness(planes)
    if min(planes.shape[2:]) < SIDE or np.mean(rough > NOISE) < IMAGES:
        return None
    figures = {"roughness": float(np.median(rough))}
    return DataIssue(
        "noise",
        image.name,
        f"{image.name!r} is noise, not images: neighbouring pixels differ as much as any two "
        f"({figures['roughness']:.2f} times; in photographs 0.1 to 0.4)",
        figures,
        "give real samples: ranges and accuracy on random values do not apply to real ones",
    )


SMOOTHER = 0.6  # roughness as transposed over that as given, at most
IMAGES = 0.9  # share of the images for which that has to hold


def transposed(image: ImageInput, array: Array) -> Array:
    """Return an input whose values were reshaped instead of transposed, transposed."""
    n, *sizes = array.shape
    if image.channels_last:
        height, width, channels = sizes
        return np.moveaxis(array.reshape(n, channels, height, width), 1, -1)
    channels, height, width = sizes
    return np.moveaxis(array.reshape(n, height, width, channels), -1, 1)


def check_layout(image: ImageInput, array: Array) -> DataIssue | None:
    """Return the issue that an input was reshaped where it had to be transposed."""
    array = some(array)
    planes = image.planes(array)
    if planes.shape[1] == 1 or min(planes.shape[2:]) < 4:
        return None
    other = image.planes(transposed(image, array))
    before, after = roughness(planes), roughness(other)
    smoother = (after < SMOOTHER * before) & (steps(other) < steps(planes))
    if np.mean(smoother) < IMAGES:
        return None
    expected, had = ("NHWC", "NCHW") if image.channels_last else ("NCHW", "NHWC")
    figures = {"given": float(np.median(before)), "transposed": float(np.median(after))}
    axes = "0, 2, 3, 1" if image.channels_last else "0, 3, 1, 2"
    return DataIssue(
        "layout",
        image.name,
        f"{image.name!r} looks like {had} values read as {expected}: neighbouring pixels differ by "
        f"{figures['given']:.2f} times the difference of any two pixels, "
        f"read as {had} by {figures['transposed']:.2f} times",
        figures,
        f"transpose the images from {had} to {expected} instead of reshaping them: x.transpose({axes})",
    )


def some(array: Array) -> Array:
    """Return samples from all over, as many as smoothness is judged by."""
    return array[:: -(-len(array) // LOOKED_AT)]


def roughness(planes: Array) -> Array:
    """Return, for each sample, how far neighbours differ over how far any two pixels do.

    0 for a smooth image, 1 for noise; 0 for a constant one.
    """
    variance = 2 * planes.var((2, 3), dtype=np.float64).mean(1)
    zeros = np.zeros(len(planes))
    rough: Array = np.sqrt(np.divide(steps(planes), variance, out=zeros, where=variance > 0))
    return rough


def steps(planes: Array) -> Array:
    """Return, for each sample, the mean square of the differences of neighbours."""
    squares = []
    for axis in (2, 3):
        steps = np.diff(planes.astype(np.float32, copy=False), axis=axis)
        squares.append(np.square(steps, out=steps).mean((1, 2, 3), dtype=np.float64))
    return np.asarray(np.mean(squares, axis=0))
