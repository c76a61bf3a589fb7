"""`search.json` and the plans beside it: everything that was found, and how to make it again."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtcal import __version__
from trtcal.calibration import Calibration
from trtcal.data import Dataset
from trtcal.model import Model
from trtcal.quantize import Plan, write_plan
from trtcal.search.finding import Result, Settings
from trtcal.search.gates import Point, Relief
from trtcal.search.methods import Chosen
from trtcal.storage import Document, write_document

KIND = "search"
RESULT = "search.json"


def write_search(
    folder: Path,
    result: Result,
    settings: Settings,
    model: Model,
    calibration: tuple[Path, Calibration],
    dataset: Dataset,
    chosen: Chosen | None = None,
) -> Document:
    """Write the plans of the front and `search.json` into a folder; older plans there are kept."""
    rows = []
    for number, point in enumerate(result.found.front, 1):
        row = _point(point, result)
        path = folder / f"plan-{number}.json"
        row["plan"] = path.name
        row["plan_digest"] = write_plan(path, _plan(point, result, settings))["digest"]
        row["command"] = _command(model.path, calibration[0], path)
        row["recommended"] = point is result.found.recommended
        rows.append(row)
    found = result.found
    body: Document = {
        "kind": KIND,
        "schema_version": 1,
        "trtcal": __version__,
        "model": model.fingerprint,
        "calibration": calibration[1].digest,
        "dataset": dataset.fingerprint,
        "samples": {
            "sensitivity": result.sensitivities.whole.samples,
            "plans": _samples(found.measured),
        },
        "limits": settings.limits.to_document(),
        "measure": result.measure,
        "costs": result.costs.label,
        "float_precision": settings.precision,
        "front": rows,
        "recommended": next((row["plan"] for row in rows if row["recommended"]), None),
        "reason": found.reason,
        "reliefs": [_relief(one) for one in found.reliefs],
        "complete": found.complete,
        "measured_plans": [_point(point, result) for point in found.measured],
        "sensitivities": [one.to_document() for one in result.sensitivities.layers],
        "methods": None if chosen is None else _methods(chosen),
        "measured": {"seconds": round(result.seconds, 3)},
    }
    return write_document(folder / RESULT, body)


def _plan(point: Point, result: Result, settings: Settings) -> Plan:
    layers = (one.layer for one in result.sensitivities.layers)
    return Plan("int8", {name: settings.precision for name in layers if name not in point.int8})


def _point(point: Point, result: Result) -> dict[str, Any]:
    sqnr = point.loss.sqnr_db
    built = result.builds.get(point.int8)
    layers = (one.layer for one in result.sensitivities.layers)
    return {
        "float_layers": [name for name in layers if name not in point.int8],
        "loss": point.loss.to_document(),
        "sqnr_db": None if math.isinf(sqnr) else sqnr,
        "cost_ms": point.cost_ms,
        "speedup": point.speedup,
        "built": None if built is None else vars(built),
    }


def _samples(points: Sequence[Point]) -> int:
    return max((point.loss.samples for point in points), default=0)


def _command(model: Path, calibration: Path, plan: Path) -> str:
    made = plan.with_suffix(".onnx")
    words = ["trtcal", "quantize", model, "--calibration", calibration, "--plan", plan, "-o", made]
    return shlex.join(map(str, words))


def _relief(one: Relief) -> dict[str, Any]:
    return {
        "limit": one.limit,
        "asked": one.asked,
        "needed": one.needed,
        "by": one.by,
        "unit": one.unit,
    }


def _methods(chosen: Chosen) -> dict[str, Any]:
    return {
        "calibration": chosen.calibration.digest,
        "method": chosen.calibration.method,
        "losses": {name: loss.to_document() for name, loss in chosen.losses.items()},
        "choices": [one.to_document() for one in chosen.choices],
    }
