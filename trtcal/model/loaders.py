"""Models of other frameworks: extensions convert them to ONNX, and read what their files declare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import onnx

from trtcal.config import ImagesConfig, read_section
from trtcal.documents import Document
from trtcal.documents.bounds import parse_json
from trtcal.errors import InputError
from trtcal.extensions import LOADERS, load_all

ONNX = ".onnx"
SOURCE = "trtcal.source"
"""Key in the metadata of a converted ONNX, beside what it was converted from."""
SOURCE_BYTES = 1 << 16


@dataclass(frozen=True)
class Declared:
    """What a model's files say of its use: keys of [images], tasks by output, and lines to print.

    `why` has the source of each key, and of "task"; `advice` is what to do where data do not fit.
    """

    images: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, str] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    advice: str = ""

    @property
    def config(self) -> ImagesConfig | None:
        """The preprocessing, None if nothing declares it."""
        return read_section(ImagesConfig, dict(self.images)) if self.images else None

    @property
    def lines(self) -> list[str]:
        """What is read of [images], a key a line."""
        return [f"read: {key} = {value}: {self.why[key]}" for key, value in self.images.items()]


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

    def declared(self, path: Path, proto: onnx.ModelProto) -> Declared | None:
        """Return what an ONNX file's metadata or the files beside it declare; None without them."""


def is_model(path: Path) -> bool:
    """Tell whether a path looks like a model: ONNX, or of another framework."""
    return _is_onnx(path) or any(loader.is_model(path) for loader in load_all(LOADERS).values())


def loader_of(path: Path) -> Loader | None:
    """Return the loader of another framework's model, None for ONNX and all else."""
    if _is_onnx(path):
        return None
    loaders: list[Loader] = list(load_all(LOADERS).values())
    return next((loader for loader in loaders if loader.reads(path)), None)


def declared_by(path: Path, proto: onnx.ModelProto) -> Declared:
    """Return what the files of a model declare of its use, as the first loader that knows them."""
    loaders: list[Loader] = list(load_all(LOADERS).values())
    answers = (loader.declared(path, proto) for loader in loaders)
    return next((answer for answer in answers if answer is not None), Declared())


@contextmanager
def advising(declared: Declared) -> Iterator[None]:
    """Add what a model's files advise to the hint of an `InputError` of data."""
    try:
        yield
    except InputError as error:
        error.hint = "; ".join(filter(None, (error.hint, declared.advice)))
        raise


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
