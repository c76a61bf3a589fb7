"""Why a build gave no engine: the one cause that every command shows, from its record or its log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnx import NodeProto

from trtcal.documents import from_fields, parsing, read_document
from trtcal.documents.streams import command_line
from trtcal.errors import InputError, some
from trtcal.evidence.diagnosis.log_findings import FAILING, LogFindings
from trtcal.evidence.findings import KINDS, Evidence, Finding, rank
from trtcal.evidence.log.reader import events_of_file
from trtcal.evidence.log.recognition import Event
from trtcal.evidence.log.rules import in_words
from trtcal.evidence.manifest import DIAGNOSIS, LOG, MANIFEST

NO_KERNEL = "no_implementation"
DIAGNOSIS_KIND, DIAGNOSIS_VERSION = "diagnosis", 2


def ends_build(finding: Finding) -> bool:
    """Whether a finding is one for which there is no engine."""
    return finding.kind in FAILING or is_refused(finding)


def is_refused(finding: Finding) -> bool:
    """Whether it is something in the graph that TensorRT's parser refuses."""
    return finding.kind in KINDS and KINDS[finding.kind].is_refused


def causes_first(findings: Collection[Finding]) -> tuple[Finding, ...]:
    """Order the findings of a failed build: what is refused, its causes as they come, then all else."""
    first = sorted(filter(ends_build, findings), key=_order)
    return (*first, *rank(finding for finding in findings if not ends_build(finding)))


def _order(finding: Finding) -> int:
    is_known = finding.subject is not None or finding.kind == NO_KERNEL
    is_of_log = any(item.source == "log" for item in finding.evidence[:1])
    return 0 if is_refused(finding) else 1 if is_known and not is_of_log else 2


def line_of(finding: Finding) -> int:
    """Return the first line of a log that a finding rests on, 0 for none."""
    places = (item.place for item in finding.evidence if item.source == "log")
    numbers = (place.rpartition(":")[2] for place in places)
    return min((int(number) for number in numbers if number.isdigit()), default=0)


def recorded(log: Path) -> tuple[Finding, ...]:
    """Return what `trtcal build` found when the build of this log failed; nothing for other logs."""
    path = log.parent / log.name.replace(LOG, DIAGNOSIS)
    if path == log or not path.is_file() or (log.name == LOG and log.with_name(MANIFEST).exists()):
        return ()
    document = read_document(path, DIAGNOSIS_KIND, DIAGNOSIS_VERSION)
    return parsing(path, lambda: tuple(from_fields(Finding, item) for item in document["findings"]))


def failure_of(log: Path, events: Iterable[Event] | None = None) -> Finding | None:
    """Return why the build of a log failed; None if neither a record nor the log gives a cause."""
    if findings := recorded(log):
        return next(filter(ends_build, findings), None)
    reading = LogFindings()
    for _ in reading.read((log.name, event) for event in events or events_of_file(log)):
        pass
    return next(filter(ends_build, reading.findings()), None)


def summarized(
    file: str, summary: Mapping[str, Any], causes: Iterable[Finding]
) -> tuple[str, str, str]:
    """Return the log of a failed build, why it failed, and what helps: as recorded, else by the log."""
    for cause in causes:
        return file, cause.what, cause.fix
    for first in summary["findings"][:1]:
        return file, in_words(first["message"].partition("\n")[0]).rstrip(":"), first["fix"]
    return file, "", ""


def no_engine(log: Path, events: Iterable[Event] | None = None) -> InputError:
    """Return the error of a command that needs the engine of a build that failed."""
    finding, place = failure_of(log, events), log.parent if log.name == LOG else log
    words = ("diagnose", place) if place != log else ("log", log)
    more = f"More: `{command_line(*words)}`"
    if finding is None:
        again = f"build it again: `trtcal build`. {more}"
        return InputError(f"{place} has no engine: its build did not end", again)
    what = finding.what.rstrip(".:")
    return InputError(f"{place} has no engine: the build failed: {what}", f"{finding.fix} {more}")


def failed_at(cause: Finding, nodes: Sequence[NodeProto], fix: str) -> Finding:
    """Return what ended a build with the nodes at which it did, if they are known, and what to do."""
    if not nodes:
        return replace(cause, fix=fix)
    names = some(f"{node.name!r} ({node.op_type})" for node in nodes)
    place = Evidence("node", nodes[0].name, "the nodes before it build, those with it do not")
    what, evidence = f"no engine with node {names}: {cause.what}", (place, *cause.evidence)
    return replace(cause, subject=nodes[0].name, what=what, fix=fix, evidence=evidence)
