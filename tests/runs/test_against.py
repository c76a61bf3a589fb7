"""A run against the last one of its model."""

import copy
import json

import pytest

from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from tests.runs.runs import report, timed_report
from trtcal.errors import InputError
from trtcal.limits import DO_NOT, INCONCLUSIVE, SHIP, WITH_CARE
from trtcal.metrics import COST
from trtcal.reporting.verdict import lowered
from trtcal.runs.diff import against_last
from trtcal.runs.figures import width_of
from trtcal.runs.history import History


@pytest.fixture
def history(tmp_path):
    return History(tmp_path / "h.sqlite")


def dated(day, *, model="sha256:m", **changes):
    made = report(day, **changes)
    made["measured"]["made_at"] = f"2026-11-{day:02d}T10:00:00+00:00"
    made["comparison"]["rows"][0]["model"] = model
    return made


def test_the_first_run_has_none_before_it(history):
    first = dated(1)
    assert against_last(history, first) is None
    history.record(first)
    assert against_last(history, first) is None


def test_it_says_what_got_better_what_worse_and_what_changed(history):
    history.record(dated(1, top1=98.0, data="sha256:old"))
    later = dated(2, top1=98.4, data="sha256:new")
    later["comparison"]["rows"][1]["accuracy"]["sqnr_db"] = 28.0
    later["measured"]["packages"]["tensorrt-rtx"] = "1.7"
    found = json.loads(json.dumps(against_last(history, later)))
    assert found["run"]["label"] == "run 1 of digits"
    shown = {one["name"]: (one["better"], one["unit"]) for one in found["figures"]}
    assert shown["int8: top-1"] == (True, "%")
    assert shown["int8: SQNR"] == (False, "dB")
    assert found["figures"][0]["variant"] == "int8"
    assert found["changed"] == [
        {"what": "evaluation data", "before": "sha256:old", "now": "sha256:new"},
        {"what": "package tensorrt-rtx", "before": None, "now": "1.7"},
    ]
    assert {"trtcal", "model", "calibration data", "plan of int8"} <= set(found["same"])
    assert not set(found["same"]) & {one["what"] for one in found["changed"]}


def test_a_time_within_5_percent_is_neither_better_nor_worse(history):
    history.record(dated(1, p50=1.0))
    found = against_last(history, dated(2, p50=1.04))
    assert {one["figure"] for one in found["figures"]} >= {"latency_p50", "speedup"}
    assert all(one["better"] is None for one in found["figures"])


def measured_report(day, right, data="sha256:data", samples=500, name="digits"):
    """Return a report whose FP32 has so many samples of some right, with the interval of that."""
    made = dated(day, data=data, name=name)
    moments = {"count": samples, "mean": right / samples, "variance": 0.0, "third": 0.0}
    mean = {"value": moments, "change": moments, "reach": 1.0, "lost": 0, "won": 0}
    made["comparison"]["rows"][0] |= {
        "accuracy": {"top1": 100 * right / samples},
        "means": {"top1": mean},
    }
    return made


def lowered_word(history, later, word=SHIP):
    against = against_last(history, later)
    verdict = lowered({"word": word, "sentence": "int8 is as good.", "reasons": []}, against)
    return verdict["word"], " ".join([verdict["sentence"], *verdict["reasons"]])


@each("now, word", [(493, SHIP), (485, SHIP), (462, WITH_CARE), (133, INCONCLUSIVE)])
def test_a_fall_of_fp32_itself_beyond_chance_lowers_the_verdict(tmp_path, now, word):
    history = History(tmp_path / f"{now}.sqlite")
    history.record(measured_report(1, 493))
    lower, sentences = lowered_word(history, measured_report(2, now))
    assert lower == word
    fall = f"Top-1 of FP32 fell from 98.60 to {now / 5:.2f} %."
    assert (fall in sentences) == (word == WITH_CARE)
    assert ("FP32 itself fails: top-1 is" in sentences) == (now == 133)


def test_fp32_that_fails_leaves_do_not_ship_as_it_is(history):
    history.record(measured_report(1, 493))
    assert lowered_word(history, measured_report(2, 133), DO_NOT)[0] == DO_NOT


def test_on_other_test_data_a_figure_is_another_and_did_not_fall(history):
    history.record(measured_report(1, 493))
    word, sentences = lowered_word(history, measured_report(2, 440, data="sha256:other"))
    assert word == WITH_CARE
    assert "Top-1 of FP32 is 88.00 %; it was 98.60 % on other test data." in sentences
    assert "fell" not in sentences


def test_a_watched_figure_of_the_verdict_s_variant_lowers_it_and_another_s_does_not(history):
    history.record(dated(1, top1=98.6))
    later = dated(2, top1=90.0)
    assert lowered_word(history, later) == (
        WITH_CARE,
        "int8 is as good. Worse since run 1 of digits, the last run that shipped: Top-1 of int8 fell "
        "from 98.60 to 90.00 %.",
    )
    later["measured"]["verdict"]["variant"] = "another"
    assert lowered_word(history, later) == (SHIP, "int8 is as good.")


def judged_time(day, p50, limits=("speedup >= 1.5",), **latency):
    made = timed_report(day, p50=p50, speedup=2.0 / p50)
    made["measured"]["made_at"] = f"2026-11-{day:02d}T10:00:00+00:00"
    made["comparison"] |= {"limits": list(limits), "dataset": f"sha256:{day}"}
    for measured in made["measured"]["variants"].values():
        measured["latency"] |= {"runs": 60} | latency
    return made


@each(
    "changes, is_worse",
    [
        ({}, True),
        ({"limits": ()}, False),
        ({"limits": (), "is_gpu": True}, True),
        ({"warnings": ["disturbed"]}, False),
        ({"runs": 6}, False),
        ({"p50_interval_ms": [1.0, 1.6]}, False),
    ],
)
def test_a_time_got_worse_only_where_it_was_measured_to_be_judged(history, changes, is_worse):
    history.record(judged_time(1, 1.0))
    worse = against_last(history, judged_time(2, 1.2, **changes))["worse"]
    assert (
        any("Median latency of int8 rose from 1 to 1.2 ms." in each for each in worse) == is_worse
    )


def test_the_run_that_others_are_compared_with_is_the_baseline_else_the_last_that_shipped(history):
    for day, word in enumerate(("SHIP", DO_NOT), 1):
        made = dated(day)
        made["measured"]["verdict"]["word"] = word
        history.record(made)
    assert against_last(history, dated(9))["since"] == "the last run that shipped"
    history.record(dated(5))
    history.record(dated(3), tags={"baseline": "yes"})
    assert against_last(history, dated(9))["since"] == "the baseline"


def test_the_last_one_before_counts_whatever_the_order_they_were_recorded_in(history):
    for day in (5, 2, 9):
        history.record(dated(day))
    assert against_last(history, dated(7))["run"]["time"].startswith("2026-11-05")
    assert against_last(history, dated(5))["run"]["time"].startswith("2026-11-02")
    assert against_last(history, dated(12))["run"]["time"].startswith("2026-11-09")


def test_runs_of_one_second_are_distinguished_by_their_number(history):
    first, second = dated(1), copy.deepcopy(dated(1))
    second["digest"] = "sha256:second"
    for one in (first, second):
        history.record(one)
    assert against_last(history, second)["run"]["digest"] == first["digest"]
    assert against_last(history, first) is None


def test_the_same_model_or_the_same_name_is_enough_and_another_is_not(history):
    history.record(dated(1, name="old-name"))
    history.record(dated(2, name="other", model="sha256:other"))
    found = against_last(history, dated(3, name="new-name"))
    assert found["run"]["label"] == "run 1 of old-name"
    found = against_last(history, dated(3, name="other"))
    assert found["run"]["label"] == "run 2 of other"
    assert {"what": "model", "before": "sha256:other", "now": "sha256:m"} in found["changed"]
    assert against_last(history, dated(3, name="third", model="sha256:third")) is None


def test_what_is_no_report_is_an_input_error(history):
    with fails(InputError, "measured"):
        against_last(history, {"digest": "sha256:x"})


def test_fp32_is_matched_by_its_role_whatever_its_file_is_called(history):
    history.record(measured_report(1, 493), "digits")
    later = measured_report(2, 462, name="digits_v2")
    against = against_last(history, later, "digits")
    assert against["worse"] == ["Top-1 of FP32 fell from 98.60 to 92.40 %."]


def test_the_cost_of_a_variant_that_only_a_device_timed_has_a_width():
    latency = {"on": "@box", "runs": 60, "is_gpu": True, "p50_interval_ms": [1.0, 1.5]}
    measured = {"variants": {"int8": {"latency": latency}}}
    report = {"comparison": {"rows": [{"name": "int8"}], "limits": []}, "measured": measured}
    assert width_of(report, "int8", COST) == 0.5
