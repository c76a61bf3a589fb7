"""Reads the lines of a log into events: what a line says, and what it does to its neighbours.

Most lines of a verbose log hold nothing that matters here; `quiet_lines` passes over them. The
exceptions are short stretches in which every line counts: what follows an error without a prefix of
its own, a profile table, and a layer listing.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from pathlib import Path

from trtcal.evidence.layers.layer import Layer
from trtcal.evidence.layers.listing import (
    HEADINGS,
    Listing,
    begins_layer,
    ends_listing,
    is_complete,
)
from trtcal.evidence.log.facts import Facts
from trtcal.evidence.log.files import MAX_LINE_BYTES, portions_of_file
from trtcal.evidence.log.lines import NO_TABLE, SEARCHED, Table, split_line, table_headed, unjoined
from trtcal.evidence.log.prefilter import has_prefix, quiet_lines
from trtcal.evidence.log.recognition import (
    CATEGORIES,
    Event,
    Repeats,
    UnplacedEvent,
    belongs,
    joined,
    known_event,
)
from trtcal.evidence.log.wrappers import Line, Unwrapper

FOLLOWING_LINES = {"error": 12, "warning": 2}
QUOTE = re.compile(r"(?:(?:[>#]|//|--) )+(?=\S)")
# What ends a message: a code block's end, and what a tool prints last.
ENDS_MESSAGE = re.compile(rb"[ >]*(?:(?:```|~~~)[\w-]*\s*$|&&&& )")
# How lines of a traceback begin, which do not count as such, nor do those behind them.
FRAME = ('File "', "^", "~")
MAX_STREAMS = 64
Placed = tuple[UnplacedEvent, int]


@dataclass
class _Stream:
    """What one process printed so far.

    `event`, of a line, may not be complete: up to `following` lines without a prefix of their own
    belong to it. `has_dla` stands for a list of layers on an accelerator, `is_open` for a listing of
    layers; `is_broken` says that the last layer goes on with the next line.
    """

    listing: Listing
    event: UnplacedEvent | None = None
    line: int = 0
    following: int = 0
    table: Table = NO_TABLE
    has_dla: bool = False
    is_open: bool = False
    is_broken: bool = False

    @property
    def is_busy(self) -> bool:
        """Whether the next line matters whatever it says."""
        return self.following > 0 or self.table.columns > 0 or self.is_open

    def turn(self, event: UnplacedEvent | None, line: int, following: int = 0) -> Placed | None:
        """Begin what a line says; return the event that is complete by that."""
        before = self.event
        complete = (before, self.line) if before and before.event.message else None
        self.event, self.line, self.following = event, line, following
        return complete


class Reader:
    """Reads the lines of one log, given in portions, into events.

    `number` counts the lines, and `recognised` those of them that a known logger or a known message
    begins. `listing` is the last one. Events come with their line, each when it is complete: with
    the next line that is not part of it, or at `flush`. Without `is_live` the first lines are held
    back until what stands around them is known.
    """

    def __init__(self, listing: Listing, is_live: bool = False) -> None:
        self.listing, self.number, self.recognised = listing, 0, 0
        self._streams: dict[bytes, _Stream] = {b"": _Stream(listing)}
        self._unwrapper = Unwrapper(is_live)

    def feed(self, text: bytes) -> Iterator[Placed]:
        """Read whole lines, of which the last may lack its end; yield the events that are complete."""
        if text and not text.endswith(b"\n"):
            text += b"\n"
        return self._read_all(self._unwrapper.feed(text, self.number))

    def flush(self) -> Iterator[Placed]:
        """Yield the events that were waiting for lines that belong to them."""
        yield from self._read_all(self._unwrapper.flush(self.number))
        for stream in sorted(self._streams.values(), key=attrgetter("line")):
            if complete := stream.turn(None, stream.line):
                yield complete

    def _read_all(self, runs: Iterable[Line]) -> Iterator[Placed]:
        for number, name, text in runs:
            self.number = number - 1
            yield from self._read(self._stream(name), text)
        self.number = self._unwrapper.lines or self.number

    def _stream(self, name: bytes) -> _Stream:
        if name not in self._streams and len(self._streams) >= MAX_STREAMS:
            name = b""
        return self._streams.setdefault(name, _Stream(Listing(self.listing.is_kept)))

    def _read(self, stream: _Stream, text: bytes) -> Iterator[Placed]:
        place, end = 0, len(text)
        while place < end:
            if not stream.is_busy:
                place = self._pass_over(text, place)
                if place >= end:
                    break
            stop = text.find(b"\n", place)
            raw, place = text[place:stop], stop + 1
            self.number += 1
            most = self.recognised + 1
            raw = raw[:MAX_LINE_BYTES]
            for line in (raw,) if stream.is_open else unjoined(raw):
                if complete := self._take(stream, line):
                    yield complete
            if self.recognised > most:
                self.recognised = most
        if stream.listing.texts:
            self.listing = stream.listing

    def _pass_over(self, text: bytes, place: int) -> int:
        end, lines, tagged = quiet_lines(text, place)
        self.number, self.recognised = self.number + lines, self.recognised + tagged
        return end

    def _take(self, stream: _Stream, raw: bytes) -> Placed | None:
        if begins_layer(raw, stream.is_open):
            return self._take_layer(stream, raw)
        severity, message, is_prefixed = split_line(_text(raw))
        if is_prefixed:
            if begins_layer(layer := message.encode(), stream.is_open):
                return self._take_layer(stream, layer)
        elif _goes_on(stream, raw, QUOTE.sub("", message)):
            self.recognised += 1
            return None
        if message.strip() in HEADINGS:
            stream.table, stream.is_open, stream.is_broken = NO_TABLE, True, False
            stream.listing.take(b"")
            self.recognised += 1
            return stream.turn(None, self.number)
        stream.is_open = stream.is_open and not ends_listing(message, is_prefixed)
        stream.is_broken = False
        event, following = _read_message(stream, severity, message, is_prefixed)
        self.recognised += bool(event or stream.table.columns) or has_prefix(raw)
        return stream.turn(event, self.number, following)

    def _take_layer(self, stream: _Stream, raw: bytes) -> Placed | None:
        """Read a layer; only one that copies between formats is an event too."""
        stream.listing.take(raw)
        stream.is_broken = stream.is_open and not is_complete(raw)
        self.recognised += 1
        event = known_event(None, _text(raw).rstrip()) if b"Reformat" in raw else None
        return stream.turn(event, self.number)


def _text(raw: bytes) -> str:
    return raw[:SEARCHED].decode("utf-8", "backslashreplace")


def _goes_on(stream: _Stream, raw: bytes, message: str) -> bool:
    """Whether a line without a prefix belongs to the layer or the event before it; if so, join it."""
    if stream.is_broken and stream.listing.extend(raw):
        return True
    event = stream.event
    if not (event and stream.following and message) or ENDS_MESSAGE.match(raw):
        return False
    if not belongs(event.event, message):
        return False
    is_framed = event.event.message.rpartition("\n")[2].startswith(FRAME)
    stream.event = joined(event, message)
    stream.following -= not (is_framed or message.startswith(FRAME))
    return True


def _read_message(
    stream: _Stream, severity: str | None, message: str, is_prefixed: bool
) -> tuple[UnplacedEvent | None, int]:
    """Return what a message says, and how many lines may belong to it."""
    if stream.table.columns and (row := stream.table.read_row(message)):
        subject, values = row
        return UnplacedEvent(Event(0, severity or "info", "timing", subject, message, values)), 0
    stream.table = table_headed(message)
    if stream.table.columns:
        return None, 0
    stream.has_dla = message.startswith("[DlaLayer]") or (
        stream.has_dla and not message.startswith("No layer is running on DLA")
    )
    known = known_event(severity, message)
    if known is None or (known.event.fields.get("rule") == "gpu_layer" and not stream.has_dla):
        return None, 0
    has_more = is_prefixed or not {"foremost", "encloses"}.isdisjoint(known.event.tags)
    has_more |= "where" in known.event.fields and not message.endswith(")")
    return known, FOLLOWING_LINES.get(known.event.severity, 0) if has_more else 0


@dataclass(frozen=True)
class ParsedLog:
    """All that was read out of a log: its number of lines, the events, the last listing's layers.

    A log of several builds holds several listings; the last one is the engine that was kept.
    """

    lines: int
    events: tuple[Event, ...]
    layers: tuple[Layer, ...]

    @property
    def is_failed(self) -> bool:
        """Whether it lists no engine and says that none was made."""
        facts = Facts()
        for event in self.events:
            facts.add(event, event.line)
        return not self.layers and bool(facts.to_document()["is_failed"])


def events_of(portions: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events of whole lines, each with its end, in order, while they come.

    Lines count from 1. Nothing is kept but what one message or table needs.
    """
    yield from _events(Reader(Listing(is_kept=False)), portions)


def events_of_file(path: Path) -> Iterator[Event]:
    """Yield the events of a log file while it is read; `InputError` if it cannot be."""
    return events_of(portions_of_file(path))


def parse_file(path: Path) -> ParsedLog:
    """Read a log file; `InputError` if it cannot be opened or read."""
    return parse(portions_of_file(path))


def parse(portions: Iterable[bytes]) -> ParsedLog:
    """Read the whole lines of a log."""
    reader = Reader(Listing())
    events = tuple(_events(reader, portions))
    return ParsedLog(reader.number, events, tuple(reader.listing.layers()))


def _events(reader: Reader, portions: Iterable[bytes]) -> Iterator[Event]:
    repeats = Repeats()
    placed = chain.from_iterable(map(reader.feed, portions))
    for event, line in chain(placed, reader.flush()):
        yield event.at(line, repeats.first_line(event, line))


MAX_SUBJECT = 60


class Live:
    """Counts the findings in what a builder prints, by category, keeps the latest one, and the facts.

    `show` is called with each finding and its line. Constant memory; no bytes make it raise.
    """

    def __init__(
        self,
        show: Callable[[UnplacedEvent, int], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts, self.facts = Counter[str](), Facts()
        self.latest: Event | None = None
        self._show, self._clock, self._started = show, clock, clock()
        self._reader, self._rest = Reader(Listing(is_kept=False), is_live=True), b""

    def feed(self, data: bytes) -> None:
        """Take what was printed, cut anywhere."""
        lines, end, rest = (self._rest + data).rpartition(b"\n")
        self._rest = rest[:MAX_LINE_BYTES]
        self._count(self._reader.feed(lines + end))

    def read(self, lines: bytes) -> None:
        """Take whole lines; none at all mean that nothing more comes for now."""
        self._count(self._reader.feed(lines) if lines else self._reader.flush())

    def close(self) -> None:
        """Take what waited for its end."""
        self._count(self._reader.feed(self._rest))
        self._count(self._reader.flush())
        self._rest = b""

    def _count(self, events: Iterable[Placed]) -> None:
        for unplaced, line in events:
            event = unplaced.event
            self.facts.add(event, line)
            if event.is_finding:
                self.counts[event.category] += 1
                self.latest = event
                if self._show:
                    self._show(unplaced, line)

    def findings(self) -> str:
        """Return in one line how many findings there are of each category, and the latest one."""
        shown = {name: category.shown for name, category in CATEGORIES.items() if category.shown}
        parts = [f"{self.counts[name]} {text}" for name, text in shown.items() if self.counts[name]]
        if self.latest is None:
            return "no findings"
        subject = self.latest.subject or self.latest.message.partition("\n")[0]
        return ", ".join([*parts, f"last: {self.latest.category} {subject[:MAX_SUBJECT]}"])

    def text(self) -> str:
        """Return the seconds since the start, and the findings."""
        return f"{self._clock() - self._started:.0f} s, {self.findings()}"
