"""Digests of bytes, files and documents, and `trtcal-files.json`: those of every file of a run.

A document's digest covers what lasts of it. The record of the files covers every byte that trtcal
wrote into the run's folder, and its own bytes follow from the digests in it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trtcal.documents.bounds import parse_json, read_bytes
from trtcal.errors import InputError

Document = dict[str, Any]
Digests = Mapping[str, str]
"""Path in a folder -> digest of the file's bytes."""
UNSEALED = ("digest", "measured")
FILES = "trtcal-files.json"


def canonical_json(value: object) -> bytes:
    """Return the one byte form of a JSON value: sorted keys, no spaces, UTF-8, no NaN."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8", "surrogatepass")


def to_json(value: object) -> str:
    """Return JSON for people and programs: indented, UTF-8, no NaN."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def json_bytes(value: object) -> bytes:
    """Return `to_json` as a file has it."""
    return to_json(value).encode("utf-8", "surrogatepass")


def digest_bytes(data: bytes | memoryview) -> str:
    """Return `sha256:` and the hexadecimal SHA-256 of `data`."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_blocks(blocks: Iterable[bytes]) -> str:
    """Return the digest of bytes that come in blocks."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
    return "sha256:" + digest.hexdigest()


def digest_file(path: Path) -> str:
    """Return the digest of a file's bytes, read in blocks."""
    with path.open("rb") as file:
        return digest_blocks(iter(lambda: file.read(1 << 20), b""))


def digest_document(document: Document) -> str:
    """Return the digest of a document's lasting part (all but `digest` and `measured`)."""
    lasting = {key: value for key, value in document.items() if key not in UNSEALED}
    return digest_bytes(canonical_json(lasting))


def seal(document: Document) -> Document:
    """Return the document with its digest."""
    return {**document, "digest": digest_document(document)}


def record_of(files: Digests) -> bytes:
    """Return the bytes of the record of files."""
    body = {"kind": "files", "schema_version": 1, "files": dict(sorted(files.items()))}
    return json_bytes(seal(body))


def read_record(folder: Path) -> Digests | None:
    """Return the digests of the files that trtcal wrote into a folder, None if there is no record.

    `InputError` if any byte of the record was changed.
    """
    path = folder / FILES
    if not os.path.lexists(path):
        return None
    raw = read_bytes(path) if path.is_file() and not path.is_symlink() else b""
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        files: Digests = parse_json(raw)["files"]
        if raw == record_of(files):
            return files
    raise InputError(f"{path} was changed after it was written", "run again, or restore the file")
