"""The inputs that `polygraphy run --save-inputs` writes: feeds as JSON, arrays as base64 of `.npy`.

Polygraphy marks an array as {"array": ..., "polygraphy_class": "ndarray"} (its json/serde.py), older
versions as {"__polygraphy_encoded_ndarray": ...}. Nothing is unpickled; other classes are refused.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trtcal.data.fingerprint import Array, Feeds
from trtcal.errors import InputError
from trtcal.storage import read_json

CLASS = "polygraphy_class"
OLD_CLASS = "__polygraphy_encoded_"
HINT = "give the file or folder that `polygraphy run --save-inputs` wrote"


@dataclass(frozen=True)
class JsonInputs:
    """What Polygraphy wrote, in a file for all feeds or in many."""

    files: tuple[Path, ...]

    def __call__(self) -> Iterator[Feeds]:
        """Yield the feeds of all files in order, holding one file at a time."""
        for file in self.files:
            yield from read_feeds(file)


def read_feeds(path: Path) -> Iterator[Feeds]:
    """Yield the feeds in one file, which holds a list of them or a single one."""
    value = read_json(path)
    feeds = value if isinstance(value, list) else [value]
    for number, feed in enumerate(feeds):
        where = f"{path}, feed {number}"
        if not isinstance(feed, dict) or class_of(feed):
            what = class_of(feed) if isinstance(feed, dict) else type(feed).__name__
            raise InputError(f"data {where}: it is a {what}, not a dictionary of arrays", HINT)
        yield {name: _array(where, name, item) for name, item in feed.items()}


def class_of(value: dict[str, object]) -> str | None:
    """Return the Python class that Polygraphy says a JSON object was, None for a plain one."""
    old = (key.removeprefix(OLD_CLASS) for key in value if key.startswith(OLD_CLASS))
    found = value.get(CLASS) or next(old, None)
    return None if found is None else str(found)


def _array(where: str, name: str, value: object) -> Array:
    kind = class_of(value) if isinstance(value, dict) else type(value).__name__
    if not isinstance(value, dict) or kind != "ndarray" or not isinstance(value.get("array"), str):
        raise InputError(f"data {where}: {name!r} is a {kind or 'dict'}, not a numpy array", HINT)
    try:
        packed = io.BytesIO(base64.b64decode(value["array"], validate=True))
        array: Array = np.lib.format.read_array(packed, allow_pickle=False)
    except (ValueError, OSError, EOFError, MemoryError) as error:
        raise InputError(f"data {where}: {name!r} cannot be read: {error}", HINT) from error
    return array
