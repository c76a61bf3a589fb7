"""Limits: what is written is what is read, every figure is in one state, and broken ones end with 1."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from trtcal.errors import GateFailed, InputError
from trtcal.limits import (
    BROKEN,
    HOLDS,
    UNDECIDED,
    Figure,
    Judgement,
    Limit,
    joined,
    judge_counts,
    overall,
    parse_limit,
    parse_limits,
    require,
)
from trtcal.metrics import METRICS, TIMES

BOUNDS = st.floats(-1e6, 1e6, allow_nan=False)
NAMES = st.sampled_from([*METRICS, "map", "tactic_failed"])


@st.composite
def limits(draw):
    bound, is_change, name = draw(BOUNDS), draw(st.booleans()), draw(NAMES)
    devices = ["@orin", "@nano-2.lab"] if name in METRICS and METRICS[name].of == TIMES else []
    return Limit(
        name,
        draw(st.sampled_from([">=", "<=", "=="])),
        bound if is_change else abs(bound),
        is_change,
        is_change and draw(st.booleans()),
        draw(st.none() | st.from_regex(r"[\w.:-]+( for sm\d\d)?", fullmatch=True)),
        draw(st.sampled_from(["", "@slices", *devices])),
    )


@given(limits())
def test_a_limit_reads_as_it_is_written(limit):
    assert parse_limit(str(limit)) == limit
    assert parse_limit(f"  {limit}  ") == limit


@given(st.text() | st.from_regex(r"\w+ ?[<>=]{1,2} ?[+-]?\w+%?", fullmatch=True))
def test_any_other_text_is_refused(text):
    with contextlib.suppress(InputError):
        found = parse_limit(text)
        assert parse_limit(str(found)) == found


@each(
    "text",
    [
        *("", "top1", "top1>3", "top1>=x", "top1=>3", "speedup >= 5%", ">= 5", "top1 >= nan"),
        *("latency_p50@ <= 4", "latency_p50@-x <= 4", "latency_p50@a@b <= 4", "top1@orin >= 90"),
        "a b == 1",
    ],
)
def test_what_is_no_limit_is_refused(text):
    with fails(InputError, repr(text)):
        parse_limit(text)


def test_units_are_those_of_the_metric():
    assert parse_limit("latency_p50 <= 5 ms") == Limit("latency_p50", "<=", 5.0)
    assert parse_limit("top1>=-1.0points") == Limit("top1", ">=", -1.0, is_change=True)
    assert parse_limit("int8_macs >= 90%") == Limit("int8_macs", ">=", 90.0)
    assert parse_limit("latency_p50 <= +5%").unit == "%"
    assert parse_limit("energy@orin <= 20 mJ") == Limit("energy", "<=", 20.0, at="@orin")
    with fails(InputError, "latency_p50", "ms", "dB"):
        parse_limit("latency_p50 <= 5 dB")


@given(limits(), BOUNDS, st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_figure_is_in_one_state_and_its_margin_says_which(limit, value, below, above):
    judged = Judgement(limit, "", Figure(value, value - below, value + above, 100))
    low, high = judged.figure.low, judged.figure.high
    holds = {
        ">=": low >= limit.bound,
        "<=": high <= limit.bound,
        "==": low == high == limit.bound,
    }[limit.relation]
    broken = {
        ">=": high < limit.bound,
        "<=": low > limit.bound,
        "==": not low <= limit.bound <= high,
    }[limit.relation]
    assert (judged.state == HOLDS, judged.state == BROKEN) == (holds, broken)
    assert (judged.margin >= 0) == holds
    if judged.samples_needed is not None:
        assert judged.state == UNDECIDED
        assert judged.samples_needed > 100


@given(limits(), BOUNDS, st.floats(0, 1e3), st.floats(0, 1e3))
def test_a_wider_interval_never_decides_what_a_narrower_one_leaves_open(limit, value, half, more):
    narrow = limit.state(value - half, value + half)
    wide = limit.state(value - half - more, value + half + more)
    assert wide in (narrow, UNDECIDED)


def test_an_interval_that_ends_on_the_bound_holds_and_one_that_begins_there_is_not_broken():
    limit = parse_limit("top1 >= -1.0")
    assert limit.state(-1.0, 0.4) == HOLDS
    assert limit.state(-5.0, -1.0) == UNDECIDED
    assert parse_limit("latency_p50 <= +5%").state(1.0, 5.0) == HOLDS
    assert parse_limit("latency_p50 <= +5%").state(5.0, 9.0) == UNDECIDED


def test_one_place_turns_broken_limits_into_status_1():
    judged = judge_counts(
        parse_limits(["silent_fallbacks == 0", "b: uncalibrated <= 1", "top1 >= -1"]),
        {"silent_fallbacks": 2, "uncalibrated": 0},
        "a",
    )
    assert [one.state for one in judged] == [BROKEN]
    with fails(GateFailed, "a", "silent_fallbacks"):
        require(judged, "hint")
    assert GateFailed("", "").exit_status == 1
    require(judged[:0], "hint")


def test_what_was_not_measured_is_undecided():
    judged = Judgement(parse_limit("top1 >= -1"), "int8", None, "the data have no labels")
    assert (judged.state, judged.margin, judged.samples_needed) == (UNDECIDED, None, None)
    assert str(judged) == "int8: top1 was not measured: the data have no labels"
    require([judged], "hint")
    assert overall([judged]) == overall([]) == UNDECIDED


@each(
    "text, figure, helps",
    [
        ("top1 >= -1", (-3.0, -4.0, -2.0, 600), True),  # broken
        ("top1 >= -1", (-0.4, -1.2, 0.4, 600), True),  # one that loses nothing would hold
        ("top1 >= -1", (0.0, -7.0, 7.0, 40), False),  # and here it would not
        ("top1 >= -1", (-5.0, -14.0, 4.0, 40), True),  # but the figure itself is beyond the limit
        ("top1 >= -1", (0.0, -0.5, 0.5, 600), False),  # holds
        ("sqnr_db >= 30", (30.1, 29.0, 31.0, 40), True),
        ("speedup >= 2", (1.0, 0.9, 1.1, None), False),
    ],
)
def test_a_smaller_loss_helps_where_it_could_hold_the_limit(text, figure, helps):
    *ends, samples = figure
    judged = Judgement(parse_limit(text), "a", Figure(*ends, samples))
    assert judged.may_improve() == helps
    assert Judgement.from_document(judged.to_document()) == judged


def test_a_gain_is_held_against_a_loss():
    def of(value, text):
        return Judgement(parse_limit(text), "a", Figure(value, value, value, 50)).predicate

    assert of(0.5, "top1 >= -1") == "gains 0.5 points of top-1; the limit is a loss of 1 point"
    assert of(0.5, "top1 >= -2").endswith("; the limit is a loss of 2 points")
    assert of(-0.5, "top1 >= -1") == "loses 0.5 points of top-1; the limit is 1"


def test_a_suggested_limit_shows_its_state_and_is_no_gate():
    limit = parse_limit("sqnr_db >= 30")
    for figure, state in (((35.59, 35.17, 36.03), HOLDS), ((20.0, 19.0, 21.0), BROKEN)):
        judged = Judgement(limit, "a", Figure(*figure, 500), "y has no default limit", True)
        assert (judged.state, judged.gate, overall([judged])) == (state, UNDECIDED, UNDECIDED)
        assert "suggested" in str(judged)
        assert (state in judged.predicate, judged.may_improve()) == (True, state == BROKEN)
        require([judged], "hint", (BROKEN, UNDECIDED))
        assert Judgement.from_document(judged.to_document()) == judged


def test_open_limits_end_with_status_1_where_they_are_asked_for():
    open_one = Judgement(parse_limit("top1 >= -1"), "a", Figure(-0.5, -1.5, 0.5, 100))
    require([open_one], "hint")
    with fails(GateFailed, "undecided", "top1"):
        require([open_one], "hint", (BROKEN, UNDECIDED))


def test_limits_given_replace_configured_ones_of_the_same_metric():
    configured = parse_limits(["top1 >= -1", "speedup >= 2", "a: top1 >= -3"])
    found = joined(configured, parse_limits(["top1 >= -0.5"]))
    assert [str(one) for one in found] == [
        "top1 >= -0.5 points",
        "speedup >= 2.0 x",
        "a: top1 >= -3.0 points",
    ]
