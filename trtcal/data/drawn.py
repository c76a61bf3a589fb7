"""Inputs drawn at random, for others who must not see the data."""

from __future__ import annotations

import numpy as np

from trtcal.data.dataset import Array, ArrayDataset, Dataset
from trtcal.documents import digest_bytes

SEED = 0


class DrawnDataset(ArrayDataset):
    """Samples of `drawn_like`."""

    about = f"the inputs are drawn at random (seed {SEED}): no sample of the data is among them"


def drawn_like(dataset: Dataset, samples: int) -> Dataset:
    """Return samples without labels, in the shapes of the first samples of a dataset.

    Their values are uniform from the least to the largest of these, of each input. The same data give
    the same ones.
    """
    first, rng = next(dataset.batches(samples)), np.random.default_rng(SEED)
    arrays = {name: _drawn(array, samples, rng) for name, array in first.items()}
    fingerprint = digest_bytes(b"".join(array.tobytes() for array in arrays.values()))
    return DrawnDataset(f"{dataset.name}, drawn", arrays, None, fingerprint, batch=dataset.batch)


def _drawn(array: Array, samples: int, rng: np.random.Generator) -> Array:
    shape = (samples, *array.shape[1:])
    if array.dtype.kind in "biu":
        low, high = int(array.min()), int(array.max())
        return rng.integers(low, high, shape, np.int64, endpoint=True).astype(array.dtype)
    finite = array[np.isfinite(array)].astype(np.float64)
    low, high = finite.min(initial=0), finite.max(initial=0)
    return rng.uniform(low, high, shape).astype(array.dtype)
