"""What every kind of data has to hold before a model sees it; `where` names the data in an error."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trtcal.data.arrays import FileRows, Rows
from trtcal.data.dataset import Array, Fingerprint, Labels, digests_of, fixed_batch, spans
from trtcal.errors import InputError
from trtcal.model import Model, TensorSpec, without_samples
from trtcal.model.model import Shape

LABELS = "labels"
BLOCK = 1 << 20  # elements checked together


def fitting(where: str, spec: TensorSpec, feed: Mapping[str, Rows]) -> Rows:
    """Return the array for one input; `InputError` if it is not there or not of its form."""
    if spec.name not in feed:
        has = ", ".join(sorted(map(str, feed))) or "nothing"
        conversions = [line for n in feed if (line := _conversion(where, spec, n, feed[n]))]
        hint = f"; {conversions[0]}" if len(conversions) == 1 else ""
        if not spec.shape:
            hint = f"; give `{spec.name}` as one more array of the data: one value for all samples"
        raise InputError(
            f"data {where}: no array for the model's input {spec.name!r} (the data have {has})",
            f"the model expects {spec}{hint}",
        )
    array = feed[spec.name]
    if str(array.dtype) != spec.dtype:
        raise InputError(
            f"data {where}: {spec.name!r} is {array.dtype}, the model expects {spec.dtype}",
            _conversion(where, spec, spec.name, array)
            or f"convert it before saving: array.astype('{spec.dtype}')",
        )
    if not _fits(array.shape, spec.shape):
        raise InputError(
            f"data {where}: {spec.name!r} has shape {list(array.shape)}, the model expects "
            f"[{', '.join(map(str, spec.shape))}] with samples first",
            _conversion(where, spec, spec.name, array)
            or "give the samples along the first axis, preprocessed as the model expects",
        )
    return array


TRANSPOSED = {"channels last": (0, 3, 1, 2), "channels first": (0, 2, 3, 1)}


def _conversion(where: str, spec: TensorSpec, name: str, array: Rows) -> str | None:
    """Return the line of Python that makes an input of an array in a file, None if none does."""
    if not where.endswith((".npz", ".npy")):
        return None
    steps, had = "", ""
    if not _fits(array.shape, spec.shape):
        ways = {
            had: axes
            for had, axes in TRANSPOSED.items()
            if len(array.shape) == 4 and _fits(tuple(array.shape[i] for i in axes), spec.shape)
        }
        if len(ways) != 1:
            return None
        had, axes = ways.popitem()
        steps, had = f".transpose{axes}", f"it has {had}: "
    if str(array.dtype) != spec.dtype:
        steps += f".astype({spec.dtype!r})"
    single = where.endswith(".npy")
    source = "d" if single else f"d[{name!r}]"
    kept = "" if single else "**d, "
    return (
        f"{had}in Python: d = np.load({where!r}); "
        f"np.savez('data.npz', **{{{kept}{spec.name!r}: {source}{steps}}})"
    )


def _fits(shape: tuple[int, ...], expected: Shape) -> bool:
    return any(fits(shape, expected) for fits in FORMS)


def _sizes_fit(sizes: Sequence[int], expected: Shape) -> bool:
    return len(sizes) == len(expected) and all(
        isinstance(size, str) or have == size for have, size in zip(sizes, expected, strict=True)
    )


def shape_fits(shape: tuple[int, ...], expected: Shape) -> bool:
    """Tell whether an array has samples along the first axis that the model has for them."""
    return bool(shape and expected) and _sizes_fit(shape[1:], expected[1:])


def _adds_samples(shape: tuple[int, ...], expected: Shape) -> bool:
    """Tell whether an array has an axis for samples that the model's input has not."""
    return bool(shape) and _sizes_fit(shape[1:], expected)


def _is_one_sample(shape: tuple[int, ...], expected: Shape) -> bool:
    """Tell whether an array has no axis for samples, and the model's input has one."""
    return bool(expected) and _sizes_fit(shape, expected[1:])


FORMS = (shape_fits, _adds_samples, _is_one_sample, _sizes_fit)


@dataclass(frozen=True)
class Placed:
    """Arrays with `samples` along the first axis; inputs that were given once have copies of that."""

    samples: int
    arrays: dict[str, Rows]
    in_batches: bool  # whether the model has an axis for the samples


@dataclass(frozen=True)
class Layout:
    """Where a model's inputs have samples: those in `alone` have no axis for them.

    `constants` are inputs that the data need not hold.
    """

    specs: tuple[TensorSpec, ...]
    batch: int | None
    alone: frozenset[str]
    constants: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Model) -> Layout:
        """Return where the inputs of a model have samples, as far as it says so."""
        return cls(model.inputs, fixed_batch(model), without_samples(model))

    @property
    def fed(self) -> tuple[TensorSpec, ...]:
        """The inputs that the data hold."""
        return tuple(spec for spec in self.specs if spec.name not in self.constants)

    def place(self, where: str, feed: Mapping[str, Rows]) -> Placed:
        """Return the arrays of all inputs with samples along the first axis.

        What is given once is the same for all samples: an array without their axis, or with one sample
        where others have more. `InputError` if an array is missing or does not fit, or inputs disagree.
        """
        feed = {**self.constants, **feed}
        arrays = {spec.name: fitting(where, spec, feed) for spec in self.specs}
        sampled = {
            spec.name: arrays[spec.name]
            for spec in self.specs
            if self._is_sampled(spec, arrays[spec.name].shape)
        }
        most = max(map(len, sampled.values()), default=1)
        several = {name: rows for name, rows in sampled.items() if len(rows) != 1 or most == 1}
        samples = sample_count(where, several) if several else 1
        for name in set(arrays) - set(several):
            value = arrays[name][0:1][0] if name in sampled else values_of(arrays[name])
            arrays |= repeated({name: value}, samples)
        ranks = {spec.name: len(spec.shape) for spec in self.specs}
        return Placed(samples, arrays, any(len(arrays[n].shape) == ranks[n] for n in several))

    def sample_shape(self, spec: TensorSpec) -> Shape:
        """Return the shape of one sample of an input, as far as the model says it."""
        has_axis = spec.name not in self.alone and spec.shape[0] in (self.batch, str(spec.shape[0]))
        return spec.shape[1:] if has_axis else spec.shape

    def _is_sampled(self, spec: TensorSpec, shape: tuple[int, ...]) -> bool:
        """Whether an array holds samples along its first axis, not one value for all of them."""
        if _adds_samples(shape, spec.shape):
            return True
        if spec.name in self.alone or not shape_fits(shape, spec.shape):
            return False
        return shape[0] != spec.shape[0] or spec.shape[0] == self.batch


def repeated(values: Mapping[str, Array], samples: int) -> dict[str, Array]:
    """Return inputs that are the same for all samples with these along a first axis."""
    return {name: np.broadcast_to(array, (samples, *array.shape)) for name, array in values.items()}


def values_of(rows: Rows) -> Array:
    """Return all values of an array, in memory or in a file; one of shape () too."""
    return rows.whole() if isinstance(rows, FileRows) else np.asarray(rows)


def sample_count(where: str, arrays: Mapping[str, Rows]) -> int:
    """Return the number of samples; `InputError` if the inputs disagree, or there is none."""
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) != 1:
        raise InputError(
            f"data {where}: the inputs have different numbers of samples: {counts}",
            "give every array the same length along its first axis, or one value for all samples",
        )
    if 0 in counts.values():
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
                "correct or remove those samples",
            )


def scan(where: str, arrays: Mapping[str, Rows], samples: int) -> Fingerprint:
    """Go through all samples once, a block at a time, to check and to digest them."""
    seen = Fingerprint(samples)
    largest = max(1, *(math.prod(array.shape[1:]) for array in arrays.values()))
    for start, stop in spans(max(1, BLOCK // largest), 0, samples):
        feeds = {name: array[start:stop] for name, array in arrays.items()}
        for name, array in feeds.items():
            check_finite(where, name, array, start)
        seen.add(start, digests_of(feeds))
    return seen


def labels_in(
    where: str, feed: Mapping[str, Rows], inputs: Collection[str], samples: int
) -> Labels | None:
    """Return the array called `labels` as int64 or float64, None if there is none or it is an input.

    One row a sample: a class, a value, the classes of pixels. Classes kept as floats, as losses
    of two classes take them, are whole numbers too.
    """
    if LABELS not in feed or LABELS in inputs:
        return None
    labels = feed[LABELS]
    if labels.shape[:1] != (samples,) or labels.dtype.kind not in "iuf":
        raise InputError(
            f"data {where}: labels are {labels.dtype}{list(labels.shape)}, not one number for "
            "each sample",
            f"save labels as integers of shape ({samples},), those of pixels as ({samples}, "
            "height, width)",
        )
    rows = labels[:].reshape(samples) if labels.shape[1:] == (1,) else labels[:]
    check_finite(where, LABELS, rows)
    is_whole = rows.dtype.kind != "f" or bool((rows == np.rint(rows)).all())
    return rows.astype(np.int64 if is_whole else np.float64)
