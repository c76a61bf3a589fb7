"""What of a run's report is worth following over time: figures by variant, and digests of inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

from trtcal.documents import Document, from_fields
from trtcal.evaluate.accuracy import Mean, sqnr_interval
from trtcal.evaluate.latency import GLANCE
from trtcal.formats import NARROW
from trtcal.limits import parse_limits
from trtcal.metrics import COST, COSTS, COUNTED, METRICS, OUTPUTS, SQNR, TIMES, Metric, metric_of
from trtcal.quantization.coverage import Coverage
from trtcal.stats import LEVEL, Interval, Moments

if TYPE_CHECKING:
    from trtcal.runs.history import Entry

Figures = dict[tuple[str, str], float]
"""(variant, figure) -> value; the variant of a build is `model for target`."""

PRICED = "price of an hour"


def figures_of_run(report: Document) -> Figures:
    """Return every figure of a report document: of the variants, the data, then builds."""
    return dict([*_of_rows(report), *_of_data(report), *_of_builds(report)])


def reference_of(figures: Figures) -> str | None:
    """Return the variant whose outputs have no error against FP32; None if that is not one."""
    outputs = {variant for variant, figure in figures if metric_of(figure).of == OUTPUTS}
    exact = outputs - {variant for variant, figure in figures if figure == SQNR}
    return exact.pop() if len(exact) == 1 else None


def _of_rows(report: Document) -> Iterator[tuple[tuple[str, str], float]]:
    for row in report["comparison"]["rows"]:
        name, measured = row["name"], report["measured"]["variants"][row["name"]]
        for metric in METRICS.values():
            is_of_all = metric.of == OUTPUTS and "stopped" not in row
            value = figure_of(row, metric) if is_of_all else None
            if value is not None and metric.is_recorded:
                yield (name, metric.name), value
        yield from _of_times(name, measured)
        yield (name, "size_bytes"), float(measured["size_bytes"])
        cost = (report["measured"].get("costs") or {"variants": {}})["variants"].get(name)
        if cost and cost["cost"]:
            yield (name, COST), float(cost["cost"]["value"])


def _of_times(name: str, measured: Document) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield times and energy, those of a device under `metric@device`."""
    for latency in latencies_of(measured):
        device = latency.get("on", "").removeprefix("@")  # other tools' files name it without
        for metric in METRICS.values():
            if metric.of == TIMES and latency.get(metric.timing) is not None:
                figure = f"{metric.name}@{device}" if device else metric.name
                yield (name, figure), float(latency[metric.timing])


def latencies_of(measured: Document) -> list[Document]:
    """Return a variant's latencies: of this machine or the first device, then of all others."""
    every = (measured["latency"], *(time.get("latency") for time in measured.get("times", ())))
    return list({latency.get("on", ""): latency for latency in every if latency}.values())


def figure_of(row: Document, metric: Metric) -> float | None:
    """Return a figure of a report's row in the metric's unit, None where it has none."""
    value = row["accuracy"].get(metric.name)
    if value is None and metric.name in row.get("means", {}):
        value = metric.factor * float(row["means"][metric.name]["value"]["mean"])
    return None if value is None else float(value)


def width_of(report: Document, variant: str, figure: str) -> float:
    """Return the width of a figure's 95 % interval in its unit, 0 for a count.

    It is infinite for a time that shows no change: one that was disturbed or measured in a few runs,
    or a CPU's that no limit is about.
    """
    rows, metric = report["comparison"]["rows"], metric_of(figure)
    row = next((row for row in rows if row["name"] == variant), None)
    if row is None or metric.of not in (OUTPUTS, TIMES, COSTS):
        return 0.0
    if metric.of == OUTPUTS:
        interval = _interval(row, metric)
        return interval.high - interval.low if interval else 0.0
    latencies = latencies_of(report["measured"]["variants"][variant])
    device = figure.partition("@")[2]
    on = {each.get("on", "").removeprefix("@"): each for each in reversed(latencies)}
    latency = on.get(device, latencies[0])  # a cost follows from the first
    limits = parse_limits(report["comparison"].get("limits", ()))
    is_judged = latency.get("is_gpu") or device or any(each.about.of == TIMES for each in limits)
    if not is_judged or latency.get("warnings") or latency.get("runs", 0) <= GLANCE:
        return math.inf
    low, high = latency["speedup_interval" if "speedup" in figure else "p50_interval_ms"]
    return float(high - low)


def _interval(row: Document, metric: Metric) -> Interval | None:
    """Return the interval of a figure of a row's outputs, None where none is known."""
    noises = [each for each in row.get("outputs", ()) if each.get("noise")]
    if metric.name == SQNR and noises:
        worst = min(noises, key=itemgetter("sqnr_db"))
        return sqnr_interval(Moments(**worst["noise"]), LEVEL)
    if metric.name not in row.get("means", {}):
        return None
    mean = from_fields(Mean, row["means"][metric.name])
    return mean.interval(LEVEL, metric.reach).scaled(metric.factor)


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
        if measured["engine_bytes"] is not None:
            yield (name, "engine_bytes"), float(measured["engine_bytes"])
        if measured.get("log"):
            yield (name, "log_findings"), float(measured["log"]["findings"])
        if measured.get("diagnosis"):
            kinds = measured["diagnosis"]["kinds"]
            yield (name, "findings"), float(sum(kinds.values()))
            for figure, kind in COUNTED.items():
                yield (name, figure), float(kinds.get(kind, 0))


def on_devices(entries: Iterable[Entry], metric: str) -> list[Document]:
    """Return the last measurement of each model on each device, of runs in the order of their numbers.

    `model` is the project and the variant.
    """
    last = {
        (entry.name, variant, device): {"run": entry.number, "value": value}
        for entry in entries
        for (variant, figure), value in entry.figures.items()
        for name, _, device in [figure.partition("@")]
        if device and name == metric
    }
    return [
        {"model": f"{project}: {variant}", "device": f"@{device}", **known}
        for (project, variant, device), known in last.items()
    ]


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
        if plan := row["quantization"].get("plan"):
            digests[f"plan of {row['name']}"] = plan
    for part in report["optimizations"]:
        digests[f"optimizations, {part['effort']}"] = part["optimizations"]
    for build in report["builds"]:
        digests[f"backend {build['backend']}"] = build["backend_version"]
    if price := (measured.get("costs") or {}).get("price"):
        digests[PRICED] = f"{price['per_hour']:g} {price['currency']}, {price['name']}"
    digests |= {f"package {name}": str(part) for name, part in measured["packages"].items() if part}
    latencies = (each for row in measured["variants"].values() for each in latencies_of(row))
    digests |= {f"device {each['on']}": each["hardware"] for each in latencies if each.get("on")}
    return digests | {f"machine {name}": str(part) for name, part in measured["machine"].items()}
