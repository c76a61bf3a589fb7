"""Models of other frameworks: extensions convert them to ONNX, which keeps where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import onnx

from trtcal.documents import Document
from trtcal.documents.bounds import parse_json
from trtcal.extensions import LOADERS, load_all

ONNX = ".onnx"
SOURCE = "trtcal.source"
"""Key in the metadata of a converted ONNX, beside what it was converted from."""
SOURCE_BYTES = 1 << 16


class Loader(Protocol):
    """Reads models of other frameworks: an entry point of `trtcal.loaders`."""

    def is_model(self, path: Path) -> bool:
        """Tell whether a path looks like a model of these frameworks, also like one that is refused."""

    def reads(self, path: Path) -> bool:
        """Tell whether `convert` reads a path.

        `InputError` for a file that is never opened as a model, with what to give instead.
        """

    def convert(self, path: Path, trust: bool) -> Path:
        """Return the ONNX file of a model, with its source in `SOURCE`.

        A model that contains programs needs `trust`. `InputError` if it cannot be converted.
        """


def is_model(path: Path) -> bool:
    """Tell whether a path looks like a model: ONNX, or of another framework."""
    return _is_onnx(path) or any(loader.is_model(path) for loader in load_all(LOADERS).values())


def loader_of(path: Path) -> Loader | None:
    """Return the loader of another framework's model, None for ONNX and all else."""
    if _is_onnx(path):
        return None
    loaders: list[Loader] = list(load_all(LOADERS).values())
    return next((loader for loader in loaders if loader.reads(path)), None)


def _is_onnx(path: Path) -> bool:
    return path.suffix.lower() == ONNX and not path.is_dir()


def source_of(proto: onnx.ModelProto) -> Document | None:
    """Return what a model was converted from, None if it says nothing that can be read.

    Its fields are `format`, `digest`, and `packages`: name -> version of what converted it.
    """
    text = next((item.value for item in proto.metadata_props if item.key == SOURCE), "")
    try:
        source = parse_json(text) if len(text) <= SOURCE_BYTES else None
    except ValueError:
        return None
    return source if isinstance(source, dict) else None
