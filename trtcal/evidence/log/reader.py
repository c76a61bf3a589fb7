"""Reads the lines of a log into events: what a line says, and what it does to its neighbours.

Most lines of a verbose log hold nothing that matters here; `quiet_lines` passes over them. The
exceptions are short stretches in which every line counts: what follows an error without a prefix of
its own, a profile table, and a layer listing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
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
from trtcal.evidence.log.lines import SEARCHED, split_line
from trtcal.evidence.log.prefilter import has_prefix, quiet_lines
from trtcal.evidence.log.recognition import CATEGORIES, Event, belongs, recognise, with_next
from trtcal.evidence.log.states import NO_TABLE, WHOLE, Found, Repeats, State, table_headed
from trtcal.evidence.log.wrappers import Line, Unwrapper

FOLLOWING_LINES = {"error": 12, "warning": 2}
# How lines of a traceback begin, which do not count as such, nor do those behind them.
FRAME = ('File "', "^", "~")
# What is remembered of lines already seen: how long one may be, and about how much in all.
MAX_REMEMBERED_BYTES = 1 << 16
MEMORY_BYTES = 8 << 20
STEP_BYTES = 200
STATE_BYTES = 2500
UNSEEN = State()


MAX_STREAMS = 64


@dataclass
class _Stream:
    """What one process printed so far: its state, where its event stands, its listing of layers."""

    state: State
    listing: Listing
    line: int = 0


class Reader:
    """Reads the lines of one log, given in portions, into events.

    `number` counts the lines, and `recognised` those of them that a known logger or a known message
    begins. `listing` is the last one. Events come as found and line, each when it is complete: with
    the next line that is not part of it, or at `flush`. Without `is_live` the first lines are held
    back until what stands around them is known.
    """

    def __init__(self, listing: Listing, is_live: bool = False) -> None:
        self.listing = listing
        self.number = 0
        self.recognised = 0
        self._start = State()
        self._streams: dict[bytes, _Stream] = {b"": _Stream(self._start, listing)}
        self._states: dict[Hashable, State] = {}
        self._room = MEMORY_BYTES
        self._unwrapper = Unwrapper(is_live)

    def feed(self, text: bytes) -> Iterator[tuple[Found, int]]:
        """Read whole lines, of which the last may lack its end; yield the events that are complete."""
        if text and not text.endswith(b"\n"):
            text += b"\n"
        return self._read_all(self._unwrapper.feed(text, self.number))

    def flush(self) -> Iterator[tuple[Found, int]]:
        """Yield the events that were waiting for lines that belong to them."""
        yield from self._read_all(self._unwrapper.flush(self.number))
        for stream in sorted(self._streams.values(), key=attrgetter("line")):
            if stream.state.found is not None:
                yield stream.state.found, stream.line
            stream.state = stream.state.after()

    def _read_all(self, runs: Iterable[Line]) -> Iterator[tuple[Found, int]]:
        for number, name, text in runs:
            self.number = number - 1
            yield from self._read(self._stream(name), text)
        self.number = self._unwrapper.lines or self.number

    def _stream(self, name: bytes) -> _Stream:
        stream = self._streams.get(name)
        if stream is None:
            if len(self._streams) >= MAX_STREAMS:
                return self._streams[b""]
            stream = self._streams[name] = _Stream(self._start, Listing(self.listing.is_kept))
        return stream

    def _read(self, stream: _Stream, text: bytes) -> Iterator[tuple[Found, int]]:
        """Read lines of one process that follow each other."""
        listing, self.listing = self.listing, stream.listing
        place, end = 0, len(text)
        is_near = False  # to a line that matters: so may the next one, as it did before
        while place < end:
            if not is_near and not stream.state.is_busy:
                place = self._pass_over(text, place)
                if place >= end:
                    break
            stop = text.find(b"\n", place)
            raw = text[place:stop]
            after = stream.state.steps.get(raw, UNSEEN)
            if after is UNSEEN and is_near and not stream.state.is_busy:
                is_near = False
                continue
            place, is_near = stop + 1, True
            self.number += 1
            if after is UNSEEN:
                after = self._learn(stream.state, raw)
            if found := self._step(stream, after, raw):
                yield found
        if not stream.listing.texts:
            self.listing = listing

    def _pass_over(self, text: bytes, place: int) -> int:
        quiet = quiet_lines(text, place)
        self.number += quiet.lines
        self.recognised += quiet.tagged
        return quiet.end

    def _step(self, stream: _Stream, after: State | None, raw: bytes) -> tuple[Found, int] | None:
        """Go where a line leads; return the event that is complete by that."""
        if after is None:
            self.recognised += 1
            return None
        self.recognised += after.is_known
        found, stream.state = stream.state.found, after
        if after.goes_on:
            return None
        line, stream.line = stream.line, self.number
        if after.listed is not None:
            self.listing.take(raw if after.listed is WHOLE else after.listed)
        return None if found is None else (found, line)

    def _learn(self, state: State, raw: bytes) -> State | None:
        """Return where a line leads that was not seen in this state before."""
        if _is_plain_layer(raw, state.is_open):
            return state.steps.get(WHOLE) or self._take_layer(state)
        after = self._after(state, raw[:MAX_LINE_BYTES])
        if after is not None:
            after.is_known = after.says_something or has_prefix(raw)
            after = self._known(after)
        if not state.is_broken:  # what a broken layer takes depends on all of its lines
            self._remember(state, raw, after)
        return after

    def _take_layer(self, state: State) -> State:
        after = self._known(state.after(listed=WHOLE, is_broken=False, is_known=True))
        self._remember(state, WHOLE, after)
        return after

    def _known(self, state: State) -> State:
        """Return the state that reads on as this one does and was there first."""
        return self._states.setdefault(state.identity, state)

    def _remember(self, state: State, raw: bytes, after: State | None) -> None:
        """Keep a step, in bounded memory: when that is full, all is forgotten."""
        if len(raw) > MAX_REMEMBERED_BYTES:
            return
        self._room -= len(raw) + (STEP_BYTES if after is None else STATE_BYTES)
        if self._room < 0:
            for known in self._states.values():
                known.steps.clear()
            self._states.clear()
            self._room = MEMORY_BYTES
        state.steps[raw] = after

    def _after(self, state: State, raw: bytes) -> State | None:
        """Return where a line leads, or None if nothing changes."""
        if begins_layer(raw, state.is_open):
            return self._after_layer(state, raw)
        text = raw[:SEARCHED].decode("utf-8", "backslashreplace")
        severity, message, prefixed = split_line(text)
        if prefixed:
            if begins_layer(layer := message.encode(), state.is_open):
                return self._after_layer(state, layer)
        elif state.is_broken and self.listing.extend(raw):
            return None
        elif state.following and state.found and message and belongs(state.found.event, message):
            return _continued(state, state.found.event, message)
        if message.strip() in HEADINGS:
            return State(table=NO_TABLE, has_dla=state.has_dla, is_open=True, listed=b"")
        is_open = state.is_open and not ends_listing(message, prefixed)
        return self._after_message(state, is_open, severity, message, prefixed)

    def _after_layer(self, state: State, raw: bytes) -> State:
        """Read a layer; only one that copies between formats is an event too."""
        found = None
        if b"Reformat" in raw:
            message = raw[:SEARCHED].decode("utf-8", "backslashreplace")
            event = recognise(self.number, None, message.rstrip())
            found = Found(event) if event else None
        is_broken = state.is_open and not is_complete(raw)
        return state.after(found=found, listed=raw, is_broken=is_broken)

    def _after_message(
        self, state: State, is_open: bool, severity: str | None, message: str, prefixed: bool
    ) -> State:
        if state.table.columns and (row := state.table.read_row(message)):
            level, (subject, values) = severity or "info", row
            event = Event(self.number, level, "timing", subject, message, values)
            return State(Found(event), table=state.table, has_dla=state.has_dla, is_open=is_open)
        if (table := table_headed(message)).columns:
            return State(table=table, has_dla=state.has_dla, is_open=is_open)
        has_dla = _has_dla(state.has_dla, message)
        found = recognise(self.number, severity, message)
        if found is None or (found.fields.get("rule") == "gpu_layer" and not has_dla):
            return State(has_dla=has_dla, is_open=is_open)
        has_more = prefixed or not {"foremost", "encloses"}.isdisjoint(found.tags)
        following = FOLLOWING_LINES.get(found.severity, 0) if has_more else 0
        return State(Found(found), following, has_dla=has_dla, is_open=is_open)


def _is_plain_layer(raw: bytes, is_open: bool) -> bool:
    """Whether a line is a whole layer and nothing else."""
    return begins_layer(raw, is_open) and b"Reformat" not in raw and is_complete(raw)


def _continued(state: State, event: Event, message: str) -> State:
    found = Found(with_next(event, message))
    is_framed = message.startswith(FRAME) or event.message.rpartition("\n")[2].startswith(FRAME)
    return state.after(found=found, following=state.following - (not is_framed), goes_on=True)


def _has_dla(before: bool, message: str) -> bool:
    if message.startswith("[DlaLayer]"):
        return True
    return before and not message.startswith("No layer is running on DLA")


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
        return not self.layers and any("fatal" in event.tags for event in self.events)


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
    reader = Reader(Listing())
    events = tuple(_events(reader, portions_of_file(path)))
    return ParsedLog(reader.number, events, tuple(reader.listing.layers()))


def _events(reader: Reader, portions: Iterable[bytes]) -> Iterator[Event]:
    repeats = Repeats()
    found_so_far = chain.from_iterable(map(reader.feed, portions))
    for found, line in chain(found_so_far, reader.flush()):
        yield found.at(line, repeats.first_line(found, line))


SHOWN = 60


class Live:
    """Counts the findings in what a builder prints, by category, keeps the latest one, and the facts.

    `show` is called with each finding and its line. Constant memory; no bytes make it raise.
    """

    def __init__(
        self,
        show: Callable[[Found, int], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.latest: Event | None = None
        self.facts = Facts()
        self._show, self._clock, self._started = show, clock, clock()
        self._reader = Reader(Listing(is_kept=False), is_live=True)
        self._rest = b""

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

    def _count(self, events: Iterable[tuple[Found, int]]) -> None:
        for found, line in events:
            self.facts.add(found.event, line)
            if found.event.is_finding:
                self.counts[found.event.category] += 1
                self.latest = found.event
                if self._show:
                    self._show(found, line)

    def found(self) -> str:
        """Return in one line what was found how often, and the latest of it."""
        shown = {name: one.shown for name, one in CATEGORIES.items() if one.shown}
        parts = [f"{count} {shown[name]}" for name in shown if (count := self.counts[name])]
        if self.latest is None:
            return "no findings"
        subject = self.latest.subject or self.latest.message.partition("\n")[0]
        return ", ".join([*parts, f"last: {self.latest.category} {subject[:SHOWN]}"])

    def text(self) -> str:
        """Return the seconds since the start, and what was found."""
        return f"{self._clock() - self._started:.0f} s, {self.found()}"
