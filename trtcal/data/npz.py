"""The arrays of an `.npz`: its members are unpacked as a stream, or read where they lie plainly."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from trtcal.data.fingerprint import Array
from trtcal.data.rows import (
    FileRows,
    OpenedFile,
    PlainRows,
    Rows,
    arranged,
    fill,
    opened,
    read_header,
)

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
        if start + len(array) < len(self):
            self._stream = stream

    def _unpacked(self) -> IO[bytes]:
        with zipfile.ZipFile(ReopenedFile(self.file.path)) as archive:
            stream = archive.open(self.member)
        stream.read(self.header.offset)  # a seek would turn the checksum off
        return stream

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_stream": None}


def open_npz(path: Path) -> dict[str, Rows]:
    """Return the arrays of an `.npz` by name; `InputError` if one is not a plain array."""
    file = opened(path)
    with file.reading(), path.open("rb") as stream:
        if stream.read(6) == np.lib.format.MAGIC_PREFIX:
            raise ValueError("it holds a single array")
        with zipfile.ZipFile(stream) as archive:
            members = [_member(file, archive, info, stream) for info in archive.infolist()]
    return {rows.member.removesuffix(".npy"): arranged(rows) for rows in members}


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
    if not isinstance(rows, MemberRows) or rows.plain is None:
        return rows
    header = replace(rows.header, offset=rows.plain + rows.header.offset)
    return PlainRows(rows.file, header)
