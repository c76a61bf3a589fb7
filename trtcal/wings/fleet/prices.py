"""What a million inferences cost, from a measured latency and what that very machine costs by the hour.

A latency says nothing of another machine: so a price counts only if it is for the device that was
measured, or if the user names it. Without one, only the cost relative to FP32 is reported. The cost is
that of a machine that does nothing else, batch after batch: idle time and storage are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from trtcal.config import (
    CURRENCY,
    LABEL,
    PRICINGS,
    RATE,
    STRINGS,
    TEXT,
    CostConfig,
    Kind,
    key,
    naming,
    one_of,
    read_section,
    read_sections,
    read_toml,
)
from trtcal.documents import Document
from trtcal.errors import InputError
from trtcal.limits import Figure, Judgement, Limit
from trtcal.metrics import COST
from trtcal.reporting.engines import CPU
from trtcal.reporting.verdict import refused_targets
from trtcal.stats import Interval

TABLE = Path(__file__).with_name("prices.toml")
EXAMPLE = "the table of trtcal is an example of the format: trtcal/wings/fleet/prices.toml"
SEEN = Kind("a date", lambda value: type(value) is date, example="2026-11-09")
GPU, USD = "GPU", "USD"
MILLION, HOUR_MS = 1e6, 3.6e6
YEARS = range(1970, 9999)  # in which a run may be made
WITHOUT_SIGN = (
    "write a limit on the cost as an amount (<= 0.02), or as a change with a sign and % (<= -30%)"
)
UNKNOWN = "The price of the measured machine is not known, so costs are relative to FP32 (100)."


@dataclass(frozen=True)
class Machine:
    """What latency was measured on: its GPU if that was timed, and what the user names of the rest."""

    device: str | None = None
    instance: str | None = None
    region: str | None = None
    pricing: str = PRICINGS[0]

    @property
    def label(self) -> str:
        """The machine in words."""
        name = self.device or "a CPU"
        instance = f"{name} on {self.instance}" if self.instance else name
        return ", ".join(filter(None, (instance, self.region, self.pricing)))


def machine_of(machine: Mapping[str, Any], cost: CostConfig | None = None) -> Machine:
    """Return what a `machine` of a report says, with what the run's configuration names."""
    gpu, cost = machine.get("gpu"), cost or CostConfig()
    is_timed = gpu and machine.get("timed_on") == GPU
    device = re.sub(r" \(sm\d+\)$", "", str(gpu)) if is_timed else None
    return Machine(device, cost.instance, cost.region, cost.pricing)


@dataclass(frozen=True)
class Price:
    """What a machine costs by the hour, the GPUs (driver's names) that it is for, and who says so.

    `seen` is the day the price was read, from which on it holds; None where the user named it. Entries
    that differ in nothing but day and price are the prices of one machine over time.
    """

    name: str = key(TEXT)
    per_hour: float = key(RATE)
    currency: str = key(CURRENCY)
    seen: date | None = key(SEEN)
    devices: tuple[str, ...] = key(STRINGS, ())
    source: str | None = key(TEXT, None)
    page: str | None = key(TEXT, None)
    provider: str | None = key(LABEL, None)
    instance: str | None = key(LABEL, None)
    region: str | None = key(LABEL, None)
    pricing: str = key(one_of(*PRICINGS), PRICINGS[0])

    @property
    def offer(self) -> tuple[str | None, ...]:
        """What is sold, whatever it costs on a day."""
        named = self.instance or self.name
        return (self.provider, named, self.region, self.pricing, self.currency)

    def fits(self, machine: Machine) -> bool:
        """Whether it is for this machine: the GPU that was measured, or the instance named."""
        if machine.pricing != self.pricing or machine.region not in (None, self.region):
            return False
        has_device = machine.device in self.devices
        if machine.instance is None:
            return has_device
        return machine.instance == self.instance and (has_device or not self.devices)

    def to_document(self) -> Document:
        """Return the JSON form."""
        seen = self.seen.isoformat() if self.seen else None
        return {**asdict(self), "devices": list(self.devices), "seen": seen}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Price:
        """Return a price from its JSON form; `InputError` or `ValueError` if it is none."""
        fields = {name: value for name, value in document.items() if value not in (None, [])}
        seen = date.fromisoformat(fields["seen"]) if "seen" in fields else None
        price = read_section(cls, {**fields, "seen": seen or date.min}, EXAMPLE)
        return replace(price, seen=seen)


@dataclass(frozen=True)
class Quote:
    """The price of a machine on a day, None if there is none, and what is wrong with it."""

    price: Price | None
    why: str = ""


@dataclass(frozen=True)
class PriceTable:
    """The prices of one file, in its order."""

    price: tuple[Price, ...] = key(partial(read_sections, Price, EXAMPLE))

    def find(self, machine: Machine, day: date = date.max) -> Quote:
        """Return the lowest price of a machine that holds on a day.

        Of each offer that is the newest price that is not after the day. Where all are after it, it is
        the oldest, and the quote says so. Prices in US dollars go before others, for currencies are not
        converted.
        """
        offers: dict[tuple[str | None, ...], list[Price]] = {}
        for price in self.price:
            if price.fits(machine):
                offers.setdefault(price.offer, []).append(price)
        valid = [price_of_day for own in offers.values() if (price_of_day := _price_on(own, day))]
        known = valid or [min(own, key=_day_and_price) for own in offers.values()]
        if not known:
            return Quote(None, f"no price is known for {machine.label}")
        cheapest = min(
            known, key=lambda offer: (offer.currency != USD, offer.currency, offer.per_hour)
        )
        late = f"the oldest known price is from {cheapest.seen}, later than the run of {day}"
        return Quote(cheapest, "" if valid else late)


def _day_and_price(price: Price) -> tuple[date, float]:
    return price.seen or date.min, price.per_hour


def _price_on(own: Sequence[Price], day: date) -> Price | None:
    """Return the newest price of an offer that is not after a day, of two the lower one."""
    before = [price for price in own if price.seen is not None and price.seen <= day]
    lowest_first = sorted(before, key=_day_and_price)
    return max(lowest_first, key=lambda price: price.seen or date.min, default=None)


def load_prices(path: Path | None = None) -> PriceTable:
    """Read a table of prices, that of trtcal without a path; `InputError` if it is none."""
    path = path or TABLE
    table = read_toml(path, EXAMPLE)
    with naming(path):
        prices = read_section(PriceTable, table, EXAMPLE)
    if not prices.price:
        raise InputError(f"{path} has no [[price]]", EXAMPLE)
    return prices


def named_price(per_hour: float, currency: str = "USD") -> Price:
    """Return the price that the user names for the machine that was measured."""
    if not RATE.fits(per_hour):
        raise InputError(
            f"{per_hour} is not a price per hour", "give a number above 0 and up to 1e12"
        )
    if not CURRENCY.fits(currency):
        raise InputError(
            f"{currency!r} is not a currency", "give a code of three letters, such as USD"
        )
    return Price("as given", float(per_hour), currency, None)


def cost_per_million(latency: Mapping[str, Any], price: Price) -> Interval:
    """Return what a million samples cost at a latency (as in a comparison, for one batch)."""

    def cost(batch_ms: float) -> float:
        return MILLION * price.per_hour * batch_ms / (HOUR_MS * float(latency["batch"]))

    return Interval(*map(cost, (latency["p50_ms"], *latency["p50_interval_ms"])))


def relative_cost(latency: Mapping[str, Any]) -> Interval | None:
    """Return the cost in per cent of FP32's on the same machine; None without a speed-up above 0."""
    slowest, fastest = latency["speedup_interval"]
    if min(slowest, latency["speedup"]) <= 0:
        return None
    return Interval(100 / latency["speedup"], 100 / fastest, 100 / slowest)


def find_costs(
    variants: Mapping[str, Any],
    machine: Machine,
    table: PriceTable | None = None,
    price: Price | None = None,
    day: date = date.max,
) -> Document:
    """Return what every variant costs, as plain JSON for a report's `measured`.

    `variants` are those of `measured`. The price is the one given, else the lowest that the table has
    on that day for the machine, else none. In the result `relative` is in per cent of FP32, `cost` None
    without a price, and `note` says in a sentence what the figures rest on.
    """
    quote = Quote(price)
    if price is None and (machine.device or machine.instance):
        quote = (table or load_prices()).find(machine, day)
    costs = {}
    for name, measured in variants.items():
        relative = relative_cost(measured["latency"])
        cost = cost_per_million(measured["latency"], quote.price) if quote.price else None
        costs[name] = {"cost": cost and asdict(cost), "relative": relative and asdict(relative)}
    return {
        "price": quote.price.to_document() if quote.price else None,
        "note": _note(quote),
        "variants": costs,
    }


def _note(quote: Quote) -> str:
    price = quote.price
    if price is None:
        return UNKNOWN
    seen = f", listed on {price.seen}" if price.seen else ""
    note = (
        f"The measured machine costs {price.per_hour:g} {price.currency} an hour ({price.name}{seen}). "
        "The costs assume that it runs one batch after another, without idle time."
    )
    return f"{note} Warning: {quote.why}." if quote.why else note


def moment_of(made_at: str) -> datetime | None:
    """Return an ISO time in UTC, to the second, None if it is none; without an offset it is UTC.

    >>> print(moment_of("2026-11-01T23:30:00-02:00"))
    2026-11-02 01:30:00+00:00
    """
    try:
        parsed = datetime.fromisoformat(made_at.replace("Z", "+00:00"))
        aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)
        moment = aware.astimezone(timezone.utc).replace(microsecond=0)
        return moment if moment.year in YEARS else None
    except (ValueError, OverflowError):
        return None


def with_costs(
    document: Document, table: PriceTable | None = None, price: Price | None = None
) -> Document:
    """Return a report document with `costs` under `measured`; its digest stays what it was.

    Without a price there are none where a GPU is built for: a CPU says nothing of what that costs.
    """
    measured = document["measured"]
    machine = machine_of(measured["machine"], CostConfig.from_document(document))
    moment = moment_of(measured["made_at"])
    day = moment.date() if moment else date.max
    costs = find_costs(measured["variants"], machine, table, price, day)
    is_for_gpu = any(build["target"] != CPU for build in document["builds"])
    if not costs["price"] and (is_for_gpu or refused_targets(measured["failed_builds"])):
        return document
    return {**document, "measured": {**measured, "costs": costs}}


def judge_costs(limits: Sequence[Limit], document: Document) -> tuple[Judgement, ...]:
    """Hold what a report's variants cost to the limits on it; one with % is on the cost beside FP32."""
    cost_limits = [limit for limit in limits if limit.metric == COST]
    costs = document["measured"].get("costs") or {"variants": {}}
    names = [row["name"] for row in document["comparison"]["rows"][1:]]
    judgements = []
    for limit in cost_limits:
        for name in filter(limit.is_about, names):
            key = "relative" if limit.is_relative else "cost"
            cost = costs["variants"].get(name, {}).get(key)
            ends = [end - 100 * limit.is_relative for end in cost.values()] if cost else []
            is_known = cost and limit.is_relative == limit.is_change
            why = "" if is_known else WITHOUT_SIGN if cost else UNKNOWN
            judgements.append(Judgement(limit, name, Figure(*ends) if is_known else None, why))
    return tuple(judgements)
