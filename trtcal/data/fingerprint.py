"""The fingerprint of data: of names, types, shapes and values, never of the files they came from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from trtcal.storage import canonical_json, digest_bytes

Array = npt.NDArray[Any]
Labels = npt.NDArray[np.int64]


class Fingerprint:
    """Digests samples as they stream by, an input at a time, so that no batch size changes it."""

    def __init__(self) -> None:
        self._inputs: dict[str, _Running] = {}

    def update(self, feeds: Mapping[str, Array]) -> None:
        """Add the next samples: arrays with the samples along the first axis."""
        for name, array in feeds.items():
            self._inputs.setdefault(name, _Running()).update(array)

    def digest(self, labels: Labels | None) -> str:
        """Return the digest of all samples so far and of their labels (int64, or None)."""
        inputs = {name: running.summary() for name, running in self._inputs.items()}
        marked = None if labels is None else summary(labels)
        return digest_bytes(canonical_json({"inputs": inputs, "labels": marked}))


class _Running:
    """The bytes of one array, given in parts along its first axis."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._rows = 0
        self._form: tuple[str, list[int]] = ("", [])

    def update(self, part: Array) -> None:
        self._hash.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        self._rows += len(part)
        self._form = (part.dtype.str, list(part.shape[1:]))

    def summary(self) -> list[Any]:
        dtype, shape = self._form
        return [dtype, [self._rows, *shape], self._hash.hexdigest()]


def summary(array: Array) -> list[Any]:
    """Return an array's type, shape and hash."""
    running = _Running()
    running.update(array)
    return running.summary()
