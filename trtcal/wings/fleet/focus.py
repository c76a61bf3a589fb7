"""Costs of runs as rows of FOCUS, the FinOps Open Cost and Usage Specification, version 1.2.

Source: https://focus.finops.org/focus-specification/v1-2/, the column definitions and the attributes
Date/Time Format, Numeric Format, Key-Value Format, Null Handling and Column Handling. All mandatory
columns of 1.2 are there, and those of 1.0 too. The rows are estimates and no invoice: `BilledCost` is
0, so that they can stand beside a provider's own rows, and what is estimated is `EffectiveCost`.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Context, Decimal, localcontext
from itertools import groupby, pairwise
from pathlib import Path

from trtcal.config import read_toml
from trtcal.documents.streams import visible_cell
from trtcal.wings.fleet.costs import RunCost
from trtcal.wings.fleet.prices import MILLION, Price

VERSION = "1.2"
ACCOUNT = "trtcal-estimate"  # an account that nobody is billed for
AS_GIVEN = "price named by the user"
SHARP = Context(prec=12)  # digits of an estimate
EXACT = Context(prec=60)  # of a product of two of them
TABLE = read_toml(Path(__file__).with_suffix(".toml"))
COLUMNS = (*TABLE["focus"], *TABLE["own"])
CATEGORIES = {"on-demand": "Standard", "spot": "Dynamic", "reserved": "Other"}
"""How a machine is paid -> PricingCategory; of a commitment FOCUS would want the discount's id."""
FORMULA = re.compile(r"([,;]\s*)([=+\-@])")  # inside of a text
PLAIN = ("Tags", "SkuPriceDetails", "x_SavingPercent")  # JSON, or a number that may be negative
Row = dict[str, str | None]


@dataclass(frozen=True)
class Period:
    """A time from `start` to before `end`, in UTC."""

    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.end - self.start).total_seconds()


def month_of(moment: datetime) -> Period:
    """Return the calendar month of a time."""
    start = moment.replace(day=1, hour=0, minute=0, second=0)
    return Period(start, (start + timedelta(days=32)).replace(day=1))


def focus_rows(runs: Sequence[RunCost], account: str = ACCOUNT) -> list[Row]:
    """Return a row for each run that has a cost: column -> text, None where there is no value.

    A run counts from its time until the next run of its project, at most to the end of its month. With
    `inferences_per_month` the quantity is the part of them in that time, else it is a million.
    """
    priced = (run for run in runs if run.cost)
    ordered = sorted(priced, key=lambda run: (run.entry.name, run.made, run.entry.number))
    return [
        _row(run, period, account)
        for _, own in groupby(ordered, key=lambda run: run.entry.name)
        for run, period in _periods(list(own))
    ]


def _periods(series: Sequence[RunCost]) -> Iterator[tuple[RunCost, Period]]:
    """Yield runs with the times in which they are the last of their series, at least a second."""
    ends = [after.made for _, after in pairwise(series)]
    for number, run in enumerate(series):
        month = month_of(run.made)
        end = min(ends[number], month.end) if number < len(ends) else month.end
        yield run, Period(run.made, max(end, run.made + timedelta(seconds=1)))


def _row(run: RunCost, period: Period, account: str) -> Row:
    price, cost = run.price, run.cost
    if price is None or cost is None:
        raise ValueError("a run without a cost has no row")
    month = month_of(run.made)
    monthly = run.settings.inferences_per_month
    share = period.seconds / month.seconds
    inferences = _sharp(MILLION if monthly is None else monthly * share)
    hourly = _sharp(price.per_hour)
    hours = _sharp(float(inferences) / MILLION * cost.value / price.per_hour)
    with localcontext(EXACT):
        total = _number(hours * hourly)
    basis = "one million" if monthly is None else "expected per month, for the charge period"
    return {
        **dict.fromkeys(COLUMNS),
        **TABLE["fixed"],
        **_money(total, hourly, hours, price),
        **_place(price, account),
        **_what(run, price, basis),
        "BillingPeriodStart": _time(month.start),
        "BillingPeriodEnd": _time(month.end),
        "ChargePeriodStart": _time(period.start),
        "ChargePeriodEnd": _time(period.end),
        "ConsumedQuantity": _number(inferences),
        "x_CostPerMillion": _number(_sharp(cost.value)),
        "x_CostPerMillionLow": _number(_sharp(cost.low)),
        "x_CostPerMillionHigh": _number(_sharp(cost.high)),
    }


def _money(total: str, hourly: Decimal, hours: Decimal, price: Price) -> Row:
    return {
        "EffectiveCost": total,
        "ListCost": total,
        "ContractedCost": total,
        "BillingCurrency": price.currency,
        "ListUnitPrice": _number(hourly),
        "ContractedUnitPrice": _number(hourly),
        "PricingQuantity": _number(hours),
        "PricingCategory": CATEGORIES[price.pricing],
        "x_PriceDate": price.seen.isoformat() if price.seen else None,
    }


def _place(price: Price, account: str) -> Row:
    provider = price.provider or (price.name if price.seen else AS_GIVEN)
    sku = price.instance or price.name
    details = {"InstanceType": price.instance} if price.instance else {}
    return {
        "BillingAccountId": account,
        **dict.fromkeys(("ProviderName", "PublisherName", "InvoiceIssuerName"), provider),
        "RegionId": price.region,
        "SkuId": sku,
        "SkuPriceId": "/".join(filter(None, (sku, price.region, price.pricing))),
        "SkuPriceDetails": _json(details),
    }


def _what(run: RunCost, price: Price, basis: str) -> Row:
    tags, saving = run.entry.tags, run.saving
    description = (
        f"Estimate, not an invoice: inferences ({basis}) by {run.variant} on {run.device} at the "
        "measured "
        f"latency, at {price.per_hour:g} {price.currency} an hour ({price.name}), without idle time"
    )
    return {
        "ChargeDescription": description,
        "ResourceId": f"{run.entry.name}/{run.variant}",
        "ResourceName": run.entry.name,
        "Tags": _json(tags),
        "x_QuantityBasis": basis,
        "x_SavingPercent": _number(_sharp(saving.value)) if saving else None,
        "x_Variant": run.variant,
        "x_Device": run.device,
        "x_Verdict": run.entry.verdict,
        "x_ModelFingerprint": run.version or None,
        "x_ReportDigest": run.entry.report,
        "x_RunNumber": str(run.entry.number),
    }


def _sharp(value: float) -> Decimal:
    return SHARP.create_decimal_from_float(value)


def _number(value: Decimal) -> str:
    """Return a decimal as FOCUS writes one: no separators, no exponent, and always a point."""
    whole, _, rest = f"{value:f}".partition(".")
    return f"{whole}.{rest.rstrip('0') or '0'}"


def _time(moment: datetime) -> str:
    return f"{moment.replace(tzinfo=None).isoformat(timespec='seconds')}Z"


def to_csv(rows: Sequence[Row]) -> str:
    """Return rows as CSV in which no text is a formula to a spreadsheet; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_cell(column, row[column]) for column in COLUMNS] for row in rows)
    return text.getvalue()


def _cell(column: str, value: str | None) -> str:
    if value is None or column in PLAIN:
        return value or ""
    return visible_cell(value)


def _json(table: Mapping[str, str | None]) -> str | None:
    """Return a table as a JSON object in ASCII, with escapes where a cell might begin as a formula."""
    text = json.dumps(table, sort_keys=True)
    return FORMULA.sub(lambda match: f"{match[1]}\\u{ord(match[2]):04x}", text) if table else None
