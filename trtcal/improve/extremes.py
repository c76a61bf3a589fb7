"""The least and the largest value of every channel of tensors, over samples of a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trtcal.backends.inside import Inside
from trtcal.data import Dataset
from trtcal.data.dataset import fixed_batch
from trtcal.model import Model
from trtcal.overlay import Floats

BATCH = 8


@dataclass(frozen=True)
class Extremes:
    """`least` and `largest` of each channel, shape (channels,)."""

    least: Floats
    largest: Floats

    @property
    def peak(self) -> npt.NDArray[np.float64]:
        """The largest magnitude of each channel."""
        return np.maximum(-self.least, self.largest).astype(np.float64)


def find_extremes(
    model: Model, dataset: Dataset, samples: int, axes: Mapping[str, int]
) -> dict[str, Extremes]:
    """Return by tensor the extremes along its axis of channels, over the first samples."""
    inside = Inside(model.proto, list(axes))
    least: dict[str, Floats] = {}
    largest: dict[str, Floats] = {}
    for feeds in dataset.batches(fixed_batch(model) or BATCH, 0, samples):
        for name, values in inside.read(feeds).items():
            others = tuple(i for i in range(values.ndim) if i != axes[name])
            least[name] = np.minimum(least.get(name, np.inf), values.min(axis=others))
            largest[name] = np.maximum(largest.get(name, -np.inf), values.max(axis=others))
    return {name: Extremes(least[name], largest[name]) for name in least}
