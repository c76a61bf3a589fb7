"""The samples that are looked at, short runs from all over the data, and the images in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trtcal.data import Dataset, Feeds, fixed_batch
from trtcal.data.dataset import Array
from trtcal.evaluate.per_sample import Labels
from trtcal.model import Model

RUNS = 8  # neighbours show repeats, runs from all over show everything else
CHANNELS = (1, 3)


@dataclass(frozen=True)
class Drawn:
    """Some samples of a dataset with `total`: feeds with all of them, and their labels."""

    feeds: Feeds
    labels: Labels | None
    total: int
    batch: int

    def __len__(self) -> int:
        return len(next(iter(self.feeds.values())))

    def batches(self, size: int) -> Iterator[Feeds]:
        """Yield the samples, so many at a time."""
        for start in range(0, len(self), size):
            yield {name: array[start : start + size] for name, array in self.feeds.items()}

    def first(self, samples: int) -> Drawn:
        """Return about `samples` of them, from all over; the first ones where the batch is fixed."""
        if self.batch > 1:
            return self.at(np.arange(min(len(self), -(-samples // self.batch) * self.batch)))
        return self.at(np.arange(0, len(self), max(1, len(self) // samples)))

    def at(self, rows: Array) -> Drawn:
        """Return the samples at some places."""
        feeds = {name: array[rows] for name, array in self.feeds.items()}
        labels = None if self.labels is None else self.labels[rows]
        return Drawn(feeds, labels, self.total, self.batch)


def draw(model: Model, dataset: Dataset, samples: int) -> Drawn:
    """Return up to `samples` samples in runs spread over the data, in whole batches if it is fixed."""
    total, batch = len(dataset), fixed_batch(model) or 1
    runs = max(1, min(RUNS, samples // batch))
    size = -(-samples // runs // batch) * batch
    if total <= size * runs:
        spans = [(0, total)]
    else:
        starts = np.linspace(0, (total - size) // batch, runs).astype(int) * batch
        spans = [(int(start), int(start) + size) for start in starts]
    read = [next(dataset.batches(stop - start, start, stop)) for start, stop in spans]
    feeds = {name: np.concatenate([one[name] for one in read]) for name in read[0]}
    rows = np.concatenate([np.arange(*span) for span in spans])
    labels = None if dataset.labels is None else dataset.labels[rows]
    return Drawn(feeds, labels, total, batch)


@dataclass(frozen=True)
class Images:
    """Which input is an image, and whether its channels come last."""

    name: str
    channels_last: bool

    def planes(self, array: Array) -> Array:
        """Return an input as [n, C, H, W]."""
        return np.moveaxis(array, -1, 1) if self.channels_last else array

    def packed(self, planes: Array) -> Array:
        """Return planes as the input wants them."""
        return np.moveaxis(planes, 1, -1) if self.channels_last else planes


def find_images(model: Model) -> Images | None:
    """Return the one input of rank 4 with 1 or 3 channels, None if there is none or several."""
    found = [
        Images(spec.name, spec.shape[1] not in CHANNELS)
        for spec in model.inputs
        if len(spec.shape) == 4 and (spec.shape[1] in CHANNELS or spec.shape[3] in CHANNELS)
    ]
    return found[0] if len(found) == 1 else None
