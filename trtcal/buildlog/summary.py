"""Collapses the flood: the events of one kind become one finding with a count and examples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from trtcal.buildlog.events import BACKGROUND, CATEGORIES, SEVERITIES, Event
from trtcal.buildlog.recognition import RULE_NAMED

MAX_GROUPS = 500
MAX_SUBJECTS = 10_000
SHOWN_SUBJECTS = 5
MIB = 1 << 20

CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
# A build that prints one of these made no engine; skipped and failed tactics alone mean nothing.
FATAL = frozenset({"no_implementation", "no_algorithm", "no_scaling_factors", "consequence"})
FATAL_TOO = frozenset({"parser_node", "parser_place", "run_failed", "no_profile"})


@dataclass
class _Group:
    first: Event
    count: int = 0
    severities: Counter[str] = field(default_factory=Counter)
    subjects: Counter[str] = field(default_factory=Counter)

    def add(self, event: Event) -> None:
        self.count += 1
        self.severities[event.severity] += 1
        known = event.subject in self.subjects or len(self.subjects) < MAX_SUBJECTS
        if event.subject is not None and known:
            self.subjects[event.subject] += 1

    def to_document(self) -> dict[str, Any]:
        rule = RULE_NAMED.get(str(self.first.fields.get("rule")))
        return {
            "category": self.first.category,
            "rule": rule.name if rule else None,
            "severity": min(self.severities, key=SEVERITIES.index),
            "count": self.count,
            "distinct_subjects": len(self.subjects),
            "subjects": [name for name, _ in self.subjects.most_common(SHOWN_SUBJECTS)],
            "first_line": self.first.line,
            "message": self.first.message,
            "meaning": rule.meaning if rule else CATEGORIES[self.first.category],
            "fix": rule.fix if rule else "Read the message and the lines before it.",
        }


@dataclass
class _Memory:
    """The largest request for a kernel's memory, and the least that was there for it, in MiB."""

    requested_mib: float | None = None
    available_mib: float | None = None

    def add(self, event: Event) -> None:
        requested = _mib(event, "requested")
        available = _mib(event, "available")
        if requested is not None:
            self.requested_mib = max(requested, self.requested_mib or 0.0)
        if available is not None:
            self.available_mib = min(available, self.available_mib or available)


def _mib(event: Event, name: str) -> float | None:
    """Return a size in MiB; versions print MB or bytes without saying which."""
    for key, bytes_each in ((f"{name}_mb", MIB), (f"{name}_bytes", 1), (name, 0)):
        value = event.fields.get(key)
        if isinstance(value, int):
            unit = bytes_each or (1 if value >= MIB else MIB)
            return value * unit / MIB
    return None


def summarize(events: Iterable[Event]) -> dict[str, Any]:
    """Count events by category and severity, and group the findings, worst first.

    `findings` holds one entry for each kind of message: how often, about which subjects, what it
    means and what to do. A failure printed twice counts once. `tactics` says in one sentence what
    was skipped; `is_failed` tells whether the build made no engine.
    """
    counts: Counter[str] = Counter()
    severities: Counter[str] = Counter()
    groups: dict[tuple[str, str], _Group] = {}
    memory = _Memory()
    failed = False
    for event in events:
        if "repeats" in event.fields:
            continue
        counts[event.category] += 1
        severities[event.severity] += 1
        memory.add(event)
        failed = failed or event.fields.get("rule") in FATAL | FATAL_TOO
        if event.category not in BACKGROUND or event.severity in ("error", "warning"):
            _group_of(event, groups).add(event)
    return {
        "counts": {name: counts[name] for name in CATEGORIES if counts[name]},
        "severities": {name: severities[name] for name in SEVERITIES if severities[name]},
        "is_failed": failed,
        "tactics": _tactics(counts, memory),
        "findings": [group.to_document() for group in sorted(groups.values(), key=_weight)],
    }


def _group_of(event: Event, groups: dict[tuple[str, str], _Group]) -> _Group:
    rule = event.fields.get("rule")
    kind = str(rule) if rule else CHANGING.sub("#", event.message[:200].partition("\n")[0])
    if len(groups) >= MAX_GROUPS:
        kind = kind if (event.category, kind) in groups else "others"
    return groups.setdefault((event.category, kind), _Group(event))


def _weight(group: _Group) -> tuple[int, int, int, int]:
    """Order findings: what ended the build, then by category, then the most frequent."""
    fatal = group.first.fields.get("rule") in FATAL
    order = list(CATEGORIES).index(group.first.category)
    return (0 if fatal else 1, order, -group.count, group.first.line)


def _tactics(counts: Counter[str], memory: _Memory) -> str | None:
    skipped, failed = counts["tactic_skipped"], counts["tactic_failed"]
    if not (skipped or failed or memory.requested_mib is not None):
        return None
    parts = [f"{skipped} tactics skipped", f"{failed} failed"]
    if memory.requested_mib is not None:
        parts.append(f"largest request {memory.requested_mib:.0f} MiB")
    if memory.available_mib is not None:
        parts.append(f"available {memory.available_mib:.0f} MiB")
    return ", ".join(parts)
