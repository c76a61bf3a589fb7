"""Arrays as they go to a device and come back: a description in JSON, and the bytes one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from trtcal.backends.sessions import Array, Feeds
from trtcal.documents import replacing
from trtcal.errors import BackendError

MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading a value raises that has not the form of what a worker sends."""
REPORT = "report it (SECURITY.md has the address), or update trtcal"
DTYPE = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)|bfloat16|float8_\w+")


def packed(feeds: Feeds) -> tuple[list[dict[str, Any]], bytes]:
    """Return what describes arrays, and their bytes one behind the other."""
    arrays = {n: np.asarray(x, x.dtype.newbyteorder("<"), order="C") for n, x in feeds.items()}
    described = [
        {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)}
        for name, array in arrays.items()
    ]
    return described, b"".join(array.tobytes() for array in arrays.values())


def as_blob(feeds: Feeds) -> bytes:
    """Return a batch as a file: its description on one line, then its bytes."""
    described, data = packed(feeds)
    return json.dumps(described).encode() + b"\n" + data


def write_batches(path: Path, batches: Iterable[Feeds]) -> None:
    """Write batches to a file, one behind the other."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.writelines(map(as_blob, batches))


def unpacked(described: Any, data: bytes) -> dict[str, Array]:
    """Return the arrays that a device described and sent; `BackendError` if they do not fit."""
    arrays, offset = {}, 0
    try:
        for item in described:
            dtype, shape = type_of(item["dtype"]), tuple(map(int, item["shape"]))
            if any(size < 0 for size in shape):
                raise ValueError(f"{shape} is not a shape")
            count = int(np.prod(shape, dtype=object))
            values = np.frombuffer(data, dtype, count, offset) if count else np.empty(0, dtype)
            arrays[str(item["name"])] = values.reshape(shape)
            offset += values.nbytes
    except MALFORMED as error:
        raise BackendError(f"the device sent outputs that do not fit: {error}", REPORT) from error
    if offset != len(data):
        raise BackendError("the device sent outputs of another size than it says", REPORT)
    return arrays


def type_of(name: Any) -> np.dtype[Any]:
    """Return a type by its name; `ValueError` if it is no number's."""
    if not isinstance(name, str) or not DTYPE.fullmatch(name):
        raise ValueError(f"{name!r} is not a type of arrays")
    return np.dtype(name)
