"""Slices: which samples belong together (a device tier, a source, a language), from a CSV file.

Its first line names the attributes, then comes one row a sample, in the order of the data. A column
`file` or `label` is passed over, so that the `labels.csv` of an image folder may have more columns.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trtcal.errors import InputError

Slices = dict[str, npt.NDArray[np.bool_]]
PASSED_OVER = ("file", "label")
MOST = 1000  # slices of one file
HINT = "its first line names the attributes, such as tier,source; then comes one row a sample"


def read_slices(path: Path, samples: int) -> Slices:
    """Return slice -> which samples are in it, named `tier=low`; `InputError` if the file misfits."""
    rows = _rows(path)
    if len(rows) != samples:
        raise InputError(f"{path} has {len(rows)} rows for {samples} samples", HINT)
    attributes = [name for name in rows[0] if name not in PASSED_OVER] if rows else []
    if not attributes:
        raise InputError(f"{path} names no attribute", HINT)
    columns = {name: np.array([row[name] for row in rows]) for name in attributes}
    found = {
        f"{name}={value}": column == value
        for name, column in columns.items()
        for value in dict.fromkeys(column.tolist())
    }
    if len(found) > MOST:
        raise InputError(f"{path} has {len(found)} slices", f"{MOST} are the most: group values")
    return found


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            rows = list(reader)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", "check the path") from None
    except (OSError, UnicodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read: {error}", "it must be CSV in UTF-8") from error
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise InputError(f"{path}, line {number}: it has other columns than the first", HINT)
    return rows
