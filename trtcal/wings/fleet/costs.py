"""What a run of a history costs, at the price of its day or of another, and how two runs' costs differ.

The cost of a run is that of a million inferences of the variant that its verdict is about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date, datetime, timezone
from functools import partial
from typing import Any

from trtcal.config import CostConfig
from trtcal.documents import Document, from_fields, parsing
from trtcal.runs.diff import NOISE, Inputs, changed_inputs
from trtcal.runs.history import Entry, History, storable
from trtcal.stats import Interval
from trtcal.wings.fleet.prices import (
    MILLION,
    Price,
    PriceTable,
    Quote,
    cost_per_million,
    machine_of,
    moment_of,
    relative_cost,
)

NO_TIMES = "no times with intervals are recorded: add the report again with `trtcal history add`"
PRICE_KEPT = "the price that was given with the run is kept"
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
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


@dataclass(frozen=True)
class Pricing:
    """Which price runs have: what they had, or again that of a table, on their day or on `day`."""

    table: PriceTable
    is_again: bool = False
    day: date | None = None

    def quote(self, entry: Entry, meter: Meter) -> Quote:
        """Return the price of a run; one that the user gave with it holds where a table has none."""
        own = Price.from_document(meter.price) if meter.price else None
        if own and not self.is_again:
            return Quote(own)
        machine = {key: entry.digests.get(f"machine {key}") for key in ("gpu", "timed_on")}
        gpu = None if machine["gpu"] == str(None) else machine["gpu"]
        moment = moment_of(entry.made_at) or EPOCH
        quote = self.table.find(
            machine_of({**machine, "gpu": gpu}, meter.settings), self.day or moment.date()
        )
        is_named = own is not None and own.seen is None
        return Quote(own, PRICE_KEPT) if quote.price is None and is_named else quote


@dataclass(frozen=True)
class RunCost:
    """A run's variant, the times it had, and the price of what it ran on."""

    entry: Entry
    variant: str
    timing: Timing | None
    is_reference: bool
    quote: Quote
    settings: CostConfig

    @property
    def made(self) -> datetime:
        """When the run was made, in UTC."""
        return moment_of(self.entry.made_at) or EPOCH

    @property
    def version(self) -> str:
        """The fingerprint of the FP32 model."""
        return self.entry.digests.get("model", "")

    @property
    def device(self) -> str:
        """What was timed."""
        timed_on = self.entry.digests.get("machine timed_on", "CPU")
        return self.entry.digests.get("machine gpu", "GPU") if timed_on == "GPU" else timed_on

    @property
    def price(self) -> Price | None:
        """The price of an hour, if there are times too."""
        return self.quote.price if self.timing else None

    @property
    def why(self) -> str:
        """Why there is no cost, or what is wrong with it."""
        return self.quote.why if self.timing else NO_TIMES

    @property
    def cost(self) -> Interval | None:
        """The cost of a million inferences in the price's currency, None without a price."""
        price = self.price
        return cost_per_million(self.timing.latency, price) if self.timing and price else None

    @property
    def per_month(self) -> Interval | None:
        """The cost of a month, if it is known how many inferences that has."""
        inferences, cost = self.settings.inferences_per_month, self.cost
        if inferences is None or cost is None:
            return None
        return cost.scaled(inferences / MILLION)

    @property
    def saving(self) -> Interval | None:
        """What is saved in per cent of FP32's cost on the same machine; None of FP32 itself."""
        if self.timing is None or self.is_reference:
            return None
        cost = relative_cost(self.timing.latency)
        return Interval(100 - cost.value, 100 - cost.high, 100 - cost.low) if cost else None


@dataclass(frozen=True)
class CostChange:
    """How many times as much one run costs as another, with the 95 % interval, and by what.

    `by_price` is the part of it that is the price's, `inputs` is what went into the runs and differs.
    """

    before: RunCost
    after: RunCost
    value: float
    low: float
    high: float
    by_price: float
    inputs: Inputs

    @property
    def is_by_time(self) -> bool:
        """Whether the time differs beyond its interval and beyond what two equal runs may differ by."""
        ends = [end / self.by_price for end in (self.low, self.high)]
        excludes = ends[0] > 1 or ends[1] < 1
        return excludes and abs(self.value / self.by_price - 1) > NOISE

    @property
    def is_beyond_noise(self) -> bool:
        """Whether time or price changed."""
        return self.is_by_time or self.by_price != 1

    def to_document(self) -> Document:
        """Return the JSON form."""
        return {
            "before": self.before.entry.number,
            "after": self.after.entry.number,
            "project": self.after.entry.name,
            "made_at": self.after.entry.made_at,
            **{key: getattr(self, key) for key in ("value", "low", "high", "by_price", "inputs")},
            "is_by_time": self.is_by_time,
            "is_beyond_noise": self.is_beyond_noise,
            "is_new_version": self.before.version != self.after.version,
        }


def change_between(before: RunCost, after: RunCost) -> CostChange | None:
    """Return how a cost changed, None where one is missing or in another currency.

    The interval of the ratio comes from those of both times, on a logarithmic scale: the method of
    variance estimates recovery (Zou and Donner, Statistics in Medicine 27, 2008, equation 3).
    """
    costs = before.cost, after.cost
    if not (before.price and after.price and costs[0] and costs[1]):
        return None
    if before.price.currency != after.price.currency:
        return None
    was, now = (
        [math.log(end) for end in (cost.low, cost.value, cost.high)] for cost in costs if cost
    )
    middle = now[1] - was[1]
    low = middle - math.hypot(now[1] - now[0], was[2] - was[1])
    high = middle + math.hypot(now[2] - now[1], was[1] - was[0])
    value, lowest, highest = map(math.exp, (middle, low, high))
    by_price = after.price.per_hour / before.price.per_hour
    inputs = changed_inputs(before.entry, after.entry)
    return CostChange(before, after, value, lowest, highest, by_price, inputs)


def read_runs(
    history: History,
    pricing: Pricing,
    project: str | None = None,
    tags: Mapping[str, str] | None = None,
    every_variant: bool = False,
) -> list[RunCost]:
    """Return the cost of every run in the order of their time: of the verdict's variant, or of each."""
    meters = history.meters(partial(from_fields, Meter))
    runs: list[RunCost] = []
    for entry in history.entries(project, with_figures=False, tags=tags):
        meter = meters.get(entry.number) or Meter(entry.variant or "", {}, None, {})
        own = entry.variant if entry.variant in meter.timings else meter.reference
        names = list(meter.timings) if every_variant and meter.timings else [str(own)]
        costs = partial(_run_costs, entry, meter, names, pricing)
        runs += parsing(history.path, costs)
    return sorted(runs, key=lambda run: (run.made, run.entry.number))


def _run_costs(
    entry: Entry, meter: Meter, variants: Sequence[str], pricing: Pricing
) -> list[RunCost]:
    """Return what variants of a run cost."""
    quote, settings = pricing.quote(entry, meter), meter.settings
    timings = {name: timing for name, timing in meter.timings.items() if timing.is_possible}
    return [
        RunCost(entry, name, timings.get(name), name == meter.reference, quote, settings)
        for name in variants
    ]
