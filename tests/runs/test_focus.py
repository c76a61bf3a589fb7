"""The FOCUS export has the columns, types, nulls and values of the specification's version 1.2.

Source of the facts: https://focus.finops.org/focus-specification/v1-2/, the content constraints of each
column, and the attributes Date/Time Format, Numeric Format, Key-Value Format and Null Handling.
"""

import csv
import io
import json
import re
import tempfile
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from unicodedata import is_normalized

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runs.runs import timed_report
from trtcal.cli.main import run_command
from trtcal.runs.history import History
from trtcal.wings.fleet.costs import Pricing, read_runs
from trtcal.wings.fleet.focus import focus_rows, month_of, to_csv
from trtcal.wings.fleet.prices import load_prices, named_price, with_costs

MANDATORY = {
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency"),
    *("BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass"),
    *("ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart", "ContractedCost"),
    *("EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit"),
    *("ProviderName", "PublisherName", "ServiceCategory", "ServiceName"),
}
NO_NULL = MANDATORY - {"BillingAccountName", "ChargeClass", "ChargeDescription"}
# of a charge for usage that corrects nothing these may not be null either
OF_USAGE = {
    *("ChargeFrequency", "ConsumedQuantity", "ConsumedUnit", "ListUnitPrice", "PricingCategory"),
    *("ContractedUnitPrice", "SkuId", "SkuPriceId"),
}
DECIMALS = {
    *("BilledCost", "ContractedCost", "EffectiveCost", "ListCost", "PricingQuantity"),
    *("ConsumedQuantity", "ListUnitPrice", "ContractedUnitPrice"),
}
TIMES = {"BillingPeriodEnd", "BillingPeriodStart", "ChargePeriodEnd", "ChargePeriodStart"}
ALLOWED = {
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeClass": {"", "Correction"},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "PricingCategory": {"Standard", "Dynamic", "Committed", "Other"},
    "ServiceCategory": {"AI and Machine Learning", "Compute"},
}
NUMBER = re.compile(r"-?\d+(\.\d+)?(E-?\d+)?")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def check_row(row):
    """Assert what FOCUS wants of a row of usage."""
    for column in NO_NULL | OF_USAGE:
        assert row[column].strip(), column
    for column in DECIMALS:
        assert NUMBER.fullmatch(row[column]), (column, row[column])
    for column in TIMES:
        assert TIME.fullmatch(row[column]), (column, row[column])
    for column, allowed in ALLOWED.items():
        assert row[column] in allowed, column
    assert re.fullmatch("[A-Z]{3}", row["BillingCurrency"])
    for column in ("Tags", "SkuPriceDetails"):
        values = json.loads(row[column] or "{}").values()
        assert all(isinstance(one, (str, int, float, bool, type(None))) for one in values)
    quantity = Decimal(row["PricingQuantity"])
    for cost, unit in (("ListCost", "ListUnitPrice"), ("ContractedCost", "ContractedUnitPrice")):
        assert Decimal(row[cost]) == quantity * Decimal(row[unit])
    for period in ("Billing", "Charge"):
        start, end = (row[f"{period}Period{end}"] for end in ("Start", "End"))
        assert start < end
    assert row["BillingPeriodStart"] <= row["ChargePeriodStart"] < row["BillingPeriodEnd"]


def recorded(tmp_path, months=(9, 10, 10, 11), tags=None, monthly=None, name="digits"):
    history = History(tmp_path / "h.sqlite")
    for number, month in enumerate(months):
        made = timed_report(number, tags=tags, monthly=monthly, name=name)
        made["measured"]["made_at"] = f"2026-{month:02d}-{1 + number:02d}T10:00:00+02:00"
        history.record(with_costs(made, price=named_price(0.85)))
    return history


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_the_export_is_what_focus_wants(tmp_path, capsys):
    recorded(tmp_path, tags={"team": "vision"})
    target, db = tmp_path / "focus.csv", str(tmp_path / "h.sqlite")
    assert run_command(["history", "cost", "--db", db, "--focus", str(target)]) == 0
    assert "4 rows of estimates, not of invoices" in capsys.readouterr().err
    rows = rows_of(target.read_text())
    assert len(rows) == 4
    assert set(rows[0]) >= MANDATORY
    for row in rows:
        check_row(row)
        assert json.loads(row["Tags"]) == {"team": "vision"}
        assert row["ChargeDescription"].startswith("Estimate, not an invoice")
        assert (row["x_IsEstimate"], row["BilledCost"], row["InvoiceId"]) == ("true", "0.0", "")
    columns = list(rows[0])
    own = [column for column in columns if column.startswith("x_")]
    assert columns[-len(own) :] == own  # behind all of FOCUS


def test_a_price_of_a_table_names_provider_region_and_instance(tmp_path):
    history = History(tmp_path / "h.sqlite")
    history.record(timed_report(1, gpu="NVIDIA H100 NVL"))
    row = rows_of(to_csv(focus_rows(read_runs(history, Pricing(load_prices())))))[0]
    check_row(row)
    assert (row["ProviderName"], row["RegionId"]) == ("Microsoft Azure", "eastus")
    assert json.loads(row["SkuPriceDetails"]) == {"InstanceType": "Standard_NC40ads_H100_v5"}


def test_what_is_expected_of_a_month_is_shared_out_over_its_runs(tmp_path):
    runs = read_runs(recorded(tmp_path, (10, 10, 10), monthly=31e6), Pricing(load_prices()))
    rows = focus_rows(runs)
    for one, after in pairwise(rows):
        assert one["ChargePeriodEnd"] == after["ChargePeriodStart"]
    assert rows[-1]["ChargePeriodEnd"] == "2026-11-01T00:00:00Z"
    assert float(rows[0]["ConsumedQuantity"]) == pytest.approx(1e6)  # a day of 31
    whole = sum(float(one["ConsumedQuantity"]) for one in rows)
    assert whole == pytest.approx(31e6 * (1 - 8 / 24 / 31))  # the first run is of 8:00 in UTC


def test_runs_without_a_price_have_no_row_and_are_counted(tmp_path, capsys):
    history = History(tmp_path / "h.sqlite")
    history.record(timed_report(1, gpu="NVIDIA Unheard-of"))
    target = tmp_path / "focus.csv"
    assert run_command(["history", "cost", "--db", str(history.path), "--focus", str(target)]) == 0
    assert rows_of(target.read_text()) == []
    assert "1 run has no cost: no price is known for NVIDIA Unheard-of" in capsys.readouterr().err


def test_names_that_are_formulas_are_text(tmp_path):
    history = recorded(
        tmp_path, (10,), tags={"@cmd|' /c calc'!A0": '@SUM("1,2")\u00e9'}, name="=1+1"
    )
    text = to_csv(focus_rows(read_runs(history, Pricing(load_prices()))))
    row = rows_of(text)[0]
    check_row(row)
    assert row["ResourceName"] == "'=1+1"
    assert all(one[:1] not in tuple("=+@\t\r") for one in row.values())
    assert json.loads(row["Tags"]) == {"@cmd|' /c calc'!A0": '@SUM("1,2")\u00e9'}


LABELS = st.text(min_size=1, max_size=12).filter(
    lambda text: text.isprintable() and text == text.strip() and is_normalized("NFC", text)
)


@given(st.dictionaries(LABELS.filter(lambda text: "=" not in text), LABELS, max_size=4))
def test_tags_come_back_as_they_were_and_begin_no_formula(tags):
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder) / "h.sqlite")
        history.record(with_costs(timed_report(1, tags=tags), price=named_price(1)))
        text = to_csv(focus_rows(read_runs(history, Pricing(load_prices()))))
    cell = rows_of(text)[0]["Tags"]
    assert json.loads(cell or "{}") == tags
    assert cell.isascii()
    assert not re.search(r"(^|[,;])\s*[=+@-]", cell)


@given(st.datetimes(datetime(1970, 1, 1), datetime(9998, 12, 31)))
def test_a_month_holds_its_moment_and_ends_where_the_next_begins(moment):
    month = month_of(moment.replace(microsecond=0))
    assert month.start <= moment < month.end
    assert (month.start.day, month.end.day) == (1, 1)
    assert 28 * 86400 <= month.seconds <= 31 * 86400
