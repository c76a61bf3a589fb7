"""Cost per million inferences: right by hand, and never from another machine's price."""

from dataclasses import replace
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from tests.reporting.samples import EXACT, comparison, row, write_run
from trtcal.documents import digest_document
from trtcal.errors import InputError
from trtcal.reporting.document import assemble
from trtcal.wings.fleet.prices import (
    UNKNOWN,
    Machine,
    Price,
    PriceTable,
    cost_per_million,
    find_costs,
    load_prices,
    machine_of,
    named_price,
    with_costs,
)

LATENCY = {
    "batch": 36,
    "p50_ms": 10.0,
    "p50_interval_ms": [9.0, 12.0],
    "speedup": 2.0,
    "speedup_interval": [1.6, 2.5],
}
ENTRY = (
    '[[price]]\nname = "a"\ndevices = ["NVIDIA L4"]\nper_hour = 0.7\ncurrency = "USD"\n'
    "seen = 2026-11-01\n"
)


def table(tmp_path, text):
    path = tmp_path / "prices.toml"
    path.write_text(text)
    return path


def test_the_cost_is_what_a_pencil_gives():
    cost = cost_per_million(LATENCY, named_price(0.9))
    # 1e6 / 36 batches of 10 ms are 277.8 s, of the 3600 s that cost 0.90
    assert cost.value == pytest.approx(0.9 * (1e6 / 36 * 0.010) / 3600)
    assert (cost.low, cost.high) == pytest.approx((0.9 * cost.value, 1.2 * cost.value))


def test_without_a_price_only_the_relative_cost_is_reported():
    found = find_costs({"int8": {"latency": LATENCY}}, machine_of({"system": "Linux", "cpus": 2}))
    assert found["price"] is None
    assert found["note"] == UNKNOWN
    shown = found["variants"]["int8"]
    assert shown["cost"] is None
    assert shown["relative"] == pytest.approx({"value": 50.0, "low": 40.0, "high": 62.5})


@pytest.mark.parametrize("gpu", ["NVIDIA L4", "NVIDIA L4 (sm89)"])
def test_a_tables_price_counts_only_for_the_device_that_was_measured(tmp_path, gpu):
    prices = load_prices(table(tmp_path, ENTRY + ENTRY.replace("0.7", "0.6")))
    variants = {"int8": {"latency": LATENCY}}
    timed = machine_of({"gpu": gpu, "timed_on": "GPU"})
    assert find_costs(variants, timed, prices)["price"]["per_hour"] == 0.6
    for machine in ({}, {"gpu": None}, {"gpu": "NVIDIA L40"}, {"gpu": "L4"}):
        machine["timed_on"] = "GPU"
        assert find_costs(variants, machine_of(machine), prices)["price"] is None
    on_cpu = {"gpu": gpu, "timed_on": "CPU"}  # the machine has that GPU, and did not use it
    assert find_costs(variants, machine_of(on_cpu), prices)["price"] is None
    assert find_costs(variants, Machine(), prices, named_price(2))["price"]["per_hour"] == 2.0


def test_the_table_that_comes_along_is_dated_and_sourced():
    prices = load_prices().price
    assert 4 <= len(prices) <= 8
    for price in prices:
        assert price.source.startswith("https://")
        assert date(2026, 1, 1) <= price.seen
        assert price.devices
        assert price.currency == "USD"


@each(
    "text, says",
    [
        ("", "'price' is missing"),
        ("price = []", "has no"),
        ("x = 1\n" + ENTRY, "unknown key 'x'"),
        ("[[price]", "cannot be read"),
        ("price = [3]", "'price' must be a list of tables"),
        (ENTRY + "discount = 3\n", "price.1.discount"),
        (ENTRY.replace("0.7", '"0.7"'), "price.1.per_hour"),
        (ENTRY.replace("0.7", "true"), "price.1.per_hour"),
        (ENTRY.replace("0.7", "0"), "price.1.per_hour"),
        (ENTRY.replace("0.7", "inf"), "price.1.per_hour"),
        (ENTRY.replace("USD", "dollars"), "price.1.currency"),
        (ENTRY.replace("2026-11-01", '"yesterday"'), "price.1.seen"),
        (ENTRY.replace('"NVIDIA L4"', "4"), "price.1.devices"),
        (ENTRY + "source = 3\n", "price.1.source"),
        (ENTRY + ENTRY.replace('name = "a"\n', ""), "price.2.name"),
    ],
)
def test_a_bad_table_is_an_input_error_that_says_where(tmp_path, text, says):
    with fails(InputError, says):
        load_prices(table(tmp_path, text))


def test_tables_that_cannot_be_read_are_input_errors(tmp_path):
    for path in (tmp_path, tmp_path / "none.toml"):
        with pytest.raises(InputError):
            load_prices(path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with fails(InputError, "binary"):
        load_prices(tmp_path / "binary")


@each("amount", [0, -1, float("nan"), float("inf")])
def test_what_is_no_price_is_refused(amount):
    with fails(InputError, str(amount)):
        named_price(amount)


def test_what_is_no_currency_is_refused():
    with fails(InputError, "dollars"):
        named_price(1.0, "dollars")


@given(st.floats(1e-3, 1e5), st.integers(1, 4096), st.floats(1e-3, 1e3))
def test_half_the_latency_or_half_the_price_is_half_the_cost(p50, batch, amount):
    latency = {"batch": batch, "p50_ms": p50, "p50_interval_ms": [p50 / 2, p50 * 2]}
    cost = cost_per_million(latency, named_price(amount))
    assert 2 * cost.low == pytest.approx(cost.value) == pytest.approx(cost.high / 2)
    halved = cost_per_million(latency, named_price(amount / 2))
    assert 2 * halved.value == pytest.approx(cost.value)


def test_costs_stand_under_measured_and_leave_the_digest(tmp_path):
    document = assemble(write_run(tmp_path, comparison(row("int8", EXACT))))
    with_them = with_costs(document, price=named_price(0.85, "EUR"))
    assert with_them["measured"]["costs"]["variants"]["int8"]["cost"]["value"] > 0
    assert digest_document(with_them) == document["digest"]
    assert "costs" not in document["measured"]


DAYS = st.dates(date(2025, 1, 1), date(2027, 12, 31))
OFFERS = st.builds(
    Price,
    name=st.sampled_from(["a", "b"]),
    per_hour=st.sampled_from([0.5, 0.7, 1.1]),
    currency=st.sampled_from(["USD", "EUR"]),
    seen=DAYS,
    devices=st.just(("NVIDIA L4",)),
    region=st.sampled_from([None, "east", "west"]),
    pricing=st.sampled_from(["on-demand", "spot"]),
)
TABLES = st.lists(OFFERS, max_size=8)
L4 = Machine("NVIDIA L4")


@given(TABLES, DAYS)
def test_the_price_of_a_day_is_the_newest_of_its_offer_that_is_not_after_it(prices, day):
    quote = PriceTable(tuple(prices)).find(L4, day)
    fitting = [one for one in prices if one.fits(L4)]
    assert (quote.price is None) == (not fitting)
    if quote.price is None:
        assert "no price" in quote.why
        return
    same = [one.seen for one in fitting if one.offer == quote.price.offer]
    before = [seen for seen in same if seen <= day]
    assert quote.price.seen == (max(before) if before else min(same))
    assert bool(quote.why) == all(one.seen > day for one in fitting)


@given(TABLES, DAYS, st.randoms())
def test_the_order_of_a_table_decides_nothing(prices, day, random):
    found = PriceTable(tuple(prices)).find(L4, day).price
    random.shuffle(prices)
    again = PriceTable(tuple(prices)).find(L4, day).price
    cost = lambda one: one and (one.per_hour, one.currency)  # noqa: E731
    assert cost(found) == cost(again)


@given(TABLES, DAYS, OFFERS)
def test_a_price_of_a_later_day_changes_no_price_of_an_earlier_one(prices, day, late):
    late = replace(late, seen=day + timedelta(days=1))
    before = PriceTable(tuple(prices)).find(L4, day)
    if before.price and not before.why:
        assert PriceTable((*prices, late)).find(L4, day) == before


@given(TABLES, DAYS)
def test_no_currency_is_held_against_another(prices, day):
    found = PriceTable(tuple(prices)).find(L4, day)
    if found.price and not found.why:
        dollars = [one for one in prices if one.fits(L4) and one.currency == "USD"]
        has_dollars = any(one.seen <= day for one in dollars)
        assert (found.price.currency == "USD") == has_dollars


def test_an_instance_that_is_named_counts_unless_another_device_was_measured(tmp_path):
    entry = ENTRY + 'instance = "g2"\nregion = "east"\npricing = "spot"\n'
    on_cpu = ENTRY.replace('devices = ["NVIDIA L4"]\n', "") + 'instance = "c7"\n'
    prices = load_prices(table(tmp_path, entry + on_cpu))
    spot = Machine("NVIDIA L4", "g2", None, "spot")
    assert prices.find(spot).price.instance == "g2"
    for other in (
        replace(spot, device=None),
        replace(spot, device="NVIDIA T4"),
        replace(spot, region="west"),
        replace(spot, pricing="on-demand"),
        replace(spot, instance="g3"),
    ):
        assert prices.find(other).price is None
    assert prices.find(Machine(None, "c7")).price.instance == "c7"
    assert prices.find(Machine("NVIDIA L4")).price is None  # not on demand, and not a CPU's


@given(OFFERS)
def test_a_price_comes_back_from_its_json(price):
    assert Price.from_document(price.to_document()) == price
    assert Price.from_document(named_price(2.5).to_document()) == named_price(2.5)


def test_a_time_of_day_is_no_date_of_a_price(tmp_path):
    text = ENTRY.replace("2026-11-01", "2026-11-01T10:00:00Z")
    with fails(InputError, "price.1.seen"):
        load_prices(table(tmp_path, text))
