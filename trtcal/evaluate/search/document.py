"""`search.json` and the plans beside it: everything that was found, and how to make it again."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtcal.data import Dataset
from trtcal.documents import Document, write_document
from trtcal.documents.streams import command_line
from trtcal.errors import __version__
from trtcal.evaluate.ab_rule import Answer
from trtcal.evaluate.search.limits import Choice, Point, Relief, split, unit_of
from trtcal.evaluate.search.limits import Plan as Chosen
from trtcal.evaluate.search.pipeline import Result, SearchOptions
from trtcal.evaluate.search.sensitivity import Sensitivities
from trtcal.evidence.times import DEVICE, INT8, SpeedupEstimate
from trtcal.limits import WITH_CARE
from trtcal.model import Model
from trtcal.quantization import Plan, write_plan
from trtcal.quantization.coverage import Coverage

RESULT = "search.json"


def write_search(
    folder: Path,
    result: Result,
    settings: SearchOptions,
    model: Model,
    files: tuple[Path, Path | None],
    dataset: Dataset,
) -> Document:
    """Write the plans of the front and `search.json` into a folder; older plans there are kept.

    `files` are those of the ranges, and of the optimizations that they belong to.
    """
    rows = []
    for number, point in enumerate(result.found.front, 1):
        row = _point(point, result)
        path = folder / f"plan-{number}.json"
        row["plan"] = path.name
        row["plan_digest"] = write_plan(path, _plan(point, result, settings))["digest"]
        row["command"] = _command(model.path, *files, path)
        row["recommended"] = point is result.found.recommended
        rows.append(row)
    findings, over = result.found, result.found.over_float
    best, device = findings.recommended, settings.device
    names = {row["plan"]: point.plan for row, point in zip(rows, findings.front, strict=True)}
    measured = device.measured(best) if device and best else best
    judged = settings.limits.judge(measured, measured is not best) if measured else ()
    costs, is_timed = result.costs.source, measured is not best
    costs += "" if result.costs.is_measured else f"; estimated for {result.costs.target.name}"
    source = f"measured on {device.target}" if is_timed else costs
    trials = device and device.to_document(names)
    samples = max((point.loss.samples for point in findings.measured), default=0)

    def layers_of(seen: Sensitivities) -> list[Document]:
        return [layer.to_document() for layer in seen.layers]

    body: Document = {
        "kind": "search",
        "schema_version": 2,
        "trtcal": __version__,
        "model": model.fingerprint,
        "calibration": result.calibration.digest,
        "dataset": dataset.fingerprint,
        "samples": {"sensitivity": result.sensitivities.whole.samples, "plans": samples},
        "limits": [str(limit) for limit in settings.limits.asked],
        "measure": result.measure,
        "costs": costs,
        "float_precision": settings.precision,
        "beyond_float16": sorted(result.beyond),
        "front": rows,
        "recommended": next((row["plan"] for row in rows if row["recommended"]), None),
        "reason": findings.reason,
        "judged": [judgement.to_document() for judgement in judged],
        "reliefs": [_relief(relief) for relief in findings.reliefs],
        "complete": not result.missing,
        "missing": list(result.missing),
        "int8_pays": {DEVICE: None, None: False}.get(findings.answer, findings.answer == INT8),
        "tested": _tested(result),
        "beside_int8": result.beside and {**_beside(*result.beside), "source": source},
        "int8_over_float": over and {**asdict(over), "pays": findings.answer},
        "shared_samples": result.shared_samples and asdict(result.shared_samples),
        "coverage": _coverage(result).to_document(),
        "measured_plans": [_point(point, result) for point in findings.measured],
        "sensitivities": layers_of(result.sensitivities),
        "goal": settings.goal,
        "precisions": list(result.costs.precisions),
        "other_sensitivities": {name: layers_of(seen) for name, seen in result.others.items()},
        "measured": {"seconds": round(result.seconds, 3), "device": trials},
    }
    return write_document(folder / RESULT, body)


def _plan(point: Point, result: Result, settings: SearchOptions) -> Plan:
    layers = dict.fromkeys(_floats(point.plan, result), settings.precision)
    return Plan("int8", layers | _narrow(point.plan))


def _floats(plan: Chosen, result: Result) -> list[str]:
    quantized = {split(unit).layer for unit in plan}
    return [name for name in result.layers if name not in quantized]


def _narrow(plan: Chosen) -> dict[str, str]:
    """Return the layers in another narrow precision than INT8."""
    return dict(sorted(unit for unit in plan if isinstance(unit, Choice)))


def _point(point: Point, result: Result) -> dict[str, Any]:
    built = result.builds.get(point.plan)
    return {
        "float_layers": _floats(point.plan, result),
        "narrow_layers": _narrow(point.plan),
        "size_mb": point.size_mb,
        "finite": point.loss.is_fit,
        "loss": point.loss.to_document(),
        "sqnr_db": None if math.isinf(point.loss.sqnr_db) else point.loss.sqnr_db,
        "int8_macs": point.int8_macs,
        "cost_ms": point.cost_ms,
        "cost_interval_ms": point.cost_interval,
        "speedup": point.speedup,
        "speedup_interval": point.speedup_interval,
        "built": built
        and {
            "float_heavy": built.float_heavy,
            "bytes_moved": built.bytes_moved,
            "failed": built.failed,
        },
    }


def _beside(speed: SpeedupEstimate, answer: Answer) -> dict[str, Any]:
    ends = [speed.low, speed.high]
    return {"speed": speed.ratio, "speed_interval": ends, **answer.to_document()}


def _coverage(result: Result) -> Coverage:
    """Return how much of the compute the recommended plan asks in INT8, else that of all layers."""
    findings, first = result.found, result.costs.precisions[0]
    every = {unit_of(name, first) for name in result.sensitivities.names}
    return result.costs.work.coverage(findings.recommended.plan if findings.recommended else every)


def _tested(result: Result) -> dict[str, Any] | None:
    if result.tested is None:
        return None
    verdict = result.tested.verdict.to_document()
    coverage = _coverage(result)
    if coverage.is_low and result.tested.verdict.is_good:
        share = f"{coverage.narrow_share:.3g} % of the MACs are in a narrow format"
        verdict |= {"word": WITH_CARE, "sentence": f"{verdict['sentence']} But only {share}."}
    return {"samples": result.tested.samples, "held_back": result.is_held_back, **verdict}


def _command(model: Path, calibration: Path, optimizations: Path | None, plan: Path) -> str:
    files = {"optimizations": optimizations, "calibration": calibration, "plan": plan}
    return command_line("quantize", model, **files, o=plan.with_suffix(".onnx"))


def _relief(relief: Relief) -> dict[str, Any]:
    return {
        "limit": str(relief.limit),
        "asked": relief.limit.bound,
        "needed": relief.needed,
        "by": relief.by,
        "unit": relief.limit.unit,
    }
