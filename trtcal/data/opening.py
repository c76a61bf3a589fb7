"""Open what the user gives as data: files, folders, scripts, or arrays in memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from trtcal.config import ImagesConfig
from trtcal.data.arrays import Rows, direct, open_npy, open_npz
from trtcal.data.checks import (
    BLOCK,
    LABELS,
    check_batch,
    check_finite,
    fitting,
    labels_in,
    sample_count,
)
from trtcal.data.dataset import (
    ArrayDataset,
    Dataset,
    Fingerprint,
    digests_of,
    fixed_batch,
    name_of,
    spans,
)
from trtcal.data.feeds import ArrayLike, FeedDataset, arrays_in, is_array
from trtcal.data.images import ImageDataset, find_images
from trtcal.data.polygraphy import JsonInputs, script_named
from trtcal.errors import InputError
from trtcal.model import Model, check_sample_axes

IN_MEMORY = "arrays in memory"
Data = (
    str
    | os.PathLike[str]
    | Dataset
    | ArrayLike
    | Mapping[str, object]
    | Iterable[object]
    | Callable[[], Iterable[object]]
)
"""What can be opened as a dataset."""

TAKEN = (
    "give a path, {input: array}, one array if the model has one input, or something that yields such "
    "feeds in every pass: a list, a PyTorch DataLoader, a function"
)


def open_dataset(
    data: Data, model: Model, images: ImagesConfig | None = None, labels: str | None = None
) -> Dataset:
    """Open and check data for a model's inputs.

    A path (`str` or `Path`): an `.npz`; a folder of `.npy`, of images or of Polygraphy's JSON
    inputs; one such `.json`; or `script.py`, `script.py:function`. In memory: `{input: array}`; one
    array, for a model with one input; an iterable of such feeds that can be gone through again, or
    a function that gives one. A feed may also be a tuple of arrays in the order of the inputs, and
    then the labels, as a PyTorch DataLoader gives it. Arrays are numpy's, or have `.numpy()` or
    `__array__`, samples first; they must not change while they are used. A dataset stays itself.

    `images` says how images are preprocessed, `labels` ("csv", "folders") where those of an image
    folder stand; other data bring their own as `labels`. `InputError` if they are missing, corrupt,
    empty or of a type that is not taken, if names, shapes or types don't fit the model, or if a
    value is NaN or infinite.
    """
    check_sample_axes(model)
    dataset = _open(data, model, images, labels)
    if labels and dataset.labels is None:
        raise InputError(
            f"data {dataset.name} have no labels; labels = {labels!r} is only for a folder of images",
            f"give them as an array {LABELS!r} among the data, or drop `labels` in trtcal.toml",
        )
    return dataset


def _open(data: Data, model: Model, images: ImagesConfig | None, labels: str | None) -> Dataset:
    if isinstance(data, (str, os.PathLike)):
        return _open_path(Path(data), model, images, labels)
    if isinstance(data, Mapping) or is_array(data):
        found = arrays_in(IN_MEMORY, data, model.inputs)
        return _of_arrays(Path(IN_MEMORY), model, found)
    if hasattr(type(data), "witnessed"):  # isinstance would read the data for their fingerprint
        return _for_inputs(cast("Dataset", data), model)
    if isinstance(data, Iterator):
        raise InputError(
            f"data of type {type(data).__name__} can be read only once, and trtcal reads them again",
            "give the function that makes them, without calling it, or a list of the feeds",
        )
    if not (isinstance(data, Iterable) or callable(data)):
        raise InputError(f"data of type {type(data).__name__} cannot be read", TAKEN)
    name = getattr(data, "__name__", type(data).__name__)
    return FeedDataset(Path(name), model, InMemory(data))


def _for_inputs(dataset: Dataset, model: Model) -> Dataset:
    wanted = {spec.name for spec in model.inputs}
    if set(dataset.inputs) != wanted:
        raise InputError(
            f"dataset {dataset.name} feeds {', '.join(dataset.inputs)}, "
            f"the model takes {', '.join(sorted(wanted))}",
            "open the data with this model",
        )
    return dataset


@dataclass(frozen=True)
class InMemory:
    """Feeds in an iterable, or what a function gives, for one pass after the other."""

    data: Iterable[object] | Callable[[], Iterable[object]]

    def __call__(self) -> Iterator[object]:
        """Yield the feeds of one pass."""
        feeds = self.data() if callable(self.data) else self.data
        if not isinstance(feeds, Iterable):
            raise InputError(f"data of type {type(feeds).__name__} cannot be read", TAKEN)
        yield from feeds


def _open_path(
    path: Path, model: Model, images: ImagesConfig | None, labels: str | None
) -> Dataset:
    if path.is_dir():
        return _open_folder(path, model, images, labels)
    if path.suffix.lower() == ".json":
        return FeedDataset(path, model, JsonInputs((path,)))
    script = script_named(path)
    if script is not None:
        return FeedDataset(script.path, model, script)
    return _of_arrays(path, model, open_npz(path))


def _open_folder(
    folder: Path, model: Model, images: ImagesConfig | None, labels: str | None
) -> Dataset:
    arrays, feeds = sorted(folder.glob("*.npy")), sorted(folder.glob("*.json"))
    found = find_images(folder)
    if arrays and found[0]:
        raise InputError(
            f"folder {folder} has both .npy files and images ({found[0][0]} is one)",
            "put them into folders of their own",
        )
    if arrays:
        return _of_arrays(folder, model, {file.stem: open_npy(file) for file in arrays})
    if found[0]:
        return ImageDataset(folder, model, images, labels, found)
    if feeds:
        return FeedDataset(folder, model, JsonInputs(tuple(feeds)))
    raise InputError(
        f"folder {folder} has no .npy files, no images, and no .json inputs of Polygraphy",
        "give arrays named after the model's inputs, or images",
    )


def _of_arrays(path: Path, model: Model, found: Mapping[str, Rows]) -> Dataset:
    where = str(path)
    arrays = {spec.name: fitting(where, spec, found) for spec in model.inputs}
    samples = sample_count(where, arrays)
    check_batch(where, samples, fixed_batch(model))
    labels = labels_in(where, found, arrays, samples)
    fingerprint = _scan(where, arrays, samples).digest(labels)
    unused = tuple(sorted(set(found) - set(arrays) - {LABELS}))
    arrays = {name: direct(array) for name, array in arrays.items()}
    return ArrayDataset(name_of(path), arrays, labels, fingerprint, unused)


def _scan(where: str, arrays: Mapping[str, Rows], samples: int) -> Fingerprint:
    """Go through all samples once, a block at a time, to check and to digest them."""
    seen = Fingerprint(samples)
    largest = max(math.prod(array.shape[1:]) for array in arrays.values())
    for start, stop in spans(max(1, BLOCK // largest), 0, samples):
        feeds = {name: array[start:stop] for name, array in arrays.items()}
        for name, array in feeds.items():
            check_finite(where, name, array, start)
        seen.add(start, digests_of(feeds))
    return seen
