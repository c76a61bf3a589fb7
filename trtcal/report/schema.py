"""The JSON Schema (2020-12) of a report's JSON, for whoever reads reports with tools of their own."""

from __future__ import annotations

import json
from pathlib import Path

from trtcal.storage import Document

PATH = Path(__file__).with_name("schema.json")


def read_schema() -> Document:
    """Return the schema of the version that this trtcal writes."""
    found: Document = json.loads(PATH.read_text(encoding="utf-8"))
    return found
