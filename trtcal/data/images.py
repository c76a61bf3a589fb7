"""A folder of images as a dataset: sorted by relative path, decoded a batch at a time."""

from __future__ import annotations

import math
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from itertools import accumulate, repeat
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from trtcal.config import IMAGES_EXAMPLE, ImagesConfig
from trtcal.data.checks import Layout, check_batch, repeated, shape_fits
from trtcal.data.dataset import (
    Array,
    Feeds,
    Labels,
    StreamedDataset,
    labels_digest,
    shape_runs,
    spans,
)
from trtcal.data.preprocessing import Preprocess
from trtcal.data.slices import reading_csv
from trtcal.documents import canonical_json, digest_bytes
from trtcal.documents.bounds import ARRAYS_BYTES, MB, check_file, read_bytes
from trtcal.errors import InputError
from trtcal.model import TensorSpec

CSV = "labels.csv"
COLUMNS = ("file", "label")


def image_labels(folder: Path, files: Sequence[str], kind: str | None) -> Labels | None:
    """Return one class for each file (paths relative to `folder`), None if `kind` is None.

    `kind` is "csv" or "folders". `InputError` if a file has no label, or a label no file.
    """
    if kind is None:
        return None
    return (from_csv if kind == "csv" else from_folders)(folder, files)


def from_csv(folder: Path, files: Sequence[str]) -> Labels:
    """Return the labels that `labels.csv` (columns file and label, integers) gives to `files`."""
    path = folder / CSV
    rows = _rows(path)
    if absent := sorted(set(rows) - set(files)):
        raise InputError(
            f"{path} has a label for {absent[0]!r}, which is not an image in that folder",
            f"give paths relative to {folder}, with / between folders",
        )
    if missing := [file for file in files if file not in rows]:
        raise InputError(
            f"{path} has no label for {missing[0]!r} ({len(missing)} of {len(files)} images)",
            "add a row for every image",
        )
    return np.array([rows[file] for file in files], np.int64)


def _rows(path: Path) -> dict[str, int]:
    rows: dict[str, int] = {}
    with reading_csv(
        path, "write the file with the columns file and label, or remove `labels`"
    ) as reader:
        if not set(COLUMNS) <= set(reader.fieldnames or ()):
            raise _wrong(path, 1, "it does not have both columns, file and label")
        for row in reader:
            _keep(rows, path, reader.line_num, row["file"], row["label"])
    return rows


def _keep(rows: dict[str, int], path: Path, line: int, file: str, label: str | None) -> None:
    if file in rows:
        raise _wrong(path, line, f"{file!r} has a second label")
    try:
        rows[file] = int(np.int64(int(label or "")))
    except (ValueError, OverflowError):
        raise _wrong(path, line, f"the label {label!r} is not a whole number") from None


def _wrong(path: Path, line: int, what: str) -> InputError:
    hint = "write file,label in the first line, then one line for each image"
    return InputError(f"{path}, line {line}: {what}", hint)


def from_folders(folder: Path, files: Sequence[str]) -> Labels:
    """Return the place of each file's topmost folder among all such folders, sorted by name.

    A folder without images keeps its place, so that a part of a dataset has the labels of the whole.
    """
    if loose := [file for file in files if "/" not in file]:
        hint = 'put each image into the folder of its class, or use labels = "csv"'
        raise InputError(f"image {loose[0]!r} is not in a class folder of {folder}", hint)
    classes = _class_folders(folder)
    _check_numbers(folder, classes)
    place = {name: number for number, name in enumerate(classes)}
    return np.array([place[file.split("/")[0]] for file in files], np.int64)


def _class_folders(folder: Path) -> list[str]:
    names = (item.name for item in folder.iterdir() if item.is_dir())
    return sorted(name for name in names if not name.startswith("."))


def folder_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the class folders of images, in the order of their numbers."""
    return tuple(name for name in _class_folders(folder) if name.isprintable())


def read_names(path: Path) -> tuple[str, ...]:
    """Return the names of classes in a text file, one a line; `InputError` if it is none of these."""
    try:
        names = read_bytes(path, MB).decode().rstrip("\n").split("\n")
    except UnicodeError:
        raise InputError(f"{path} is not UTF-8 text", "write one class per line") from None
    for number, name in enumerate(map(str.strip, names), 1):
        if not name or not name.isprintable():
            hint = "write one name per line"
            raise InputError(f"{path}, line {number}: this is not the name of a class", hint)
    return tuple(map(str.strip, names))


def _check_numbers(folder: Path, classes: list[str]) -> None:
    """Refuse folders named by numbers that would get other numbers: 10 sorts before 2."""
    if not all(name.isascii() and name.isdigit() for name in classes):
        return
    for place, name in enumerate(classes):
        if int(name) != place:
            raise InputError(
                f"class folder {name!r} of {folder} has number {place} in alphabetical order",
                "number the folders from 0 without gaps and pad the numbers with zeros, or write "
                f"{CSV}",
            )


ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
KEPT_BYTES = 1 << 28


class KeptPixels:
    """Pixels of decoded images in a temporary file of `KEPT_BYTES` at most, for later passes.

    A file that is another than when it was decoded, by size or time, is decoded again. Copies for other
    processes keep their own.
    """

    def __init__(self, decode: Callable[[Path], Array]) -> None:
        self.decode, self.lock, self.end = decode, Lock(), 0
        self.places = dict[Path, tuple[object, int, tuple[int, ...]]]()

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptPixels, (self.decode,)

    @cached_property
    def handle(self) -> int:
        """The open file, which has no name and goes with this object."""
        file = tempfile.TemporaryFile()  # noqa: SIM115  # it is closed with this object
        weakref.finalize(self, file.close)
        return file.fileno()

    def pixels(self, path: Path) -> Array:
        """Return an image's pixels; `InputError` if it cannot be decoded."""
        state = _state(path)
        was, offset, shape = self.places.get(path, (None, 0, ()))
        if was == state:
            data = os.pread(self.handle, math.prod(shape), offset)
            return np.frombuffer(data, np.uint8).reshape(shape)
        pixels = self.decode(path)
        self._keep(path, state, pixels)
        return pixels

    def _keep(self, path: Path, state: object, pixels: Array) -> None:
        with self.lock, suppress(OSError):  # on a full disk it is decoded again
            has_room = self.end + pixels.nbytes <= KEPT_BYTES
            if has_room and os.pwrite(self.handle, pixels.data, self.end) == pixels.nbytes:
                self.places[path] = state, self.end, pixels.shape
                self.end += pixels.nbytes


class ImageDataset(StreamedDataset):
    """Image files below a folder, preprocessed as declared, for a model with one image input.

    Memory holds one batch; later passes decode no image whose pixels are kept. `InputError` if nothing
    is declared, or the first image does not fit the model; other images are read in their turn, and
    named if they are damaged or of another shape.
    """

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        images: ImagesConfig | None,
        labels: str | None,
        listing: tuple[list[str], list[str]] | None = None,
    ) -> None:
        files, others = listing or find_images(folder)
        self._spec = _image_input(folder, layout)
        self._preprocess = Preprocess(_declared(folder, images), self._spec.dtype)
        self._kept = KeptPixels(self._preprocess.pixels)
        used = [CSV] if labels == "csv" else []
        unused = tuple(name for name in others if name not in used)
        all_labels = image_labels(folder, files, labels)
        self._constants, self.batch = layout.constants, layout.batch
        inputs = tuple(spec.name for spec in layout.specs)
        super().__init__(folder, inputs, len(files), all_labels, unused)
        self.files: tuple[str, ...] = tuple(files)
        once = {name: array.shape for name, array in self._constants.items()}
        shapes = self._sample_shapes()
        self.shapes = shape_runs({self._spec.name: shape, **once} for shape in shapes)
        for samples, _ in self.shapes:
            check_batch(str(folder), samples, layout.batch)

    @cached_property
    def identity(self) -> str:
        """Digest of the files' paths, sizes and times, of what is declared, and of the labels."""
        states = [[name, *_state(self.path / name)] for name in self.files]
        how = [asdict(self._preprocess), str(self._spec)]
        how += [[name, array.tolist()] for name, array in self._constants.items()]
        return digest_bytes(canonical_json([states, how, labels_digest(self.labels)]))

    def read(self, size: int, start: int, stop: int) -> Iterator[Feeds]:
        """Yield fresh arrays of `size` samples in order, decoded on all cores."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for first, last in spans(size, start, stop, self.shapes):
                files = self.files[first:last]
                pairs = zip(accumulate(count for count, _ in self.shapes), self.shapes, strict=True)
                shape = next(own[self._spec.name] for end, (_, own) in pairs if first < end)
                batch = np.empty((len(files), *shape), self._spec.dtype)
                list(pool.map(self._fill, files, batch))
                yield {self._spec.name: batch, **repeated(self._constants, len(files))}

    def _fill(self, name: str, place: Array) -> None:
        sample = self._preprocess.sample(self._kept.pixels(self.path / name))
        if sample.shape != place.shape:
            raise self._misfit(name, sample.shape, f"the first image is {list(place.shape)}")
        place[...] = sample

    def _sample_shapes(self) -> Iterator[tuple[int, ...]]:
        """Yield the shape of each sample: the first one's, where what is declared fixes sizes."""
        sample = self._preprocess.sample(self._kept.pixels(self.path / self.files[0]))
        config = self._preprocess.config
        is_fixed = config.crop is not None or isinstance(config.resize, tuple)
        if is_fixed or all(isinstance(x, int) for x in self._spec.shape[1:]):
            yield from repeat(self._fitting(self.files[0], sample.shape), len(self))
            return
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            paths = [self.path / name for name in self.files]
            shapes = pool.map(self._preprocess.shape, paths)
            for name, shape in zip(self.files, shapes, strict=True):
                yield self._fitting(name, shape)

    def _fitting(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        if not shape_fits((1, *shape), self._spec.shape):
            raise self._misfit(name, shape, f"the model expects {self._spec}")
        return shape

    def _misfit(self, name: str, shape: tuple[int, ...], expectation: str) -> InputError:
        return InputError(
            f"image {self.path / name} becomes {list(shape)}, {expectation}",
            "set resize, crop, channels and layout in [images] of trtcal.toml as the model expects",
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
        raise InputError(
            f"folder {folder} cannot be read: {error}", "check the path and its permissions"
        ) from error
    for item in items:
        if item.is_dir():
            yield from _files(item, (*above, here))
        else:
            yield item


def _state(file: Path) -> tuple[int, int]:
    size = check_file(file, ARRAYS_BYTES, "check the file and its permissions")
    return size, file.stat().st_mtime_ns


def _image_input(folder: Path, layout: Layout) -> TensorSpec:
    inputs = layout.fed
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or not _is_number(inputs[0].dtype):
        raise InputError(
            f"data {folder} are images, and the model does not take one batch of images "
            f"(it takes {'; '.join(map(str, inputs))})",
            "give the other inputs in [data.constants] of trtcal.toml, save all of them as an .npz, or "
            "yield them from load_data() in a script",
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
            f"data {folder} are images, and nothing says which preprocessing the model expects",
            "declare the preprocessing of the training at the top of trtcal.toml, for example: "
            f"{IMAGES_EXAMPLE}",
        )
    return images
