"""Reads the lines of a log into events: what a line says, and what it does to its neighbours.

Most lines of a verbose log say nothing that matters here; `prefilter` decides that from their raw
bytes. The exceptions are short stretches in which every line counts: what follows an error without
a prefix of its own, a profile table, and a layer listing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from trtcal.buildlog.events import Event
from trtcal.buildlog.listing import Listing
from trtcal.buildlog.prefilter import SEARCHED, may_matter
from trtcal.buildlog.prefixes import split_line
from trtcal.buildlog.recognition import MAX_MESSAGE, knows, recognise
from trtcal.buildlog.states import Found, State
from trtcal.buildlog.tables import table_headed

MAX_LINE_BYTES = 1 << 20
FOLLOWING_LINES = {"error": 12, "warning": 2}
# What is remembered of lines already seen: how long one may be, and about how much in all.
MAX_REMEMBERED_BYTES = 1 << 12
MEMORY_BYTES = 1 << 24
STEP_BYTES = 400
UNSEEN = State()


class Reader:
    """Reads the lines of one log, given in portions, into events.

    `number` counts the lines. Events come as found and line, each when it is complete: with the
    next line that is not part of it, or at `flush`.
    """

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.number = 0
        self._state = State()
        self._line = 0
        self._states: dict[Hashable, State] = {}
        self._room = MEMORY_BYTES

    def feed(self, lines: Iterable[bytes]) -> Iterator[tuple[Found, int]]:
        """Read lines without their ends; yield the events that are complete."""
        state = self._state
        for self.number, raw in enumerate(lines, self.number + 1):
            after = state.steps.get(raw, UNSEEN)
            if after is UNSEEN:
                after = self._learn(state, raw)
            if after is None:
                continue
            if not after.goes_on:
                if state.found is not None:
                    yield state.found, self._line
                self._line = self.number
            self._state = state = after

    def flush(self) -> Iterator[tuple[Found, int]]:
        """Yield the event that was waiting for lines that belong to it."""
        if self._state.found is not None:
            yield self._state.found, self._line
        self._state = self._state.then(found=None, following=0, goes_on=False)

    def _learn(self, state: State, raw: bytes) -> State | None:
        """Return where a line leads that was not seen in this state before."""
        changes = self.listing.changes
        after = None
        if state.is_busy or may_matter(raw):
            after = self._after(state, raw[:MAX_LINE_BYTES])
            after = after and self._states.setdefault(after.identity, after)
        if not state.is_open and self.listing.changes == changes:
            self._remember(state, raw, after)
        return after

    def _remember(self, state: State, raw: bytes, after: State | None) -> None:
        """Keep a step, in bounded memory: when it is full, all is forgotten."""
        if len(raw) > MAX_REMEMBERED_BYTES:
            return
        self._room -= len(raw) + STEP_BYTES
        if self._room < 0:
            for known in self._states.values():
                known.steps.clear()
            self._states.clear()
            self._room = MEMORY_BYTES
        state.steps[raw] = after

    def _after(self, state: State, raw: bytes) -> State | None:
        """Return where a line leads, or None if nothing changes."""
        if self.listing.begins_layer(raw, state.is_open):
            return self._after_layer(state, raw)
        text = raw[:SEARCHED].decode("utf-8", "backslashreplace")
        severity, message, prefixed = split_line(text)
        if prefixed and self.listing.begins_layer(layer := message.encode(), state.is_open):
            return self._after_layer(state, layer)
        if not prefixed:
            if state.is_open and self.listing.extend(raw):
                return None
            if state.following and state.found and message and not knows(message):
                return _continued(state, state.found.event, message)
        is_open = self.listing.notice(message, prefixed, state.is_open)
        return self._after_message(state.then(is_open=is_open), severity, message, prefixed)

    def _after_layer(self, state: State, raw: bytes) -> State:
        """Collect a layer; only one that copies between formats is an event too."""
        self.listing.add(raw)
        event = None
        if b"Reformat" in raw:
            message = raw[:SEARCHED].decode("utf-8", "backslashreplace")
            event = recognise(self.number, None, message.rstrip())
        return state.then(found=event and Found(event), following=0, goes_on=False)

    def _after_message(
        self, state: State, severity: str | None, message: str, prefixed: bool
    ) -> State:
        if state.table.columns and (row := state.table.read_row(message)):
            subject, values = row
            level = severity or "info"
            event: Event | None = Event(self.number, level, "timing", subject, message, values)
        elif (table := table_headed(message)).columns:
            state, event = state.then(table=table), None
        else:
            state = state.then(table=table, has_dla=_has_dla(state.has_dla, message))
            event = self._event(state, severity, message)
        following = FOLLOWING_LINES.get(event.severity, 0) if event and prefixed else 0
        return state.then(found=event and Found(event), following=following, goes_on=False)

    def _event(self, state: State, severity: str | None, message: str) -> Event | None:
        event = recognise(self.number, severity, message)
        if event is not None and event.fields.get("rule") == "gpu_layer" and not state.has_dla:
            return None
        return event


def _continued(state: State, event: Event, message: str) -> State:
    text = f"{event.message}\n{message}"[:MAX_MESSAGE]
    found = Found(event.with_message(text))
    return state.then(found=found, following=state.following - 1, goes_on=True)


def _has_dla(before: bool, message: str) -> bool:
    if message.startswith("[DlaLayer]"):
        return True
    return before and not message.startswith("No layer is running on DLA")
