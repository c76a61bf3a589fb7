"""Arrays of one batch each, kept in temporary files instead of memory."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from trtcal.backends.sessions import Array

Arrays = dict[str, Array]


class Shelf:
    """A folder that goes with the process; names of tensors are no names of files."""

    def __init__(self) -> None:
        self.place = tempfile.TemporaryDirectory(prefix="trtcal-", ignore_cleanup_errors=True)
        self.names: dict[tuple[str, int], list[str]] = {}

    def close(self) -> None:
        """Delete everything."""
        self.place.cleanup()

    def keep(self, kind: str, number: int, arrays: Mapping[str, Array]) -> None:
        """Keep the arrays of a batch in place of those before."""
        self.names[kind, number] = list(arrays)
        with self._path(kind, number).open("wb") as file:
            np.savez(file, *arrays.values())

    def get(self, kind: str, number: int) -> Arrays:
        """Return the arrays of a batch."""
        with np.load(self._path(kind, number), allow_pickle=False) as found:
            names = self.names[kind, number]
            return {name: found[f"arr_{i}"] for i, name in enumerate(names)}

    def _path(self, kind: str, number: int) -> Path:
        return Path(self.place.name) / f"{kind}-{number}.npz"
