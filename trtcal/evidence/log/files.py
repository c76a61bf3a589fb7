"""Brings the lines of a log in: from a file, one that still grows, or standard input.

Compressed logs are unpacked and other encodings become UTF-8 while they are read; whatever is no
text at all is refused. Blocks stay small, and so does the memory.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from trtcal.config import read_toml
from trtcal.documents.bounds import Clock, check_growth
from trtcal.errors import InputError

UNPACKED_BYTES = 1 << 18
HEAD_BYTES = 6
LOOKED_AT = 1 << 12
# The share of control characters and zeros from which on bytes are no text.
MAX_CONTROL = 0.1

TEXT_HINT = "give the text that the builder printed"
COPY_HINT = "copy it again, or unpack it yourself and give the part that can be read"

BINARY = read_toml(Path(__file__).with_name("binary.toml"))["kind"]
"""What files that are no logs begin with, in order."""
CONTROL = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b\b")) + b"\x7f"


def text_blocks(blocks: Iterable[bytes], source: str) -> Iterator[bytes]:
    """Yield blocks of UTF-8 from what may be packed or coded otherwise; `InputError` if it is no text.

    Nothing at all is passed on as it comes: it means that nothing comes for now.
    """
    blocks = iter(blocks)
    head = b""
    for block in blocks:
        head += block
        if len(head) >= HEAD_BYTES:
            break
        yield b""
    opener = next((open_ for magic, open_ in PACKED.items() if head.startswith(magic)), None)
    blocks = chain([head], blocks)
    if opener:
        yield from text_blocks(_unpacked(blocks, opener, source), source)
        return
    what, hint = _kind_of(head[:LOOKED_AT])
    if what:
        raise InputError(f"{source} is {what}, not a build log", hint)
    yield from _in_utf8(head, blocks)


def _kind_of(head: bytes) -> tuple[str, str]:
    for kind in BINARY:
        if re.match(kind["start"].encode(), head, re.DOTALL):
            return kind["what"], kind["hint"]
    control = len(head) - len(head.translate(None, CONTROL))
    if _utf16_of(head) is None and control > MAX_CONTROL * len(head):
        return "binary data", TEXT_HINT
    return "", ""


class _Blocks:
    """Blocks as a file that can only be read."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self.size = 0
        self._blocks = filter(None, blocks)
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        data = self._rest or next(self._blocks, b"")
        size = len(data) if size < 0 else size
        self._rest = data[size:]
        self.size += len(data) - len(self._rest)
        return data[:size]


def _zstd(file: Any) -> Any:
    try:
        from backports import zstd
    except ImportError:
        raise InputError(
            "this log is compressed with zstd, and the package that reads it is not installed",
            "run `pip install 'trtcal[zstd]'`, or unpack the log: `zstd -d FILE`",
        ) from None
    return zstd.ZstdFile(file)


PACKED: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": _zstd,
}


def _unpacked(
    blocks: Iterable[bytes], opener: Callable[[Any], Any], source: str
) -> Iterator[bytes]:
    packed, size = _Blocks(blocks), 0
    with opener(packed) as file:
        try:
            while block := file.read1(UNPACKED_BYTES):
                size += len(block)
                check_growth(source, packed.size, size)
                yield block
        except InputError:
            raise
        except EOFError:
            what = f"{source} is cut off: its compressed data are not complete"
            raise InputError(what, COPY_HINT) from None
        except Exception as error:  # each of the packers has its own
            raise InputError(f"cannot unpack {source}: {error}", COPY_HINT) from error


UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
# ASCII in UTF-16 has a zero in every second byte.
MANY_ZEROS, FEW_ZEROS = 0.8, 0.1


def _utf16_of(head: bytes) -> str | None:
    """Return which UTF-16 a text is in, by its mark or by its zeros, if it is in one."""
    if marked := UTF16.get(head[:2]):
        return marked
    even, odd = head[:LOOKED_AT:2], head[1:LOOKED_AT:2]
    for name, zeros, others in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if zeros.count(0) > MANY_ZEROS * len(zeros) and others.count(0) < FEW_ZEROS * len(others):
            return name
    return None


def _in_utf8(head: bytes, blocks: Iterable[bytes]) -> Iterator[bytes]:
    blocks = iter(blocks)
    if encoding := _utf16_of(head):
        decode = codecs.getincrementaldecoder(encoding)("replace").decode
        blocks = (decode(block).encode("utf-8", "replace") for block in blocks)
    yield next(blocks, b"").removeprefix(codecs.BOM_UTF8)
    yield from blocks


MULTIBYTE = re.compile(rb"[\xc2-\xf4][\x80-\xbf]|[\x80-\x9f]")


def latin1_in_utf8(lines: bytes) -> bytes:
    """Return whole lines in UTF-8, of which some may be in Latin-1; what is in neither stays."""
    try:
        lines.decode()
    except UnicodeDecodeError:
        return b"\n".join(map(_line_in_utf8, lines.split(b"\n")))
    return lines


def _line_in_utf8(line: bytes) -> bytes:
    return line if line.isascii() or MULTIBYTE.search(line) else line.decode("latin-1").encode()


BLOCK_BYTES = 1 << 18
MAX_LINE_BYTES = 1 << 20
PAUSE_S = 0.2


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"cannot read {path}: {error.strerror or str(error)}"
        raise InputError(what, "check the path") from error


def portions_of_file(path: Path) -> Iterator[bytes]:
    """Yield a file's lines in portions; `InputError` if it is no log, or cannot be read."""
    clock = Clock(path)
    with _readable(path):
        if path.is_block_device() or (path.is_char_device() and not path.samefile("/dev/stdin")):
            raise InputError(f"{path} is a device", "give a log, a pipe or standard input")
        with path.open("rb") as file:
            for portion in portions_of_input(file, str(path)):
                yield portion
                clock.check(len(portion))


def portions_of_growing_file(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file that is being written, without end, nothing while nothing comes.

    The file need not exist yet; one that is cut or replaced is read anew from its beginning.
    """
    with _readable(path):
        yield from portions(text_blocks(_growing_blocks(path), str(path)))


def portions_of_input(file: BinaryIO, source: str = "standard input") -> Iterator[bytes]:
    """Yield the lines of an open file in portions; `InputError` if it is no log."""
    return portions(text_blocks(blocks_of(file), source))


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
