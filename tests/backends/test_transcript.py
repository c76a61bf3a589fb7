import io
import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from trtcal.backends.child import LONGEST_LINE, Transcript

LOG = (
    "[I] tensorrt_rtx 1.7.1\n[V] Layers:\nName: a, LayerType: conv\n\n[W] careful\n"
    "2026-11-21 14:00:00.1 [E:onnxruntime:, file.cc:1 f] it failed\n[E] Größe\n"
).encode()


def transcribed(*parts, clock=lambda: 0.0):
    text, records = io.BytesIO(), io.BytesIO()
    transcript = Transcript(text, records, clock)
    for part in parts:
        transcript.write(part)
    transcript.close()
    return text.getvalue(), [json.loads(line) for line in records.getvalue().splitlines()]


def test_every_message_is_a_record_with_its_severity():
    text, records = transcribed(LOG)
    assert text == LOG
    assert [(r["severity"], r["message"]) for r in records] == [
        ("info", "tensorrt_rtx 1.7.1"),
        ("verbose", "Layers:\nName: a, LayerType: conv"),
        ("warning", "careful"),
        ("error", "it failed"),
        ("error", "Größe"),
    ]


@given(st.lists(st.integers(0, len(LOG)), max_size=6))
def test_where_the_output_is_cut_does_not_matter(places):
    edges = [0, *sorted(places), len(LOG)]
    parts = [LOG[a:b] for a, b in pairwise(edges)]
    assert transcribed(*parts) == transcribed(LOG)


@given(st.integers(0, len(LOG)))
def test_a_builder_that_dies_at_any_byte_leaves_whole_records(size):
    text, records = transcribed(LOG[:size])
    assert text == LOG[:size]
    whole = transcribed(LOG)[1]
    assert records[:-1] == whole[: max(0, len(records) - 1)]


@given(st.binary(max_size=200))
def test_any_bytes_make_records(data):
    text, records = transcribed(data)
    assert text == data
    assert all(set(record) == {"seconds", "severity", "message"} for record in records)


def test_seconds_are_those_of_a_messages_first_line():
    times = iter([10.0, 11.5, 13.0])
    _, records = transcribed(b"[I] one\n", b"more\n", b"[I] two\n", clock=lambda: next(times))
    assert [record["seconds"] for record in records] == [1.5, 3.0]


def test_output_without_an_end_is_cut_into_records():
    text, records = transcribed(b"[V] x", *[b"y" * (LONGEST_LINE // 2)] * 5)
    assert len(text) > 2 * LONGEST_LINE
    assert len(records) > 1
    assert sum(len(record["message"]) for record in records) == len(text) - len("[V] ")
