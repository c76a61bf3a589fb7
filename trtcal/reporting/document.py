"""The report as data: one sealed JSON document, from which the page is only a rendering.

Its lasting part is the same for two runs of the same inputs: accuracy, what each build made of the
plan, how the ranges were chosen, the limits, and the digests of all of it. Times, sizes, logs, the
machine, and the verdict, which may rest on times, stand under `measured`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from trtcal import documents
from trtcal.config import Config, CostConfig
from trtcal.data.issues import DataIssue
from trtcal.documents import Document, parsing, read_document, read_json
from trtcal.documents.redaction import FLAG
from trtcal.errors import InputError, __version__
from trtcal.evaluate.comparison import Comparison
from trtcal.evaluate.variant_limits import judge_variants
from trtcal.evidence.diagnosis.build_diagnosis import check_engine
from trtcal.evidence.findings import Finding
from trtcal.evidence.fusion.fusions import check_fusions
from trtcal.evidence.gpus import datasheet_of, find_target
from trtcal.evidence.layers.layer import Layer
from trtcal.evidence.layers.reading import Engine
from trtcal.evidence.layers.roofline import counted_precision
from trtcal.evidence.log.reader import parse_file
from trtcal.evidence.log.recognition import Event
from trtcal.evidence.manifest import LOG, Build
from trtcal.evidence.times import layer_ms
from trtcal.limits import BROKEN, overall
from trtcal.metrics import COSTS, TIMES, metric_of
from trtcal.model import Model, load_model
from trtcal.ptq.artifact import optimized_fingerprint
from trtcal.ranges import Calibration
from trtcal.reporting.collect import LAYERS_KEPT, Findings, collect, models_in
from trtcal.reporting.measured import Measured, read_measured, warned, with_engines, with_measured
from trtcal.reporting.tensors import tensor_facts, wire
from trtcal.reporting.verdict import judge, lowered, with_builds, without_comparison

REPORT_KIND = "report"
VERSION = 4
EVENTS_KEPT = 20
MESSAGE_KEPT = 300
FINDINGS_KEPT = 200  # of each build
COMPARED = (
    *("digest", "dataset", "dataset_name", "samples", "batch", "task", "structure"),
    *("limits", "rows"),
)
# What of an A/B test rests on times stands under `measured`.
TESTED = ("digest", "baseline", "candidate", "dataset_name", "samples", "seen", "interim")
CHECKED = ("digest", "dataset", "dataset_name", "samples", "checked", "issues", "questions")
PLANNED = ("digest", "default", "layers", "rules", "second_qdq", "rest", "without")
BUILT = (
    *("digest", "backend", "backend_version", "target", "model", "model_name"),
    *("quantization", "skipped"),
)
CALIBRATED = (
    *("digest", "method", "parameters", "model", "dataset", "samples", "histograms"),
    "unranged",
)
RAN = ("digest", "command", "stages", "measured")  # under `measured`, for it may name paths
URGENCY = ("error", "warning")
PATH = Path(__file__).with_name("schema.json")


def assemble(folder: Path, files: Sequence[str] = ()) -> Document:
    """Return the sealed report on a run folder, or on builds alone, failed ones too.

    `files` are those of other tools, which measured the run's variants: `[VARIANT[@DEVICE]=]FILE`.

    `InputError` if the folder holds nothing of that, or several comparisons, or a document that was
    altered or lacks a field.
    """
    findings = collect(folder)
    measured = read_measured(files, *compared(findings)) if files else ()
    return assembled(with_engines(findings, measured), measured)


def assemble_again(folder: Path, files: Sequence[str] = ()) -> Document:
    """Assemble the report on a run's folder, with what only the run knew: its history and costs.

    That is in the folder's report.json. It fits the same comparison and engines, to which others may
    have been added; costs and changes of times fit the same times too.
    """
    document = assemble(folder, files)
    try:
        before = read_report(folder / "report.json")
    except InputError:
        return document
    is_whole = all(build in document["builds"] for build in before["builds"])
    if before["comparison"] != document["comparison"] or not is_whole:
        return document
    measured, then = document["measured"], before["measured"]
    timed = all(then.get(part) == measured[part] for part in ("variants", "machine"))
    kept = {
        key: then[key] for key in ("against", "costs") if key in then and (timed or key != "costs")
    }
    if kept.get("against") and not timed:
        figures = [row for row in then["against"]["figures"] if not _is_timed(row["figure"])]
        kept["against"] = {**then["against"], "figures": figures}
    kept["verdict"] = lowered(measured["verdict"], kept.get("against"))
    return {**document, "measured": {**measured, **kept}}


def _is_timed(figure: str) -> bool:
    return metric_of(figure).of in (TIMES, COSTS)


def assembled(findings: Findings, measured: Sequence[Measured] = ()) -> Document:
    """Return the sealed report on what was found; `InputError` if a document lacks a field."""
    return parsing(findings.folder, lambda: _assembled(findings, measured))


def compared(findings: Findings) -> tuple[Comparison, dict[str, Model]]:
    """Return the comparison of a run and its models, the FP32 model where it still lies there."""
    comparison = findings.comparison
    if comparison is None:
        what = f"{findings.folder} has no comparison, so what was measured belongs to no variant"
        raise InputError(what, "run `trtcal compare` into it first")
    models = models_in(findings.folder, {row.model for row in comparison.rows})
    path = Path(str((_noted(findings.run, "files") or {}).get("model", "")))
    if comparison.rows[0].model not in models and path.is_file():
        reference = load_model(path)
        models[reference.fingerprint] = reference
    return comparison, models


def _assembled(findings: Findings, measured: Sequence[Measured]) -> Document:
    order = attrgetter("model_name", "backend", "target", "digest")  # the folder has no part in it
    builds = sorted(findings.builds, key=order)
    every = sorted(findings.calibrations, key=attrgetter("method", "digest"))
    models = {optimized_fingerprint(x["model"], x["optimizations"]) for x in findings.optimizations}
    calibrations = [calibration for calibration in every if calibration.model not in models]
    optimized = [calibration for calibration in every if calibration.model in models]
    plans = [_known(plan.to_document(), PLANNED) for plan in findings.plans]
    cost = CostConfig.from_document(findings.run or {}).to_document()
    known = findings.sensitivities
    body = {
        "kind": REPORT_KIND,
        "schema_version": VERSION,
        "trtcal": __version__,
        "comparison": findings.comparison and _kept(findings.comparison.to_document(), COMPARED),
        "tests": [{**_kept(test, TESTED), "task": test.get("task")} for test in findings.tests],
        "builds": [_build(build, findings.models.get(build.model)) for build in builds],
        "calibrations": [_calibration(calibration) for calibration in calibrations],
        "tensors": tensor_facts(findings.observations, calibrations, findings.tails),
        "data_check": findings.data_check and _known(findings.data_check, CHECKED),
        "optimizations": [*_optimizations(findings, optimized)],
        "plans": sorted(plans, key=itemgetter("digest")),
        **({"cost": cost} if cost else {}),
        **_known(findings.run or {}, [FLAG]),
        **({"sensitivities": [*map(_sensitivity, known)]} if known else {}),
        "measured": _measured(findings, measured),
    }
    plain: Document = json.loads(documents.canonical_json(body))
    return documents.seal(plain)


def _sensitivity(document: Document) -> Document:
    """Return the layers that lose most, with the dB that each brings if it alone stays in float."""
    whole, measure = document["whole"], document["measure"]
    layers = [
        {
            "layer": layer["layer"],
            "share": layer["share"] / whole[measure],
            "gain_db": 10 * math.log10(whole["noise"] / layer["left"]["noise"]),
        }
        for layer in document["layers"][:LAYERS_KEPT]
        if layer["share"] and layer["left"]["noise"] and whole["noise"]
    ]
    return {"calibration": document["calibration"], "layers": layers}


def _optimizations(findings: Findings, optimized: Sequence[Calibration]) -> Iterator[Document]:
    """Yield each record with the ranges of the optimized model and the variants that have them."""
    rows = findings.comparison.rows if findings.comparison else ()
    for record in sorted(findings.optimizations, key=itemgetter("digest")):
        model = optimized_fingerprint(record["model"], record["optimizations"])
        own = [_calibration(calibration) for calibration in optimized if calibration.model == model]
        digests = {row["digest"] for row in own}
        names = [
            row.name
            for row in rows
            if row.quantization.get("calibration") in digests
            or row.quantization.get("model") == model
        ]
        yield {**record, "variants": names, "calibrations": own}


def _kept(source: Any, names: Sequence[str]) -> Document:
    """Return what a report has of a document, or of an object's fields."""
    if isinstance(source, dict):
        return {name: source[name] for name in names}
    return {name: getattr(source, name) for name in names}


def _known(document: Document, names: Sequence[str]) -> Document:
    """Return what a report has of a document that may lack some of it."""
    return {name: document[name] for name in names if name in document}


def _build(build: Build, model: Model | None) -> Document:
    return {
        **_kept(build, BUILT),
        "coverage": build.coverage and build.coverage.to_document(),
        "outcomes": [dataclasses.asdict(outcome) for outcome in build.outcomes],
        "wiring": model and wire(model.proto, {outcome.node for outcome in build.outcomes}),
        "fusions": _fusions(model, build) if model and not build.is_for_cpu else None,
        "estimated_on": datasheet_of(build.target),
        "layers": [_layer(layer, build.target) for layer in build.layers],
    }


def _layer(layer: Layer, target: str) -> Document:
    gpu = datasheet_of(target)
    return {
        **_kept(layer, ("name", "kind", "precision", "macs")),
        "counted": counted_precision(layer),
        "heavy": layer.is_heavy,
        "nodes": list(layer.nodes),
        "bytes": layer.bytes_moved,
        "estimated_ms": layer_ms(layer, find_target(gpu)) if gpu else None,
    }


def _fusions(model: Model, build: Build) -> list[Document]:
    fusions = check_fusions(model, layers=Engine(build.target, build.layers, model=build.model))
    rows = zip(fusions.matches, fusions.seen, fusions.verdicts, strict=True)
    return [
        {
            "pattern": match.pattern,
            "root": match.root,
            "nodes": list(match.nodes),
            "prediction": match.state,
            "why": [breaker.why for breaker in match.breakers],
            "state": seen.state if seen else None,
            "layers": len(seen.layers) if seen else 0,
            "verdict": verdict,
        }
        for match, seen, verdict in rows
    ]


def _calibration(calibration: Calibration) -> Document:
    ranges = calibration.ranges
    return {
        **_kept(calibration, CALIBRATED),
        "ranges": len(ranges),
        "most_clipped": max((entry.clipped for entry in ranges.values()), default=None),
        "notes": {name: entry.note for name, entry in ranges.items() if entry.note},
    }


def _measured(findings: Findings, measured: Sequence[Measured]) -> Document:
    comparison = findings.comparison and with_builds(findings.comparison, findings.builds)
    comparison = comparison and with_measured(comparison, measured)
    failed = [_failed_log(findings.folder, where) for where in findings.failed_logs]
    judgements = judge_variants(comparison) if comparison else {}
    if comparison is None:
        verdict = without_comparison(findings.builds, failed)
    else:
        issues = (findings.data_check or {"issues": ()})["issues"]
        calibration_issues = [documents.from_fields(DataIssue, issue) for issue in issues]
        known = findings.failed_builds, _breaches(findings), calibration_issues
        verdict = warned(judge(comparison, findings.builds, *known, findings.tails), measured)
    rows = comparison.rows if comparison else ()
    name = findings.folder.resolve().name  # a hidden one is temporary
    return {
        "verdict": verdict.to_document(),
        "judgements": {name: overall(judged) for name, judged in judgements.items()},
        "variants": {row.name: row.measured() for row in rows},
        "tests": {test["digest"]: test["measured"] for test in findings.tests},
        "builds": {build.digest: _build_measured(build, findings) for build in findings.builds},
        "failed_builds": findings.failed_builds,
        "failed_logs": failed,
        "machine": (comparison and comparison.machine) or _noted(findings.run, "machine"),
        "packages": _noted(findings.run, "packages"),
        "run": findings.run and _known(findings.run, RAN),
        "folder": None if name.startswith(".") else name,
        **({"imports": [each.facts for each in measured]} if measured else {}),
        "made_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _breaches(findings: Findings) -> dict[str, list[str]]:
    """Return for each model which limits its builds break, as ends of a sentence."""
    breaches: dict[str, list[str]] = {}
    for build in findings.builds:
        for limit in (findings.diagnoses.get(build.digest) or {"limits": []})["limits"]:
            if limit["state"] == BROKEN:
                broken = "the limit {limit} with {value:.4g} {unit}".format(**limit).rstrip()
                sentence = f"its build for {build.target} breaks {broken}"
                breaches.setdefault(build.model, []).append(sentence)
    return breaches


def _build_measured(build: Build, findings: Findings) -> Document:
    log = read_log(build.log)
    if log is not None:
        log["is_original"] = documents.digest_file(build.log) == build.measured.get("log_digest")
    diagnosis = findings.diagnoses.get(build.digest)
    rows = findings.comparison.rows if findings.comparison else ()
    own = (each for row in rows if row.model == build.model for each in row.findings)
    return {
        **build.measured,
        "where": findings.where[build.digest],
        "log": log,
        "diagnosis": None if diagnosis is None else _diagnosis(diagnosis, own),
        "times_ms": {layer.name: layer.time_ms for layer in build.layers if layer.time_ms},
    }


def _diagnosis(document: Document, own: Iterable[Finding] = ()) -> Document:
    """Return a diagnosis with its costliest findings, and how many of each kind there are.

    `own` are what the comparison found of the same model.
    """
    every = [*map(documents.to_fields, own), *document["findings"]]
    kinds = Counter(finding["kind"] for finding in every)
    kept = _kept(document, ("accepted", "limits", "counts", "notes"))
    return {"findings": every[:FINDINGS_KEPT], "kinds": kinds, **kept}


def _failed_log(folder: Path, where: str) -> Document:
    log = folder / where / LOG
    diagnosis = check_engine(Engine(where, ()), Config(log), [log])
    return {"where": where, "log": read_log(log), "diagnosis": _diagnosis(diagnosis.to_document())}


def _noted(run: Document | None, key: str) -> Document:
    noted: Document = ((run or {}).get("measured") or {}).get(key) or {}
    return noted


def read_log(path: Path) -> dict[str, Any] | None:
    """Return a build log's counts by category and its weightiest events; None if there is no log.

    How much memory and time the build took is left out, unless it was a warning or an error.
    """
    if not path.is_file():
        return None
    log = parse_file(path)
    findings = [event for event in log.events if event.is_finding or event.severity in URGENCY]
    counts = Counter(event.category for event in log.events if event.is_finding)
    urgent = sorted(findings, key=lambda event: (*URGENCY, event.severity).index(event.severity))
    kept = sorted(urgent[:EVENTS_KEPT], key=lambda event: event.line)
    return {
        "lines": log.lines,
        "counts": counts,
        "findings": len(findings),
        "events": [_event(event) for event in kept],
    }


def _event(event: Event) -> Document:
    kept = _kept(event, ("line", "severity", "category", "subject"))
    return {**kept, "message": event.message[:MESSAGE_KEPT]}


def read_report(path: Path) -> Document:
    """Read a report's JSON; `InputError` if it is none, of another format version, or altered."""
    document = read_json(path)
    version = document.get("schema_version") if isinstance(document, dict) else VERSION
    if version != VERSION and document.get("kind") == REPORT_KIND:
        what = f"{path} is a report of format {version!r}; this trtcal reads format {VERSION}"
        raise InputError(what, "write it again from the folder of the run: `trtcal report FOLDER`")
    return read_document(path, REPORT_KIND, VERSION)


def read_schema() -> Document:
    """Return the schema of the version that this trtcal writes."""
    schema: Document = json.loads(PATH.read_text(encoding="utf-8"))
    return schema
