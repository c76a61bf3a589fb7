"""What was found in builds and their logs, for the page: from the document's plain JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from trtcal.documents import Document
from trtcal.evidence.findings import RISKS
from trtcal.evidence.log.recognition import CATEGORIES
from trtcal.limits import BROKEN
from trtcal.ptq import OPTIMIZATIONS
from trtcal.reporting import text
from trtcal.reporting.layer_view import title_of

View = dict[str, Any]

FINDINGS_SHOWN = 40
ALIKE_SHOWN = 40


def findings(document: Document) -> View:
    """Return the findings of all builds, those of one kind, reason and remedy together.

    Each has `what` of its costliest, `alike` for the others, `names` of all that they are about, the
    builds that have them, and in `lines` where the lines of its evidence stand among `log_events`.
    `accepted` are those that a configuration accepts, `beyond` counts what is not shown here.
    """
    told: dict[tuple[str, ...], View] = {}
    accepted: dict[tuple[str, ...], View] = {}
    diagnoses = list(_diagnoses(document))
    for number, title, diagnosis in diagnoses:
        for place, found in ((told, "findings"), (accepted, "accepted")):
            for one in diagnosis.get(found, []):
                _tell(place, one, title, number)
    shown = sorted(map(_summed, told.values()), key=_weight)[:FINDINGS_SHOWN]
    total = sum(sum(one.get("kinds", {}).values()) for _, _, one in diagnoses)
    return {
        "shown": shown,
        "accepted": list(accepted.values())[:FINDINGS_SHOWN],
        "beyond": total - sum(one["count"] for one in shown),
        "broken": [
            (title, limit)
            for _, title, one in diagnoses
            for limit in one.get("limits", [])
            if limit["state"] == BROKEN
        ],
        "known": any(one for _, _, one in diagnoses),
    }


def _diagnoses(document: Document) -> Iterator[tuple[int, str, View]]:
    """Yield number, title and diagnosis of each log on the page, {} where there is none."""
    for number, one in enumerate(logs(document)):
        yield number, one["title"], one.get("diagnosis") or {}


def _tell(place: dict[tuple[str, ...], View], finding: View, title: str, log: int) -> None:
    own = str(finding["subject"]) if "accepted" in finding else finding["why"]
    key = (finding["kind"], own, finding["fix"])
    new = {**finding, "each": {}, "names": set(), "builds": {}, "lines": {}, "count": 0}
    known = place.setdefault(key, new)
    known["each"].setdefault(finding["what"], finding["cost"])
    known["count"] += 1
    known["builds"][title] = None
    known["names"] |= {one["place"] for one in finding["evidence"] if one["source"] != "log"}
    known["names"] |= {finding["subject"]} - {None}
    for one in finding["evidence"]:
        if one["source"] == "log":
            line = line_id(log, one["place"].rpartition(":")[2])
            known["lines"].setdefault(one["place"], line)


def _summed(group: View) -> View:
    """Return a group with what all of it costs, each told once, and what is like the first."""
    costs = group["each"].values()
    risk = max((cost["risk"] for cost in costs), key=RISKS.index)
    cost = {key: _sum([cost[key] for cost in costs]) for key in ("time_ms", "moved_bytes")}
    cost["risk"] = risk
    what, *alike = group["each"]
    return {**group, "what": what, "alike": alike, "cost": cost, "costs": _costs(cost)}


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


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
    """Return the findings of all logs in a row, each with its builds and its category's meaning.

    What is said several times is told once, with how many lines more say it.
    """
    found: dict[tuple[Any, ...], View] = {}
    for number, one in enumerate(logs):
        for event in (one["log"] or {"events": []})["events"]:
            key = (event["severity"], event["category"], event["message"])
            meaning = CATEGORIES.get(event["category"], "")
            place = {"id": line_id(number, event["line"]), "meaning": meaning}
            known = found.setdefault(key, {**event, **place, "more": -1, "titles": {}})
            known["titles"][one["title"]] = None
            known["more"] += 1
    return list(found.values())


RANGES = "ranges: "
LAYERS_SHOWN = 10
WORDS = {one.name: one.what for one in OPTIMIZATIONS}


def optimizations(document: Document) -> list[View]:
    """Return each improvement with its sentence, its tries before and after, and its layers."""
    return [
        {
            **one,
            "title": text.some(one["variants"]) or "no variant",
            "sentence": _sentence(one),
            "tries": _tries(one),
            "is_sqnr": one["objective"] == "sqnr",
            "layers": [_layer(layer) for layer in one["layers"][:LAYERS_SHOWN]],
        }
        for one in document["optimizations"]
    ]


def _sentence(record: Document) -> str:
    """Return what optimizations brought over the best ranges without them."""
    kept = [one for one in record["tries"] if one["kept"]]
    plain = [one for one in kept if one["name"].startswith(RANGES)]
    held = f"on {text.count(record['samples']['selection'], 'sample')} that no optimization was fitted to"
    if not plain or kept[-1] is plain[-1]:
        return f"No optimization of the INT8 model helped {held}."
    before, after = (sqnr_db(one, record["objective"]) for one in (plain[-1], kept[-1]))
    if before is None or after is None:
        return f"Optimizations of the INT8 model lowered its loss {held}."
    word = "raised" if after >= before else "took"
    return (
        f"Optimizations of the INT8 model {word} its signal to noise from {text.number(before, 1)} to "
        f"{text.number(after, 1)} dB {held}."
    )


def sqnr_db(one: Document, objective: str) -> float | None:
    """Return signal over noise: if that is judged the mean over samples of each one's, else of all."""
    if objective == "sqnr":
        return None if one["value"] is None else -one["value"]
    return -10 * math.log10(one["noise"]) if one["noise"] else None


def _tries(record: Document) -> list[View]:
    """Return each try with its figures, and with those of the best before it."""
    found, best = [], None
    for one in record["tries"]:
        figures = {
            "sqnr": sqnr_db(one, record["objective"]),
            "disagreement": one["disagreement"],
            "value": one["value"],
        }
        before = best or dict.fromkeys(figures)
        found.append({**one, "words": _words(one["name"]), "before": before, "after": figures})
        best = figures if one["kept"] else best
    return found


def _words(name: str) -> str:
    if name.startswith(RANGES):
        return "where each tensor's 256 steps end, chosen by this method"
    return WORDS.get(name, "")


def _layer(layer: Document) -> View:
    share = 100 * layer["rounded"] / layer["weights"] if layer["weights"] else None
    return {**layer, "share": share}
