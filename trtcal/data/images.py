"""A folder of images as a dataset: sorted by relative path, decoded a batch at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import numpy as np

from trtcal.config import IMAGES_EXAMPLE, ImagesConfig
from trtcal.data.checks import check_batch, shape_fits
from trtcal.data.dataset import (
    Array,
    Feeds,
    Labels,
    StreamedDataset,
    fixed_batch,
    labels_digest,
    spans,
)
from trtcal.data.preprocessing import Preprocess
from trtcal.data.slices import reading_csv
from trtcal.documents import canonical_json, digest_bytes
from trtcal.errors import InputError
from trtcal.model import Model, TensorSpec

CSV = "labels.csv"
COLUMNS = ("file", "label")


def image_labels(folder: Path, files: Sequence[str], kind: str | None) -> Labels | None:
    """Return one class for each file (paths relative to `folder`), None if `kind` is None.

    `kind` is "csv" or "folders". `InputError` if a file has no label, or a label no file.
    """
    if kind is None:
        return None
    read = from_csv if kind == "csv" else from_folders
    return read(folder, files)


def from_csv(folder: Path, files: Sequence[str]) -> Labels:
    """Return the labels that `labels.csv` (columns file and label, integers) gives to `files`."""
    path = folder / CSV
    rows = _rows(path)
    absent = sorted(set(rows) - set(files))
    if absent:
        raise InputError(
            f"{path} has a label for {absent[0]!r}, which is no image in that folder",
            f"give paths relative to {folder}, with / between folders",
        )
    missing = [file for file in files if file not in rows]
    if missing:
        raise InputError(
            f"{path} has no label for {missing[0]!r} ({len(missing)} of {len(files)} images)",
            "give every image a row",
        )
    return np.array([rows[file] for file in files], np.int64)


def _rows(path: Path) -> dict[str, int]:
    rows: dict[str, int] = {}
    with reading_csv(path, "write it with the columns file and label, or drop `labels`") as reader:
        if not set(COLUMNS) <= set(reader.fieldnames or ()):
            raise _wrong(path, 1, "the columns file and label are not both there")
        for row in reader:
            _keep(rows, path, reader.line_num, row["file"], row["label"])
    return rows


def _keep(rows: dict[str, int], path: Path, line: int, file: str, label: str | None) -> None:
    if file in rows:
        raise _wrong(path, line, f"{file!r} has a label already")
    try:
        rows[file] = int(np.int64(int(label or "")))
    except (ValueError, OverflowError):
        raise _wrong(path, line, f"the label {label!r} is not a whole number") from None


def _wrong(path: Path, line: int, what: str) -> InputError:
    return InputError(
        f"{path}, line {line}: {what}", "its first line is file,label; then one image a line"
    )


def from_folders(folder: Path, files: Sequence[str]) -> Labels:
    """Return the place of each file's topmost folder among all such folders, sorted by name.

    A folder without images keeps its place, so that a part of a dataset has the labels of the whole.
    """
    loose = [file for file in files if "/" not in file]
    if loose:
        raise InputError(
            f"image {loose[0]!r} lies in no class folder of {folder}",
            'put each image into the folder of its class, or use labels = "csv"',
        )
    found = (item.name for item in folder.iterdir() if item.is_dir())
    classes = sorted(name for name in found if not name.startswith("."))
    _check_numbers(folder, classes)
    place = {name: number for number, name in enumerate(classes)}
    return np.array([place[file.split("/")[0]] for file in files], np.int64)


def _check_numbers(folder: Path, classes: list[str]) -> None:
    """Refuse folders named by numbers that would get other numbers: 10 sorts before 2."""
    if not all(name.isascii() and name.isdigit() for name in classes):
        return
    for place, name in enumerate(classes):
        if int(name) != place:
            raise InputError(
                f"class folder {name!r} of {folder} would be class {place} in the sorted order",
                f"pad the numbers with zeros, from 0 without gaps, or write {CSV}",
            )


ENDINGS = (
    ".bmp",
    ".gif",
    ".jpeg",
    ".jpg",
    ".pgm",
    ".png",
    ".ppm",
    ".tif",
    ".tiff",
    ".webp",
)


class ImageDataset(StreamedDataset):
    """Image files below a folder, preprocessed as declared, for a model with one image input.

    Memory holds one batch. `InputError` if nothing is declared, or the first image does not fit
    the model; other images are read in their turn, and named if they are damaged or of another shape.
    """

    def __init__(
        self,
        folder: Path,
        model: Model,
        images: ImagesConfig | None,
        labels: str | None,
        found: tuple[list[str], list[str]] | None = None,
    ) -> None:
        files, others = found or find_images(folder)
        self._spec = _image_input(folder, model)
        self._preprocess = Preprocess(_declared(folder, images), self._spec.dtype)
        used = [CSV] if labels == "csv" else []
        unused = tuple(name for name in others if name not in used)
        given = image_labels(folder, files, labels)
        super().__init__(folder, (self._spec.name,), len(files), given, unused)
        self.files: tuple[str, ...] = tuple(files)
        self._shape = self._first_shape()
        check_batch(str(folder), len(self), fixed_batch(model))

    @cached_property
    def identity(self) -> str:
        """Digest of the files' paths, sizes and times, of what is declared, and of the labels."""
        found = [[name, *_state(self.path / name)] for name in self.files]
        how = [asdict(self._preprocess), str(self._spec)]
        return digest_bytes(canonical_json([found, how, labels_digest(self.labels)]))

    def read(self, size: int, start: int, stop: int) -> Iterator[Feeds]:
        """Yield fresh arrays of `size` samples in order, decoded on all cores."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for first, last in spans(size, start, stop):
                files = self.files[first:last]
                batch = np.empty((len(files), *self._shape), self._spec.dtype)
                list(pool.map(self._fill, files, batch))
                yield {self._spec.name: batch}

    def _fill(self, name: str, place: Array) -> None:
        sample = self._preprocess(self.path / name)
        if sample.shape != self._shape:
            raise self._misfit(name, sample, f"the first image is {list(self._shape)}")
        place[...] = sample

    def _first_shape(self) -> tuple[int, ...]:
        sample = self._preprocess(self.path / self.files[0])
        if not shape_fits((1, *sample.shape), self._spec):
            raise self._misfit(self.files[0], sample, f"the model wants {self._spec}")
        return sample.shape

    def _misfit(self, name: str, sample: Array, wanted: str) -> InputError:
        return InputError(
            f"image {self.path / name} becomes {list(sample.shape)}, {wanted}",
            "set resize, crop, channels and layout in [images] of trtcal.toml to what the model takes",
        )


def find_images(folder: Path) -> tuple[list[str], list[str]]:
    """Return the images below a folder and the other files, as sorted paths relative to it.

    Links to folders are followed, unless they lead back up; what begins with a dot is left out.
    """
    images, others = list[str](), list[str]()
    for file in _files(folder, ()):
        is_image = file.suffix.lower() in ENDINGS and file.is_file()
        (images if is_image else others).append(file.relative_to(folder).as_posix())
    return sorted(images), sorted(others)


def _files(folder: Path, above: tuple[str, ...]) -> Iterator[Path]:
    here = os.path.realpath(folder)
    if here in above:
        return
    try:
        items = [item for item in folder.iterdir() if not item.name.startswith(".")]
    except OSError as error:
        raise InputError(f"folder {folder} cannot be read: {error}", "check it") from error
    for item in items:
        if item.is_dir():
            yield from _files(item, (*above, here))
        else:
            yield item


def _state(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError as error:
        raise InputError(f"image {file} cannot be read: {error}", "check it") from error
    return found.st_size, found.st_mtime_ns


def _image_input(folder: Path, model: Model) -> TensorSpec:
    inputs = model.inputs
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or not _is_number(inputs[0].dtype):
        raise InputError(
            f"data {folder} are images, and the model does not take one batch of images "
            f"(it takes {'; '.join(map(str, inputs))})",
            "save its inputs as an .npz, or yield them from load_data() in a script",
        )
    return inputs[0]


def _is_number(dtype: str) -> bool:
    try:
        return np.dtype(dtype).kind in "fiu"
    except TypeError:
        return False


def _declared(folder: Path, images: ImagesConfig | None) -> ImagesConfig:
    if images is None:
        raise InputError(
            f"data {folder} are images, and nothing says how the model wants them",
            f"declare it at the top of trtcal.toml as in its training, for example: {IMAGES_EXAMPLE}",
        )
    return images
