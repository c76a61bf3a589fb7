"""Arrays on disk as a dataset: an `.npz`, or a folder of `.npy` files, named after the inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.errors import InputError
from trtcal.model import Model, TensorSpec
from trtcal.storage import read_npz

Array = npt.NDArray[Any]
Feeds = dict[str, Array]

LABELS = "labels"
BLOCK = 1 << 22  # elements looked at together when data are checked


@dataclass(frozen=True)
class Dataset:
    """Samples along the first axis of `arrays`, and their labels (int64, shape (samples,)) if any.

    `unused` names arrays of the file that are no input of the model.
    """

    name: str
    arrays: Feeds
    labels: npt.NDArray[np.int64] | None
    fingerprint: str
    unused: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def batches(self, size: int) -> Iterator[Feeds]:
        """Yield feeds of `size` samples in order; the last one may be smaller."""
        for start in range(0, len(self), size):
            yield {name: array[start : start + size] for name, array in self.arrays.items()}


def open_dataset(path: Path, model: Model) -> Dataset:
    """Open and check the data at `path` for a model's inputs.

    `InputError` if it is missing, corrupt or empty, if names, shapes or types don't fit the model,
    or if a value is NaN or infinite.
    """
    found = _read(path)
    arrays = {spec.name: _fitting(path, spec, found) for spec in model.inputs}
    samples = _sample_count(path, arrays)
    _check_batch(path, samples, fixed_batch(model))
    for name, array in arrays.items():
        _check_finite(path, name, array)
    labels = _labels(path, found, samples)
    unused = tuple(sorted(set(found) - set(arrays) - {LABELS}))
    return Dataset(path.stem, arrays, labels, _fingerprint(arrays, labels), unused)


def fixed_batch(model: Model) -> int | None:
    """Return the batch size that the model's shapes prescribe, None where it is dynamic."""
    sizes = {spec.shape[0] for spec in model.inputs if spec.shape}
    fixed = [size for size in sizes if isinstance(size, int)]
    return max(fixed) if fixed else None


def _read(path: Path) -> Feeds:
    return _read_folder(path) if path.is_dir() else read_npz(path)


def _read_folder(path: Path) -> Feeds:
    files = sorted(path.glob("*.npy"))
    if not files:
        raise InputError(f"folder {path} has no .npy files", "name them after the model's inputs")
    return {file.stem: _read_array(file) for file in files}


def _read_array(file: Path) -> Array:
    try:
        array: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{file} cannot be read: {error}", "it must hold a plain array") from error
    return array


def _fitting(path: Path, spec: TensorSpec, found: Feeds) -> Array:
    if spec.name not in found:
        has = ", ".join(sorted(found)) or "nothing"
        raise InputError(
            f"data {path} have no array for the model's input {spec.name!r} (they have: {has})",
            f"the model wants {spec}",
        )
    array = found[spec.name]
    if str(array.dtype) != spec.dtype:
        raise InputError(
            f"data {path}: {spec.name!r} is {array.dtype}, the model wants {spec.dtype}",
            f"convert it before saving: array.astype('{spec.dtype}')",
        )
    if not _shape_fits(array.shape, spec):
        raise InputError(
            f"data {path}: {spec.name!r} has shape {list(array.shape)}, "
            f"the model wants [{', '.join(map(str, spec.shape))}] with samples first",
            "give the samples along the first axis, preprocessed as the model expects",
        )
    return array


def _shape_fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    if not spec.shape or len(shape) != len(spec.shape):
        return False
    pairs = zip(shape[1:], spec.shape[1:], strict=True)
    return all(isinstance(wanted, str) or have == wanted for have, wanted in pairs)


def _sample_count(path: Path, arrays: Feeds) -> int:
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) != 1:
        raise InputError(
            f"data {path}: the inputs have different numbers of samples: {counts}",
            "every array needs the same length along its first axis",
        )
    samples = next(iter(counts.values()))
    if samples == 0 or any(array.size == 0 for array in arrays.values()):
        raise InputError(f"data {path} are empty", "give at least one sample")
    return samples


def _check_batch(path: Path, samples: int, batch: int | None) -> None:
    if batch and samples % batch:
        raise InputError(
            f"data {path} have {samples} samples, but the model's batch is fixed at {batch}",
            f"give a multiple of {batch} samples, or export the model with a dynamic batch",
        )


def _check_finite(path: Path, name: str, array: Array) -> None:
    if array.dtype.kind != "f":
        return
    rows = max(1, BLOCK // max(1, array[0].size))
    for start in range(0, len(array), rows):
        block = array[start : start + rows]
        bad = ~np.isfinite(block).reshape(len(block), -1).all(axis=1)
        if bad.any():
            sample = start + int(np.argmax(bad))
            raise InputError(
                f"data {path}: {name!r} has NaN or infinite values (first in sample {sample})",
                "mend or drop those samples: a range cannot be chosen from them",
            )


def _labels(path: Path, found: Feeds, samples: int) -> npt.NDArray[np.int64] | None:
    if LABELS not in found:
        return None
    labels = found[LABELS]
    if labels.shape != (samples,) or labels.dtype.kind not in "iu":
        raise InputError(
            f"data {path}: labels are {labels.dtype}{list(labels.shape)}, not one integer a sample",
            f"save them as integers of shape ({samples},)",
        )
    return labels.astype(np.int64)


def _fingerprint(arrays: Feeds, labels: npt.NDArray[np.int64] | None) -> str:
    """Digest names, types, shapes and values: the same data in another file are the same data."""
    digest = hashlib.sha256()
    everything = {**arrays, **({} if labels is None else {f"{LABELS}\0": labels})}
    for name, array in sorted(everything.items()):
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).data)
    return "sha256:" + digest.hexdigest()
