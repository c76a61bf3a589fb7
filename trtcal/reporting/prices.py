"""What a million inferences cost, from a measured latency and what that very machine costs by the hour.

A latency says nothing of another machine: so a price counts only if it is for the device that was
measured, or if the user names it. Without one, only the cost relative to FP32 is reported. The cost is
that of a machine that does nothing else, batch after batch: idle time and storage are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from trtcal.config import (
    CURRENCY,
    PRICE,
    STRINGS,
    TEXT,
    Kind,
    key,
    naming,
    read_section,
    read_sections,
    read_toml,
)
from trtcal.documents import Document
from trtcal.errors import InputError
from trtcal.reporting.engines import CPU
from trtcal.reporting.verdict import refused_targets

TABLE = Path(__file__).with_name("prices.toml")
HINT = "see the table that comes with trtcal: trtcal/reporting/prices.toml"
SEEN = Kind("a date", lambda value: isinstance(value, date))
GPU = "GPU"
MILLION, HOUR_MS = 1e6, 3.6e6
UNKNOWN = "No price of the machine that was measured is known, so cost is relative to FP32."


@dataclass(frozen=True)
class Price:
    """What a machine costs by the hour, the GPUs (driver's names) that it is for, and who says so.

    `seen` is the day the price was read, None where the user named it.
    """

    name: str = key(TEXT)
    per_hour: float = key(PRICE)
    currency: str = key(CURRENCY)
    devices: tuple[str, ...] = key(STRINGS)
    seen: date | None = key(SEEN)
    source: str | None = key(TEXT, None)
    page: str | None = key(TEXT, None)

    def to_document(self) -> Document:
        """Return the JSON form."""
        seen = self.seen.isoformat() if self.seen else None
        return {**asdict(self), "devices": list(self.devices), "seen": seen}


@dataclass(frozen=True)
class PriceTable:
    """The prices of one file, in its order."""

    price: tuple[Price, ...] = key(partial(read_sections, Price, HINT))

    def cheapest(self, device: str | None) -> Price | None:
        """Return the lowest price of a machine with this device, None if there is none."""
        name = re.sub(r" \(sm\d+\)$", "", device or "")
        own = [price for price in self.price if name in price.devices]
        return min(own, key=lambda price: price.per_hour, default=None)


@dataclass(frozen=True)
class Cost:
    """A cost, with the ends that the latency's 95 % interval gives it."""

    value: float
    low: float
    high: float


def load_prices(path: Path | None = None) -> PriceTable:
    """Read a table of prices, that of trtcal without a path; `InputError` if it is none."""
    path = path or TABLE
    table = read_toml(path, HINT)
    with naming(path):
        found = read_section(PriceTable, table, HINT)
    if not found.price:
        raise InputError(f"{path} has no [[price]]", HINT)
    return found


def named_price(per_hour: float, currency: str = "USD") -> Price:
    """Return the price that the user names for the machine that was measured."""
    if not PRICE.fits(per_hour):
        raise InputError(f"{per_hour} is no price by the hour", "give a number above 0")
    if not CURRENCY.fits(currency):
        raise InputError(f"{currency!r} is no currency", "give its three letters, like USD")
    return Price("as given", float(per_hour), currency, (), None)


def cost_per_million(latency: Mapping[str, Any], price: Price) -> Cost:
    """Return what a million samples cost at a latency (as in a comparison, for one batch)."""

    def cost(batch_ms: float) -> float:
        return MILLION * price.per_hour * batch_ms / (HOUR_MS * float(latency["batch"]))

    low, high = latency["p50_interval_ms"]
    return Cost(cost(latency["p50_ms"]), cost(low), cost(high))


def relative_cost(latency: Mapping[str, Any]) -> Cost | None:
    """Return the cost in per cent of FP32's on the same machine; None without a speed-up above 0."""
    slowest, fastest = latency["speedup_interval"]
    if min(slowest, latency["speedup"]) <= 0:
        return None
    return Cost(100 / latency["speedup"], 100 / fastest, 100 / slowest)


def find_costs(
    variants: Mapping[str, Any],
    machine: Mapping[str, Any],
    table: PriceTable | None = None,
    price: Price | None = None,
) -> Document:
    """Return what every variant costs, as plain JSON for a report's `measured`.

    `variants` and `machine` are those of `measured`. The price is the one given, else the lowest that
    the table has for the GPU of the machine if the variants ran on that, else none. In the result
    `relative` is in per cent of FP32, `cost` None without a price, and `note` says in a sentence what
    the figures rest on.
    """
    if price is None and machine.get("gpu") and machine.get("timed_on") == GPU:
        price = (table or load_prices()).cheapest(str(machine["gpu"]))
    found = {}
    for name, measured in variants.items():
        relative = relative_cost(measured["latency"])
        cost = cost_per_million(measured["latency"], price) if price else None
        found[name] = {"cost": cost and asdict(cost), "relative": relative and asdict(relative)}
    return {
        "price": price.to_document() if price else None,
        "note": _note(price),
        "variants": found,
    }


def _note(price: Price | None) -> str:
    if price is None:
        return UNKNOWN
    seen = f", listed on {price.seen}" if price.seen else ""
    return (
        f"For the machine that was measured at {price.per_hour:g} {price.currency} an hour "
        f"({price.name}{seen}), if it does nothing else, batch after batch."
    )


def with_costs(
    document: Document, table: PriceTable | None = None, price: Price | None = None
) -> Document:
    """Return a report document with `costs` under `measured`; its digest stays what it was.

    Without a price there are none where a GPU is built for: a CPU says nothing of what that costs.
    """
    measured = document["measured"]
    costs = find_costs(measured["variants"], measured["machine"], table, price)
    is_for_gpu = any(one["target"] != CPU for one in document["builds"])
    if not costs["price"] and (is_for_gpu or refused_targets(measured["failed_builds"])):
        return document
    return {**document, "measured": {**measured, "costs": costs}}
