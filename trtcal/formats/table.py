"""The ranges that a file of any format holds, and the one arithmetic between amax and scale.

TensorRT's scale is amax / 127 (its sampleINT8 divides by `127.0f`). Formats that hold scales hold
float32, so what has to survive a way there and back is the float32 scale, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from trtcal.calibration import LEAST, MOST, Calibration, TensorRange
from trtcal.errors import InputError

LEVELS = 127.0
MAX_SHOWN = 5
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Table:
    """A file's ranges; `unranged` says why an entry of it is none, `parameters` what heads it."""

    ranges: dict[str, TensorRange]
    unranged: dict[str, str]
    parameters: dict[str, int | float | str] = field(default_factory=dict)
    model: str = "unknown"


def scale_of(amax: float) -> np.float32:
    """Return amax / 127, rounded once to float32.

    For a float32 amax that is what dividing in float32 gives, and it is what `quantize` writes.
    """
    with np.errstate(over="ignore", under="ignore"):
        return np.float32(amax / LEVELS)


def amax_of(scale: np.float32) -> float:
    """Return an amax whose `scale_of` is this scale again, a float32 number where one is.

    A float32 amax that became a scale comes back to the bit, but for those whose mantissa is 127/64
    or more: there two neighbours share a scale.
    """
    product = float(scale) * LEVELS  # exact: 24 + 7 bits
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = float(np.float32(product))
    return rounded if scale_of(rounded) == scale else product


def problem(amax: float) -> str | None:
    """Return why no layer can use a range, None if one can: the bounds are `TensorRange`'s."""
    if math.isnan(amax):
        return "its scale is not a number"
    if math.isinf(amax):
        return "its scale is infinite: the data overflowed"
    if amax == 0:
        return "its scale is 0, which newer builders refuse"
    scale = f"its scale {amax / LEVELS:.6g}"
    if amax < 0:
        return f"{scale} is negative"
    if amax < LEAST:
        return f"{scale} is denormal"
    return f"{scale} is too large for float32" if amax > MOST else None


def imported(amax: float, note: str | None = None) -> TensorRange:
    """Return a range that no histogram stands behind: what was observed is not known."""
    return TensorRange(amax, amax, 0.0, note)


def table_of(amaxes: Mapping[str, float]) -> Table:
    """Sort entries into ranges and those that can be none."""
    problems = {name: problem(amax) for name, amax in amaxes.items()}
    ranges = {name: imported(amax) for name, amax in amaxes.items() if not problems[name]}
    return Table(ranges, {name: text for name, text in problems.items() if text})


def scales_of(calibration: Calibration) -> dict[str, np.float32]:
    """Return the scale of every range; `InputError` if there is none."""
    if not calibration.ranges:
        raise InputError("the calibration has no range", "calibrate with data that reach a layer")
    return {name: scale_of(item.amax) for name, item in calibration.ranges.items()}


def listed(items: Iterable[str]) -> str:
    """Return the first five of some items, and how many more there are."""
    everything = list(items)
    more = len(everything) - MAX_SHOWN
    return ", ".join(everything[:MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")


def read_file(path: Path) -> bytes:
    """Return a file's bytes; `InputError` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "check the path") from error


def read_lines(path: Path) -> list[str]:
    r"""Return a text's lines: names may hold any character but \n, in bytes that are not UTF-8."""
    return read_file(path).decode("utf-8", "surrogateescape").replace("\r\n", "\n").split("\n")


def writable(name: str) -> str:
    """Return a tensor's name; `InputError` if no line of text can hold it."""
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InputError(f"tensor name {name!r} is not text", "rename the tensor") from None
    if not name or "\n" in name:
        raise InputError(f"tensor name {name!r} does not fit a line", "rename the tensor")
    return name


def add_once(entries: dict[str, Number], name: str, value: Number, where: str) -> None:
    """Enter a value; `InputError` if its tensor has one."""
    if name in entries:
        raise InputError(f"{where}: tensor {name!r} stands there twice", "remove one of them")
    entries[name] = value
