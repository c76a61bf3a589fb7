"""A finding: one thing that somebody should know about a build, with evidence, cost and remedy.

Logs, layer lists and graphs are all read into this form, so that everything can be ranked,
suppressed, limited and shown in one way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from trtcal.config import read_toml
from trtcal.documents import from_fields
from trtcal.documents.overview import Overview, Shown

RISKS = ("none", "low", "high")


@dataclass(frozen=True)
class Evidence:
    """Where it was seen: `source` is log, layer or node; `place` a line's number or a name."""

    source: str
    place: str
    text: str = ""


@dataclass(frozen=True)
class Cost:
    """What it costs as far as known: `time_ms` and `moved_bytes` for one inference.

    `risk` is that of losing accuracy: none, low or high. The finding's text says what is an estimate.
    """

    time_ms: float | None = None
    moved_bytes: int | None = None
    risk: str = "none"


@dataclass(frozen=True)
class Finding(Shown):
    """One fact worth acting on.

    `kind` is a stable word for gates and suppressions (`silent_fallback`), `subject` the layer,
    node or tensor, with its exact name. `what` is the fact, `why` its meaning, `fix` what to do.

    >>> Finding("silent_fallback", "conv1", "conv1 runs in fp32", "it is slower", "use Q/DQ").kind
    'silent_fallback'
    """

    kind: str
    subject: str | None
    what: str
    why: str
    fix: str
    evidence: tuple[Evidence, ...] = ()
    cost: Cost = field(default_factory=Cost)

    def overview(self) -> Overview:
        """Return the fact, its meaning and what to do, and where it was seen."""
        columns = {"evidence": "{source} {place}", "text": "{text}"}
        facts = (f"why: {self.why}", f"fix: {self.fix}")
        title = f"Finding {self.kind}: {self.what}"
        return Overview(title, facts, things=self.evidence, columns=columns)


@dataclass(frozen=True)
class Kind:
    """What findings of a kind have in common: `kinds.toml` has them all.

    `counted` is its noun for one and for several, `states` what is so of a node and of several nodes;
    `fixes` are what to do by the cause of a finding.
    What `is_refused` gives no engine: TensorRT's parser or compiler ends the build there.
    """

    meaning: str
    why: str
    fix: str
    costs_alone: bool = False
    is_refused: bool = False
    counted: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    fixes: dict[str, str] = field(default_factory=dict)


KINDS = {
    name: from_fields(Kind, fields)
    for name, fields in read_toml(Path(__file__).with_name("kinds.toml")).items()
}


def of_kind(
    kind: str,
    subject: str | None,
    what: str,
    evidence: Iterable[Evidence] = (),
    fix: str | None = None,
    cost: Cost | None = None,
) -> Finding:
    """Return a finding that means what its kind says, with its fix if there is no better one."""
    texts = what, KINDS[kind].why, fix or KINDS[kind].fix
    return Finding(kind, subject, *texts, tuple(evidence), cost or Cost())


def count_findings(kind: str, count: int) -> str:
    """Return `26 missing fusions`, also for a kind that is not in the table."""
    plain = kind.replace("_", " ")
    singular, several = (kind in KINDS and KINDS[kind].counted) or (plain, f"{plain}s")
    return f"{count} {singular if count == 1 else several}"


COSTS_ALONE = frozenset(name for name, kind in KINDS.items() if kind.costs_alone)
"""Kinds that say where time goes; all others say that the build is not what was asked for."""


def rank(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Order findings: high risk for accuracy first, then what was asked and is not so, then costs.

    Among these time counts first, then bytes, low risk, and name.
    """
    return tuple(sorted(findings, key=_weight))


def _weight(finding: Finding) -> tuple[bool, bool, float, int, int, str, str]:
    cost = finding.cost
    costs = -(cost.time_ms or 0.0), -(cost.moved_bytes or 0), -RISKS.index(cost.risk)
    is_cost = finding.kind in COSTS_ALONE
    return (cost.risk != "high", is_cost, *costs, finding.kind, finding.subject or "")


def sentence(text: str) -> str:
    """Return a text with a capital in front and a full stop behind it."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
