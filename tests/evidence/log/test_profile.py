import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evidence.layers.engines import entry_text
from tests.evidence.log.lines import parse_lines
from tests.fixtures.listings import HOSTILE
from tests.fixtures.tables import each
from trtcal.errors import InputError
from trtcal.evidence.layers.inspector import join_times, profile_in_log, read_profile
from trtcal.evidence.layers.layer import Layer


def document(*entries, runs=10):
    return "[\n  " + "\n, ".join((f'{{ "count" : {runs} }}', *entries)) + "\n]\n"


def test_times_are_the_mean_of_one_run():
    profile = read_profile(
        document(
            '{ "name" : "conv1", "timeMs" : 20, "averageMs" : 2, "medianMs" : 1.5, "percentage" : 80 }',
            '{ "name" : "relu", "timeMs" : 5, "percentage" : 20 }',
        )
    )
    assert [(t.name, t.average_ms) for t in profile.times] == [("conv1", 2.0), ("relu", 0.5)]
    assert profile.total_ms == 2.5


NAMES = [
    *HOSTILE,
    'a"b',
    "back\\slash",
    "back\\nothing",
    'ends in "',
    "ends in \\",
    '", "timeMs" : 1, "averageMs" : 1, "percentage" : 1',
    '{ "name" : "x',
    "] }",
    "",
]


@each("name", NAMES)
def test_a_name_that_nobody_escaped_gets_its_own_time(name):
    text = document(entry_text("first", 1), entry_text(name, 2), entry_text("last", 4))
    timed = join_times(
        [Layer("first", "k"), Layer(name, "k"), Layer("last", "k")], read_profile(text)
    )
    assert [layer.time_ms for layer in timed.layers] == [1, 2, 4]
    assert not timed.without_time
    assert not timed.without_layer


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_a_name_that_json_escaped_gets_its_time_too(name):
    entries = [{"name": n, "timeMs": 1.0, "averageMs": 0.5, "percentage": 50} for n in (name, "b")]
    profile = read_profile(json.dumps([{"count": 2}, *entries], indent=1))
    timed = join_times([Layer(name, "k"), Layer("b", "k")], profile)
    assert [layer.time_ms for layer in timed.layers] == [0.5, 0.5]


def test_equal_names_are_joined_in_order():
    profile = read_profile(document(*(entry_text("same", ms) for ms in (1, 2)), entry_text("x", 4)))
    timed = join_times([Layer("same", "k"), Layer("y", "k"), Layer("same", "k")], profile)
    assert [layer.time_ms for layer in timed.layers] == [1, None, 2]
    assert (timed.without_time, [time.name for time in timed.without_layer]) == (("y",), ["x"])


def test_what_is_no_time_is_none():
    entry = '{ "name" : "a", "timeMs" : nan, "averageMs" : -nan, "percentage" : inf }'
    profile = read_profile(document(entry))
    assert profile.times[0].average_ms is None
    assert profile.total_ms == 0


@each("text", ["", "[]", "no JSON", '[{ "count" : 1 }]', '{"name": "a"}', "\0" * 99])
def test_what_holds_no_times_is_an_error(text):
    with pytest.raises(InputError):
        read_profile(text)


@given(
    st.lists(st.sampled_from(['"', "{", "}", '"name" : "', ', "timeMs" : 1', "[", "]", ", ", "\\"]))
)
def test_no_document_makes_the_reader_fail_otherwise(pieces):
    try:
        profile = read_profile("".join(pieces))
    except InputError:
        return
    assert all(time.names for time in profile.times)


def test_the_table_of_a_log_is_a_profile():
    log = """[I] === Profile (10 iterations ) ===
[I]    Time(ms)     Avg.(ms)   Median(ms)   Time(%)   Layer
[I]       20.00       2.0000       1.9000      80.0   conv1 + relu1
[I]        5.00       0.5000       0.4000      20.0   pool
[I]       25.00       2.5000       2.3000     100.0   Total
"""
    profile = profile_in_log(parse_lines(log.splitlines()))
    times = [(time.name, time.average_ms) for time in profile.times]
    assert times == [("conv1 + relu1", 2.0), ("pool", 0.5)]
    assert profile_in_log(()) is None


def test_a_time_is_given_away_once_though_its_name_may_mean_two():
    profile = read_profile(document(entry_text("a\\tb", 1)))
    timed = join_times([Layer("a\\tb", "k"), Layer("a\tb", "k")], profile)
    assert [layer.time_ms for layer in timed.layers] == [1, None]
