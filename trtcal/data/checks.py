"""What every kind of data has to hold before a model sees it; `where` names the data in an error."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

import numpy as np

from trtcal.data.arrays import Rows
from trtcal.data.dataset import Array, Labels
from trtcal.errors import InputError
from trtcal.model import TensorSpec

LABELS = "labels"
BLOCK = 1 << 20  # elements checked together

AnyRows = TypeVar("AnyRows", bound=Rows)


def fitting(where: str, spec: TensorSpec, found: Mapping[str, AnyRows]) -> AnyRows:
    """Return the array for one input; `InputError` if it is not there or not of its form."""
    if spec.name not in found:
        has = ", ".join(sorted(map(str, found))) or "nothing"
        raise InputError(
            f"data {where}: no array for the model's input {spec.name!r} (there is: {has})",
            f"the model wants {spec}",
        )
    array = found[spec.name]
    if str(array.dtype) != spec.dtype:
        raise InputError(
            f"data {where}: {spec.name!r} is {array.dtype}, the model wants {spec.dtype}",
            f"convert it before saving: array.astype('{spec.dtype}')",
        )
    if not shape_fits(array.shape, spec):
        raise InputError(
            f"data {where}: {spec.name!r} has shape {list(array.shape)}, "
            f"the model wants [{', '.join(map(str, spec.shape))}] with samples first",
            "give the samples along the first axis, preprocessed as the model expects",
        )
    return array


def shape_fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    """Tell whether a shape is the input's, whatever the number of samples."""
    if not spec.shape or len(shape) != len(spec.shape):
        return False
    pairs = zip(shape[1:], spec.shape[1:], strict=True)
    return all(isinstance(wanted, str) or have == wanted for have, wanted in pairs)


def sample_count(where: str, arrays: Mapping[str, Rows]) -> int:
    """Return the number of samples; `InputError` if the inputs disagree, or there is none."""
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) != 1:
        raise InputError(
            f"data {where}: the inputs have different numbers of samples: {counts}",
            "every array needs the same length along its first axis",
        )
    if any(0 in array.shape for array in arrays.values()):
        raise empty(where)
    return next(iter(counts.values()))


def empty(where: str) -> InputError:
    """Return the error for data without a sample."""
    return InputError(f"data {where} are empty", "give at least one sample")


def check_batch(where: str, samples: int, batch: int | None) -> None:
    """Raise `InputError` if the samples can't be cut into the model's fixed batches."""
    if batch and samples % batch:
        raise InputError(
            f"data {where} have {samples} samples, but the model's batch is fixed at {batch}",
            f"give a multiple of {batch} samples, or export the model with a dynamic batch",
        )


def check_finite(where: str, name: str, array: Array, before: int = 0) -> None:
    """Raise `InputError` if a value is NaN or infinite; `before` samples came before this array."""
    if array.dtype.kind != "f":
        return
    rows = max(1, BLOCK // max(1, array[0].size))
    for start in range(0, len(array), rows):
        block = array[start : start + rows]
        bad = ~np.isfinite(block).reshape(len(block), -1).all(axis=1)
        if bad.any():
            sample = before + start + int(np.argmax(bad))
            raise InputError(
                f"data {where}: {name!r} has NaN or infinite values (first in sample {sample})",
                "correct or drop those samples: a range cannot be chosen from them",
            )


def labels_in(
    where: str, found: Mapping[str, Rows], inputs: Collection[str], samples: int
) -> Labels | None:
    """Return the array called `labels` as int64, None if there is none or it is an input."""
    if LABELS not in found or LABELS in inputs:
        return None
    labels = found[LABELS]
    if labels.shape != (samples,) or labels.dtype.kind not in "iu":
        raise InputError(
            f"data {where}: labels are {labels.dtype}{list(labels.shape)}, "
            "not one integer a sample",
            f"save them as integers of shape ({samples},)",
        )
    return labels[:].astype(np.int64)
