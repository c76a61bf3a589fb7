"""Brings a log's bytes in as lines: from a file, from a pipe, in UTF-8 or UTF-16."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO

from trtcal.buildlog.reader import MAX_LINE_BYTES
from trtcal.errors import InputError

BLOCK_BYTES = 1 << 18
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def portions_of_file(path: Path) -> Iterator[list[bytes]]:
    """Yield a file's lines in portions; `InputError` if it cannot be opened or read."""
    try:
        with path.open("rb") as file:
            yield from portions(file)
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> InputError:
    """Return the error for a log that cannot be read."""
    reason = error.strerror or str(error)
    return InputError(f"cannot read {path}: {reason}", "check the path")


def portions(file: BinaryIO) -> Iterator[list[bytes]]:
    """Yield lines without their ends, as many at a time as have come.

    UTF-8 is expected; UTF-16 is recognised by its byte order mark (a shell may redirect so). A line
    is cut somewhere beyond `MAX_LINE_BYTES`.
    """
    rest = b""
    for block in _utf8_blocks(file):
        *lines, end = block.split(b"\n")
        if not lines:
            rest = (rest + end)[:MAX_LINE_BYTES]
            continue
        lines[0] = rest + lines[0]
        rest = end
        yield lines
    if rest:
        yield [rest]


def _utf8_blocks(file: BinaryIO) -> Iterator[bytes]:
    block = _read(file)
    if not block.startswith(UTF16):
        yield block.removeprefix(codecs.BOM_UTF8)
        while block := _read(file):
            yield block
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    while block:
        yield decoder.decode(block).encode()
        block = _read(file)


def _read(file: BinaryIO) -> bytes:
    """Return what has come so far, at least one byte, or nothing at the end."""
    return file.read1(BLOCK_BYTES) if isinstance(file, BufferedIOBase) else file.read(BLOCK_BYTES)


def lines_of(items: Iterable[str | bytes]) -> Iterator[bytes]:
    """Yield the lines of texts that may hold several, or one with its end."""
    for item in items:
        raw = item.encode("utf-8", "backslashreplace") if isinstance(item, str) else item
        raw = raw.removesuffix(b"\n")
        if b"\n" in raw:
            yield from raw.split(b"\n")
        else:
            yield raw
