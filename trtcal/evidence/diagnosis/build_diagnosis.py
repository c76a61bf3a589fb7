"""All that is known of one build, put together: what is wrong, what it costs, and what to do.

Only what needs a decision becomes a finding. What was checked and is well is only counted.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

import onnx
from onnx import TensorProto

from trtcal.config import Config
from trtcal.documents import Document, seal, to_fields, write_document
from trtcal.documents.overview import Overview, Shown
from trtcal.errors import some
from trtcal.evidence.diagnosis.failure import (
    DIAGNOSIS_KIND,
    DIAGNOSIS_VERSION,
    causes_first,
    ends_build,
    is_refused,
    recorded,
)
from trtcal.evidence.diagnosis.log_findings import MAX_EVIDENCE, LogFindings, Placed, log_evidence
from trtcal.evidence.diagnosis.reasons import (
    INTEGER_OPERATORS,
    MISSING_RANGE,
    Mentions,
    explain,
    find_faults,
    find_refused,
    tensors_of,
)
from trtcal.evidence.findings import (
    KINDS,
    Cost,
    Evidence,
    Finding,
    count_findings,
    of_kind,
    rank,
    sentence,
)
from trtcal.evidence.fusion import fusions
from trtcal.evidence.fusion.matching import WHOLE
from trtcal.evidence.layers.copies import examine
from trtcal.evidence.layers.layer import Layer
from trtcal.evidence.layers.outcomes import (
    EXPANDED,
    Outcome,
    built_coverage,
    check,
    layer_coverage,
    narrow_formats,
)
from trtcal.evidence.layers.reading import Engine, read_engine
from trtcal.evidence.layers.roofline import bytes_of
from trtcal.evidence.log.reader import events_of_file, parse_file
from trtcal.evidence.log.recognition import Event
from trtcal.evidence.manifest import DIAGNOSIS, LAYER_TIMES, LOG, MANIFEST, Build, read_build
from trtcal.formats import NARROW, PRECISIONS, RANGED, WEIGHTS_ONLY, spelled
from trtcal.limits import Judgement, Limit, judge_counts, require
from trtcal.metrics import FINDINGS, check_known
from trtcal.model import Model, uniquely_named
from trtcal.model.files import stand_in
from trtcal.model.passes.rounding import chains_of
from trtcal.model.shapes import stated_types
from trtcal.model.tensors import producers_of, readers_of
from trtcal.quantization.coverage import Coverage, asked_coverage, judge_coverage
from trtcal.quantization.qdq import asked_precisions, fp16_tensors, quantization_record

NO_RANGE, OVERFLOW = "has no range", "fp16_overflow"
Logs = Sequence[Path]
Findings = Iterable[Finding]


@dataclass(frozen=True)
class Case:
    """What one build left: outcomes by node, nodes that never got Q/DQ with why, layers, events.

    `tensors` are those that each node reads and writes, if the model is given, `expected` the narrow
    formats, by the names of plans, in which a layer was to run: `narrow` is any. Without an engine,
    `is_built` is false.
    """

    outcomes: Sequence[Outcome] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    layers: Sequence[Layer] = ()
    events: Iterable[Placed] = ()
    tensors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    coverage: Coverage | None = None
    expected: Collection[str] = ()
    is_built: bool = True


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
class Diagnosis(Shown):
    """Findings by cost, those accepted with the reason, limits judged, notes, and what was counted.

    >>> import tempfile
    >>> made = build("samples/digits/digits.onnx", tempfile.mkdtemp())
    >>> diagnose(made).counts["log_events"] >= 0
    True
    """

    findings: tuple[Finding, ...]
    accepted: tuple[tuple[Finding, Suppression], ...] = ()
    limits: tuple[Judgement, ...] = ()
    notes: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    unused: tuple[Suppression, ...] = ()
    coverage: Coverage | None = None

    def overview(self) -> Overview:
        """Return the findings, and how much of the compute is in INT8."""
        columns = {"finding": "{kind}", "what": "{what}", "why": "{why}", "fix": "{fix}"}
        facts = [self.coverage.proportion] if self.coverage else []
        brief = (f"{finding.kind}: {finding.what}" for finding in self.findings)
        title = f"Diagnosis: {summary_line(self)}"
        return Overview(title, facts, brief, self.findings, columns)

    def to_document(self) -> Document:
        """Return the sealed JSON form."""
        accepted = [{**to_fields(item), "accepted": why.reason} for item, why in self.accepted]
        body = {
            "findings": list(map(to_fields, self.findings)),
            "accepted": accepted,
            "limits": [judgement.to_document() for judgement in self.limits],
            "notes": dict(self.notes),
            "counts": dict(self.counts),
            "unused_suppressions": [str(suppression) for suppression in self.unused],
            "coverage": self.coverage and self.coverage.to_document(),
        }
        return seal({"kind": DIAGNOSIS_KIND, "schema_version": DIAGNOSIS_VERSION, **body})


def diagnose(
    case: Case,
    limits: Sequence[Limit] = (),
    suppressions: Sequence[Suppression] = (),
    further: Findings = (),
) -> Diagnosis:
    """Return what is wrong with a build, the costliest first; `further` are findings of others.

    A log line and a layer about the same node are evidence of one finding. Of a build that gave no
    engine, what ended it comes first, and it has no coverage.
    """
    log = LogFindings()
    mentions = Mentions(log.read(case.events))
    of_log = log.findings()
    further = list(further)
    measured = [finding for finding in further if finding.kind == OVERFLOW]
    own = [*measured, *_absent(case), *_lost(case, mentions), *_left(case)]
    others = (finding for finding in further if finding.kind != OVERFLOW)
    several = [*_merged([*own, *of_log], case), *others]  # the last of equal ones says most
    different = {(finding.kind, finding.subject, finding.what): finding for finding in several}
    has_failed = not case.is_built and any(map(ends_build, different.values()))
    everything = (causes_first if has_failed else rank)(different.values())
    coverage = None if has_failed else case.coverage
    findings, accepted = suppress(everything, suppressions)
    used = {why for _, why in accepted}
    judged = (*judge_findings(findings, limits), *judge_coverage(limits, coverage))
    unused = tuple(suppression for suppression in suppressions if suppression not in used)
    counts = _counts(case, log)
    return Diagnosis(findings, accepted, judged, dict(log.notes), counts, unused, coverage)


def suppress(
    findings: Findings, suppressions: Sequence[Suppression]
) -> tuple[tuple[Finding, ...], tuple[tuple[Finding, Suppression], ...]]:
    """Separate findings into those that count and those that are accepted, each with why."""
    pairs = [(f, next((why for why in suppressions if why.covers(f)), None)) for f in findings]
    accepted = tuple((finding, why) for finding, why in pairs if why is not None)
    return tuple(finding for finding, why in pairs if why is None), accepted


def judge_findings(findings: Sequence[Finding], limits: Sequence[Limit]) -> tuple[Judgement, ...]:
    """Hold the numbers of findings, in all and by kind, to the limits that are about them."""
    kinds = Counter(finding.kind for finding in findings)
    ours = [limit for limit in limits if limit.about.of == FINDINGS]
    counts = {limit.metric: kinds[limit.about.counts] for limit in ours}
    return judge_counts(ours, counts | {"findings": len(findings)})


def _counts(case: Case, log: LogFindings) -> dict[str, int]:
    lost = sum(outcome.is_lost for outcome in case.outcomes)
    met = sum(outcome.is_met for outcome in case.outcomes)
    counts = {
        "asked": len(case.outcomes),
        "met": met,
        "lost": lost,
        "unknown": len(case.outcomes) - met - lost,
        "left_in_float": len(case.skipped),
        "layers": len(case.layers),
        "log_events": log.seen,
        "log_findings_beyond": log.beyond,
    }
    shown = ("asked", "log_events")
    return {name: number for name, number in counts.items() if number or name in shown}


ANY = "narrow"
ABSENT = {"int8": "no_int8", "fp8": "no_fp8"}
"""Format -> the kind of finding about an engine that has no layer in it."""


def _absent(case: Case) -> Iterator[Finding]:
    """Yield a finding about each format in which an engine was to have layers and has none."""
    formats = narrow_formats(case.layers)
    for name in case.expected if case.layers else ():
        if name in formats or (name == ANY and formats):
            continue
        largest = case.coverage.rest[:3] if case.coverage else ()
        what = f"no layer of this engine runs in {spelled([name])}"
        evidence = [Evidence("node", node.node, node.reason) for node in largest]
        cost = Cost(moved_bytes=bytes_of(case.layers))
        yield of_kind(ABSENT.get(name, "no_narrow"), None, what, evidence, cost=cost)


def _lost(case: Case, mentions: Mentions) -> Findings:
    layers = {layer.name: layer for layer in case.layers}
    for outcome in (outcome for outcome in case.outcomes if outcome.is_lost):
        events = mentions.of(outcome.node, case.tensors.get(outcome.node, ()))
        yield _lost_one(outcome, layers.get(outcome.layer or ""), events)


def _lost_one(outcome: Outcome, layer: Layer | None, events: Sequence[Placed]) -> Finding:
    narrower = PRECISIONS[outcome.got].width < PRECISIONS[outcome.asked].width
    silent = not events and outcome.cause != "slower"
    kind = "narrowed" if narrower else "silent_fallback" if silent else "fallback"
    if outcome.cause == EXPANDED and outcome.asked in WEIGHTS_ONLY:
        kind = EXPANDED
    why = KINDS[kind].why
    if outcome.cause == MISSING_RANGE and not narrower:
        kind, why = MISSING_RANGE, KINDS["fallback"].why
    what = f"{outcome.node!r} was requested in {outcome.asked}; {outcome.reason}"
    fix = sentence(outcome.hint or "check in the layer list which layers come before the node")
    text = f"requested in {outcome.asked}, runs in {outcome.got}"
    of_layer = [Evidence("layer", layer.name, f"{layer.kind}, {layer.precision}")] if layer else []
    evidence = (Evidence("node", outcome.node, text), *of_layer, *map(log_evidence, events))
    cost = _cost(layer, "high" if narrower else "none")
    return Finding(kind, outcome.node, what, why, fix, evidence, cost)


def _cost(layer: Layer | None, risk: str) -> Cost:
    if layer is None:
        return Cost(risk=risk)
    tensors = (*layer.inputs, *layer.constants, *layer.outputs)
    sized = all(tensor.shape and min(tensor.shape) > 0 for tensor in tensors)
    return Cost(layer.time_ms, layer.bytes_moved if sized else None, risk)


def _left(case: Case) -> Findings:
    """Yield a finding for each node that the plan asked in INT8 and that no range was there for."""
    for node, reason in case.skipped.items():
        if NO_RANGE in reason:
            what, evidence = f"{node!r} was left in float: {reason}", Evidence("node", node, reason)
            yield of_kind(MISSING_RANGE, node, what, (evidence,))


def _merged(findings: list[Finding], case: Case) -> list[Finding]:
    """Join what a log line says of a node or tensor, or of overflow, to the finding about it."""
    about, kept = dict[str, int](), list[Finding]()
    for finding in findings:
        name = OVERFLOW if finding.kind == OVERFLOW else finding.subject or ""
        place = about.get(name) if _is_of_log(finding) else None
        if place is not None and finding.kind != "no_implementation":
            more = (item for item in finding.evidence if item not in kept[place].evidence)
            kept[place] = replace(kept[place], evidence=(*kept[place].evidence, *more))
            continue
        if finding.subject is not None and not _is_of_log(finding):
            for name in (finding.subject, *case.tensors.get(finding.subject, ())):
                about.setdefault(name, len(kept))
            if finding.kind == OVERFLOW:  # a line on it seldom names the node
                about.setdefault(OVERFLOW, len(kept))
        kept.append(finding)
    return kept


def _is_of_log(finding: Finding) -> bool:
    return bool(finding.evidence) and all(evidence.source == "log" for evidence in finding.evidence)


def summary_line(diagnosis: Diagnosis) -> str:
    """Return one line: how many findings of which kinds."""
    kinds = Counter(finding.kind for finding in diagnosis.findings)
    parts = [count_findings(kind, number) for kind, number in kinds.items()]
    return ", ".join(parts) if parts else "no findings"


MAX_NODES = 3  # nodes at a tensor
HARMLESS = Cost(risk="none")
CONTEXT_LINES = 1  # lines of context before and behind a log line
SHOWN_CHARACTERS = 500


def check_build(
    build: Build,
    config: Config,
    model: Model | None = None,
    logs: Logs = (),
    further: Findings = (),
) -> Diagnosis:
    """Diagnose a build by its manifest and its log; `logs` are further ones, of the same engine.

    The findings of the layer list are part of it; with the model also those of its fusions, and lines
    that name a tensor are joined to the nodes that use it. Of ONNX Runtime's CPU only the log is read,
    and integer operators are named: what it runs in float says nothing of TensorRT.
    """
    logs = [build.log, *logs]
    if build.is_for_cpu:
        integer = (f for f in find_misread(model) if f.kind == INTEGER_OPERATORS) if model else ()
        return check_case(Case(coverage=build.coverage), config, logs, [*further, *integer])
    coverage = build.coverage  # builds of before have none
    if coverage is None and model is not None:
        coverage = built_coverage(model, build.outcomes)
    expected = _expected({outcome.asked for outcome in build.outcomes}, bool(build.skipped))
    tensors = tensors_of(model.proto) if model else {}
    case = Case(build.outcomes, build.skipped, build.layers, (), tensors, coverage, expected)
    timed = (build.folder / LAYER_TIMES).exists()
    layers = read_engine(build.folder).layers if timed else build.layers
    return check_case(case, config, logs, [*further, *_of_layers(layers, model)])


def _of_layers(layers: Sequence[Layer], model: Model | None) -> Iterator[Finding]:
    """Yield what a layer list shows: by itself, and held against the fusions that a model expects."""
    yield from examine(layers).findings
    if model is not None:
        yield from (finding for finding in find_misread(model) if not is_refused(finding))
        yield from (*_roundings(model), *_float_rest(model))
        yield from _fusions(model, Engine("", tuple(layers)) if layers else None)


def _roundings(model: Model) -> Iterator[Finding]:
    """Yield a finding if a model spells fake quantization out."""
    if chains := chains_of(model):
        what = f"Round, Clip and scales around them quantize {some(map(str, chains))}"
        evidence = [Evidence("node", chain.node, str(chain)) for chain in chains]
        yield of_kind("fake_quantization", None, what, evidence)


def _float_rest(model: Model) -> Iterator[Finding]:
    """Yield a finding if another tool quantized a model without a fault and left the rest in FP32."""
    proto = model.proto
    asked, of_us = Counter(asked_precisions(proto).values()), quantization_record(proto)
    if (narrow := asked.keys() & {*RANGED}) and not (
        of_us or fp16_tensors(proto.graph) or [*_of_graph(model)]
    ):
        layers = sum(asked[name] for name in narrow)
        what = f"{layers} of {asked.total()} heavy nodes have Q/DQ, and the rest is FP32"
        yield of_kind("float32_rest", None, what)


def _fusions(model: Model, layers: Engine | None = None) -> Iterator[Finding]:
    """Yield the fusions to act on.

    These are patterns that a pass can make whole, with layers only those that they show as several
    kernels, and patterns that are whole and that the engine computes in several.
    """
    checked = fusions.check_fusions(model, layers=layers)
    rows = list(zip(checked.matches, checked.verdicts, strict=True))
    shown = (match for match, word in rows if layers is None or word == fusions.AGREES)
    first = (breaker for match in shown for breaker in match.breakers[:1])
    fixable = {breaker.subject for breaker in first if breaker.fix}
    different = (match for match, word in rows if word == fusions.DIFFERS)
    split = {match.root for match in different if match.state == WHOLE}
    subjects = {fusions.BROKEN_FUSION: fixable, fusions.SPLIT_FUSION: split}
    for finding in checked.findings:
        if finding.subject in subjects[finding.kind]:
            yield replace(finding, why=sentence(finding.why), fix=sentence(finding.fix))


def check_folder(
    path: Path, config: Config, logs: Logs = (), model: Model | None = None, further: Findings = ()
) -> Diagnosis:
    """Diagnose a build by its folder or manifest, one that failed by the log that it left."""
    if path.is_file() or (path / MANIFEST).is_file():
        return check_build(read_build(path), config, model, logs, further)
    log = path / LOG
    if not log.is_file():
        return check_engine(read_engine(path), config, logs, model, further)
    has_failed = bool(recorded(log)) or parse_file(log).is_failed
    engine = Engine(str(log), ()) if has_failed else read_engine(path)
    return check_engine(engine, config, (log, *logs), model, further)


def check_failure(log: Path, model: Model, has_parser: bool, own: Findings = ()) -> Diagnosis:
    """Diagnose a build that gave no engine: by its log, and by the Q/DQ where TensorRT parses them."""
    further = [*own, *(_of_graph(model) if has_parser else ())]
    return diagnose(Case(events=_events([log]), is_built=False), further=further)


def check_engine(
    engine: Engine,
    config: Config,
    logs: Logs = (),
    model: Model | None = None,
    further: Findings = (),
) -> Diagnosis:
    """Diagnose what another tool built, by its layer list, its logs and the ONNX it was made of.

    With layers and model, the precision of nodes with Q/DQ is compared with what they got. Without
    layers the graph alone shows which of its Q/DQ TensorRT will compute in float, and which fusions
    something breaks. Beside the log of a failed build, its record counts too.
    """
    if model is None:
        coverage = layer_coverage(engine.layers) if engine.layers else None
        expected = () if narrow_formats(engine.layers) else ("int8",)
        case = Case((), {}, engine.layers, (), {}, coverage, expected, bool(engine.layers))
        own = [*chain.from_iterable(map(recorded, logs)), *_of_layers(engine.layers, None)]
        return check_case(case, config, logs, [*further, *own])
    return with_nodes(_check_of_model(engine, config, logs, uniquely_named(model), further), model)


def _check_of_model(
    engine: Engine, config: Config, logs: Logs, model: Model, further: Findings
) -> Diagnosis:
    if not engine.layers:
        lost = {node: fault.what for node, fault in find_faults(model.proto).items()}
        case = Case(coverage=asked_coverage(model, lost=lost), is_built=False)
        own = *_of_graph(model), *chain.from_iterable(map(recorded, logs)), *_of_layers((), model)
        return check_case(case, config, logs, [*further, *own])
    multiplying = asked_precisions(model.proto)
    precisions = {node: precision for node, precision in multiplying.items() if precision in NARROW}
    outcomes = explain(check(precisions, engine.layers), model.proto, Mentions(_events(logs)))
    # Without Q/DQ a calibrator may have given the ranges: then the layers alone show what is in INT8.
    built = outcomes or check(dict.fromkeys(multiplying, "int8"), engine.layers)
    record = quantization_record(model.proto)
    expected, tensors = _expected({*precisions.values()}, bool(record)), tensors_of(model.proto)
    coverage, skipped = built_coverage(model, built), record.get("skipped", {})
    case = Case(outcomes, skipped, engine.layers, (), tensors, coverage, expected)
    return check_case(case, config, logs, [*further, *_of_layers(engine.layers, model)])


FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}


def with_nodes(diagnosis: Diagnosis, model: Model) -> Diagnosis:
    """Return a diagnosis whose tensors without a range are named with the nodes at them.

    One that needs no range costs nothing, and comes behind all that does.
    """
    if not any(finding.kind == MISSING_RANGE for finding in diagnosis.findings):
        return diagnosis
    graph = model.proto.graph
    writers, readers = producers_of(graph), readers_of(graph)
    types = stated_types(onnx.shape_inference.infer_shapes(stand_in(model.proto)).graph)

    def named(finding: Finding) -> Finding:
        name = finding.subject or ""
        if finding.kind != MISSING_RANGE or not _is_of_log(finding) or name not in writers:
            return finding
        parts = [("writes", writers[name]), *(("reads", node) for node in readers.get(name, ()))]
        who = ", ".join(f"{n.name} ({n.op_type}) {verb} it" for verb, n in parts[:MAX_NODES])
        renamed = replace(finding, what=f"tensor {name!r} has no range: {who}")
        kind = types[name].tensor_type.elem_type if name in types else 0
        if kind in FLOATS | {0} and name in readers:
            return renamed
        why = "it is an output of the network" if kind in FLOATS | {0} else "it holds no floats"
        why, fix = f"Harmless: {why}.", "You need not do anything."
        return replace(renamed, why=why, fix=fix, cost=HARMLESS)

    findings = sorted(map(named, diagnosis.findings), key=lambda finding: finding.cost == HARMLESS)
    return replace(diagnosis, findings=tuple(findings))


def _of_graph(model: Model) -> Iterator[Finding]:
    """Yield what TensorRT refuses of a graph, one finding a kind, and the faults of its Q/DQ."""
    yield from find_misread(model)
    for node, fault in find_faults(model.proto).items():
        evidence = [Evidence("node", node, "seen in the graph, not in a build")]
        what = f"{node!r} has Q/DQ, but {fault.what}"
        yield of_kind(fault.cause, node, what, evidence, fault.fix and sentence(fault.fix))


def find_misread(model: Model) -> tuple[Finding, ...]:
    """Return what TensorRT refuses or misreads of a graph, one finding a kind, the refused first."""
    return causes_first([_of_places(*item) for item in find_refused(model.proto).items()])


def _of_places(kind: str, places: Sequence[tuple[str, str]]) -> Finding:
    """Return a finding about nodes, each with a detail."""
    nodes = [f"{node!r} ({detail})" for node, detail in places]
    what = f"{len(nodes)} {KINDS[kind].states[len(nodes) > 1]}: {some(nodes)}"
    evidence = [Evidence("node", node, detail) for node, detail in places[:MAX_EVIDENCE]]
    cost = Cost(risk="none" if KINDS[kind].is_refused else "high")
    return of_kind(kind, places[0][0] if len(places) == 1 else None, what, evidence, cost=cost)


def _expected(formats: Collection[str], was_quantized: bool) -> tuple[str, ...]:
    """Return in which formats a layer is to run: any, if nodes were to have one and none is asked."""
    if was_quantized and not {*formats}.intersection(NARROW):
        return (ANY,)
    return tuple(name for name in RANGED if name in formats)


def check_case(case: Case, config: Config, logs: Logs, further: Findings = ()) -> Diagnosis:
    """Diagnose a case with the events of all logs; log lines get their neighbours as context."""
    check_known([limit.metric for limit in config.limits], None if config.evaluation.metric else ())
    accepted = [Suppression(**entry) for entry in config.suppress]
    diagnosis = diagnose(replace(case, events=_events(logs)), config.limits, accepted, further)
    return replace(diagnosis, findings=with_context(diagnosis.findings, logs))


def _events(logs: Logs) -> Iterator[tuple[str, Event]]:
    for log in logs:
        for event in events_of_file(log):
            yield log.name, event


def with_context(findings: Sequence[Finding], logs: Logs) -> tuple[Finding, ...]:
    """Return the findings with the lines around every log line that they give as evidence."""
    shown = (item for finding in findings for item in finding.evidence)
    places = {item.place for item in shown if item.source == "log"}
    around = {place: text for log in logs for place, text in _contexts(log, places)}

    def widened(item: Evidence) -> Evidence:
        is_log = item.source == "log"
        return replace(item, text=around.get(item.place, item.text)) if is_log else item

    return tuple(replace(f, evidence=tuple(map(widened, f.evidence))) for f in findings)


def _contexts(log: Path, places: set[str]) -> Iterator[tuple[str, str]]:
    """Yield place and text of every line of evidence, with its neighbours, in one pass over a log.

    A neighbour that is evidence itself, or stands beside an earlier line already, is not repeated.
    """
    lines = sorted(int(p.rpartition(":")[2]) for p in places if p.rpartition(":")[0] == log.name)
    near = {line + step for line in lines for step in range(-CONTEXT_LINES, CONTEXT_LINES + 1)}
    kept: dict[int, str] = {}
    if lines:
        with log.open("rb") as file:
            for number, raw in enumerate(islice(file, lines[-1] + CONTEXT_LINES), 1):
                if number in near:
                    text = raw[:SHOWN_CHARACTERS].decode("utf-8", "backslashreplace")
                    kept[number] = text.rstrip("\r\n")
    shown = set(lines)
    for line in lines:
        here = range(line - CONTEXT_LINES, line + CONTEXT_LINES + 1)
        new = (near for near in here if near in kept and (near == line or near not in shown))
        text = "\n".join(map(kept.__getitem__, new))
        shown.update(here)
        yield f"{log.name}:{line}", text


def write_diagnosis(folder: Path, diagnosis: Diagnosis) -> None:
    """Write `diagnosis.json` beside the build."""
    write_document(folder / DIAGNOSIS, diagnosis.to_document())


def hold(diagnosis: Diagnosis) -> None:
    """`GateFailed` if a limit is broken."""
    accept = "accept it with a reason: [[suppress]] in trtcal.toml"
    require(diagnosis.limits, f"follow the advice of each finding, or {accept}")
