"""What the runs of a history cost: by tag and over time, at the price of their day or of another.

The cost of a run is that of a million inferences of the variant that its verdict is about. A project's
runs are one series whatever becomes of its model, so a new version is held against the one before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timezone
from functools import partial
from itertools import pairwise

from trtcal.config import CostConfig
from trtcal.documents import Document, parsing
from trtcal.reporting.prices import (
    MILLION,
    Cost,
    Price,
    PriceTable,
    Quote,
    cost_per_million,
    machine_of,
    moment_of,
    relative_cost,
)
from trtcal.runs.diff import NOISE, Inputs, changed_inputs
from trtcal.runs.figures import Meter, Timing
from trtcal.runs.history import Entry, History

PROJECT, MODEL, VARIANT, TARGET = "project", "model", "variant", "target"
GROUPINGS = (PROJECT, MODEL, VARIANT, TARGET)
TAG = "tag:"
UNTAGGED = "(untagged)"
NO_TIMES = "no times with intervals are recorded: add the report again"
KEPT = "the price that was given with the run is kept"
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


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
        made = moment_of(entry.made_at) or EPOCH
        found = self.table.find(
            machine_of({**machine, "gpu": gpu}, meter.settings), self.day or made.date()
        )
        is_named = own is not None and own.seen is None
        return Quote(own, KEPT) if found.price is None and is_named else found


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
    def cost(self) -> Cost | None:
        """The cost of a million inferences in the price's currency, None without a price."""
        price = self.price
        return cost_per_million(self.timing.latency, price) if self.timing and price else None

    @property
    def per_month(self) -> Cost | None:
        """The cost of a month, if it is known how many inferences that has."""
        wanted, cost = self.settings.inferences_per_month, self.cost
        if wanted is None or cost is None:
            return None
        return Cost(*(wanted / MILLION * one for one in (cost.value, cost.low, cost.high)))

    @property
    def saving(self) -> Cost | None:
        """What is saved in per cent of FP32's cost on the same machine; None of FP32 itself."""
        if self.timing is None or self.is_reference:
            return None
        cost = relative_cost(self.timing.latency)
        return Cost(100 - cost.value, 100 - cost.high, 100 - cost.low) if cost else None


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
    was, now = ([math.log(end) for end in (one.low, one.value, one.high)] for one in costs if one)
    middle = now[1] - was[1]
    low = middle - math.hypot(now[1] - now[0], was[2] - was[1])
    high = middle + math.hypot(now[2] - now[1], was[1] - was[0])
    value, lowest, highest = map(math.exp, (middle, low, high))
    by_price = after.price.per_hour / before.price.per_hour
    inputs = changed_inputs(before.entry, after.entry)
    return CostChange(before, after, value, lowest, highest, by_price, inputs)


@dataclass(frozen=True)
class CostLine:
    """The runs of one project, and variant, in one group; `series` are all until the last of them."""

    group: str | None
    runs: tuple[RunCost, ...]
    series: tuple[RunCost, ...]

    @property
    def latest(self) -> RunCost:
        """The last run that has a cost, or the last one."""
        return next((one for one in reversed(self.runs) if one.cost), self.runs[-1])

    @property
    def since_first(self) -> CostChange | None:
        """How the cost changed since the first run of the series that has one."""
        first = next((one for one in self.series if one.cost), self.latest)
        return None if first is self.latest else change_between(first, self.latest)

    @property
    def since_version(self) -> CostChange | None:
        """How the cost changed since the last run of the version before."""
        earlier = self.series[: self.series.index(self.latest)]
        others = [one for one in earlier if one.cost and one.version != self.latest.version]
        return change_between(others[-1], self.latest) if others else None

    def to_document(self) -> Document:
        """Return the JSON form."""
        latest, changes = self.latest, (self.since_first, self.since_version)
        costs = (latest.cost, latest.per_month, latest.saving)
        return {
            "group": self.group,
            "project": latest.entry.name,
            "runs": len(self.runs),
            "priced": sum(one.cost is not None for one in self.runs),
            "run": latest.entry.number,
            "made_at": latest.entry.made_at,
            "model": latest.version,
            "variant": latest.variant,
            "device": latest.device,
            "verdict": latest.entry.verdict,
            "price": latest.price.to_document() if latest.price else None,
            **dict(zip(("cost", "per_month", "saving"), map(_plain, costs), strict=True)),
            "since_first": changes[0].to_document() if changes[0] else None,
            "since_version": changes[1].to_document() if changes[1] else None,
        }


def _plain(cost: Cost | None) -> Document | None:
    return asdict(cost) if cost else None


@dataclass(frozen=True)
class CostTable:
    """Costs by group, and the runs between which a cost changed."""

    by: str
    lines: tuple[CostLine, ...]
    changes: tuple[CostChange, ...]

    @property
    def runs(self) -> list[RunCost]:
        """All runs; with a grouping by variant, a run stands once for each."""
        return [one for line in self.lines for one in line.runs]

    @property
    def untagged(self) -> int:
        """How many runs are in no group."""
        return sum(len(line.runs) for line in self.lines if line.group is None)

    @property
    def unpriced(self) -> dict[str, int]:
        """Why runs have no cost -> how many."""
        return dict(Counter(one.why for one in self.runs if one.cost is None))

    @property
    def warnings(self) -> dict[str, int]:
        """What is wrong with a price -> of how many runs."""
        return dict(Counter(one.why for one in self.runs if one.cost and one.why))

    def to_document(self) -> Document:
        """Return the JSON form."""
        return {
            "by": self.by,
            "lines": [one.to_document() for one in self.lines],
            "changes": [one.to_document() for one in self.changes],
            "runs": len(self.runs),
            "untagged": self.untagged,
            "unpriced": self.unpriced,
            "warnings": self.warnings,
        }


Key = tuple[str, str]
"""Project, and variant where runs are grouped by that, else ""."""


def cost_table(
    history: History,
    pricing: Pricing,
    by: str = PROJECT,
    tags: Mapping[str, str] | None = None,
    project: str | None = None,
    since: date | None = None,
) -> CostTable:
    """Return what runs cost by project, model, variant, target or any tag, in the order of groups.

    `tag:KEY` is the tag of a key that is called like one of those. Runs without the tag are in the
    group None, runs without a price are counted with the reason.
    """
    runs = read_runs(history, pricing, project, tags, every_variant=by == VARIANT)
    runs = [one for one in runs if since is None or one.made.date() >= since]
    return table_of(runs, by)


def table_of(runs: Sequence[RunCost], by: str = PROJECT) -> CostTable:
    """Return costs by group of runs that are in the order of their time."""
    every: dict[Key, list[RunCost]] = {}
    groups: dict[tuple[str | None, Key], list[RunCost]] = {}
    for one in runs:
        key = (one.entry.name, one.variant if by == VARIANT else "")
        every.setdefault(key, []).append(one)
        groups.setdefault((_group(one, by), key), []).append(one)
    lines = []
    for (group, key), own in groups.items():
        end = every[key].index(own[-1]) + 1
        lines.append(CostLine(group, tuple(own), tuple(every[key][:end])))
    lines.sort(key=lambda line: (line.group is None, line.group or "", line.latest.entry.name))
    changes = [change for series in every.values() for change in changes_of(series)]
    return CostTable(by, tuple(lines), tuple(sorted(changes, key=lambda one: one.after.made)))


def changes_of(series: Sequence[RunCost]) -> list[CostChange]:
    """Return the changes beyond noise from each run that has a cost to the next."""
    priced = [one for one in series if one.cost]
    found = [change_between(*pair) for pair in pairwise(priced)]
    return [one for one in found if one and one.is_beyond_noise]


def _group(one: RunCost, by: str) -> str | None:
    named = {
        PROJECT: one.entry.name,
        MODEL: one.version,
        VARIANT: one.variant,
        TARGET: one.device,
    }
    return named[by] if by in named else one.entry.tags.get(by.removeprefix(TAG))


def read_runs(
    history: History,
    pricing: Pricing,
    project: str | None = None,
    tags: Mapping[str, str] | None = None,
    every_variant: bool = False,
) -> list[RunCost]:
    """Return the cost of every run in the order of their time: of the verdict's variant, or of each."""
    meters = history.meters()
    found: list[RunCost] = []
    for entry in history.entries(project, with_figures=False, tags=tags):
        meter = meters.get(entry.number) or Meter(entry.variant or "", {}, None, {})
        own = entry.variant if entry.variant in meter.timings else meter.reference
        names = list(meter.timings) if every_variant and meter.timings else [str(own)]
        costs = partial(_run_costs, entry, meter, names, pricing)
        found += parsing(history.path, costs)
    return sorted(found, key=lambda one: (one.made, one.entry.number))


def _run_costs(
    entry: Entry, meter: Meter, variants: Sequence[str], pricing: Pricing
) -> list[RunCost]:
    """Return what variants of a run cost."""
    quote, settings = pricing.quote(entry, meter), meter.settings
    timings = {name: one for name, one in meter.timings.items() if one.is_possible}
    return [
        RunCost(entry, name, timings.get(name), name == meter.reference, quote, settings)
        for name in variants
    ]
