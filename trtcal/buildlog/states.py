"""What one line of a log leaves for the next, in a form that can be recognised when it comes again.

Logs repeat themselves. A state that has seen a line's bytes once knows where they lead, so that the
second time costs one look into a dictionary, and no reading.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property

from trtcal.buildlog.events import BACKGROUND, Event
from trtcal.buildlog.rules import unwrap
from trtcal.buildlog.tables import NO_TABLE, Table
from trtcal.storage import canonical_json


@dataclass(eq=False)
class Found:
    """An event wherever it stands: the same lines elsewhere give the same one again.

    `event` bears the line where it was first seen.
    """

    event: Event

    def at(self, line: int, twin: int | None = None) -> Event:
        """Return the event at a line; `twin` is the line of the failure that it only repeats."""
        if twin is not None:
            fields = {**self.event.fields, "repeats": twin}
            return replace(self.event, line=line, fields=fields)
        return self.event if self.event.line == line else replace(self.event, line=line)

    @cached_property
    def tail(self) -> str:
        """The event's JSON behind the value of its first key, `line`."""
        document = self.event.to_document()
        del document["line"]
        return "," + json.dumps(document, ensure_ascii=False, separators=(",", ":"))[1:]

    @cached_property
    def is_error(self) -> bool:
        """Whether it may be one of the failures that are printed twice."""
        return self.event.severity == "error"

    @cached_property
    def lasting(self) -> bytes | None:
        """Canonical JSON of what another build of the same model would print too, if anything."""
        event = self.event
        if event.category in BACKGROUND:
            return None
        return canonical_json([event.category, event.severity, event.subject])

    @cached_property
    def failure(self) -> tuple[str, str]:
        """What failed, whether or not the place is told with it."""
        event = self.event
        return event.category, event.subject or unwrap(event.message.partition("\n")[0]).text

    @cached_property
    def is_placed(self) -> bool:
        """Whether the message tells where in TensorRT it arose."""
        return "where" in self.event.fields

    @cached_property
    def identity(self) -> Hashable:
        """All but the line."""
        event = self.event
        fields = tuple(event.fields.items())
        return event.severity, event.category, event.subject, event.message, fields


@dataclass(eq=False, slots=True)  # never changed but for `steps`; frozen ones are slow to make
class State:
    """What is known between two lines.

    `found` is an event that may not be complete; up to `following` lines without a prefix of their
    own belong to it, and `goes_on` tells that the last line did. `has_dla` stands for a list of
    layers on an accelerator, `is_open` for a listing of layers; `listed` is what the line gave to
    that one: a layer, or nothing where it begins. `is_broken` tells that the layer goes on with the
    next line. `steps` holds where lines that were seen here lead: to a state, or to None if they
    say nothing.
    """

    found: Found | None = None
    following: int = 0
    goes_on: bool = False
    table: Table = NO_TABLE
    has_dla: bool = False
    is_open: bool = False
    listed: bytes | None = None
    is_broken: bool = False
    steps: dict[bytes, State | None] = field(default_factory=dict, repr=False)

    @property
    def is_busy(self) -> bool:
        """Whether the next line matters whatever it says."""
        return self.following > 0 or self.table.columns > 0 or self.is_open

    @property
    def identity(self) -> Hashable:
        """What two states must share to read every further line alike."""
        found = self.found and self.found.identity
        rest = (self.following, self.goes_on, self.table, self.has_dla, self.is_open)
        return found, rest, self.listed, self.is_broken
