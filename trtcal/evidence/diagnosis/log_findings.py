"""Findings from a build log's events alone: what it says that is worth acting on, each thing once.

Lines about one tensor or layer become one finding each; lines about the build as a whole, of which a
log may hold thousands, are counted together. What is good to know and asks for nothing (deprecations,
warnings) is a note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from trtcal.evidence.findings import KINDS, Cost, Evidence, Finding
from trtcal.evidence.log.recognition import CATEGORIES, Event
from trtcal.evidence.log.rules import in_words
from trtcal.evidence.log.summary import LOSS, PLACE, KernelMemory, rank

MAX_EVIDENCE = 5  # events that one finding gives as evidence
MAX_FINDINGS = 5000

WORKSPACE = "workspace_too_small"
READ = "Read the lines around it."
LOUD = ("error", "warning")
FAILING = frozenset({"build_error", "calibration_failed", "no_implementation"})

Key = tuple[str, str | None]
Placed = tuple[str, Event]
"""An event and the name of its log."""


@dataclass
class _Group:
    first: Event
    kind: str
    count: int = 0
    kept: list[Placed] = field(default_factory=list)
    subjects: set[str] = field(default_factory=set)

    def add(self, source: str, event: Event) -> None:
        self.count += 1
        if len(self.kept) < MAX_EVIDENCE:
            self.kept.append((source, event))
        if event.subject is not None and len(self.subjects) < MAX_FINDINGS:
            self.subjects.add(event.subject)


@dataclass
class LogFindings:
    """Reads events one after another; then gives findings and notes, and how many it left out."""

    groups: dict[Key, _Group] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)
    memory: KernelMemory = field(default_factory=KernelMemory)
    beyond: int = 0
    seen: int = 0

    def read(self, events: Iterable[Placed]) -> Iterator[Placed]:
        """Take events in, and pass them on."""
        for source, event in events:
            self.seen += 1
            self._take(source, event)
            yield source, event

    def findings(self) -> list[Finding]:
        """Return what was found: the cause of a failure first, without what says less of it."""
        groups = sorted(self.groups.values(), key=lambda group: rank(group.first))
        clearest = max((PLACE - 1, *(rank(group.first)[0] for group in groups[:1])))
        clear = [group for group in groups if not clearest < rank(group.first)[0] < LOSS]
        if len(clear) < len(groups) and all(group.kind not in FAILING for group in clear):
            clear[0].kind = "build_error"
        return list(map(self._finding, clear))

    def _take(self, source: str, event: Event) -> None:
        self.memory.add(event)
        key = _key(event)
        if key is None or "repeats" in event.fields:
            if CATEGORIES[event.category].is_noted:
                first = event.message.partition("\n")[0][:120]
                self.notes[event.rule.name if event.rule else first] += 1
            return
        if key not in self.groups and len(self.groups) >= MAX_FINDINGS:
            self.beyond += 1
            return
        self.groups.setdefault(key, _Group(event, key[0])).add(source, event)

    def _finding(self, group: _Group) -> Finding:
        event = group.first
        rule, category = event.rule, CATEGORIES[event.category]
        single = len(group.subjects) == 1 and group.count == len(group.kept)
        is_memory = group.kind == WORKSPACE
        return Finding(
            kind=group.kind,
            subject=event.subject if single or category.each else None,
            what=self._workspace(group) if is_memory else _what(group),
            why=rule.meaning if rule else KINDS[group.kind].why,
            fix=KINDS[WORKSPACE].fix if is_memory else rule.fix if rule else READ,
            evidence=tuple(map(log_evidence, group.kept)),
            cost=Cost(risk="high" if "risky" in event.tags else category.risk),
        )

    def _workspace(self, group: _Group) -> str:
        text = f"{group.count} lines report kernels left out for lack of memory"
        requested, available = self.memory.requested_mib, self.memory.available_mib
        text += f"; the largest needs {requested:,.0f} MiB" if requested else ""
        is_known = requested and available is not None
        return f"{text}, and {available:,.0f} MiB were available" if is_known else text


def _key(event: Event) -> Key | None:
    """Return under which finding an event is counted; None if under none."""
    category = CATEGORIES[event.category]
    if category.is_background or category.is_noted or "minor" in event.tags:
        return None
    if "wants_memory" in event.tags:
        return (WORKSPACE, None)
    if event.category == "range" and event.severity not in LOUD:
        return None
    if category.each and event.subject is not None:
        return (category.each, event.subject)
    if not category.together:
        return None
    if event.category == "weights_range":
        return ("fp16_overflow" if "overflows" in event.tags else category.together, None)
    return (category.together, event.rule.name if event.rule else event.message[:120])


def _what(group: _Group) -> str:
    message = in_words(group.first.message.partition("\n")[0])[:300]
    return message if group.count == 1 else f"{message} ({group.count} lines)"


def log_evidence(placed: Placed) -> Evidence:
    """Return an event as evidence: `build.log:12`, and what it says."""
    source, event = placed
    return Evidence("log", f"{source}:{event.line}", event.message[:300])
