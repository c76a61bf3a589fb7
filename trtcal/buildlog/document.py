"""A parsed build log as JSON: what `trtcal log --json` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtcal.buildlog.diagnosis import summarize
from trtcal.buildlog.events import Event
from trtcal.buildlog.parser import ParsedLog, parse_file
from trtcal.storage import Document, canonical_json, digest_bytes, write_json

BACKGROUND = ("memory", "timing", "calibration_progress")


def log_document(path: Path) -> Document:
    """Parse a build log; `InputError` if it can't be read.

    The digest covers what does not differ between two builds of the same model: category, severity
    and subject of every event but those of memory, timing and progress, and the layers.
    """
    parsed = parse_file(path)
    return {
        "schema_version": 1,
        "source": str(path),
        "lines": parsed.lines,
        "events": [event.to_document() for event in parsed.events],
        "layers": [layer.to_document() for layer in parsed.layers],
        "summary": summarize(parsed.events),
        "digest": digest_log(parsed),
    }


def digest_log(parsed: ParsedLog) -> str:
    """Return the digest that `log_document` describes."""
    lasting = [_lasting(event) for event in parsed.events if event.category not in BACKGROUND]
    layers = [layer.to_document() for layer in parsed.layers]
    return digest_bytes(canonical_json([lasting, layers]))


def _lasting(event: Event) -> list[Any]:
    return [event.category, event.severity, event.subject]


def write_log(path: Path, document: Document) -> None:
    """Write the JSON to a file."""
    write_json(path, document)
