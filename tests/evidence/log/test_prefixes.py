from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.logs import SHAPES
from tests.fixtures.tables import each
from trtcal.evidence.log.lines import split_line

MESSAGES = [
    "Missing scale and zero-point for tensor x",
    "[MemUsageChange] Init: CPU +1, GPU +2",
    "10: Could not find any implementation for node x.",
    "- 3 weights are affected by this issue: y",
]


@each("message", MESSAGES)
@each("shape, severity", SHAPES)
def test_every_prefix_comes_off(shape, severity, message):
    assert split_line(shape.format(message))[:2] == (severity, message)


@given(st.text(max_size=300))
def test_no_text_makes_it_raise(text):
    split_line(text)


def test_a_message_in_brackets_stays():
    assert split_line("[MyOwnThing] hello")[:2] == (None, "[MyOwnThing] hello")
