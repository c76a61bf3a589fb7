"""What of a run's report is worth following over time: figures by variant, and digests of inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from trtcal.config import CostConfig
from trtcal.documents import Document, from_fields
from trtcal.metrics import COST, COUNTED, METRICS, OUTPUTS, TIMES, Metric
from trtcal.quantization.coverage import Coverage
from trtcal.quantization.formats import NARROW
from trtcal.reporting.prices import Price

Figures = dict[tuple[str, str], float]
"""(variant, figure) -> value; the variant of a build is `model for target`."""

PRICED = "price of an hour"
LARGEST = 1e12  # of a time in ms, or a batch


def figures_of_run(report: Document) -> Figures:
    """Return every figure of a report document: of the variants, the data, then builds."""
    return dict([*_of_rows(report), *_of_data(report), *_of_builds(report)])


def _of_rows(report: Document) -> Iterator[tuple[tuple[str, str], float]]:
    for row in report["comparison"]["rows"]:
        name, measured = row["name"], report["measured"]["variants"][row["name"]]
        for metric in METRICS.values():
            if metric.of == OUTPUTS and metric.is_recorded:
                value = figure_of(row, metric)
                if value is not None:
                    yield (name, metric.name), value
            elif metric.of == TIMES:
                yield (name, metric.name), float(measured["latency"][metric.timing])
        yield (name, "size_bytes"), float(measured["size_bytes"])
        cost = (report["measured"].get("costs") or {"variants": {}})["variants"].get(name)
        if cost and cost["cost"]:
            yield (name, COST), float(cost["cost"]["value"])


def figure_of(row: Document, metric: Metric) -> float | None:
    """Return a figure of a report's row in the metric's unit, None where it has none."""
    value = row["accuracy"].get(metric.name)
    if value is None and metric.name in row.get("means", {}):
        value = metric.factor * float(row["means"][metric.name]["value"]["mean"])
    return None if value is None else float(value)


def _of_data(report: Document) -> Iterator[tuple[tuple[str, str], float]]:
    if report["data_check"]:
        name = report["comparison"]["rows"][0]["name"]
        yield (name, "data_issues"), float(len(report["data_check"]["issues"]))


def _of_builds(report: Document) -> Iterator[tuple[tuple[str, str], float]]:
    for build in report["builds"]:
        name = f"{build['model_name']} for {build['target']}"
        asked = [one for one in build["outcomes"] if one["asked"] in NARROW]
        yield (name, "layers"), float(len(build["layers"]))
        yield (name, "asked"), float(len(asked))
        yield (name, "met"), float(sum(one["got"] == one["asked"] for one in asked))
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
            for figure, kind in COUNTED.items():
                yield (name, figure), float(kinds.get(kind, 0))


@dataclass(frozen=True)
class Timing:
    """A batch's median time in ms and the speed-up over FP32 beside it, with 95 % intervals."""

    batch: int
    p50_ms: float
    p50_interval_ms: tuple[float, float]
    speedup: float
    speedup_interval: tuple[float, float]

    @property
    def is_possible(self) -> bool:
        """Whether the times are numbers above 0 that lie in their interval."""
        low, high = self.p50_interval_ms
        return 0 < self.batch < LARGEST and 1 / LARGEST < low <= self.p50_ms <= high < LARGEST

    @property
    def latency(self) -> dict[str, Any]:
        """The same as a report has it."""
        return vars(self)


@dataclass(frozen=True)
class Meter:
    """What the cost of a run follows from: times by variant, the price it had, what serves the model.

    `reference` is the FP32 variant, `price` that of the report, None if it had none; `cost` is what its
    configuration said.
    """

    reference: str
    timings: dict[str, Timing]
    price: dict[str, Any] | None
    cost: dict[str, Any]

    @property
    def settings(self) -> CostConfig:
        """What serves the model."""
        return CostConfig.from_document({"cost": self.cost})


def meter_of_run(report: Document) -> Meter:
    """Return what a report's costs follow from, without its tags; only variants with intervals."""
    measured = report["measured"]
    names = {one.name for one in fields(Timing)}
    timings: dict[str, Timing] = {}
    for name, one in measured["variants"].items():
        if names <= set(one["latency"]):
            made = from_fields(Timing, {key: one["latency"][key] for key in names})
            timings |= {name: made} if made.is_possible else {}
    settings = CostConfig.from_document(report)
    price = (measured.get("costs") or {}).get("price")
    reference = report["comparison"]["rows"][0]["name"]
    price = Price.from_document(price).to_document() if price else None
    return Meter(reference, timings, price, replace(settings, tags={}).to_document())


def digests_of_run(report: Document) -> dict[str, str]:
    """Return what a run was made of: what -> its digest or version. Two runs differ by these."""
    comparison, measured = report["comparison"], report["measured"]
    found = {
        "trtcal": report["trtcal"],
        "model": comparison["rows"][0]["model"],
        "evaluation data": comparison["dataset"],
    }
    for one in report["calibrations"]:
        found["calibration data"] = one["dataset"]
        found[f"calibration {one['method']}"] = one["digest"]
    for row in comparison["rows"][1:]:
        plan = row["quantization"].get("plan")
        if plan:
            found[f"plan of {row['name']}"] = plan
    for one in report["optimizations"]:
        found[f"optimizations, {one['effort']}"] = one["optimizations"]
    for build in report["builds"]:
        found[f"backend {build['backend']}"] = build["backend_version"]
    if price := (measured.get("costs") or {}).get("price"):
        found[PRICED] = f"{price['per_hour']:g} {price['currency']}, {price['name']}"
    found |= {f"package {name}": str(one) for name, one in measured["packages"].items() if one}
    return found | {f"machine {name}": str(one) for name, one in measured["machine"].items()}
