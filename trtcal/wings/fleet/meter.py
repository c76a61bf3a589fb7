"""What the cost of a run follows from, as the history keeps it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from trtcal.config import CostConfig
from trtcal.documents import Document, from_fields
from trtcal.runs.history import storable
from trtcal.wings.fleet.prices import Price

LARGEST = 1e12  # of a time in ms, or a batch


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
    names = {variant.name for variant in fields(Timing)}
    timings: dict[str, Timing] = {}
    for name, variant in measured["variants"].items():
        if names <= set(variant["latency"]):
            timing = from_fields(Timing, {key: variant["latency"][key] for key in names})
            timings |= {storable(name): timing} if timing.is_possible else {}
    settings = CostConfig.from_document(report)
    price = (measured.get("costs") or {}).get("price")
    reference = storable(report["comparison"]["rows"][0]["name"])
    price = Price.from_document(price).to_document() if price else None
    return Meter(reference, timings, price, replace(settings, tags={}).to_document())
