"""What a converted model came from: its digest, and the mark in the metadata of the ONNX."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import onnx

from trtcal.documents import Document, canonical_json, digest_file
from trtcal.documents.bounds import ARRAYS_BYTES, check_file, scaled
from trtcal.errors import InputError
from trtcal.model.loaders import SOURCE

FILES = 10_000


def digest_source(path: Path) -> str:
    """Return the digest of a file, or of a folder: of the names and digests of all its files.

    `InputError` if something in it is a link, a device or a pipe, or if it has over `FILES` entries.
    """
    if not path.is_dir():
        check_file(path, ARRAYS_BYTES)
        return digest_file(path)
    digest = hashlib.sha256()
    for file in sorted(_files(path)):
        digest.update(f"{file.relative_to(path).as_posix()}\0{digest_file(file)}\n".encode())
    return "sha256:" + digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for number, path in enumerate(folder.rglob("*")):
        if number >= scaled(FILES):
            raise InputError(
                f"model {folder} has more than {number} files", "give the folder of the model alone"
            )
        if path.is_symlink():
            raise InputError(
                f"model {folder} contains a link: {path}",
                "replace the link by a copy of its target",
            )
        if not path.is_dir():
            check_file(path, ARRAYS_BYTES)
            yield path


def mark(proto: onnx.ModelProto, source: Document) -> None:
    """Write down in a model what it was converted from."""
    kept = [item for item in proto.metadata_props if item.key != SOURCE]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    proto.metadata_props.add(key=SOURCE, value=canonical_json(source).decode())
