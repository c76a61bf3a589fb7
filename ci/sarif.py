"""Write the findings of a run as SARIF 2.1.0: `python sarif.py REPORT.json MODEL ROOT FILE`.

Each finding is at the file of the model, whose path is relative to ROOT, with its layer or node.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterator
from importlib.metadata import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trtcal.documents import digest_bytes, from_fields
from trtcal.documents.streams import visible
from trtcal.errors import __version__
from trtcal.evidence.diagnosis.failure import ends_build
from trtcal.evidence.explanations import explanations
from trtcal.evidence.findings import COSTS_ALONE, Finding, of_kind
from trtcal.reporting.document import read_report

Document = dict[str, Any]
SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def to_sarif(report: Document, model: str) -> Document:
    """Return the findings of a report as SARIF, at the path of a model.

    Source: OASIS, Static Analysis Results Interchange Format 2.1.0, errata 01.
    """
    uri = quote(model)
    results = [_result(build, finding, uri) for build, finding in findings_of(report)]
    rules = [*_rules({result["ruleId"] for result in results})]
    driver = {"name": "trtcal", "version": __version__, "rules": rules}
    runs = [{"tool": {"driver": driver}, "results": results}]
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": runs}


def findings_of(report: Document) -> Iterator[tuple[str, Finding]]:
    """Yield each build with each of its findings, the costliest of them; then what was not built."""
    measured = report["measured"]
    for build in report["builds"]:
        diagnosis = measured["builds"][build["digest"]].get("diagnosis") or {"findings": ()}
        for fields in diagnosis["findings"]:
            yield f"{build['model_name']} for {build['target']}", from_fields(Finding, fields)
    for name, why in measured["failed_builds"].items():
        yield name, of_kind("build_error", None, why)


def _result(build: str, finding: Finding, uri: str) -> Document:
    """Return a finding at a file; a hash of what it is about tells it from others."""
    is_grave = finding.cost.risk == "high" or ends_build(finding)
    subject = visible(finding.subject or build)
    text = visible(f"{build}: {finding.what}. {finding.why} {finding.fix}")
    file = {"artifactLocation": {"uri": uri}, "region": {"startLine": 1}}
    own = digest_bytes("\n".join((finding.kind, subject, build)).encode())
    return {
        "ruleId": finding.kind,
        "level": "error" if is_grave else "note" if finding.kind in COSTS_ALONE else "warning",
        "message": {"text": text.replace("](", "] (")},  # which would be a link
        "locations": [{"physicalLocation": file, "logicalLocations": [{"name": subject}]}],
        "partialFingerprints": {"primaryLocationLineHash": own.partition(":")[2]},
    }


def _rules(kinds: Collection[str]) -> Iterator[Document]:
    """Yield the kinds, with the address of their page if the installed package names its site."""
    urls = (line.partition(", ") for line in metadata("trtcal").get_all("Project-URL") or ())
    site = {name: url for name, _, url in urls}.get("Documentation", "").rstrip("/")
    known = {each.name: each for each in explanations()}
    for kind in sorted(kinds):
        rule: Document = {"id": kind}
        if kind in known:
            meaning, why, fix = known[kind].meaning, known[kind].why, known[kind].fix
            rule |= {"shortDescription": {"text": meaning}, "help": {"text": f"{why} {fix}"}}
        if site:
            rule["helpUri"] = f"{site}/reference/messages/findings.html#{kind}"
        yield rule


if __name__ == "__main__":
    report, model, root, file = map(Path, sys.argv[1:])
    sarif = to_sarif(read_report(report), Path(os.path.relpath(model, root)).as_posix())
    file.write_text(json.dumps(sarif, indent=1), encoding="utf-8")
