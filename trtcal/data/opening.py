"""Open whatever the user calls the data: arrays, images, Polygraphy's inputs, or a script."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

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
from trtcal.data.feeds import FeedDataset
from trtcal.data.images import ImageDataset, find_images
from trtcal.data.polygraphy import JsonInputs, script_named
from trtcal.errors import InputError
from trtcal.model import Model, check_sample_axes


def open_dataset(
    path: Path, model: Model, images: ImagesConfig | None = None, labels: str | None = None
) -> Dataset:
    """Open and check the data at `path` for a model's inputs.

    An `.npz`; a folder of `.npy`, of images or of Polygraphy's JSON inputs; one such `.json`; or
    `script.py`, `script.py:function`. `images` says how images are preprocessed, `labels` ("csv",
    "folders") where those of an image folder stand; other data bring their own as `labels`.
    `InputError` if they are missing, corrupt or empty, if names, shapes or types don't fit the
    model, or if a value is NaN or infinite.
    """
    check_sample_axes(model)
    dataset = _open(path, model, images, labels)
    if labels and dataset.labels is None:
        raise InputError(
            f"data {path} have no labels, and labels = {labels!r} is only for a folder of images",
            f"give them as an array {LABELS!r} among the data, or drop `labels` in trtcal.toml",
        )
    return dataset


def _open(path: Path, model: Model, images: ImagesConfig | None, labels: str | None) -> Dataset:
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
    fingerprint = _look(where, arrays, samples).digest(labels)
    unused = tuple(sorted(set(found) - set(arrays) - {LABELS}))
    arrays = {name: direct(array) for name, array in arrays.items()}
    return ArrayDataset(name_of(path), arrays, labels, fingerprint, unused)


def _look(where: str, arrays: Mapping[str, Rows], samples: int) -> Fingerprint:
    """Go through all samples once, a block at a time, to check and to digest them."""
    seen = Fingerprint(samples)
    largest = max(math.prod(array.shape[1:]) for array in arrays.values())
    for start, stop in spans(max(1, BLOCK // largest), 0, samples):
        feeds = {name: array[start:stop] for name, array in arrays.items()}
        for name, array in feeds.items():
            check_finite(where, name, array, start)
        seen.add(start, digests_of(feeds))
    return seen
