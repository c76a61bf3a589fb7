"""What was found in builds and their logs, for the page: from the document's plain JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trtcal.buildlog.events import CATEGORIES
from trtcal.report import text
from trtcal.report.layer_view import title_of
from trtcal.storage import Document

View = dict[str, Any]

FINDINGS_SHOWN = 100


def findings(document: Document) -> View:
    """Return the findings of all builds, each told once with the builds that have it, and the rest.

    `accepted` are those that a configuration accepts, `beyond` counts what is not shown here. Each has
    in `lines` where the lines of its evidence stand among `log_events`, by the name of the evidence.
    """
    told: dict[tuple[str, ...], View] = {}
    accepted: dict[tuple[str, ...], View] = {}
    diagnoses = list(_diagnoses(document))
    for number, title, diagnosis in diagnoses:
        for place, found in ((told, "findings"), (accepted, "accepted")):
            for one in diagnosis.get(found, []):
                _tell(place, one, title, number)
    shown = sorted(told.values(), key=_weight)[:FINDINGS_SHOWN]
    total = sum(sum(one.get("kinds", {}).values()) for _, _, one in diagnoses)
    return {
        "shown": shown,
        "accepted": list(accepted.values())[:FINDINGS_SHOWN],
        "beyond": total - sum(len(one["builds"]) for one in shown),
        "breaches": [
            (title, breach) for _, title, one in diagnoses for breach in one.get("breaches", [])
        ],
        "known": any(one for _, _, one in diagnoses),
    }


def _diagnoses(document: Document) -> Iterator[tuple[int, str, View]]:
    """Yield number, title and diagnosis of each log on the page, {} where there is none."""
    for number, one in enumerate(logs(document)):
        yield number, one["title"], one.get("diagnosis") or {}


def _tell(place: dict[tuple[str, ...], View], finding: View, title: str, log: int) -> None:
    key = (finding["kind"], str(finding["subject"]), finding["fix"])
    lines = {
        one["place"]: line_id(log, one["place"].rpartition(":")[2])
        for one in finding["evidence"]
        if one["source"] == "log"
    }
    costs = _costs(finding["cost"])
    known = place.setdefault(key, {**finding, "costs": costs, "lines": lines, "builds": []})
    known["builds"].append(title)


def line_id(log: int, line: object) -> str:
    """Return the place on the page of a line of a log."""
    return f"line-{log}-{line}"


def _costs(cost: View) -> list[str]:
    parts = [] if cost["time_ms"] is None else [f"{text.milliseconds(cost['time_ms'])} ms"]
    if cost["moved_bytes"] is not None:
        parts.append(f"{text.size(cost['moved_bytes'])} moved")
    return parts if cost["risk"] == "none" else [*parts, f"{cost['risk']} risk for accuracy"]


def _weight(finding: View) -> tuple[bool, float, float]:
    cost = finding["cost"]
    return cost["risk"] != "high", -(cost["time_ms"] or 0.0), -(cost["moved_bytes"] or 0)


def skipped(document: Document) -> list[tuple[str, str, list[str]]]:
    """Return (layer, reason, models) for each layer that could not be quantized."""
    models: dict[tuple[str, str], list[str]] = {}
    for build in document["builds"]:
        for node, reason in build["skipped"].items():
            names = models.setdefault((node, reason), [])
            if build["model_name"] not in names:
                names.append(build["model_name"])
    return [(node, reason, names) for (node, reason), names in models.items()]


def logs(document: Document) -> list[View]:
    """Return each build log with what its categories mean; those of failed builds first."""
    measured = document["measured"]
    found = [
        {"title": f"failed build {one['where']}", "failed": True, **one}
        for one in measured["failed_logs"]
    ]
    for build in document["builds"]:
        title = title_of(build)
        found.append({"title": title, "failed": False, **measured["builds"][build["digest"]]})
    return [
        {**one, "counts": sorted((one["log"] or {"counts": {}})["counts"].items())} for one in found
    ]


def log_events(logs: Sequence[View]) -> list[View]:
    """Return the findings of all logs in a row, each with its build and its category's meaning."""
    return [
        {
            **event,
            "id": line_id(number, event["line"]),
            "title": one["title"],
            "meaning": CATEGORIES.get(event["category"], ""),
        }
        for number, one in enumerate(logs)
        for event in (one["log"] or {"events": []})["events"]
    ]
