"""Brings the lines of a log in: from a file, one that still grows, or standard input.

Compressed logs are unpacked and other encodings become UTF-8 while they are read; whatever is no
text at all is refused. Blocks stay small, and so does the memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO

from trtcal.documents.bounds import Clock
from trtcal.errors import InputError
from trtcal.evidence.log.formats import latin1_in_utf8, text_blocks

BLOCK_BYTES = 1 << 18
MAX_LINE_BYTES = 1 << 20
PAUSE_S = 0.2


def portions_of_file(path: Path) -> Iterator[bytes]:
    """Yield a file's lines in portions; `InputError` if it is no log, or cannot be read."""
    clock = Clock(path)
    try:
        if path.is_block_device() or (path.is_char_device() and not path.samefile("/dev/stdin")):
            raise InputError(f"{path} is a device", "give a log, a pipe or standard input")
        with path.open("rb") as file:
            for portion in portions(text_blocks(blocks_of(file), str(path))):
                yield portion
                clock.check(len(portion))
    except OSError as error:
        raise _unreadable(path, error) from error


def portions_of_growing_file(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file that is being written, without end, nothing while nothing comes.

    The file need not exist yet; one that is cut or replaced is read anew from its beginning.
    """
    try:
        yield from portions(text_blocks(_growing_blocks(path), str(path)))
    except OSError as error:
        raise _unreadable(path, error) from error


def portions_of_input(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of standard input in portions; `InputError` if it is no log."""
    return portions(text_blocks(blocks_of(file), "standard input"))


def _unreadable(path: Path, error: OSError) -> InputError:
    reason = error.strerror or str(error)
    return InputError(f"cannot read {path}: {reason}", "check the path")


def portions(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield whole lines, each with its end, as many at a time as have come, which may be none.

    A line is cut somewhere beyond `MAX_LINE_BYTES`.
    """
    rest = b""
    for block in blocks:
        end = block.rfind(b"\n") + 1
        lines = rest + block[:end] if end else b""
        rest = (b"" if end else rest) + block[end:]
        rest = rest[:MAX_LINE_BYTES]
        yield lines if lines.isascii() else latin1_in_utf8(lines)
    if rest:
        yield latin1_in_utf8(rest + b"\n")


def blocks_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file's bytes as they come, until its end."""
    read = file.read1 if isinstance(file, BufferedIOBase) else file.read
    while block := read(BLOCK_BYTES):
        yield block


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
