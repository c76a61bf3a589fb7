"""Collapses the flood: the events of one kind become one finding with a count and examples."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from trtcal.documents import Document, canonical_json
from trtcal.evidence.layers.listing import Listing
from trtcal.evidence.layers.roofline import counted_precision
from trtcal.evidence.log.facts import ENDING, Facts
from trtcal.evidence.log.files import portions_of_file
from trtcal.evidence.log.reader import Reader
from trtcal.evidence.log.recognition import CATEGORIES, SEVERITIES, Event, Repeats, UnplacedEvent

MAX_GROUPS, MAX_SUBJECTS, SHOWN_SUBJECTS = 500, 10_000, 5
NO_RULE = "trtcal has no rule for this message."
FACTS = frozenset(name for name, category in CATEGORIES.items() if category.is_fact)
KNOWN = ("versions", "fixed", "needs", "threads")  # of a rule: what is known of where it occurs
MIB = 1 << 20

CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")


@dataclass
class _Group:
    first: Event
    last_line: int = 0
    count: int = 0
    severities: Counter[str] = field(default_factory=Counter)
    subjects: Counter[str] = field(default_factory=Counter)
    others: int = 0

    def add(self, event: Event, count: int, last_line: int) -> None:
        self.count += count
        self.last_line = max(self.last_line, last_line)
        self.severities[event.severity] += count
        if event.subject is None:
            return
        if event.subject in self.subjects or len(self.subjects) < MAX_SUBJECTS:
            self.subjects[event.subject] += count
        else:
            self.others += count

    def to_document(self, cause: _Group) -> dict[str, Any]:
        rule, line = self.first.rule, self.first.line
        more = {name: value for name in KNOWN if (value := getattr(rule, name, ()))}
        if rank(self.first)[0] == ECHO and "fatal" in self.first.tags and self is not cause:
            more["follows"] = cause.first.line
        return {
            "category": self.first.category,
            "rule": rule.name if rule else None,
            "severity": min(self.severities, key=SEVERITIES.index),
            "count": self.count,
            "distinct_subjects": len(self.subjects),
            "subjects": [name for name, _ in self.subjects.most_common(SHOWN_SUBJECTS)],
            "first_line": line,
            "last_line": self.last_line,
            "message": self.first.message,
            "meaning": rule.meaning if rule else NO_RULE,
            "fix": rule.fix if rule else "Read the message and the lines before it.",
            **more,
        }


@dataclass
class KernelMemory:
    """The largest request for a kernel's memory, and the least that was there for it, in MiB."""

    requested_mib: float | None = None
    available_mib: float | None = None

    def add(self, event: Event) -> None:
        """Take an event's sizes in, if it has any."""
        requested = size_mib(event, "requested"), self.requested_mib
        available = size_mib(event, "available"), self.available_mib
        self.requested_mib = max((size for size in requested if size is not None), default=None)
        self.available_mib = min((size for size in available if size is not None), default=None)


def size_mib(event: Event, name: str) -> float | None:
    """Return a size in MiB; versions print MB or bytes without saying which."""
    for key, bytes_each in ((f"{name}_mb", MIB), (f"{name}_bytes", 1), (name, 0)):
        value = event.fields.get(key)
        if isinstance(value, int):
            unit = bytes_each or (1 if value >= MIB else MIB)
            return value * unit / MIB
    return None


@dataclass
class Summary:
    """Counts events by category and severity, and groups the findings, while they come.

    Memory is bounded: of kinds of findings and of subjects in one kind only so many are kept separate,
    and `left_out` of the document says how many events that concerned. A failure printed twice
    counts once.
    """

    counts: Counter[str] = field(default_factory=Counter)
    severities: Counter[str] = field(default_factory=Counter)
    precisions: Counter[str] = field(default_factory=Counter)
    facts: Facts = field(default_factory=Facts)
    calibration_s: float | None = None
    _groups: dict[tuple[str, str], _Group] = field(default_factory=dict)
    _memory: KernelMemory = field(default_factory=KernelMemory)
    _ungrouped: int = 0

    def add(self, event: Event, count: int = 1, last: int | None = None) -> None:
        """Count an event that came so many times, first at its line and last at `last`."""
        if "repeats" in event.fields:
            return
        self.facts.add(event, last or event.line)
        if event.category in FACTS:
            return
        self.counts[event.category] += count
        self.severities[event.severity] += count
        self._memory.add(event)
        if event.fields.get("rule") == "calibration_done":
            self.calibration_s = float(event.fields.get("seconds", 0.0))
        if event.is_finding or event.severity in ("error", "warning"):
            self._group_of(event, count).add(event, count, last or event.line)

    def _group_of(self, event: Event, count: int) -> _Group:
        rule = event.fields.get("rule")
        kind = str(rule) if rule else CHANGING.sub("#", event.message[:200].partition("\n")[0])
        key = event.category, kind
        if key not in self._groups and len(self._groups) >= MAX_GROUPS:
            self._ungrouped += count
            key = event.category, "others"
        return self._groups.setdefault(key, _Group(event))

    def to_document(self) -> dict[str, Any]:
        """Return what `summarize` describes."""
        groups = sorted(self._groups.values(), key=_weight)
        return {
            **self.facts.to_document(bool(self.precisions)),
            "precisions": dict(self.precisions),
            "calibration_s": self.calibration_s,
            "counts": {name: self.counts[name] for name in CATEGORIES if self.counts[name]},
            "severities": {name: n for name in SEVERITIES if (n := self.severities[name])},
            "tactics": _tactics(self.counts, self._memory),
            "findings": [group.to_document(groups[0]) for group in groups],
            "left_out": {"ungrouped": self._ungrouped, "subjects": sum(g.others for g in groups)},
        }


def summarize(events: Iterable[Event]) -> dict[str, Any]:
    """Return counts of events by category and severity, and the findings, worst first.

    `findings` holds one entry for each kind of message. `tactics` is one sentence about what was
    skipped; `result` is `built`, `failed` or `unknown`; `precisions` counts the layers listed;
    `left_out` is what was not kept separate for lack of room.
    """
    summary = Summary()
    for event in events:
        summary.add(event)
    return summary.to_document()


CAUSE, ERROR, SURVIVED, PLACE, ECHO, LOSS, HARMLESS = range(7)
RANKS = {"echo": ECHO, "vague": PLACE, "bare": ERROR, "fatal": CAUSE}


def _weight(group: _Group) -> tuple[int, int, int, int, int]:
    """Order findings: errors as `rank` does, warnings, the rest, what is harmless; then by category."""
    urgency = min(2, *map(SEVERITIES.index, group.severities))
    return *rank(group.first), urgency, list(CATEGORIES).index(group.first.category), -group.count


def rank(event: Event) -> tuple[int, int]:
    """Return how little an event says of why a build failed: what has the least is the cause.

    First what a rule explains and ends builds, then errors without a rule, then those that end no
    build, what says where, and what only follows: each in the order of lines.
    """
    if event.severity != "error" and "fatal" not in event.tags:
        return (HARMLESS if "harmless" in event.tags else LOSS), 0
    ends_none = (event.rule or event).category not in ENDING
    tagged = (place for tag, place in RANKS.items() if tag in event.tags)
    return next(tagged, SURVIVED if ends_none else ERROR), event.line


def _tactics(counts: Counter[str], memory: KernelMemory) -> str | None:
    skipped, failed = counts["tactic_skipped"], counts["tactic_failed"]
    if not (skipped or failed or memory.requested_mib is not None):
        return None
    sizes = {"largest request": memory.requested_mib, "available": memory.available_mib}
    parts = [f"{what} {size:.0f} MiB" for what, size in sizes.items() if size is not None]
    return ", ".join([f"{skipped} tactics skipped", f"{failed} failed", *parts])


def log_document(path: Path) -> Document:
    """Parse a build log; `InputError` if it can't be read.

    The digest covers what does not differ between two builds of the same model: category, severity
    and subject of every event but those of memory, timing and progress, and the layers.
    """
    output = io.BytesIO()
    LogWriter(str(path), output.write).write(portions_of_file(path))
    document: Document = json.loads(output.getvalue())
    return document


class LogWriter:
    """Writes one log's document through `write`, in pieces, while it reads.

    `newline` separates the events: nothing makes one line of it all. `has_failed` says what the log may
    not: a crash leaves no word in it. `end` holds the document's last part.
    """

    def __init__(
        self,
        source: str,
        write: Callable[[bytes], object],
        newline: str = "\n",
        has_failed: bool = False,
    ) -> None:
        self.reader = Reader(Listing())
        self.summary = Summary()
        self.end: Document = {}
        self._source, self._write, self._has_failed = source, write, has_failed
        self._head = f',{newline}{{"line":'
        self._repeats = Repeats()
        self._digest = hashlib.sha256(b"[[")
        self._has_events = self._has_lasting = False  # so a comma comes first

    def write(self, portions: Iterable[bytes]) -> None:
        """Read all lines and write the whole document; nothing, if they cannot be read at all."""
        portions = iter(portions)
        first = next(portions, b"")
        self._text(f'{{"schema_version":1,"source":{_json(self._source)},"events":[')
        for lines in chain([first], portions):
            self._events(self.reader.feed(lines))
        self._events(self.reader.flush())
        self._digest.update(b"],[")
        self._text('],"layers":[')
        for number, layer in enumerate(self.reader.listing.layers()):
            document = layer.to_document()
            self._text("," * bool(number) + _json(document))
            self._digest.update(b"," * bool(number) + canonical_json(document))
            self.summary.precisions[counted_precision(layer)] += 1
        self._digest.update(b"]]")
        summary = self.summary.to_document()
        summary["left_out"]["layers"] = self.reader.listing.left_out
        if self._has_failed:
            summary |= {"result": "failed", "is_failed": True}
        self.end = {
            "lines": self.reader.number,
            "recognised": self.reader.recognised,
            "summary": summary,
            "digest": f"sha256:{self._digest.hexdigest()}",
        }
        self._text(f"],{_json(self.end)[1:]}\n")

    def _events(self, events: Iterable[tuple[UnplacedEvent, int]]) -> None:
        parts: list[str] = []
        written: list[UnplacedEvent] = []
        places: dict[UnplacedEvent, list[int]] = {}
        for event, line in events:
            first = self._repeats.first_line(event, line) if event.failure else None
            if not first:
                places.setdefault(event, []).append(line)
            if event.event.category in FACTS:
                continue
            repeats = f',"repeats":{first}' if first else ""
            parts += (self._head, str(line), repeats, event.tail)
            written.append(event)
        for event, lines in places.items():
            self.summary.add(event.at(lines[0]), len(lines), lines[-1])
        self._text("".join(parts)[not self._has_events :])
        self._has_events |= bool(written)
        if lasting := [event.lasting for event in written if event.lasting]:
            self._digest.update(b"," * self._has_lasting + b",".join(lasting))
            self._has_lasting = True

    def _text(self, text: str) -> None:
        self._write(text.encode("utf-8", "surrogatepass"))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
