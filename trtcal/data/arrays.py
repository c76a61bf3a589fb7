"""The arrays of an `.npz`: its members are unpacked as a stream, or read where they lie plainly."""

from __future__ import annotations

import io
import math
import os
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from trtcal.data.dataset import Array, changed
from trtcal.documents import unpacking
from trtcal.documents.bounds import ARRAYS_BYTES, check_file, check_growth

CHUNK = 1 << 20  # bytes read at once; a member of an .npz takes as much memory besides the array
HEADER = 1 << 14  # bytes in which one must end: numpy would read as many as the file says, or 4 GiB
READERS = {  # by version; 3 differs from 2 only in the encoding of the names of fields
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True)
class OpenedFile:
    """A file as it was when it was opened: its size and when it was last written."""

    path: Path
    state: tuple[int, int] | None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise what goes wrong with its arrays as an `InputError`, also if it was changed."""
        try:
            with unpacking(self.path):
                yield
        finally:  # a file that was changed meanwhile explains any other error
            if _state(self.path) != self.state:
                raise changed(self.path)


def opened(path: Path) -> OpenedFile:
    """Return a file as it is now; `InputError` if it is missing, or no regular one."""
    check_file(path, ARRAYS_BYTES)
    return OpenedFile(path, _state(path))


def _state(path: Path) -> tuple[int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_size, info.st_mtime_ns


@dataclass(frozen=True)
class Header:
    """What stands before the values of a `.npy`, which begin at `offset` (bytes).

    `shape` is that of the values in the order of the file: turned round where that is Fortran's.
    """

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool

    @property
    def row_bytes(self) -> int:
        """Bytes along the first axis of `shape`."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def read_header(file: IO[bytes], size: int) -> Header:
    """Read the header of a `.npy` of `size` bytes; `ValueError` if that is less than it promises."""
    start = io.BytesIO(file.read(HEADER))
    shape, fortran, dtype = _parsed(start)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if any(length < 0 for length in shape):
        raise ValueError(f"its shape is {list(shape)}")
    if start.tell() + math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"it is too short to hold {dtype}{list(shape)}")
    return Header(start.tell(), dtype, shape[::-1] if fortran else shape, fortran)


def parse_array(data: bytes) -> Array:
    """Return the array in the bytes of a `.npy`; `ValueError` if it is none, or holds objects."""
    read_header(io.BytesIO(data), len(data))
    array: Array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    return array


def _parsed(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        return READERS[np.lib.format.read_magic(file)](file)
    except Exception as error:  # numpy's parser lets a dozen kinds through
        raise ValueError("it has no header of a numpy array") from error


@dataclass
class FileRows(ABC):
    """Rows in a file, one after another; in Fortran's order they lie all over it: it is read whole."""

    file: OpenedFile
    header: Header
    _whole: Array | None = field(default=None, repr=False, compare=False, kw_only=True)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of the elements."""
        return self.header.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, samples first."""
        return self.header.shape[::-1] if self.header.fortran else self.header.shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice, /) -> Array:
        if not self.header.fortran:
            start, stop, _ = rows.indices(len(self))
            return self._between(start, stop)
        if self._whole is None:
            self._whole = self._between(0, self.header.shape[0]).T
        return np.ascontiguousarray(self._whole[rows])

    def _between(self, start: int, stop: int) -> Array:
        rows = max(0, stop - start)
        check_growth(self.file.path, (self.file.state or (0,))[0], rows * self.header.row_bytes)
        with self.file.reading():
            array = np.empty((rows, *self.header.shape[1:]), self.dtype)
            self.read(start, array)
        return array

    def whole(self) -> Array:
        """Return all values; the array may have no axis at all."""
        if self.header.shape:
            return self[:]
        one_row = replace(self, header=replace(self.header, shape=(1,)))
        return one_row._between(0, 1).reshape(())

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_whole": None}

    @abstractmethod
    def read(self, start: int, array: Array) -> None:
        """Fill `array` with the rows of the file from `start` on."""


Rows = Array | FileRows
"""An array in memory or in a file, samples along its first axis; a slice gives their values."""


class PlainRows(FileRows):
    """The rows of a `.npy`, or of any file that holds their bytes as they are."""

    def read(self, start: int, array: Array) -> None:
        """Fill `array` with the rows from `start` on."""
        with self.file.path.open("rb", buffering=0) as file:
            file.seek(self.header.offset + start * self.header.row_bytes)
            fill(array, file)


def fill(array: Array, file: IO[bytes]) -> None:
    """Fill an array with the next bytes of a file; `ValueError` if they end too early."""
    space = array.reshape(-1).view(np.uint8).data
    while space:
        count = file.readinto(space[:CHUNK])  # type: ignore[attr-defined]  # binary files have it
        if not count:
            raise ValueError("it ends in the middle of an array")
        space = space[count:]


def open_npy(path: Path) -> Rows:
    """Return the rows of a `.npy`; `InputError` if its header is not that of a plain array."""
    file = opened(path)
    with file.reading(), path.open("rb") as stream:
        header = read_header(stream, os.fstat(stream.fileno()).st_size)
    return PlainRows(file, header)


# How many bytes one byte of a member can become: deflate's limit is 1032.
GROWTH = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}


class ReopenedFile(io.RawIOBase):
    """A file that is open only while it is read from, so that a stream can be left where it is."""

    def __init__(self, path: Path) -> None:
        self.path, self.place = path, 0

    def seekable(self) -> bool:
        """Return True: it can be read from any place."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place and return it."""
        with self._open() as file:
            self.place = file.seek(offset, whence)
        return self.place

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, fewer than `size` only at the end."""
        with self._open() as file:
            data = file.read(size)
        self.place += len(data)
        return data

    def _open(self) -> io.FileIO:
        file = self.path.open("rb", buffering=0)
        file.seek(self.place)
        return file


@dataclass
class MemberRows(FileRows):
    """The rows of a member, unpacked from front to back; only a step back begins anew.

    zipfile compares the checksum when the end is reached without a step.
    """

    member: str
    plain: int | None  # where in the file the member's bytes lie, if they are not compressed
    _stream: IO[bytes] | None = field(default=None, repr=False, compare=False)

    def read(self, start: int, array: Array) -> None:
        """Fill `array` with the rows from `start` on."""
        stream, self._stream = self._stream or self._unpacked(), None
        place = self.header.offset + start * self.header.row_bytes
        if stream.tell() != place:
            stream.seek(place)
        fill(array, stream)
        if start + len(array) < self.header.shape[0]:
            self._stream = stream

    def _unpacked(self) -> IO[bytes]:
        with zipfile.ZipFile(ReopenedFile(self.file.path)) as archive:
            stream = archive.open(self.member)
        stream.read(self.header.offset)  # a seek would turn the checksum off
        return stream

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_stream": None}


def open_npz(path: Path) -> dict[str, Rows]:
    """Return the arrays of an `.npz` by name; `InputError` if one is not a plain array."""
    file = opened(path)
    with file.reading(), path.open("rb") as stream:
        if stream.read(6) == np.lib.format.MAGIC_PREFIX:
            raise ValueError("it holds a single array")
        with zipfile.ZipFile(stream) as archive:
            members = [_member(file, archive, info, stream) for info in archive.infolist()]
    return {rows.member.removesuffix(".npy"): rows for rows in members}


def _member(
    file: OpenedFile, archive: zipfile.ZipFile, info: zipfile.ZipInfo, stream: IO[bytes]
) -> MemberRows:
    if info.compress_type not in GROWTH:
        raise ValueError(f"{info.filename} is not stored or deflated, as numpy writes it")
    size = min(info.file_size, info.compress_size * GROWTH[info.compress_type])
    with archive.open(info) as member:
        header = read_header(member, size)
    plain = _place(info, stream) if info.compress_type == zipfile.ZIP_STORED else None
    return MemberRows(file, header, info.filename, plain)


def _place(info: zipfile.ZipInfo, stream: IO[bytes]) -> int:
    """Return where a member's bytes begin: after a header of 30 bytes, a name and what is extra."""
    stream.seek(info.header_offset + 26)
    name, extra = (int.from_bytes(stream.read(2), "little") for _ in range(2))
    return info.header_offset + 30 + name + extra


def direct(rows: Rows) -> Rows:
    """Return rows that are read where they lie, if they can be: faster, but without a checksum."""
    if not isinstance(rows, MemberRows) or rows.plain is None or rows.header.fortran:
        return rows
    header = replace(rows.header, offset=rows.plain + rows.header.offset)
    return PlainRows(rows.file, header)
