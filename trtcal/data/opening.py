"""Open what the user gives as data: files, folders, scripts, or arrays in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from trtcal.config import LABELLED_BY, DataConfig, ImagesConfig, are_annotations, script_in
from trtcal.data.arrays import Rows, direct, open_npy, open_npz
from trtcal.data.checks import LABELS, Layout, check_batch, labels_in, scan, values_of
from trtcal.data.coco import with_annotations
from trtcal.data.dataset import ArrayDataset, Dataset, Feeds, name_of
from trtcal.data.feeds import ArrayLike, FeedDataset, Source, arrays_in, constant, is_array
from trtcal.data.images import ImageDataset, find_images
from trtcal.data.polygraphy import FUNCTION, Script, read_feeds
from trtcal.errors import InputError
from trtcal.model import Model
from trtcal.model.passes.bfloat16 import refuse_bfloat16
from trtcal.model.states import caches_of

IN_MEMORY = "arrays in memory"
Data = (
    str | os.PathLike[str] | Dataset | ArrayLike | Mapping[str, object] | Iterable[object] | Source
)
"""What can be opened as a dataset."""

TAKEN = (
    "give a path, {input: array}, one array if the model has one input, or something that yields such "
    "feeds in every pass: a list, a PyTorch DataLoader, a function"
)


def open_dataset(
    data: Data,
    model: Model,
    images: ImagesConfig | None = None,
    labels: str | Path | None = None,
    settings: DataConfig | None = None,
) -> Dataset:
    """Open and check data for a model's inputs.

    A path (`str` or `Path`): an `.npz`; a `.npy` for a model with one input; a folder of `.npy`, of
    images, of `.npz` (a feed in each) or of Polygraphy's JSON inputs; one such `.json`; or
    `script.py`, `script.py:function`. In memory:
    `{input: array}`; one array, for a model with one input; an iterable of such feeds that can be gone
    through again, or a function that gives one. A feed may also be a tuple of arrays in the order of
    the inputs, and then the labels, as a PyTorch DataLoader gives it. Arrays are numpy's, or have
    `.numpy()` or `__array__`, samples first; they must not change while they are used. A dataset stays
    itself.

    An array without an axis for samples, a scalar too, is the same for all samples. An input that has
    no such axis in the model takes one sample after another. Feeds and images may be of different
    sizes, where the model takes them: a batch has samples of one size.

    `images` says how images are preprocessed, `labels` ("csv", "folders") where those of an image
    folder stand, or is a file of annotations in COCO's JSON for data of any form; `settings` says which
    inputs are the same for all samples. Other data bring their own as `labels`. `InputError` if they
    are missing, corrupt, empty or of a type that is not taken, if names, shapes or types don't fit the
    model, or if a value is NaN or infinite.
    """
    if labels and not LABELLED_BY.fits(labels):
        raise InputError(
            f"labels {labels} must be {LABELLED_BY.words}", "docs/data.md lists the forms of labels"
        )
    is_file = bool(labels) and are_annotations(labels)
    kind = None if labels is None or is_file else str(labels)
    dataset = _open(data, model, images, kind, settings or DataConfig())
    if labels and is_file:
        return with_annotations(dataset, Path(labels), images)
    if labels and dataset.labels is None:
        raise InputError(
            f"data {dataset.name} have no labels; labels = {labels!r} is for a folder of images "
            "only",
            f"give the labels as an array {LABELS!r} in the data, or remove `labels` from "
            "trtcal.toml",
        )
    return dataset


def _open(
    data: Data, model: Model, images: ImagesConfig | None, labels: str | None, settings: DataConfig
) -> Dataset:
    layout = _layout(model, settings)
    if isinstance(data, (str, os.PathLike)):
        return _open_path(Path(data), layout, images, labels)
    if isinstance(data, Mapping) or is_array(data):
        arrays = arrays_in(IN_MEMORY, data, layout.fed)
        return _of_arrays(Path(IN_MEMORY), layout, arrays)
    if hasattr(type(data), "witnessed"):  # isinstance would read the data for their fingerprint
        return _for_inputs(cast("Dataset", data), model)
    if isinstance(data, Iterator):
        raise InputError(
            f"data of type {type(data).__name__} can be read only once, and trtcal reads data "
            "several times",
            "give the function that makes the feeds, without calling it, or a list of feeds",
        )
    if not (isinstance(data, Iterable) or callable(data)):
        raise InputError(f"data of type {type(data).__name__} cannot be read", TAKEN)
    name = getattr(data, "__name__", type(data).__name__)
    return FeedDataset(Path(name), layout, partial(_in_memory, data))


def _layout(model: Model, settings: DataConfig) -> Layout:
    """Return where the inputs of a model have samples, and those that are given for all data."""
    refuse_bfloat16(model)
    layout = Layout.of(model)
    types = {spec.name: spec.dtype for spec in layout.specs}
    for name in (*settings.constants, *settings.states.values()):
        if name not in types:
            raise InputError(
                f"[data] of trtcal.toml names {name!r}, which is not an input of the model",
                f"its inputs are: {', '.join(types)}",
            )
    fed_back = set(settings.states.values())
    constants = {
        spec.name: np.zeros(
            [size if isinstance(size, int) else 1 for size in spec.shape], spec.dtype
        )
        for spec in layout.specs
        if spec.name in fed_back
    }
    for spec in layout.specs:
        if spec.name in caches_of(model).values():  # empty before the first token
            sizes = [size if isinstance(size, int) else 0 for size in spec.shape[1:]]
            constants[spec.name] = np.zeros([1, *sizes], spec.dtype)
    for name, value in settings.constants.items():
        constants[name] = constant("constants", name, value, types[name])
    alone = layout.alone if settings.sample_axis else frozenset(types)
    return replace(layout, constants=constants, alone=alone)


def _for_inputs(dataset: Dataset, model: Model) -> Dataset:
    names = {spec.name for spec in model.inputs}
    if set(dataset.inputs) != names:
        raise InputError(
            f"dataset {dataset.name} feeds {', '.join(dataset.inputs)}, "
            f"the model takes {', '.join(sorted(names))}",
            "open the data with this model",
        )
    return dataset


def _in_memory(data: Iterable[object] | Source) -> Iterator[object]:
    """Yield the feeds of one pass out of an iterable, or of what a function gives."""
    feeds = data() if callable(data) else data
    if not isinstance(feeds, Iterable):
        raise InputError(f"data of type {type(feeds).__name__} cannot be read", TAKEN)
    yield from feeds


def _open_path(
    path: Path, layout: Layout, images: ImagesConfig | None, labels: str | None
) -> Dataset:
    if path.is_dir():
        return _open_folder(path, layout, images, labels)
    if path.suffix.lower() == ".json":
        return FeedDataset(path, layout, partial(read_feeds, path))
    if script := script_in(path):
        file, function = script
        return FeedDataset(file, layout, Script(file, function or FUNCTION))
    return _of_arrays(path, layout, _arrays_of(path, layout))


def _arrays_of(path: Path, layout: Layout) -> dict[str, Rows]:
    """Return the arrays of an `.npz`, or that of a `.npy` for the one input."""
    if path.suffix.lower() != ".npy":
        return open_npz(path)
    names = [spec.name for spec in layout.fed]
    if len(names) != 1:
        raise InputError(
            f"data {path} are one array, and the model has {len(names)} inputs: {', '.join(names)}",
            "put one .npy for each input, with its name, into a folder, or all arrays into an .npz",
        )
    return {names[0]: open_npy(path)}


def _open_folder(
    folder: Path, layout: Layout, images: ImagesConfig | None, labels: str | None
) -> Dataset:
    arrays, image_files = sorted(folder.glob("*.npy")), find_images(folder)
    if arrays and image_files[0]:
        raise InputError(
            f"folder {folder} has both .npy files and images, such as {image_files[0][0]}",
            "put arrays and images into separate folders",
        )
    if arrays:
        return _of_arrays(folder, layout, {file.stem: open_npy(file) for file in arrays})
    if image_files[0]:
        return ImageDataset(folder, layout, images, labels, image_files)
    for ending, read in (("npz", _npz_feed), ("json", read_feeds)):
        if files := sorted(folder.glob(f"*.{ending}")):
            return FeedDataset(folder, layout, partial(_of_files, files, read))
    raise InputError(
        f"folder {folder} has no .npy or .npz files, no images, and no .json inputs of Polygraphy",
        "give arrays named after the model's inputs, or images",
    )


def _of_files(files: Sequence[Path], read: Callable[[Path], Iterator[Feeds]]) -> Iterator[Feeds]:
    """Yield the feeds of all files in order, holding one file at a time."""
    for file in files:
        yield from read(file)


def _npz_feed(file: Path) -> Iterator[Feeds]:
    yield {name: values_of(rows) for name, rows in open_npz(file).items()}


def _of_arrays(path: Path, layout: Layout, feed: Mapping[str, Rows]) -> Dataset:
    where = str(path)
    placed = layout.place(where, feed)
    samples, arrays = placed.samples, placed.arrays
    if placed.in_batches:
        check_batch(where, samples, layout.batch)
    labels = labels_in(where, feed, arrays, samples)
    fingerprint = scan(where, arrays, samples).digest(labels)
    unused = tuple(sorted(set(feed) - set(arrays) - {LABELS}))
    arrays = {name: direct(array) for name, array in arrays.items()}
    return ArrayDataset(name_of(path), arrays, labels, fingerprint, unused, batch=layout.batch)
