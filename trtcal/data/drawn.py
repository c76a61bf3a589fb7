"""Random inputs of a model's shapes: to check that two models agree, never to calibrate on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trtcal.data.dataset import fixed_batch
from trtcal.data.fingerprint import Array, Feeds
from trtcal.errors import InputError
from trtcal.model import Model, TensorSpec, check_sample_axes

FLOATS = ("float16", "float32", "float64")
WHOLE = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def draw_batches(model: Model, samples: int, most: int = 32, seed: int = 0) -> Iterator[Feeds]:
    """Yield feeds of `samples` in all, up to `most` in a batch: a fixed batch size is kept.

    Floats are standard normal, whole numbers and booleans 0 or 1. The same seed draws the same ones.
    `InputError` if an input has a size of its own that is not fixed, or another type.
    """
    check_sample_axes(model)
    for spec in model.inputs:
        _check(spec)
    rng = np.random.default_rng(seed)
    size, done = fixed_batch(model), 0
    while done < samples:
        count = size or min(most, samples - done)
        yield {spec.name: _draw(spec, count, rng) for spec in model.inputs}
        done += count


def _check(spec: TensorSpec) -> None:
    if not all(isinstance(size, int) for size in spec.shape[1:]):
        raise InputError(f"random inputs need fixed sizes, and the model has {spec}", "give --data")
    if spec.dtype not in (*FLOATS, *WHOLE):
        raise InputError(f"random inputs are numbers, and the model has {spec}", "give --data")


def _draw(spec: TensorSpec, count: int, rng: np.random.Generator) -> Array:
    shape = [count, *(int(size) for size in spec.shape[1:])]
    drawn = rng.standard_normal(shape) if spec.dtype in FLOATS else rng.integers(0, 2, shape)
    return drawn.astype(spec.dtype)
