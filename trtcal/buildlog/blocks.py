"""Brings a log's bytes in as lines: from a file, from a pipe, in UTF-8 or UTF-16."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Iterable, Iterator
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from trtcal.buildlog.reader import MAX_LINE_BYTES
from trtcal.errors import InputError

BLOCK_BYTES = 1 << 18
PAUSE_S = 0.2
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def portions_of_file(path: Path) -> Iterator[list[bytes]]:
    """Yield a file's lines in portions; `InputError` if it cannot be opened or read."""
    try:
        with path.open("rb") as file:
            yield from portions(blocks_of(file))
    except OSError as error:
        raise _unreadable(path, error) from error


def portions_of_growing_file(path: Path) -> Iterator[list[bytes]]:
    """Yield the lines of a file that is being written, without end, nothing while nothing comes.

    The file need not exist yet; one that is cut or replaced is read anew from its beginning.
    """
    try:
        yield from portions(_growing_blocks(path))
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> InputError:
    reason = error.strerror or str(error)
    return InputError(f"cannot read {path}: {reason}", "check the path")


def portions(blocks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield lines without their ends, as many at a time as have come, which may be none.

    UTF-8 is expected; UTF-16 is recognised by its byte order mark (a shell may redirect so). A line
    is cut somewhere beyond `MAX_LINE_BYTES`.
    """
    rest = b""
    for block in _in_utf8(iter(blocks)):
        *lines, end = block.split(b"\n")
        if lines:
            lines[0] = rest + lines[0]
            rest = b""
        rest = (rest + end)[:MAX_LINE_BYTES]
        yield lines
    if rest:
        yield [rest]


def blocks_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file's bytes as they come, until its end."""
    read = file.read1 if isinstance(file, BufferedIOBase) else file.read
    while block := read(BLOCK_BYTES):
        yield block


def _in_utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    first = next((block for block in blocks if block), b"")
    if not first.startswith(UTF16):
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    for block in chain([first], blocks):
        yield decoder.decode(block).encode()


def _growing_blocks(path: Path) -> Iterator[bytes]:
    while True:
        while not path.exists():
            yield b""
            time.sleep(PAUSE_S)
        with path.open("rb") as file:
            while not _was_replaced(path, file):
                yield from blocks_of(file)
                yield b""
                time.sleep(PAUSE_S)
        yield b"\n"


def _was_replaced(path: Path, file: BinaryIO) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return True
    here = os.fstat(file.fileno())
    return not os.path.samestat(there, here) or here.st_size < file.tell()


def lines_of(items: Iterable[str | bytes]) -> Iterator[bytes]:
    """Yield the lines of texts that may hold several, or one with its end."""
    for item in items:
        raw = item.encode("utf-8", "backslashreplace") if isinstance(item, str) else item
        raw = raw.removesuffix(b"\n")
        if b"\n" in raw:
            yield from raw.split(b"\n")
        else:
            yield raw
