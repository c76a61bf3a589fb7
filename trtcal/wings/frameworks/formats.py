"""Which framework wrote a model, by the names of its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtcal.config import read_toml
from trtcal.documents import from_fields

GRAPH = "saved_model.pb"


@dataclass(frozen=True)
class Format:
    """A format of models: what converts it, and the packages and the extra that this takes."""

    name: str
    worker: str
    packages: tuple[str, ...]
    extra: str


TABLE = read_toml(Path(__file__).with_suffix(".toml"))
FORMATS = {ending: from_fields(Format, row) for ending, row in TABLE["formats"].items()}
"""By the ending of a file; a SavedModel is a `folder`."""
REFUSED: dict[str, str] = TABLE["refused"]
"""Endings of what is never opened, and what to do instead."""


def format_of(path: Path) -> Format | None:
    """Return the format of another framework's model, None for ONNX and all else."""
    if path.is_dir():
        return FORMATS["folder"] if (path / GRAPH).exists() else None
    return FORMATS.get(path.suffix.lower())
