"""Labels of an image folder: from its `labels.csv`, or from the names of its class folders."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trtcal.data.fingerprint import Labels
from trtcal.errors import InputError

CSV = "labels.csv"
COLUMNS = ("file", "label")


def image_labels(folder: Path, files: Sequence[str], kind: str | None) -> Labels | None:
    """Return one class for each file (paths relative to `folder`), None if `kind` is None.

    `kind` is "csv" or "folders". `InputError` if a file has no label, or a label no file.
    """
    if kind is None:
        return None
    read = from_csv if kind == "csv" else from_folders
    return read(folder, files)


def from_csv(folder: Path, files: Sequence[str]) -> Labels:
    """Return the labels that `labels.csv` (columns file and label, integers) gives to `files`."""
    path = folder / CSV
    rows = _rows(path)
    absent = sorted(set(rows) - set(files))
    if absent:
        raise InputError(
            f"{path} has a label for {absent[0]!r}, which is no image in that folder",
            f"give paths relative to {folder}, with / between folders",
        )
    missing = [file for file in files if file not in rows]
    if missing:
        raise InputError(
            f"{path} has no label for {missing[0]!r} ({len(missing)} of {len(files)} images)",
            "give every image a row",
        )
    return np.array([rows[file] for file in files], np.int64)


def _rows(path: Path) -> dict[str, int]:
    rows: dict[str, int] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if not set(COLUMNS) <= set(reader.fieldnames or ()):
                raise _wrong(path, 1, "the columns file and label are not both there")
            for row in reader:
                _keep(rows, path, reader.line_num, row["file"], row["label"])
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist", "write it with the columns file and label, or drop `labels`"
        ) from None
    except (OSError, UnicodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read: {error}", "it must be CSV in UTF-8") from error
    return rows


def _keep(rows: dict[str, int], path: Path, line: int, file: str, label: str | None) -> None:
    if file in rows:
        raise _wrong(path, line, f"{file!r} has a label already")
    try:
        rows[file] = int(np.int64(int(label or "")))
    except (ValueError, OverflowError):
        raise _wrong(path, line, f"the label {label!r} is not a whole number") from None


def _wrong(path: Path, line: int, what: str) -> InputError:
    return InputError(
        f"{path}, line {line}: {what}", "its first line is file,label; then one image a line"
    )


def from_folders(folder: Path, files: Sequence[str]) -> Labels:
    """Return the place of each file's topmost folder among all such folders, sorted by name.

    A folder without images keeps its place, so that a part of a dataset has the labels of the whole.
    """
    loose = [file for file in files if "/" not in file]
    if loose:
        raise InputError(
            f"image {loose[0]!r} lies in no class folder of {folder}",
            'put each image into the folder of its class, or use labels = "csv"',
        )
    found = (item.name for item in folder.iterdir() if item.is_dir())
    classes = sorted(name for name in found if not name.startswith("."))
    _check_numbers(folder, classes)
    place = {name: number for number, name in enumerate(classes)}
    return np.array([place[file.split("/")[0]] for file in files], np.int64)


def _check_numbers(folder: Path, classes: list[str]) -> None:
    """Refuse folders named by numbers that would get other numbers: 10 sorts before 2."""
    if not all(name.isascii() and name.isdigit() for name in classes):
        return
    for place, name in enumerate(classes):
        if int(name) != place:
            raise InputError(
                f"class folder {name!r} of {folder} would be class {place} in the sorted order",
                f"pad the numbers with zeros, from 0 without gaps, or write {CSV}",
            )
