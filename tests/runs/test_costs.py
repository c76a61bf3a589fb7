"""What runs cost: by tag and over versions, at the right price, and beyond noise or not."""

import contextlib
import csv
import io
import json
import math
import sqlite3
from datetime import date

import numpy as np
import pytest

from tests.fixtures.commands import answer, run, succeed
from tests.fixtures.tables import each
from tests.runs.runs import report, timed_report
from trtcal.documents import parsing
from trtcal.errors import InputError
from trtcal.limits import parse_limits
from trtcal.runs.diff import NOISE
from trtcal.runs.history import VERSION, History
from trtcal.wings.fleet.cost_table import cost_table
from trtcal.wings.fleet.costs import Pricing, change_between, read_runs
from trtcal.wings.fleet.prices import judge_costs, load_prices, named_price, with_costs

OWN = Pricing(load_prices())
TABLE = """
[[price]]
name = "g2-standard-4"
instance = "g2-standard-4"
devices = ["NVIDIA L4"]
per_hour = {before}
currency = "USD"
seen = 2026-11-01

[[price]]
name = "g2-standard-4"
instance = "g2-standard-4"
devices = ["NVIDIA L4"]
per_hour = {after}
currency = "USD"
seen = 2026-11-10
"""


@pytest.fixture
def history(tmp_path):
    return History(tmp_path / "h.sqlite")


def priced(number, amount=0.85, currency="USD", **given):
    """Return the report of a timed run, with its price where there is one."""
    price = named_price(amount, currency) if amount else None
    return with_costs(timed_report(number, **given), price=price)


def add(history, number, price=0.85, project=None, **given):
    return history.record(priced(number, price, **given), project)


def prices(tmp_path, before=0.8, after=0.6):
    path = tmp_path / "prices.toml"
    path.write_text(TABLE.format(before=before, after=after))
    return path


@pytest.fixture
def ask(history, capsys):
    """Return what runs `trtcal history cost` on the history."""

    def ask(*words, status=0):
        ended, out, err = run(capsys, "history", "cost", *words, "--db", history.path)
        assert ended == status, err
        return out, err

    return ask


def changed(history, script):
    """Change a history's file behind its back."""
    with contextlib.closing(sqlite3.connect(history.path)) as connection:
        connection.executescript(script)


def test_a_version_keeps_the_lineage_of_its_cost_and_the_one_that_costs_more_is_named(history):
    for number in range(1, 9):
        version = f"v{(number + 2) // 3}"
        add(history, number, p50=1.3 if number > 6 else 1.0, version=version)
    found = cost_table(history, OWN)
    line = found.lines[0]
    assert len(line.runs) == 8
    assert line.since_first.value == pytest.approx(1.3)
    assert line.since_version.before.entry.number == 6
    assert line.since_version.is_beyond_noise
    assert [one.after.entry.number for one in found.changes] == [7]
    assert found.changes[0].inputs["model"] == ("sha256:v2", "sha256:v3")
    assert found.to_document()["changes"][0]["is_new_version"]


def test_by_model_each_version_stands_alone_and_is_held_against_the_one_before(history):
    for number, (version, p50) in enumerate((("a", 1.0), ("b", 2.0)), 1):
        add(history, number, version=version, p50=p50)
    first, second = cost_table(history, OWN, "model").lines
    assert (first.group, second.group) == ("sha256:a", "sha256:b")
    assert first.since_version is None
    assert second.since_version.value == pytest.approx(2.0)


def test_the_saving_is_that_beside_fp32_on_the_same_machine(history):
    add(history, 1, speedup=4.0, share=0.1)
    saving = cost_table(history, OWN).lines[0].latest.saving
    assert saving.value == pytest.approx(75)
    assert (saving.low, saving.high) == pytest.approx((100 - 100 / 3.6, 100 - 100 / 4.4))


def test_runs_without_the_tag_are_one_group_and_never_dropped(history, ask):
    add(history, 1, tags={"team": "vision"}, project="a")
    add(history, 2, tags={"team": "audio", "Team": "x"}, project="b")
    add(history, 3, project="c")
    found = cost_table(history, OWN, "team")
    groups = [(one.group, one.latest.entry.name) for one in found.lines]
    assert groups == [("audio", "b"), ("vision", "a"), (None, "c")]
    assert found.untagged == 1
    out, err = ask("--by", "team")
    assert "(untagged)" in out
    assert "1 run has no tag team" in err
    out, _ = ask("--by", "team", "--tag", "team=audio", "--json")
    assert [one["project"] for one in json.loads(out)["lines"]] == ["b"]


def test_a_tag_that_is_called_like_a_grouping_can_be_asked_for(history):
    add(history, 1, tags={"model": "large"})
    assert cost_table(history, OWN, "tag:model").lines[0].group == "large"
    assert cost_table(history, OWN, "model").lines[0].group == "sha256:m"


def test_a_project_that_moves_to_another_team_keeps_its_lineage(history):
    add(history, 1, tags={"team": "a"}, version="v1")
    add(history, 2, tags={"team": "b"}, version="v2", p50=2.0)
    lines = {one.group: one for one in cost_table(history, OWN, "team").lines}
    assert lines["b"].since_version.value == pytest.approx(2.0)
    assert lines["a"].since_version is None


def test_a_run_has_the_price_it_was_recorded_with_and_others_on_request(tmp_path, history, ask):
    table = prices(tmp_path)
    for number in (4, 14):  # before and after the price fell
        history.record(with_costs(timed_report(number, gpu="NVIDIA L4"), load_prices(table)))

    def costs(*more):
        line = json.loads(ask("--json", *more)[0])["lines"][0]
        return line["price"]["per_hour"], line["since_first"]["by_price"]

    assert costs() == (0.6, pytest.approx(0.75))
    assert costs("--at", "2026-11-20", "--prices", table) == (0.6, 1.0)
    assert costs("--at", "2026-11-02", "--prices", table) == (0.8, 1.0)
    dear = prices(tmp_path, 8, 9)
    assert costs("--prices", dear) == (9.0, pytest.approx(9 / 8))


def test_a_price_younger_than_the_run_is_a_warning(tmp_path, history, ask):
    made = timed_report(3, gpu="NVIDIA L4")
    made["measured"]["made_at"] = "2026-10-01T10:00:00+00:00"
    history.record(made)
    _, err = ask("--prices", prices(tmp_path))
    assert "2026-11-01" in err
    assert "2026-10-01" in err


def test_a_price_that_the_user_gave_is_kept_where_a_table_has_none(tmp_path, history, ask):
    add(history, 1, price=0.5)
    out, err = ask("--prices", prices(tmp_path), "--json")
    assert json.loads(out)["lines"][0]["price"]["per_hour"] == 0.5
    assert "the price that was given with the run is kept" in err


def test_runs_without_a_cost_are_counted_by_the_reason(history, ask):
    add(history, 1, price=None)
    history.record(report(2))  # as older histories have it: no intervals
    out, err = ask()
    assert "no price" in out
    assert "1 run has no cost: no price is known for a CPU" in err
    assert "1 run has no cost: no times with intervals are recorded" in err


def test_costs_in_two_currencies_are_not_compared(history, capsys):
    add(history, 1)
    history.record(priced(2, 3, "EUR"))
    found = cost_table(history, OWN)
    assert (found.lines[0].since_first, found.changes) == (None, ())
    db = ["--db", history.path]
    difference = answer(capsys, "history", "diff", "1", "2", *db)["changed"]
    assert all(one["figure"] != "cost_per_million" for one in difference)
    limit = ("--limit", "cost_per_million <= +5%")
    assert "no baseline run" in succeed(capsys, "history", "check", *db, *limit)


@pytest.mark.parametrize(
    ("ratio", "share"), [(1.0, 0.001), (1.04, 0.001), (0.97, 0.001), (1.2, 0.3)]
)
def test_a_difference_that_two_equal_runs_may_have_is_no_change(history, ratio, share):
    add(history, 1, p50=1.0, share=share)
    add(history, 2, p50=ratio, share=share)
    assert abs(ratio - 1) <= max(NOISE, share)
    assert cost_table(history, OWN).changes == ()


def test_the_interval_of_a_ratio_covers_it_as_often_as_it_says(history):
    """Two medians of 60 log-normal times, 2,000 times: the interval misses in about 5 %."""
    random = np.random.default_rng(7)
    add(history, 1)
    one = read_runs(history, OWN)[0]
    deviation, count, true = 0.1, 60, 1.25
    error = 1.2533 * deviation / math.sqrt(count)  # of a median of normal values

    def measured(middle):
        centre = np.median(random.normal(math.log(middle), deviation, count))
        ends = [math.exp(centre + z * error) for z in (-1.96, 0, 1.96)]
        values = {"p50_ms": ends[1], "p50_interval_ms": (ends[0], ends[2])}
        timing = type(one.timing)(**{**vars(one.timing), **values})
        return type(one)(**{**vars(one), "timing": timing})

    changes = [change_between(measured(1.0), measured(true)) for _ in range(2000)]
    missed = np.mean([not change.low <= true <= change.high for change in changes])
    assert 0.03 < missed < 0.075


def test_the_csv_has_a_row_for_each_line_and_no_formula(history, ask):
    add(history, 1, tags={"team": "=2+3"}, project="@a")
    (row,) = csv.DictReader(io.StringIO(ask("--by", "team", "--csv")[0]))
    assert (row["group"], row["project"]) == ("'=2+3", "'@a")
    assert float(row["low"]) < float(row["cost_per_million"]) < float(row["high"])


def test_by_variant_fp32_stands_beside_int8_and_a_row_of_focus_is_refused(history, ask, tmp_path):
    add(history, 1)
    found = {one.group: one.latest for one in cost_table(history, OWN, "variant").lines}
    assert found["digits"].cost.value == pytest.approx(2 * found["int8"].cost.value)
    assert found["digits"].saving is None
    assert "--focus" in ask("--by", "variant", "--focus", tmp_path / "f.csv", status=2)[1]
    assert not (tmp_path / "f.csv").exists()


def test_since_leaves_out_what_was_before(history):
    for number in (3, 9):
        add(history, number)
    assert len(cost_table(history, OWN, since=date(2026, 11, 8)).runs) == 1


@each("words", [["--csv", "--json"], ["--tag", "team"], ["--since", "yesterday"]])
def test_what_cannot_be_asked_is_an_input_error(ask, words):
    _, err = ask(*words, status=2)
    assert err.startswith("error: ")
    assert "hint: " in err


def test_a_history_of_the_version_before_is_kept_and_gets_tags(history):
    add(history, 1)
    before = history.entries()
    changed(history, "DROP TABLE tags; DROP TABLE meters; PRAGMA user_version = 2")
    again = History(history.path)
    assert again.entries() == before
    assert cost_table(again, OWN).unpriced
    assert again.record(priced(1), tags={"team": "vision"}) == 1
    assert again.entry(1).tags == {"team": "vision"}
    assert not cost_table(again, OWN).unpriced
    with contextlib.closing(sqlite3.connect(history.path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)


def test_a_tag_that_is_there_is_never_changed(history):
    add(history, 1, tags={"team": "vision"})
    history.record(timed_report(1, tags={"team": "vision"}), tags={"team": "other", "product": "p"})
    assert history.entry(1).tags == {"team": "vision", "product": "p"}
    assert history.entries(tags={"team": "vision", "product": "p"})
    assert not history.entries(tags={"team": "other"})


@each(
    "price", [{"per_hour": -1}, {"name": 3}, "free", {**named_price(1).to_document(), "seen": "x"}]
)
def test_a_report_with_a_price_that_is_none_is_not_recorded(history, price):
    made = priced(1, 1)
    made["measured"]["costs"]["price"] = price
    with pytest.raises(InputError):
        parsing(history.path, lambda: history.record(made))
    assert history.entries() == []


def test_a_damaged_price_in_the_file_is_an_input_error(history, ask):
    add(history, 1)
    changed(history, "UPDATE meters SET meter = replace(meter, '0.85', '\"x\"')")
    assert "'per_hour'" in ask(status=2)[1]
    changed(history, "UPDATE meters SET meter = '[1]'")
    assert history.path.name in ask(status=2)[1]


def test_a_group_costs_what_its_projects_cost_together(history, ask):
    add(history, 1, tags={"team": "a"}, monthly=1e6, project="x")
    add(history, 2, tags={"team": "a"}, monthly=3e6, p50=2.0, project="y")
    add(history, 3, tags={"team": "a"}, project="z")
    found = cost_table(history, OWN, "team")
    lines = [one.latest.cost for one in found.lines]
    (total,) = found.totals
    assert (total.projects, total.known) == (3, 2)
    assert total.per_month.value == pytest.approx(lines[0].value + 3 * lines[1].value)
    assert total.per_million.value == pytest.approx(total.per_month.value / 4)
    halves = lines[0].value - lines[0].low, 3 * (lines[1].value - lines[1].low)
    assert total.per_month.value - total.per_month.low == pytest.approx(math.hypot(*halves))
    assert "2 of 3 projects" in ask("--by", "team")[0]


@each(
    "limit, state",
    [
        ("cost_per_million <= 1", "holds"),
        ("cost_per_million <= 0.0001", "broken"),
        ("cost_per_million <= -45%", "holds"),
        ("cost_per_million <= -60%", "broken"),
        ("cost_per_million <= +1", "undecided"),
        ("int8: cost_per_million <= 1", "holds"),
    ],
)
def test_a_cost_is_held_to_its_limit(limit, state):
    judged = judge_costs(parse_limits([limit]), priced(1))
    assert [(one.subject, one.state) for one in judged] == [("int8", state)]


def test_a_limit_on_a_cost_without_a_price_is_undecided():
    judged = judge_costs(parse_limits(["cost_per_million <= 1"]), timed_report(1))
    assert [one.state for one in judged] == ["undecided"]
    assert "price of the measured machine is not known" in judged[0].reason


def test_the_cost_of_what_must_not_ship_says_so(history, ask):
    made = priced(1)
    made["measured"]["verdict"]["word"] = "DO NOT SHIP"
    history.record(made)
    assert "int8 (DO NOT SHIP)" in ask()[0]
