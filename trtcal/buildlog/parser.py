"""Reads a build log line by line into events, in constant memory and bounded work a line.

Most lines of a verbose log say nothing that matters here; `prefilter` decides that from their raw
bytes. The exceptions are short stretches in which every line counts: what follows an error without
a prefix of its own, a profile table, and a layer listing.

No input makes it raise: bytes that are not UTF-8 are shown as escapes, long lines are cut.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from trtcal.buildlog.events import Event
from trtcal.buildlog.layers import Layer
from trtcal.buildlog.listing import Listing
from trtcal.buildlog.prefilter import SEARCHED, Candidates, may_matter
from trtcal.buildlog.prefixes import split_line
from trtcal.buildlog.recognition import MAX_MESSAGE, knows, recognise
from trtcal.buildlog.rules import unwrap
from trtcal.buildlog.tables import Table
from trtcal.errors import InputError

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 20
FOLLOWING_LINES = {"error": 12, "warning": 2}


@dataclass(frozen=True)
class ParsedLog:
    """All that was read out of a log: its number of lines, the events, the last listing's layers.

    A log of several builds holds several listings; the last one is the engine that was kept.
    """

    lines: int
    events: tuple[Event, ...]
    layers: tuple[Layer, ...]


@dataclass
class Reader:
    """What one line leaves for the next: a message not yet at its end, a table, a listing."""

    listing: Listing = field(default_factory=Listing)
    table: Table = field(default_factory=Table)
    pending: Event | None = None
    following: int = 0
    dla: bool = False
    recent: deque[tuple[object, bool, int]] = field(default_factory=lambda: deque(maxlen=4))

    @property
    def is_busy(self) -> bool:
        """Whether the next line matters whatever it says."""
        return self.following > 0 or self.table.columns > 0 or self.listing.is_open

    def read(self, line: int, raw: bytes) -> list[Event]:
        """Read a line that may matter; return the events that are complete with it."""
        if self.listing.begins_layer(raw):
            return self._read_layer(line, raw)
        text = raw.decode("utf-8", "backslashreplace")
        severity, message, prefixed = split_line(text[:SEARCHED])
        if prefixed and self.listing.begins_layer(layer := message.encode()):
            return self._read_layer(line, layer)
        if not prefixed and (self.listing.extend(raw) or self._follow(message)):
            return []
        complete = self.flush()
        self.listing.notice(message, prefixed)
        self.pending = self._event(line, severity, message)
        if self.pending is not None and prefixed:
            self.following = FOLLOWING_LINES.get(self.pending.severity, 0)
        return complete

    def flush(self) -> list[Event]:
        """Return the event that was waiting for lines that belong to it."""
        complete = [] if self.pending is None else [self.pending]
        self.pending, self.following = None, 0
        return complete

    def _read_layer(self, line: int, raw: bytes) -> list[Event]:
        """Collect a layer; only one that copies between formats is an event too."""
        self.listing.add(raw)
        complete = self.flush()
        if b"Reformat" in raw:
            message = raw[:SEARCHED].decode("utf-8", "backslashreplace")
            self.pending = recognise(line, None, message.rstrip())
        return complete

    def _follow(self, message: str) -> bool:
        """Add an unprefixed line to the waiting event, unless it is a message of its own."""
        if not (self.following and self.pending and message) or knows(message):
            return False
        self.following -= 1
        text = f"{self.pending.message}\n{message}"[:MAX_MESSAGE]
        self.pending = replace(self.pending, message=text)
        return True

    def _event(self, line: int, severity: str | None, message: str) -> Event | None:
        if self.table.columns and (row := self.table.read_row(message)):
            subject, values = row
            return Event(line, severity or "info", "timing", subject, message, values)
        if self.table.notice(message):
            return None
        self._notice_dla(message)
        event = recognise(line, severity, message)
        if event is None or (event.fields.get("rule") == "gpu_layer" and not self.dla):
            return None
        return self._mark_repeat(event) if event.severity == "error" else event

    def _notice_dla(self, message: str) -> None:
        if message.startswith("[DlaLayer]"):
            self.dla = True
        elif message.startswith("No layer is running on DLA"):
            self.dla = False

    def _mark_repeat(self, event: Event) -> Event:
        """Mark the second line of a failure that is printed twice: bare, and with its place."""
        placed = "where" in event.fields
        key = (event.category, event.subject or unwrap(event.message).text)
        twin = next((line for k, p, line in self.recent if k == key and p != placed), None)
        self.recent.append((key, placed, event.line))
        if twin is None:
            return event
        return replace(event, fields={**event.fields, "repeats": twin})


def parse_lines(lines: Iterable[str | bytes]) -> Iterator[Event]:
    """Yield the events of a log's lines, in order, while they come.

    Lines count from 1. An item that holds line ends counts as several lines, so whole messages of a
    logger may be given as they are. Nothing is kept but what one message or table needs.
    """
    reader = Reader(Listing(is_kept=False))
    for number, raw in enumerate(_physical_lines(lines), 1):
        if reader.is_busy or may_matter(raw):
            yield from reader.read(number, raw[:MAX_LINE_BYTES])
    yield from reader.flush()


def _physical_lines(items: Iterable[str | bytes]) -> Iterator[bytes]:
    for item in items:
        raw = item.encode("utf-8", "backslashreplace") if isinstance(item, str) else item
        raw = raw.removesuffix(b"\n")
        if b"\n" in raw:
            yield from raw.split(b"\n")
        else:
            yield raw


def parse_file(path: Path) -> ParsedLog:
    """Read a log file; `InputError` if it cannot be opened or read.

    UTF-8 is expected, UTF-16 is recognised by its byte order mark (a shell may redirect so).
    """
    reader = Reader()
    events: list[Event] = []
    lines = 0
    try:
        with path.open("rb") as file:
            for block in _whole_lines(_utf8_blocks(file)):
                events.extend(_block_events(block, lines + 1, reader))
                lines += block.count(b"\n") - 1
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot read {path}: {reason}", "check the path") from error
    events.extend(reader.flush())
    return ParsedLog(lines, tuple(events), reader.listing.layers())


def _block_events(block: bytes, line: int, reader: Reader) -> Iterator[Event]:
    """Yield the events of a block: an LF, then whole lines of which the first has number `line`."""
    candidates = Candidates(block)
    position = 1
    while position < len(block):
        start = position if reader.is_busy else candidates.next(position)
        line += block.count(b"\n", position, start)
        end = block.find(b"\n", start)
        if end < 0:
            return
        raw = block[start : min(end, start + MAX_LINE_BYTES)]
        if reader.is_busy or may_matter(raw):
            yield from reader.read(line, raw)
        position, line = end + 1, line + 1


def _whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield an LF and whole lines, cutting off what a line has beyond `MAX_LINE_BYTES`."""
    rest = b""
    for block in blocks:
        cut = block.rfind(b"\n") + 1
        if cut:
            yield b"\n" + rest + block[:cut]
            rest = block[cut:]
        else:
            rest = (rest + block)[:MAX_LINE_BYTES]
    if rest:
        yield b"\n" + rest + b"\n"


def _utf8_blocks(file: BinaryIO) -> Iterator[bytes]:
    block = file.read(BLOCK_BYTES)
    if not block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield block.removeprefix(codecs.BOM_UTF8)
        while block := file.read(BLOCK_BYTES):
            yield block
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    while block:
        yield decoder.decode(block).encode()
        block = file.read(BLOCK_BYTES)
