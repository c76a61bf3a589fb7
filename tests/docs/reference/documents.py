"""The JSON documents: what writes them, and their fields."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.docs.reference.markdown import cell, table
from trtcal.config import tomllib
from trtcal.reporting.document import PATH as SCHEMA

DOCUMENTS: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
HEAD = {
    "kind": "The kind of document: the headings of this page.",
    "schema_version": "Version of the kind. This trtcal reads and writes the one that it says.",
    "trtcal": "Version of trtcal that wrote it.",
    "digest": "`sha256:` and the SHA-256 of everything but `digest` and `measured`, as JSON with "
    "sorted keys and without spaces.",
    "measured": "What differs from run to run: times, sizes, machines. `digest` does not cover it; in "
    "the folder of a run the record of its files does.",
}
PAGE = """\
# JSON documents

What commands write for other programs, and for the next command. A document is an object with these
fields besides its own; `trtcal verify` recomputes the digest. [Stability](../stability.md) says what
may change.

"""
REPORT = """\
## report

The JSON of a report, of which the HTML page is only a rendering: schema_version {version}.
File: `report.json`. Written by: `trtcal run`, `trtcal report`. `trtcal report --schema` prints its JSON
Schema, with units and what null means in every field below these.

"""
OTHERS = """\
## Files of other forms

| file | form |
| --- | --- |
| `events.json` | a build log as `trtcal log --json` prints it: `events`, `layers`, `lines` |
| `build.jsonl` | a record for each line of the build log, with its time |
| `checkpoints.jsonl` | a record for each pass and stage: [Traceability](../traceability.md) |
| `envelope.json`, `manifest.json` | of a bundle, as DSSE: [Traceability](../traceability.md) |
| `runs/*.json` of a store | Statements of in-toto: [Traceability](../traceability.md) |
| `history.sqlite` | the runs: `trtcal history export` prints JSON or CSV of it |
"""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page."""
    text = PAGE + _fields(HEAD) + "\n"
    text += "\n".join(_section(kind, one) for kind, one in DOCUMENTS.items())
    yield "documents.md", f"{text}\n{_report()}\n{OTHERS}"


def _section(kind: str, one: dict[str, Any]) -> str:
    made = f"File: {one['file']}. Written by: {one['command']}. Version: {one['version']}."
    return f"## {kind}\n\n{one['about']}\n\n{made}\n\n{_fields(one['fields'])}"


def _fields(fields: dict[str, str]) -> str:
    return table(
        ["field", "what it has"], [(f"`{name}`", cell(one)) for name, one in fields.items()]
    )


def _report() -> str:
    schema = json.loads(SCHEMA.read_text())
    own = {name: one for name, one in schema["properties"].items() if name not in HEAD}
    version = schema["properties"]["schema_version"]["const"]
    return REPORT.format(version=version) + _fields({n: _meaning(one) for n, one in own.items()})


def _meaning(one: dict[str, Any]) -> str:
    return str(one["description"])
