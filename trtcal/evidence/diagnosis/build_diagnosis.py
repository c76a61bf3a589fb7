"""All that is known of one build, put together: what is wrong, what it costs, and what to do.

Only what needs a decision becomes a finding: a node that got the precision asked is none, and
neither is a layer that is slow by nature. What was looked at and is well is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trtcal.documents import Document, seal
from trtcal.evidence.diagnosis.limits import Breach, Limits, Suppression, find_breaches, suppress
from trtcal.evidence.diagnosis.log_findings import LogFindings, Placed, log_evidence
from trtcal.evidence.diagnosis.reasons import MISSING_RANGE, Mentions
from trtcal.evidence.findings import Cost, Evidence, Finding, rank, sentence
from trtcal.evidence.layers.layer import Layer
from trtcal.evidence.layers.outcomes import Outcome

KIND = "diagnosis"
NO_RANGE = "has no range"
ORDER = ("int8", "fp16", "fp32")  # rising in width
WHY_SILENT = (
    "The builder took another precision and printed nothing: only the layer list shows it. The node "
    "keeps its accuracy, and loses the speed and the memory that INT8 was to bring."
)
WHY_TOLD = "The node keeps its accuracy, and loses the speed that the precision asked was to bring."
WHY_NARROW = "A plan kept this node in a wider type for its accuracy, and that is lost."
WHY_LEFT = "The plan asks for INT8, and without a range there is no scale: the node stays in float."


@dataclass(frozen=True)
class Case:
    """What one build left: outcomes by node, nodes that never got Q/DQ with why, layers, events.

    `tensors` gives the tensors that each node reads and writes, as far as the model is at hand; each
    event comes with the name of its log.
    """

    outcomes: Sequence[Outcome] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    layers: Sequence[Layer] = ()
    events: Iterable[Placed] = ()
    tensors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Diagnosis:
    """Findings by cost, those accepted with the reason, limits broken, notes, and what was counted."""

    findings: tuple[Finding, ...]
    accepted: tuple[tuple[Finding, Suppression], ...] = ()
    breaches: tuple[Breach, ...] = ()
    notes: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    unused: tuple[Suppression, ...] = ()

    def to_document(self) -> Document:
        """Return the sealed JSON form."""
        accepted = [
            {**finding.to_document(), "accepted": why.reason} for finding, why in self.accepted
        ]
        body = {
            "findings": [finding.to_document() for finding in self.findings],
            "accepted": accepted,
            "breaches": [breach.to_document() for breach in self.breaches],
            "notes": dict(self.notes),
            "counts": dict(self.counts),
            "unused_suppressions": [str(one) for one in self.unused],
        }
        return seal({"kind": KIND, "schema_version": 1, **body})


def diagnose(
    case: Case,
    limits: Limits | None = None,
    suppressions: Sequence[Suppression] = (),
    further: Iterable[Finding] = (),
) -> Diagnosis:
    """Return what is wrong with a build, the costliest first; `further` are findings of others.

    One thing is told once: a log line and a layer about the same node are evidence of one finding.
    """
    log = LogFindings()
    mentions = Mentions(log.read(case.events))
    told = log.findings()
    own = [*_lost(case, mentions), *_left(case)]
    everything = rank(_merged([*own, *told], case) + list(further))
    findings, accepted = suppress(everything, suppressions)
    used = {why for _, why in accepted}
    return Diagnosis(
        findings,
        accepted,
        find_breaches(findings, limits or Limits()),
        dict(log.notes),
        _counts(case, log),
        tuple(one for one in suppressions if one not in used),
    )


def _counts(case: Case, log: LogFindings) -> dict[str, int]:
    outcomes = case.outcomes
    lost = sum(one.is_lost for one in outcomes)
    met = sum(one.is_met for one in outcomes)
    counts = {
        "asked": len(outcomes),
        "met": met,
        "lost": lost,
        "unknown": len(outcomes) - met - lost,
        "left_in_float": len(case.skipped),
        "layers": len(case.layers),
        "log_events": log.seen,
        "log_findings_beyond": log.beyond,
    }
    return {
        name: number for name, number in counts.items() if number or name in ("asked", "log_events")
    }


def _lost(case: Case, mentions: Mentions) -> Iterable[Finding]:
    layers = {layer.name: layer for layer in case.layers}
    for outcome in case.outcomes:
        if outcome.is_lost:
            events = mentions.of(outcome.node, case.tensors.get(outcome.node, ()))
            layer = layers.get(outcome.layer or "")
            yield _lost_one(outcome, layer, events)


def _lost_one(outcome: Outcome, layer: Layer | None, events: Sequence[Placed]) -> Finding:
    narrower = ORDER.index(outcome.got) < ORDER.index(outcome.asked)
    silent = not events and outcome.cause != "slower"
    kind = "narrowed" if narrower else "silent_fallback" if silent else "fallback"
    why = WHY_NARROW if narrower else WHY_SILENT if silent else WHY_TOLD
    evidence = [Evidence("node", outcome.node, f"asked {outcome.asked}, got {outcome.got}")]
    if layer is not None:
        evidence.append(Evidence("layer", layer.name, f"{layer.kind}, {layer.precision}"))
    evidence += map(log_evidence, events)
    if outcome.cause == MISSING_RANGE and not narrower:
        kind, why = MISSING_RANGE, WHY_TOLD
    return Finding(
        kind=kind,
        subject=outcome.node,
        what=f"{outcome.node!r} was asked in {outcome.asked}; {outcome.reason}",
        why=why,
        fix=sentence(outcome.hint or "look at the layer list: what stands before the node?"),
        evidence=tuple(evidence),
        cost=_cost(layer, "high" if narrower else "none"),
    )


def _cost(layer: Layer | None, risk: str) -> Cost:
    if layer is None:
        return Cost(risk=risk)
    tensors = (*layer.inputs, *layer.constants, *layer.outputs)
    sized = all(one.shape and min(one.shape) > 0 for one in tensors)
    return Cost(getattr(layer, "time_ms", None), layer.bytes_moved if sized else None, risk)


def _left(case: Case) -> Iterable[Finding]:
    """Yield a finding for each node that the plan asked in INT8 and that no range was there for."""
    for node, reason in case.skipped.items():
        if NO_RANGE in reason:
            yield Finding(
                kind=MISSING_RANGE,
                subject=node,
                what=f"{node!r} was left in float: {reason}",
                why=WHY_LEFT,
                fix="Calibrate again with data that reach the tensor, or import a range for it.",
                evidence=(Evidence("node", node, reason),),
            )


def _merged(findings: list[Finding], case: Case) -> list[Finding]:
    """Tell each thing once: what a line says of a node or tensor that a finding is about joins it."""
    about: dict[str, int] = {}
    kept: list[Finding] = []
    for finding in findings:
        place = about.get(finding.subject or "") if _is_of_log(finding) else None
        if place is not None and finding.kind != "no_implementation":
            kept[place] = _joined(kept[place], finding)
            continue
        if finding.subject is not None and not _is_of_log(finding):
            for name in (finding.subject, *case.tensors.get(finding.subject, ())):
                about.setdefault(name, len(kept))
        kept.append(finding)
    return kept


def _is_of_log(finding: Finding) -> bool:
    return bool(finding.evidence) and all(one.source == "log" for one in finding.evidence)


def _joined(finding: Finding, line: Finding) -> Finding:
    more = tuple(one for one in line.evidence if one not in finding.evidence)
    return replace(finding, evidence=finding.evidence + more)


def summary_line(diagnosis: Diagnosis) -> str:
    """Return one line: how many findings of which kinds."""
    kinds: dict[str, int] = {}
    for finding in diagnosis.findings:
        kinds[finding.kind] = kinds.get(finding.kind, 0) + 1
    parts = [f"{number} {kind.replace('_', ' ')}" for kind, number in kinds.items()]
    return ", ".join(parts) if parts else "no findings"
