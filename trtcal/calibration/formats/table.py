"""The ranges that a file of any format holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from calibrators import tensorrt_cache
from calibrators.range import problem
from trtcal.documents.bounds import read_bytes
from trtcal.errors import InputError
from trtcal.ranges import FP8_ONLY, Calibration, TensorRange

UNKNOWN = "unknown"
IMPORTED = "imported:"
Number = TypeVar("Number", int, float)


def imported(amax: float, note: str | None = None) -> TensorRange:
    """Return a range that no histogram stands behind: what was observed is not known."""
    return TensorRange(amax, amax, 0.0, note)


def _joined(int8: TensorRange | None, fp8: TensorRange) -> TensorRange:
    if int8 is None:
        note = "; ".join(filter(None, [fp8.note, FP8_ONLY]))
        return replace(imported(fp8.amax, note), fp8_amax=fp8.amax)
    return replace(int8, fp8_amax=fp8.amax)


def foreign(
    form: str,
    int8: dict[str, TensorRange],
    fp8: dict[str, TensorRange],
    unranged: dict[str, str],
    parameters: dict[str, int | float | str] | None = None,
    model: str = UNKNOWN,
) -> Calibration:
    """Return the ranges of a file in a format; what it does not say is "unknown".

    `unranged` says why an entry of it is none, `parameters` what heads it.
    """
    ranges = int8 | {name: _joined(int8.get(name), fp8[name]) for name in fp8}
    left = {name: why for name, why in unranged.items() if name not in ranges}
    what = IMPORTED + form, parameters or {}, model, UNKNOWN, 0, UNKNOWN
    return Calibration(*what, ranges, left)


def table_of(form: str, amaxes: Mapping[str, float], **parameters: str) -> Calibration:
    """Sort entries into ranges and those that can be none."""
    problems = {name: problem(amax) for name, amax in amaxes.items()}
    ranges = {name: imported(amax) for name, amax in amaxes.items() if not problems[name]}
    unranged = {name: text for name, text in problems.items() if text}
    return foreign(form, ranges, {}, unranged, dict(parameters))


def read_lines(path: Path) -> list[str]:
    r"""Return a text's lines: names may hold any character but \n, in bytes that are not UTF-8."""
    return read_bytes(path).decode("utf-8", "surrogateescape").replace("\r\n", "\n").split("\n")


def writable(name: str) -> str:
    """Return a tensor's name; `InputError` if no line of text can hold it."""
    try:
        return tensorrt_cache.writable(name)
    except ValueError as error:
        raise InputError(str(error), "rename the tensor") from None


def add_once(entries: dict[str, Number], name: str, value: Number, where: str) -> None:
    """Enter a value; `InputError` if its tensor has one."""
    if name in entries:
        raise InputError(
            f"{where}: tensor {name!r} is listed twice", "remove one of the two entries"
        )
    entries[name] = value
