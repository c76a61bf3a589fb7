"""A run against the last one of its model."""

import copy
import json

import pytest

from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from tests.runs.runs import report
from trtcal.errors import InputError
from trtcal.limits import SHIP, WITH_CARE
from trtcal.runs.diff import against_last, warn_of_fall
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
    history.record(dated(1, top1=98.0, p50=1.0, data="sha256:old"))
    later = dated(2, top1=98.4, p50=1.2, data="sha256:new")
    later["measured"]["packages"]["tensorrt-rtx"] = "1.7"
    found = json.loads(json.dumps(against_last(history, later)))
    assert found["run"]["label"] == "run 1 of digits"
    shown = {one["name"]: (one["better"], one["unit"]) for one in found["figures"]}
    assert shown["int8: top-1"] == (True, "%")
    assert shown["int8: median latency"] == (False, "ms")
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


@each("now, is_said", [(95.0, True), (97.5, False), (99.0, False)])
def test_a_fall_of_fp32_itself_is_said_beside_the_verdict(tmp_path, now, is_said):
    history = History(tmp_path / f"{now}.sqlite")
    first, later = dated(1), dated(2)
    for document, top1 in ((first, 98.0), (later, now)):
        document["comparison"]["rows"][0]["accuracy"]["top1"] = top1
    history.record(first)
    verdict = {"word": SHIP, "reasons": []}
    warn_of_fall(verdict, against_last(history, later), later["comparison"])
    assert verdict["word"] == (WITH_CARE if is_said else SHIP)
    assert any("FP32 itself fell since run 1" in reason for reason in verdict["reasons"]) == is_said


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
