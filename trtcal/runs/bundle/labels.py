"""Names of classes, in the order of their numbers."""

from __future__ import annotations

from pathlib import Path

from trtcal.documents.bounds import MB, read_bytes
from trtcal.errors import InputError


def read_names(path: Path) -> tuple[str, ...]:
    """Return the names in a text file, one a line; `InputError` if it is none, or has an empty one."""
    try:
        names = tuple(read_bytes(path, MB).decode().rstrip("\n").split("\n"))
    except UnicodeError:
        raise InputError(f"{path} is not UTF-8 text", "write one class per line") from None
    bad = next((n for n, name in enumerate(names, 1) if not name.strip().isprintable()), None)
    empty = next((n for n, name in enumerate(names, 1) if not name.strip()), None)
    if bad or empty:
        raise InputError(
            f"{path}, line {bad or empty}: this is not the name of a class",
            "write one name per line",
        )
    return tuple(name.strip() for name in names)


def folder_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the class folders of images, in the order of their numbers."""
    names = (entry.name for entry in folder.iterdir() if entry.is_dir())
    return tuple(sorted(name for name in names if not name.startswith(".") and name.isprintable()))
