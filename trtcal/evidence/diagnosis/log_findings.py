"""Findings from a build log's events alone: what it says that is worth acting on, each thing once.

Lines about one tensor or layer become one finding each; lines about the build as a whole, of which a
log may hold thousands, are counted together. What is good to know and asks for nothing (deprecations,
warnings) is a note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from trtcal.evidence.findings import Cost, Evidence, Finding
from trtcal.evidence.log.recognition import BACKGROUND, CATEGORIES, RULE_NAMED, Event
from trtcal.evidence.log.summary import KernelMemory

SHOWN = 5  # events that one finding gives as evidence
MAX_FINDINGS = 5000

WORKSPACE = "workspace_too_small"
WORKSPACE_FIX = (
    "Give the builder more workspace (`trtcal build --workspace`, trtexec's "
    "--memPoolSize=workspace:SIZE), or build on a GPU with more free memory."
)
# Events about memory that kernels wanted, whatever their wording.
WANTING_MEMORY = frozenset(
    {
        "tactic_no_memory",
        "tactic_out_of_memory",
        "tactic_scratch",
        "tactics_no_workspace",
        "stylised_tactic",
        "no_memory_for_tactic",
    }
)
# Categories of which every subject is a finding of its own, and what its kind is called.
SINGLE = {
    "uncalibrated": "missing_range",
    "fallback": "fallback",
    "precision_constraint": "precision_constraint",
    "no_implementation": "no_implementation",
    "tactic_failed": "tactic_failed",
}
# Categories counted together, by rule; `error` by message too.
TOGETHER = {
    "uncalibrated": "calibration_failed",
    "fallback": "fallback",
    "precision_constraint": "precision_constraint",
    "no_implementation": "no_implementation",
    "tactic_failed": "tactic_failed",
    "tactic_skipped": "tactic_skipped",
    "range": "range",
    "weights_range": "weights_range",
    "error": "build_error",
}
HIGH_RISK = frozenset(
    {"stylised_range", "uniformly_zero", "default_quantization", "cache_mismatch"}
)
LOW_RISK = frozenset({"range", "weights_range"})
LOUD = ("error", "warning")
NOTED = ("deprecated", "other_warning")
# Rules whose lines accompany an error that another line names.
ECHOES = frozenset({"consequence", "run_failed"})
FAILING = frozenset({"build_error", "calibration_failed", "no_implementation"})
# About things that cost nothing, or that the layer list shows better.
IDLE = frozenset({"no_valid_tactics", "incomplete_fusion", "gpu_layer", "no_obedient_candidate"})

Key = tuple[str, str | None]
Placed = tuple[str, Event]
"""An event and the name of its log."""


@dataclass
class _Group:
    """The events of one finding so far."""

    first: Event
    kind: str
    count: int = 0
    kept: list[Placed] = field(default_factory=list)
    subjects: set[str] = field(default_factory=set)

    def add(self, source: str, event: Event) -> None:
        self.count += 1
        if len(self.kept) < SHOWN:
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
        """Return what was found, in the order of the log."""
        causes = [group for group in self.groups.values() if not _is_echo(group)]
        failing = any(group.kind in FAILING for group in causes)
        return [self._finding(one) for one in (causes if failing else self.groups.values())]

    def _take(self, source: str, event: Event) -> None:
        self.memory.add(event)
        key = _key(event)
        if key is None or "repeats" in event.fields:
            if event.category in NOTED:
                self.notes[_note(event)] += 1
            return
        if key not in self.groups and len(self.groups) >= MAX_FINDINGS:
            self.beyond += 1
            return
        self.groups.setdefault(key, _Group(event, key[0])).add(source, event)

    def _finding(self, group: _Group) -> Finding:
        event = group.first
        rule = RULE_NAMED.get(str(event.fields.get("rule")))
        single = len(group.subjects) == 1 and group.count == len(group.kept)
        return Finding(
            kind=group.kind,
            subject=event.subject if single or event.category in SINGLE else None,
            what=self._workspace(group) if group.kind == WORKSPACE else _what(group),
            why=rule.meaning if rule else CATEGORIES[event.category],
            fix=_fix(group.kind, rule.fix if rule else None),
            evidence=tuple(map(log_evidence, group.kept)),
            cost=Cost(risk=_risk(event)),
        )

    def _workspace(self, group: _Group) -> str:
        times = f"{group.count} lines report kernels left out for lack of memory"
        requested, available = self.memory.requested_mib, self.memory.available_mib
        if not requested:
            return times
        text = f"{times}; the largest wanted {requested:,.0f} MiB"
        return text if available is None else f"{text}, and {available:,.0f} MiB were there"


def _is_echo(group: _Group) -> bool:
    return group.first.fields.get("rule") in ECHOES


def _key(event: Event) -> Key | None:
    """Return under which finding an event is counted; None if under none."""
    rule = str(event.fields.get("rule"))
    if event.category in BACKGROUND or event.category in NOTED or rule in IDLE:
        return None
    if rule in WANTING_MEMORY:
        return (WORKSPACE, None)
    if event.category == "range" and event.severity not in LOUD:
        return None
    if event.category in SINGLE and event.subject is not None:
        return (SINGLE[event.category], event.subject)
    if event.category not in TOGETHER:
        return None
    kind = TOGETHER[event.category]
    if event.category == "weights_range":
        return (kind, None)
    return (kind, rule if "rule" in event.fields else event.message[:120])


def _what(group: _Group) -> str:
    message = group.first.message.partition("\n")[0][:300]
    return message if group.count == 1 else f"{message} ({group.count} lines say so)"


def _fix(kind: str, fix: str | None) -> str:
    return WORKSPACE_FIX if kind == WORKSPACE else fix or "Read the lines around it."


def _risk(event: Event) -> str:
    if str(event.fields.get("rule")) in HIGH_RISK:
        return "high"
    return "low" if event.category in LOW_RISK else "none"


def _note(event: Event) -> str:
    rule = event.fields.get("rule")
    return str(rule) if rule else event.message.partition("\n")[0][:120]


def log_evidence(placed: Placed) -> Evidence:
    """Return an event as evidence: `build.log:12`, and what it says."""
    source, event = placed
    return Evidence("log", f"{source}:{event.line}", event.message[:300])
