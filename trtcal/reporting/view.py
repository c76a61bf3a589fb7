"""What the page shows, worked out from the report document: no HTML here, and no numbers there.

Every function takes the document's plain JSON, so that an old `report.json` can be shown again.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from trtcal.documents import Document
from trtcal.limits import BROKEN
from trtcal.reporting import text
from trtcal.reporting.charts import Point, accuracy_against_latency
from trtcal.reporting.layer_view import CPU, summary_of
from trtcal.stats import proportion

View = dict[str, Any]

MARKS = {"holds": "●", "undecided": "◐", "broken": "✕"}
CLASSES = {
    "SHIP": "ship",
    "SHIP WITH CARE": "care",
    "DO NOT SHIP": "stop",
    "INCONCLUSIVE": "open",
}


def verdict(document: Document) -> View:
    """Return the verdict with its three figures and the class that gives it shape and colour."""
    found = document["measured"]["verdict"]
    about = [row for row in variants(document) if row["name"] == found["variant"]]
    return {
        **found,
        "class": CLASSES.get(found["word"], "open"),
        "figures": _figures(about[0], variants(document)[0]) if about else [],
        "limits": [_limit(one) for one in found["limits"]],
        "fails": any(one["state"] == BROKEN for one in found["limits"]),
        "facts": _facts(document, found["variant"]),
    }


def _facts(document: Document, variant: str | None) -> list[str]:
    """Return how many layers the variant's engines for GPUs run in INT8."""
    return [
        summary_of(build)
        for build in document["builds"]
        if build["model_name"] == variant and build["target"] != CPU
    ]


def _figures(row: View, reference: View) -> list[tuple[str, str, str]]:
    accuracy, latency = row["accuracy"], row["latency"]
    share = row["size_bytes"] / max(reference["size_bytes"], 1)
    if accuracy["top1"] is not None:
        told = f"FP32 {text.number(reference['accuracy']['top1'])} %"
        first = ("Top-1 accuracy", f"{text.number(accuracy['top1'])} %", told)
    elif accuracy["agreement"] is not None:
        first = ("Agreement with FP32", f"{text.number(accuracy['agreement'])} %", "no labels")
    else:
        told = f"cosine {text.number(accuracy['cosine'], 5)}"
        first = ("SQNR", f"{text.number(accuracy['sqnr_db'], 1)} dB", told)
    pair = milliseconds_pair(latency, reference["latency"])
    times = f"{pair} on this machine, batch of {latency['batch']}"
    sizes = f"{text.size(row['size_bytes'])}, FP32 {text.size(reference['size_bytes'])}"
    speed = f"{text.number(latency['speedup'])} {text.TIMES} FP32"
    return [
        first,
        ("Speed", speed, times),
        ("Model file", f"{text.number(100 * share, 0)} % of FP32", sizes),
    ]


def milliseconds_pair(latency: View, reference: View) -> str:
    """Return two median latencies."""
    ours, theirs = text.milliseconds(latency["p50_ms"]), text.milliseconds(reference["p50_ms"])
    return f"{ours} ms, FP32 {theirs} ms"


def _limit(one: View) -> View:
    known = one["value"] is not None and one["low"] is not None and one["high"] is not None
    margin = one["margin"]
    sign = "" if margin is None or margin >= 0 else "\u2212"
    return {
        "measure": one["label"],
        "limit": one["limit"],
        "value": text.number(one["value"]),
        "interval": text.between(one["low"], one["high"]) if known else one["reason"],
        "margin": text.MISSING if margin is None else sign + text.margin(margin),
        "state": one["state"],
        "mark": MARKS[one["state"]],
    }


def variants(document: Document) -> list[View]:
    """Return every row of the comparison with its measured side, the reference first."""
    measured = document["measured"]
    engines = _engine_sizes(document)
    rows = (document["comparison"] or {"rows": []})["rows"]
    return [
        {
            **row,
            **measured["variants"][row["name"]],
            "number": index,
            "is_reference": index == 0,
            "is_chosen": row["name"] == measured["verdict"]["variant"],
            "engines": engines.get(row["model"], []),
            "state": measured["judgements"].get(row["name"]),
            "mark": MARKS.get(measured["judgements"].get(row["name"]), ""),
        }
        for index, row in enumerate(rows)
    ]


def _engine_sizes(document: Document) -> dict[str, list[tuple[str, str]]]:
    sizes: dict[str, list[tuple[str, str]]] = {}
    for build in document["builds"]:
        size = text.size(document["measured"]["builds"][build["digest"]].get("engine_bytes"))
        sizes.setdefault(build["model"], []).append((build["target"], size))
    return sizes


def chart(document: Document) -> View:
    """Return the chart, what it shows upwards, and the names of those that it cannot show."""
    rows = variants(document)
    measure, unit, key = _chart_measure(rows)
    points = [_point(row, rows[0], key) for row in rows]
    missing = [point.name for point in points if point.accuracy is None and not point.is_reference]
    drawing = accuracy_against_latency(points, measure, unit)
    return {"svg": drawing, "measure": measure, "missing": missing, "numbered": len(rows) > 12}


def _chart_measure(rows: Sequence[View]) -> tuple[str, str, str]:
    for measure, unit, key in (
        ("Top-1 accuracy", "%", "top1"),
        ("Agreement with FP32", "%", "agreement"),
    ):
        if all(row["accuracy"][key] is not None for row in rows):
            return measure, unit, key
    return "SQNR", "dB", "sqnr_db"


def _point(row: View, reference: View, key: str) -> Point:
    latency = row["latency"]
    low, high = latency["p50_interval_ms"]
    return Point(
        row["number"],
        row["name"],
        latency["p50_ms"],
        (low, high),
        row["accuracy"][key],
        None if row["is_reference"] else _accuracy_interval(row, reference, key),
        row["is_reference"],
    )


def _accuracy_interval(row: View, reference: View, key: str) -> tuple[float, float] | None:
    accuracy = row["accuracy"]
    if key == "top1" and accuracy["top1_drop_interval"]:
        ends = [reference["accuracy"]["top1"] - drop for drop in accuracy["top1_drop_interval"]]
    elif key == "agreement":
        samples = accuracy["samples"]
        alike = proportion(round(accuracy["agreement"] * samples / 100), samples)
        ends = [100.0 * alike.high, 100.0 * alike.low]
    else:
        return None
    low, high = (min(max(end, 0.0), 100.0) for end in reversed(ends))
    return low, high


def commands(document: Document) -> list[str]:
    """Return the stages' commands, with the names of this run where they are known."""
    methods = [one["method"] for one in document["calibrations"]] or ["percentile"]
    targets = {(one["backend"], one["target"]) for one in document["builds"]}
    lines = [
        f"trtcal calibrate MODEL.onnx --data CALIBRATION_DATA --method {shlex.quote(method)} "
        f"-o {shlex.quote(f'calibration-{method}.json')}"
        for method in dict.fromkeys(methods)
    ]
    lines += [
        "trtcal quantize MODEL.onnx --calibration CALIBRATION.json [--plan PLAN.json] -o INT8.onnx"
    ]
    lines += [
        f"trtcal quantize MODEL.onnx --improve {shlex.quote(one['effort'])} "
        "--data CALIBRATION_DATA -o INT8.onnx"
        for one in document["optimizations"]
    ]
    for backend, target in sorted(targets) or [("onnxruntime", "cpu")]:
        where = f"--backend {shlex.quote(backend)} --target {shlex.quote(target)}"
        lines.append(f"trtcal build INT8.onnx {where} -o {shlex.quote(f'builds/{target}')}")
    lines += ["trtcal log builds/TARGET/build.log"]
    return [
        *lines,
        "trtcal compare MODEL.onnx INT8.onnx --data TEST_DATA",
        "trtcal report RUN_FOLDER -o report.html",
    ]


def run_command(document: Document) -> str | None:
    """Return the command that made the run, if it was noted."""
    command = (document["measured"]["run"] or {}).get("command")
    if isinstance(command, list):
        return shlex.join(map(str, command))
    return None if command is None else str(command)


def digests(document: Document) -> list[tuple[str, str]]:
    """Return every digest and fingerprint that the report rests on, with what it is of."""
    comparison = document["comparison"]
    found = [("this report", document["digest"])]
    if comparison:
        found.append(("comparison", comparison["digest"]))
        found.append((f"test data {comparison['dataset_name']}", comparison["dataset"]))
        found += [
            (f"fingerprint of model {row['name']}", row["model"]) for row in comparison["rows"]
        ]
    found += [
        (f"A/B test of {one['candidate']} against {one['baseline']}", one["digest"])
        for one in document["tests"]
    ]
    for one in document["calibrations"]:
        found.append((f"calibration {one['method']}", one["digest"]))
        found.append((f"calibration data of {one['method']}", one["dataset"]))
        found.append((f"histograms of {one['method']}", one["histograms"]))
    for one in document["optimizations"]:
        names = ", ".join(one["variants"]) or "no variant"
        found.append((f"optimizations of {names}", one["optimizations"]))
        found.append((f"record of optimizations of {names}", one["digest"]))
        found += [(f"ranges of {names}", ranges["digest"]) for ranges in one["calibrations"]]
    found += [(f"plan, default {plan['default']}", plan["digest"]) for plan in document["plans"]]
    found += [
        (f"build of {build['model_name']} for {build['target']}", build["digest"])
        for build in document["builds"]
    ]
    return found
