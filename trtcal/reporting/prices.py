"""What a million inferences cost, from a measured latency and what that very machine costs by the hour.

A latency says nothing of another machine: so a price counts only if it is for the device that was
measured, or if the user names it. Without one, only the cost relative to FP32 is reported. The cost is
that of a machine that does nothing else, batch after batch: idle time and storage are left out.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from trtcal.documents import Document
from trtcal.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = Path(__file__).with_name("prices.toml")
FIELDS: dict[str, Any] = {
    "name": str,
    "devices": list,
    "per_hour": (int, float),
    "currency": str,
    "seen": date,
}
OPTIONAL = ("source", "page")
HINT = "see the table that comes with trtcal: trtcal/reporting/prices.toml"
GPU = "GPU"
MILLION, HOUR_MS = 1e6, 3.6e6
UNKNOWN = "No price of the machine that was measured is known, so cost is relative to FP32."


@dataclass(frozen=True)
class Price:
    """What a machine costs by the hour, the GPUs (driver's names) that it is for, and who says so.

    `seen` is the day the price was read, None where the user named it.
    """

    name: str
    per_hour: float
    currency: str = "USD"
    devices: tuple[str, ...] = ()
    seen: date | None = None
    source: str | None = None
    page: str | None = None

    def to_document(self) -> Document:
        """Return the JSON form."""
        seen = self.seen.isoformat() if self.seen else None
        return {**asdict(self), "devices": list(self.devices), "seen": seen}


@dataclass(frozen=True)
class PriceTable:
    """The prices of one file, in its order."""

    path: Path
    prices: tuple[Price, ...]

    def cheapest(self, device: str | None) -> Price | None:
        """Return the lowest price of a machine with this device, None if there is none."""
        name = re.sub(r" \(sm\d+\)$", "", device or "")
        own = [price for price in self.prices if name in price.devices]
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
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", HINT) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}", "it must be TOML") from error
    entries = document.get("price")
    if not isinstance(entries, list) or not entries or set(document) != {"price"}:
        raise InputError(f"{path} must have [[price]] and nothing else", HINT)
    return PriceTable(path, tuple(_price(path, *item) for item in enumerate(entries, 1)))


def _price(path: Path, number: int, entry: Any) -> Price:
    where = f"{path}: [[price]] {number}"
    if not isinstance(entry, dict) or set(entry) - {*FIELDS, *OPTIONAL}:
        raise InputError(f"{where} may have {', '.join((*FIELDS, *OPTIONAL))} only", HINT)
    for key, kind in (*FIELDS.items(), *((key, str) for key in OPTIONAL if key in entry)):
        if not isinstance(entry.get(key), kind) or isinstance(entry[key], bool):
            raise InputError(f"{where}: {key!r} is missing or of the wrong type", HINT)
    if not all(isinstance(device, str) for device in entry["devices"]):
        raise InputError(f"{where}: 'devices' must be a list of names", HINT)
    _check(entry["per_hour"], entry["currency"], where)
    return Price(**{**entry, "devices": tuple(entry["devices"])})


def named_price(per_hour: float, currency: str = "USD") -> Price:
    """Return the price that the user names for the machine that was measured."""
    _check(per_hour, currency, "the price of an hour")
    return Price("as given", float(per_hour), currency)


def _check(per_hour: float, currency: str, where: str) -> None:
    if not (math.isfinite(per_hour) and per_hour > 0):
        raise InputError(f"{where}: {per_hour} is no price by the hour", "give a number above 0")
    if not re.fullmatch("[A-Z]{3}", currency):
        raise InputError(
            f"{where}: {currency!r} is no currency", "give its three letters, like USD"
        )


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
    """Return a report document with `costs` under `measured`; its digest stays what it was."""
    measured = document["measured"]
    costs = find_costs(measured["variants"], measured["machine"], table, price)
    return {**document, "measured": {**measured, "costs": costs}}
