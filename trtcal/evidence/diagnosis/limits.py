"""What a team tolerates: limits that end with status 1, and findings that it accepts, with a reason."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trtcal.evidence.findings import Finding

UNCALIBRATED, SILENT = "missing_range", "silent_fallback"


@dataclass(frozen=True)
class Suppression:
    """Findings of a kind (`*` for any) about subjects like a glob, accepted for a reason."""

    kind: str
    reason: str
    subject: str = "*"

    def covers(self, finding: Finding) -> bool:
        """Whether a finding is accepted; one about the whole build has the empty subject."""
        alike = fnmatch.fnmatchcase(finding.subject or "", self.subject)
        return alike and fnmatch.fnmatchcase(finding.kind, self.kind)

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}: {self.reason}"


@dataclass(frozen=True)
class Limits:
    """How many findings of some kinds there may be; None sets no limit. `forbid` allows none at all."""

    max_uncalibrated: int | None = None
    max_silent_fallbacks: int | None = None
    forbid: tuple[str, ...] = ()


@dataclass(frozen=True)
class Breach:
    """A limit that does not hold: its name, what it allows, and what was found."""

    limit: str
    allowed: int
    found: int

    def __str__(self) -> str:
        return f"{self.limit} allows {self.allowed}, found {self.found}"

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def suppress(
    findings: Iterable[Finding], suppressions: Sequence[Suppression]
) -> tuple[tuple[Finding, ...], tuple[tuple[Finding, Suppression], ...]]:
    """Part findings into those that count and those that are accepted, each with why."""
    open_ones, accepted = [], []
    for finding in findings:
        why = next((one for one in suppressions if one.covers(finding)), None)
        if why is None:
            open_ones.append(finding)
        else:
            accepted.append((finding, why))
    return tuple(open_ones), tuple(accepted)


def find_breaches(findings: Iterable[Finding], limits: Limits) -> tuple[Breach, ...]:
    """Return every limit that the findings break."""
    kinds = [finding.kind for finding in findings]
    allowed = {
        "max_uncalibrated": (UNCALIBRATED, limits.max_uncalibrated),
        "max_silent_fallbacks": (SILENT, limits.max_silent_fallbacks),
        **{f"forbid {kind}": (kind, 0) for kind in limits.forbid},
    }
    return tuple(
        Breach(name, most, kinds.count(kind))
        for name, (kind, most) in allowed.items()
        if most is not None and kinds.count(kind) > most
    )
