"""What one line of a log leaves for the next, in a form that can be recognised when it comes again.

Logs repeat themselves. A state that has seen a line's bytes once knows where they lead, so that the
second time costs one access to a dictionary, and no reading.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from trtcal.evidence.log.recognition import Event
from trtcal.evidence.log.rules import Value, unwrap

TO_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Found:
    """An event wherever it stands: the same lines elsewhere give the same one again.

    `event` bears the line where it was first seen. `tail` is its JSON behind the value of the first
    key, `line`; `lasting` canonical JSON of what another build of the same model would print too,
    empty if nothing. An error has a `failure`: what failed, whether or not the place in TensorRT is
    printed with it, which `is_placed` gives.
    """

    __slots__ = ("event", "failure", "is_placed", "lasting", "tail")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.tail = _tail(event)
        self.is_placed = "where" in event.fields
        self.failure = _failure(event) if event.severity == "error" else None
        self.lasting = b""
        if event.is_finding:
            facts = [event.category, event.severity, event.subject]
            self.lasting = TO_JSON(facts).encode("utf-8", "surrogatepass")

    def at(self, line: int, repeated: int | None = None) -> Event:
        """Return the event at a line; `repeated` is the line of the failure that it only repeats."""
        if repeated is not None:
            fields = {**self.event.fields, "repeats": repeated}
            return replace(self.event, line=line, fields=fields)
        return self.event if self.event.line == line else replace(self.event, line=line)


def _failure(event: Event) -> tuple[str, str]:
    return event.category, event.subject or unwrap(event.message.partition("\n")[0]).text


def _tail(event: Event) -> str:
    document = event.to_document()
    del document["line"]
    return "," + TO_JSON(document)[1:]


MAX_COLUMNS = 6
# Stands for a line that is a layer as it is; no line has its own end in it.
WHOLE = b"\n"


@dataclass(frozen=True)
class Table:
    """A table being read: how many number columns it has, and on which side the layer stands.

    `columns` is 0 outside of a table. Two layouts exist: layer last (TensorRT 8.6 and later) and
    layer first, padded to the longest name (before).
    """

    columns: int = 0
    layer_first: bool = False

    def read_row(self, message: str) -> tuple[str | None, dict[str, Value]] | None:
        """Return a row's layer (None for the total) and its numbers, or None if it is no row."""
        split = message.rsplit if self.layer_first else message.split
        cells = split(None, self.columns)
        if len(cells) != self.columns + 1:
            return None
        name = cells.pop(0 if self.layer_first else -1).strip()
        try:
            numbers = [float(cell) for cell in cells]
        except ValueError:
            return None
        values: dict[str, Value] = {"rule": "time_layer", "total_ms": numbers[0]}
        values.update(average_ms=numbers[1], percent=numbers[-1])
        if len(numbers) > 3:
            values["median_ms"] = numbers[2]
        return (None if name == "Total" else name), values


NO_TABLE = Table()


def table_headed(message: str) -> Table:
    """Return the table that a message is the heading of, or `NO_TABLE`."""
    if "Time" not in message:
        return NO_TABLE
    place = message.find("Layer")
    time = max(message.find("Time(ms)"), message.find("Time (ms)"))
    columns = message.count("(ms)") + message.count("(%)") + message.count("Time %")
    is_heading = place >= 0 and time >= 0 and 3 <= columns <= MAX_COLUMNS
    return Table(columns, place < time) if is_heading else NO_TABLE


@dataclass(eq=False, slots=True)  # never changed but for `steps`; frozen ones are slow to make
class State:
    """What is known between two lines.

    `found` is an event that may not be complete; up to `following` lines without a prefix of their
    own belong to it, and `goes_on` that the last line did. `has_dla` stands for a list of layers on
    an accelerator, `is_open` for a listing of layers; `listed` is what the line gave to that one: a
    layer, `WHOLE` for the line itself, or nothing where it begins. `is_broken` says that the layer
    goes on with the next line, `is_known` that the line was recognised. `steps` holds where lines
    that were seen here lead: to a state, or to None if they say nothing.
    """

    found: Found | None = None
    following: int = 0
    goes_on: bool = False
    table: Table = NO_TABLE
    has_dla: bool = False
    is_open: bool = False
    listed: bytes | None = None
    is_broken: bool = False
    is_known: bool = False
    steps: dict[bytes, State | None] = field(default_factory=dict, repr=False)

    def after(self, **changes: Any) -> State:
        """Return the state behind a line that leaves the table, the lists and the layer as they are."""
        kept = {name: getattr(self, name) for name in ("table", "has_dla", "is_open", "is_broken")}
        return State(**{**kept, **changes})

    @property
    def is_busy(self) -> bool:
        """Whether the next line matters whatever it says."""
        return self.following > 0 or self.table.columns > 0 or self.is_open

    @property
    def says_something(self) -> bool:
        """Whether the line that led here is an event, a part of one, or of a table or listing."""
        return self.found is not None or self.listed is not None or self.table.columns > 0

    @property
    def identity(self) -> Hashable:
        """What two states must share to read every further line alike."""
        found = self.found and self.found.tail
        rest = (self.following, self.goes_on, self.table, self.has_dla, self.is_open)
        return found, rest, self.listed, self.is_broken, self.is_known


NEAR_LINES = 32
MAX_FAILURES = 64


class Repeats:
    """Remembers where the last errors stand, those with a place and those without."""

    def __init__(self) -> None:
        self._bare: dict[tuple[str, str], int] = {}
        self._placed: dict[tuple[str, str], int] = {}

    def first_line(self, found: Found, line: int) -> int | None:
        """Return the line of the error that this one says again in another form, if it does."""
        failure = found.failure
        if failure is None:
            return None
        same, other = self._bare, self._placed
        if found.is_placed:
            same, other = other, same
        if len(same) >= MAX_FAILURES:
            same.clear()
        same[failure] = line
        first = other.get(failure)
        return first if first is not None and line - first <= NEAR_LINES else None
