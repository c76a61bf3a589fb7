"""The diagnosis of a build that lies in a folder, and of one that failed and left only its log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from trtcal.config import Config
from trtcal.documents import write_document
from trtcal.errors import GateFailed
from trtcal.evidence.diagnosis import (
    Case,
    Diagnosis,
    Limits,
    Mentions,
    Suppression,
    diagnose,
    explain,
    find_faults,
    tensors_of,
)
from trtcal.evidence.findings import Evidence, Finding, sentence
from trtcal.evidence.fusion import LayerList, check_fusions
from trtcal.evidence.fusion.check import AGREES, BROKEN_FUSION, DIFFERS, SPLIT_FUSION
from trtcal.evidence.fusion.matching import WHOLE
from trtcal.evidence.layers.findings import examine
from trtcal.evidence.layers.layer import Layer
from trtcal.evidence.layers.outcomes import check
from trtcal.evidence.layers.reading import Engine, read_engine
from trtcal.evidence.log import Event, events_of_file
from trtcal.evidence.manifest import DIAGNOSIS, LAYER_TIMES, Build
from trtcal.model import Model, uniquely_named
from trtcal.quantization.qdq import asked_precisions, quantization_record

WHY_FAULTY = "TensorRT computes such a node in float, mostly without a word, or refuses the model."
AROUND = 1  # lines of context before and behind a log line
SHOWN_CHARACTERS = 500


def check_build(
    build: Build,
    config: Config,
    model: Model | None = None,
    logs: Sequence[Path] = (),
) -> Diagnosis:
    """Diagnose a build by its manifest and its log; `logs` are further ones, of the same engine.

    The findings of the layer list (copies, chains, float kernels between INT8 layers) are part of it;
    with the model also those of its fusions, and lines that name a tensor are joined to the nodes that
    use it. Of ONNX Runtime's CPU only the log is read: what it runs in float says nothing of TensorRT.
    """
    logs = [build.log, *logs]
    if build.target == "cpu":
        return check_case(Case(), config, logs)
    tensors = tensors_of(model.proto) if model else {}
    case = Case(build.outcomes, build.skipped, build.layers, tensors=tensors)
    timed = (build.folder / LAYER_TIMES).exists()
    layers = read_engine(build.folder).layers if timed else build.layers
    return check_case(case, config, logs, _of_layers(layers, model))


def _of_layers(layers: Sequence[Layer], model: Model | None) -> Iterator[Finding]:
    """Yield what a layer list shows: by itself, and held against the fusions that a model expects."""
    yield from examine(layers).findings
    if model is not None and layers:
        yield from _fusions(model, LayerList("", tuple(layers)))


def _fusions(model: Model, layers: LayerList | None = None) -> Iterator[Finding]:
    """Yield the fusions to act on.

    These are patterns that a pass can make whole, with layers only those that they show as several
    kernels, and patterns that are whole and that the engine computes in several.
    """
    checked = check_fusions(model, layers=layers)
    fixable = {
        (one.nodes or (one.tensor,))[0]
        for match, verdict in zip(checked.matches, checked.verdicts, strict=True)
        for one in match.breakers[:1]
        if one.fix and (layers is None or verdict == AGREES)
    }
    split = {
        match.root
        for match, verdict in zip(checked.matches, checked.verdicts, strict=True)
        if verdict == DIFFERS and match.state == WHOLE
    }
    wanted = {BROKEN_FUSION: fixable, SPLIT_FUSION: split}
    for finding in checked.findings:
        if finding.subject in wanted[finding.kind]:
            yield replace(finding, why=sentence(finding.why), fix=sentence(finding.fix))


def check_engine(
    engine: Engine, config: Config, logs: Sequence[Path] = (), model: Model | None = None
) -> Diagnosis:
    """Diagnose what another tool built, by its layer list, its logs and the ONNX it was made of.

    With layers and model, the precision of nodes with Q/DQ is compared with what they got. Without
    layers the graph alone shows which of its Q/DQ TensorRT will compute in float, and which fusions
    something breaks.
    """
    if model is None:
        case = Case(layers=engine.layers)
        return check_case(case, config, logs, _of_layers(engine.layers, None))
    model = uniquely_named(model)
    if not engine.layers:
        return check_case(Case(), config, logs, [*_faults(model), *_fusions(model)])
    asked = {node: one for node, one in asked_precisions(model).items() if one == "int8"}
    outcomes = explain(check(asked, engine.layers), model.proto, Mentions(_events(logs)))
    skipped = quantization_record(model.proto).get("skipped", {})
    case = Case(outcomes, skipped, engine.layers, tensors=tensors_of(model.proto))
    return check_case(case, config, logs, _of_layers(engine.layers, model))


def _faults(model: Model) -> Iterator[Finding]:
    for node, fault in find_faults(model.proto).items():
        what = f"{node!r} has Q/DQ, and {fault.what}"
        evidence = (Evidence("node", node, "seen in the graph, not in a build"),)
        yield Finding(fault.cause, node, what, WHY_FAULTY, sentence(fault.fix), evidence)


def check_case(
    case: Case, config: Config, logs: Sequence[Path], further: Iterable[Finding] = ()
) -> Diagnosis:
    """Diagnose a case with the events of all logs; log lines get their neighbours as context."""
    gates = config.gates
    limits = Limits(gates.max_uncalibrated, gates.max_silent_fallbacks, gates.forbid)
    accepted = [Suppression(**one) for one in config.suppress]
    made = diagnose(replace(case, events=_events(logs)), limits, accepted, further)
    return replace(made, findings=with_context(made.findings, logs))


def _events(logs: Sequence[Path]) -> Iterator[tuple[str, Event]]:
    for log in logs:
        for event in events_of_file(log):
            yield log.name, event


def with_context(findings: Sequence[Finding], logs: Sequence[Path]) -> tuple[Finding, ...]:
    """Return the findings with the lines around every log line that they give as evidence."""
    wanted = {one.place for finding in findings for one in finding.evidence if one.source == "log"}
    around = {place: text for log in logs for place, text in _contexts(log, wanted)}
    return tuple(
        replace(finding, evidence=tuple(_widened(one, around) for one in finding.evidence))
        for finding in findings
    )


def _widened(evidence: Evidence, around: dict[str, str]) -> Evidence:
    if evidence.source != "log" or evidence.place not in around:
        return evidence
    return replace(evidence, text=around[evidence.place])


def _contexts(log: Path, wanted: set[str]) -> Iterator[tuple[str, str]]:
    """Yield place and text of every wanted line, with its neighbours, in one pass over a log."""
    lines = sorted(int(p.rpartition(":")[2]) for p in wanted if p.rpartition(":")[0] == log.name)
    near = {line + step for line in lines for step in range(-AROUND, AROUND + 1)}
    kept: dict[int, str] = {}
    if lines:
        with log.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if number in near:
                    text = raw[:SHOWN_CHARACTERS].decode("utf-8", "backslashreplace")
                    kept[number] = text.rstrip("\r\n")
                if number > lines[-1] + AROUND:
                    break
    for line in lines:
        texts = (kept.get(line + step) for step in range(-AROUND, AROUND + 1))
        yield f"{log.name}:{line}", "\n".join(text for text in texts if text is not None)


def write_diagnosis(folder: Path, diagnosis: Diagnosis) -> None:
    """Write `diagnosis.json` beside the build."""
    write_document(folder / DIAGNOSIS, diagnosis.to_document())


def hold(diagnosis: Diagnosis) -> None:
    """`GateFailed` if a limit does not hold."""
    if diagnosis.breaches:
        raise GateFailed(
            f"the build breaks a limit: {'; '.join(map(str, diagnosis.breaches))}",
            "fix what the findings name, or accept it by [[suppress]] in trtcal.toml, with a reason",
        )
