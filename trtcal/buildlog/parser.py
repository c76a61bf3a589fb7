"""Reads a build log line by line into events, in constant memory and bounded work a line.

No input makes it raise: bytes that are not UTF-8 are shown as escapes, long lines are cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from trtcal.buildlog.blocks import lines_of, portions_of_file
from trtcal.buildlog.events import Event
from trtcal.buildlog.layers import Layer
from trtcal.buildlog.listing import Listing
from trtcal.buildlog.reader import Reader
from trtcal.buildlog.repeats import Repeats
from trtcal.buildlog.states import Found


@dataclass(frozen=True)
class ParsedLog:
    """All that was read out of a log: its number of lines, the events, the last listing's layers.

    A log of several builds holds several listings; the last one is the engine that was kept.
    """

    lines: int
    events: tuple[Event, ...]
    layers: tuple[Layer, ...]


def parse_lines(lines: Iterable[str | bytes]) -> Iterator[Event]:
    """Yield the events of a log's lines, in order, while they come.

    Lines count from 1. An item that holds line ends counts as several lines, so whole messages of a
    logger may be given as they are. Nothing is kept but what one message or table needs.
    """
    reader = Reader(Listing(is_kept=False))
    yield from _events(reader, [lines_of(lines)])


def events_of_file(path: Path) -> Iterator[Event]:
    """Yield the events of a log file while it is read; `InputError` if it cannot be."""
    yield from _events(Reader(Listing(is_kept=False)), portions_of_file(path))


def parse_file(path: Path) -> ParsedLog:
    """Read a log file; `InputError` if it cannot be opened or read."""
    reader = Reader(Listing())
    events = tuple(_events(reader, portions_of_file(path)))
    return ParsedLog(reader.number, events, tuple(reader.listing.layers()))


def _events(reader: Reader, portions: Iterable[Iterable[bytes]]) -> Iterator[Event]:
    repeats = Repeats()
    for found, line in all_found(reader, portions):
        yield found.at(line, repeats.twin(found, line))


def all_found(reader: Reader, portions: Iterable[Iterable[bytes]]) -> Iterator[tuple[Found, int]]:
    """Yield all that a reader finds in portions of lines."""
    return chain(chain.from_iterable(map(reader.feed, portions)), _last(reader))


def _last(reader: Reader) -> Iterator[tuple[Found, int]]:
    yield from reader.flush()
