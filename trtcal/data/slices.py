"""Slices: which samples belong together (a device tier, a source, a language), from a CSV file.

Its first line names the attributes, then comes one row a sample, in the order of the data. A column
`label` is passed over; by a column `file` the rows are put in the order of an image folder's files, so
that its `labels.csv` may have more columns.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trtcal.data.dataset import Labels
from trtcal.documents.bounds import check_file, in_time
from trtcal.errors import InputError

Slices = dict[str, npt.NDArray[np.bool_]]
Codes = npt.NDArray[np.int32]
FILE, CLASS = "file", "class"
PASSED_OVER = (FILE, "label")
MOST_SLICES = 1000  # slices of one file
SLICES_FORM = (
    "name the attributes in the first line, such as tier,source; then write one row for each sample"
)


@dataclass(frozen=True)
class Attribute:
    """What distinguishes samples: `codes`, of shape (samples,), gives each one's place in `slices`.

    `slices` are named `tier=low`.
    """

    name: str
    slices: tuple[str, ...]
    codes: Codes


@dataclass
class _Column:
    values: dict[str, int] = field(default_factory=dict)
    codes: array[int] = field(default_factory=lambda: array("i"))

    def add(self, value: str) -> None:
        self.codes.append(self.values.setdefault(value, len(self.values)))


def read_attributes(
    path: Path, samples: int, files: Sequence[str] | None = None
) -> tuple[Attribute, ...]:
    """Return the attributes of a CSV file; `InputError` if it misfits.

    `files` are the samples' files, if they have any: rows that name theirs may come in any order.
    """
    columns, named = _columns(path)
    column = named or next(iter(columns.values()), _Column())
    if len(column.codes) != samples:
        raise InputError(f"{path} has {len(column.codes)} rows for {samples} samples", SLICES_FORM)
    if not columns:
        raise InputError(f"{path} has no attribute", SLICES_FORM)
    total = sum(len(column.values) for column in columns.values())
    if total > MOST_SLICES:
        raise InputError(
            f"{path} has {total} slices", f"group values: the limit is {MOST_SLICES} slices"
        )
    order = slice(None) if named is None or files is None else _order(path, named, files)
    return tuple(
        Attribute(
            name,
            tuple(f"{name}={value}" for value in column.values),
            np.array(column.codes, np.int32)[order],
        )
        for name, column in columns.items()
    )


def read_slices(path: Path, samples: int, files: Sequence[str] | None = None) -> Slices:
    """Return slice -> which samples are in it, named `tier=low`; see `read_attributes`."""
    return {
        name: attribute.codes == code
        for attribute in read_attributes(path, samples, files)
        for code, name in enumerate(attribute.slices)
    }


def classes_of(labels: Labels) -> Attribute:
    """Return the labels as an attribute, with slices named `class=3`."""
    classes, codes = np.unique(labels, return_inverse=True)
    return Attribute(CLASS, tuple(f"{CLASS}={name}" for name in classes), codes.astype(np.int32))


@contextmanager
def reading_csv(
    path: Path, absent: str = "check the path", strict: bool = False
) -> Iterator[csv.DictReader[str]]:
    """Yield a CSV file's reader; `InputError` if it can't be, with the hint `absent` if not there."""
    size = check_file(path, hint=absent)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file, in_time(path, size):
            yield csv.DictReader(file, strict=strict)
    except (OSError, UnicodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read: {error}", "write it as CSV in UTF-8") from error


def _columns(path: Path) -> tuple[dict[str, _Column], _Column | None]:
    """Return the columns, and that of the files if there is one."""
    with reading_csv(path, strict=True) as reader:
        columns = {name: _Column() for name in reader.fieldnames or ()}
        for number, row in enumerate(reader, 2):
            if None in row or None in row.values():
                raise InputError(
                    f"{path}, line {number}: its columns differ from those of the first line",
                    SLICES_FORM,
                )
            for name, column in columns.items():
                column.add(row[name])
    attributes = {name: column for name, column in columns.items() if name not in PASSED_OVER}
    return attributes, columns.get(FILE)


def _order(path: Path, named: _Column, files: Sequence[str]) -> npt.NDArray[np.int64]:
    if len(named.values) != len(named.codes):
        raise InputError(f"{path} has a second row for a file", "write one row for each image")
    if missing := [file for file in files if file not in named.values]:
        raise InputError(f"{path} has no row for {missing[0]!r}", "write one row for each image")
    return np.array([named.values[file] for file in files], np.int64)
