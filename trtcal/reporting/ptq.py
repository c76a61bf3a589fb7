"""What optimizations did to a model, for the report: the records of them, and whose they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trtcal.documents import Document, parsing, read_document
from trtcal.evaluate.comparison import Row
from trtcal.ptq.artifact import KIND, optimized_fingerprint
from trtcal.ranges import Calibration

PLAIN = ("digest", "optimizations", "model", "effort", "objective", "untried", "warnings")
SAMPLES = ("fitted", "calibration", "selection")
LAYERS_KEPT = 40


def read_record(path: Path) -> Document:
    """Read what a report tells of a record of optimizations; `InputError` if it lacks a field."""
    document = read_document(path, KIND)
    found: Document = parsing(path, lambda: _record(document))
    return found


def _record(document: Document) -> Document:
    layers = document.get("layers", [])
    return {
        **{key: document[key] for key in PLAIN},
        "samples": {key: document["samples"][key] for key in SAMPLES},
        "tries": [_try(one) for one in document["tries"]],
        "layers": [_layer(one) for one in sorted(layers, key=_by_change)[:LAYERS_KEPT]],
        "optimized_layers": len(layers),
    }


def _try(item: Document) -> Document:
    loss = item["loss"]
    figures = {"value": item["value"], "noise": loss["noise"], "disagreement": loss["disagreement"]}
    return {"name": item["name"], "what": item["what"], "kept": item["kept"], **figures}


def _layer(item: Document) -> Document:
    return {key: item[key] for key in ("name", "weights", "rounded", "bias")}


def _by_change(layer: Document) -> tuple[float, float]:
    """Return a key that puts the largest changes of biases first, then those of weights."""
    share = (layer["rounded"] or 0) / (layer["weights"] or 1)
    return -(layer["bias"] or 0.0), -share


def is_optimized(calibration: Calibration, records: Iterable[Document]) -> bool:
    """Whether ranges are of a model as optimizations made it, whose tensors may have other values."""
    return calibration.model in {_fingerprint(one) for one in records}


def optimization_facts(
    records: Sequence[Document],
    calibrations: Sequence[tuple[Calibration, Document]],
    rows: Sequence[Row],
) -> list[Document]:
    """Return each record with the ranges of the optimized model and the variants that have them."""
    found = []
    for one in sorted(records, key=lambda record: str(record["digest"])):
        own = [told for made, told in calibrations if made.model == _fingerprint(one)]
        digests = {told["digest"] for told in own}
        names = [row.name for row in rows if row.quantization.get("calibration") in digests]
        found.append({**one, "variants": names, "calibrations": own})
    return found


def _fingerprint(record: Document) -> Any:
    return optimized_fingerprint(record["model"], record["optimizations"])
