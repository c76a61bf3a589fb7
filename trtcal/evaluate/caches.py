"""What is computed once: losses by fingerprint, and arrays of batches in temporary files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trtcal.backends.sessions import Array
from trtcal.documents import Workplace, append_line, canonical_json, digest_bytes, from_fields
from trtcal.documents.bounds import in_time, parse_json, read_bytes
from trtcal.evaluate.metrics import Loss


class EvaluationCache:
    """Losses by fingerprint of all that they depend on; None as path keeps them for this run only."""

    def __init__(self, path: Path | None, of: dict[str, Any]) -> None:
        self.path, self.of = path, of
        self.known = dict(_read(path)) if path is not None and path.exists() else {}
        self.measured = 0

    def knows(self, what: dict[str, Any]) -> bool:
        """Tell whether a measurement was made."""
        return self._key(what) in self.known

    def recall(self, what: dict[str, Any], measure: Callable[[], Loss]) -> Loss:
        """Return what is known of a measurement, or make it and write it down."""
        key = self._key(what)
        if key not in self.known:
            self.known[key] = measure()
            self.measured += 1
            if self.path is not None:
                line = {"key": key, "loss": self.known[key].to_document()}
                append_line(self.path, json.dumps(line, allow_nan=False))
        return self.known[key]

    def _key(self, what: dict[str, Any]) -> str:
        return digest_bytes(canonical_json({**self.of, **what}))


def _read(path: Path) -> Iterator[tuple[str, Loss]]:
    """Yield keys and losses; lines that are broken or of another kind are measured again."""
    data = read_bytes(path)
    with in_time(path, len(data)):
        for line in data.splitlines():
            try:
                item = parse_json(line)
                loss = item["loss"]
                noise = math.inf if loss["noise"] is None else loss["noise"]
                yield str(item["key"]), from_fields(Loss, {**loss, "noise": noise})
            except (ValueError, LookupError, TypeError):
                continue


Arrays = dict[str, Array]


class SpillCache:
    """A folder that goes with the process; names of tensors are no names of files.

    The bytes are plain, because several threads read them: numpy parses the header of an `.npz`
    as Python, and Python 3.11's parser may fail in two threads at once (python/cpython#106905).
    """

    def __init__(self, room: int = 0) -> None:
        """Keep up to `room` bytes in memory; such arrays are not copied."""
        self.room, self.held = room, dict[tuple[str, int], Arrays]()
        self.place = Workplace()
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
        if (arrays := self.held.get((kind, number))) is not None:
            return arrays
        with self._path(kind, number).open("rb") as file:
            forms = self.forms[kind, number].items()
            return {
                n: np.fromfile(file, t, math.prod(form)).reshape(form) for n, (t, form) in forms
            }

    def _path(self, kind: str, number: int) -> Path:
        return Path(self.place.name) / f"{kind}-{number}"


def _size(arrays: Mapping[str, Array]) -> int:
    return sum(array.nbytes for array in arrays.values())
