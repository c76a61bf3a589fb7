"""Report documents of earlier versions, shown by this one: what they do not have is empty."""

from __future__ import annotations

from pathlib import Path

from trtcal.documents import Document, parsing, read_document, read_json
from trtcal.reporting.document import KIND, VERSION

FIRST = 1
NOTHING: Document = {"tests": [], "tensors": [], "optimizations": []}
OF_BUILDS = {"wiring": None, "fusions": None, "estimated_on": None}
OF_LAYERS = {"bytes": None, "macs": None, "estimated_ms": None}


def read_report(path: Path) -> Document:
    """Read a report's JSON as it was written; `InputError` if it is none, newer, or altered."""
    found = read_json(path)
    version = found.get("schema_version") if isinstance(found, dict) else None
    earlier = [one for one in range(FIRST, VERSION) if one == version]
    return read_document(path, KIND, earlier[0] if earlier else VERSION)


def current(document: Document, source: Path | str = "the report") -> Document:
    """Return a report document in the form that this version shows."""
    if document["schema_version"] == VERSION:
        return document
    made: Document = parsing(Path(source), lambda: _raised(document))
    return made


def _raised(document: Document) -> Document:
    measured = document["measured"]
    builds = [
        {**OF_BUILDS, **build, "layers": [_layer(layer) for layer in build["layers"]]}
        for build in document["builds"]
    ]
    timed = {digest: {"times_ms": {}, **one} for digest, one in measured["builds"].items()}
    failed = [{"diagnosis": None, **one} for one in measured["failed_logs"]]
    return {
        **NOTHING,
        **document,
        "builds": builds,
        "measured": {"tests": {}, **measured, "builds": timed, "failed_logs": failed},
    }


def _layer(layer: Document) -> Document:
    return {**OF_LAYERS, "counted": layer["precision"], **layer}
