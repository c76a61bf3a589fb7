"""Open whatever the user calls the data: arrays, images, Polygraphy's inputs, or a script."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trtcal.config import ImagesConfig
from trtcal.data.checks import LABELS, check_batch, check_finite, fitting, labels_in, sample_count
from trtcal.data.dataset import BLOCK, ArrayDataset, Dataset, Feeds, fixed_batch, name_of
from trtcal.data.feeds import FeedDataset
from trtcal.data.fingerprint import Array, Fingerprint, Labels
from trtcal.data.images import ImageDataset, find_images
from trtcal.data.polygraphy_json import json_source
from trtcal.data.script import script_named, script_source
from trtcal.errors import InputError
from trtcal.model import Model
from trtcal.storage import read_npz


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
        return FeedDataset(path, model, json_source([path]))
    script = script_named(path)
    if script is not None:
        return FeedDataset(script[0], model, script_source(*script))
    return _of_arrays(path, model, read_npz(path))


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
        return _of_arrays(folder, model, {file.stem: _read_array(file) for file in arrays})
    if found[0]:
        return ImageDataset(folder, model, images, labels, found)
    if feeds:
        return FeedDataset(folder, model, json_source(feeds))
    raise InputError(
        f"folder {folder} has no .npy files, no images, and no .json inputs of Polygraphy",
        "give arrays named after the model's inputs, or images",
    )


def _read_array(file: Path) -> Array:
    try:
        array: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{file} cannot be read: {error}", "it must hold a plain array") from error
    return array


def _of_arrays(path: Path, model: Model, found: Feeds) -> Dataset:
    where = str(path)
    arrays = {spec.name: fitting(where, spec, found) for spec in model.inputs}
    samples = sample_count(where, arrays)
    check_batch(where, samples, fixed_batch(model))
    for name, array in arrays.items():
        check_finite(where, name, array)
    labels = labels_in(where, found, arrays, samples)
    unused = tuple(sorted(set(found) - set(arrays) - {LABELS}))
    return ArrayDataset(name_of(path), arrays, labels, _fingerprint(arrays, labels), unused)


def _fingerprint(arrays: Feeds, labels: Labels | None) -> str:
    seen = Fingerprint()
    for name, array in arrays.items():
        rows = max(1, BLOCK // array[0].size)
        for start in range(0, len(array), rows):
            seen.update({name: array[start : start + rows]})
    return seen.digest(labels)
