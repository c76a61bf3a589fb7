"""What of a run's report is worth following over time: figures by variant, and digests of inputs."""

from __future__ import annotations

from collections.abc import Iterator

from trtcal.documents import Document, from_fields
from trtcal.formats import NARROW
from trtcal.limits import COST
from trtcal.quantization.coverage import Coverage

Figures = dict[tuple[str, str], float]
"""(variant, figure) -> value; the variant of a build is `model for target`."""

OF_ERRORS = ("sqnr_db", "cosine", "relative_error", "score_error", "kl")
ACCURACY = ("top1", "top1_drop", "top5", "agreement", *OF_ERRORS)
BY_LABELS = {"jaccard": 100.0, "map": 100.0, "map50": 100.0, "miou": 100.0, "mae": 1.0}
"""Figure of labels other than classes -> what its mean is multiplied by."""
KINDS = {
    "silent_fallbacks": "silent_fallback",
    "uncalibrated": "missing_range",
    "broken_fusions": "broken_fusion",
}
"""Figure -> the kind of the findings that it counts."""
PRICED = "price of an hour"
LATENCY = ("p50_ms", "p90_ms", "p99_ms", "speedup")


def figures_of_run(report: Document) -> Figures:
    """Return every figure of a report document: of the variants, the data, then builds."""
    return dict([*_of_rows(report), *_of_data(report), *_of_builds(report)])


def _of_rows(report: Document) -> Iterator[tuple[tuple[str, str], float]]:
    for row in report["comparison"]["rows"]:
        name, measured = row["name"], report["measured"]["variants"][row["name"]]
        for key in ACCURACY:
            if row["accuracy"].get(key) is not None:
                yield (name, key), float(row["accuracy"][key])
        for key, unit in BY_LABELS.items():
            if key in row.get("means", {}):
                yield (name, key), unit * float(row["means"][key]["value"]["mean"])
        for key in LATENCY:
            figure = key if key == "speedup" else f"latency_{key.removesuffix('_ms')}"
            yield (name, figure), float(measured["latency"][key])
        yield (name, "size_bytes"), float(measured["size_bytes"])
        cost = (report["measured"].get("costs") or {"variants": {}})["variants"].get(name)
        if cost and cost["cost"]:
            yield (name, COST), float(cost["cost"]["value"])


def _of_data(report: Document) -> Iterator[tuple[tuple[str, str], float]]:
    if report["data_check"]:
        name = report["comparison"]["rows"][0]["name"]
        yield (name, "data_issues"), float(len(report["data_check"]["issues"]))


def _of_builds(report: Document) -> Iterator[tuple[tuple[str, str], float]]:
    for build in report["builds"]:
        name = f"{build['model_name']} for {build['target']}"
        narrow = [outcome for outcome in build["outcomes"] if outcome["asked"] in NARROW]
        yield (name, "layers"), float(len(build["layers"]))
        yield (name, "asked"), float(len(narrow))
        yield (name, "met"), float(sum(outcome["got"] == outcome["asked"] for outcome in narrow))
        coverage = from_fields(Coverage, build["coverage"]) if build.get("coverage") else None
        for metric, share in coverage.figures.items() if coverage else ():
            if share is not None:
                yield (name, metric), share.value
        measured = report["measured"]["builds"][build["digest"]]
        yield (name, "engine_bytes"), float(measured["engine_bytes"])
        if measured.get("log"):
            yield (name, "log_findings"), float(measured["log"]["findings"])
        if measured.get("diagnosis"):
            kinds = measured["diagnosis"]["kinds"]
            yield (name, "findings"), float(sum(kinds.values()))
            for figure, kind in KINDS.items():
                yield (name, figure), float(kinds.get(kind, 0))


def digests_of_run(report: Document) -> dict[str, str]:
    """Return what a run was made of: what -> its digest or version. Two runs differ by these."""
    comparison, measured = report["comparison"], report["measured"]
    digests = {
        "trtcal": report["trtcal"],
        "model": comparison["rows"][0]["model"],
        "evaluation data": comparison["dataset"],
    }
    for part in report["calibrations"]:
        digests["calibration data"] = part["dataset"]
        digests[f"calibration {part['method']}"] = part["digest"]
    for row in comparison["rows"][1:]:
        plan = row["quantization"].get("plan")
        if plan:
            digests[f"plan of {row['name']}"] = plan
    for part in report["optimizations"]:
        digests[f"optimizations, {part['effort']}"] = part["optimizations"]
    for build in report["builds"]:
        digests[f"backend {build['backend']}"] = build["backend_version"]
    if price := (measured.get("costs") or {}).get("price"):
        digests[PRICED] = f"{price['per_hour']:g} {price['currency']}, {price['name']}"
    digests |= {f"package {name}": str(part) for name, part in measured["packages"].items() if part}
    return digests | {f"machine {name}": str(part) for name, part in measured["machine"].items()}
