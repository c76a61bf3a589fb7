"""Arrays of one batch each, kept in memory as far as there is room, else in temporary files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trtcal.backends.sessions import Array

Arrays = dict[str, Array]


class Shelf:
    """A folder that goes with the process; names of tensors are no names of files.

    The bytes are plain, because several threads read them: numpy parses the header of an `.npz`
    as Python, and Python 3.11's parser may fail in two threads at once (python/cpython#106905).
    """

    def __init__(self, room: int = 0) -> None:
        """Keep up to `room` bytes in memory; such arrays are not copied."""
        self.room, self.held = room, dict[tuple[str, int], Arrays]()
        self.place = tempfile.TemporaryDirectory(prefix="trtcal-", ignore_cleanup_errors=True)
        self.forms: dict[tuple[str, int], dict[str, tuple[np.dtype[Any], tuple[int, ...]]]] = {}

    def close(self) -> None:
        """Delete everything."""
        self.held.clear()
        self.place.cleanup()

    def keep(self, kind: str, number: int, arrays: Mapping[str, Array]) -> None:
        """Keep the arrays of a batch in place of those before."""
        self.room += _size(self.held.pop((kind, number), {}))
        if (size := _size(arrays)) <= self.room:
            self.room -= size
            self.held[kind, number] = dict(arrays)
            return
        self.forms[kind, number] = {name: (a.dtype, a.shape) for name, a in arrays.items()}
        with self._path(kind, number).open("wb") as file:
            for array in arrays.values():
                file.write(np.ascontiguousarray(array).data)

    def get(self, kind: str, number: int) -> Arrays:
        """Return the arrays of a batch, not to be written to."""
        if (held := self.held.get((kind, number))) is not None:
            return held
        with self._path(kind, number).open("rb") as file:
            return {
                name: np.fromfile(file, dtype, int(np.prod(shape))).reshape(shape)
                for name, (dtype, shape) in self.forms[kind, number].items()
            }

    def _path(self, kind: str, number: int) -> Path:
        return Path(self.place.name) / f"{kind}-{number}"


def _size(arrays: Mapping[str, Array]) -> int:
    return sum(array.nbytes for array in arrays.values())
