"""How the lines of a log are brought in and read: memory, order, encodings, work."""

import math
import random
import sys
import threading
import time
from collections import Counter
from itertools import islice

import pytest

from benchmarks import log_fuzz
from tests.evidence.log.lines import parse_lines
from tests.fixtures.tables import each
from trtcal.evidence.layers.listing import MAX_LAYERS
from trtcal.evidence.log import reader, recognition
from trtcal.evidence.log.files import blocks_of, portions, portions_of_growing_file
from trtcal.evidence.log.reader import Live, parse_file
from trtcal.evidence.log.recognition import MESSAGES, RULES
from trtcal.evidence.log.rules import MAX_TEXT
from trtcal.evidence.log.summary import FACTS, LogWriter, log_document

if sys.version_info >= (3, 11):
    from re import _parser
else:
    import sre_parse as _parser

LETTERS = {"error": "E", "warning": "W", "info": "I", "verbose": "V"}
SKIPPED = "[W] Skipping tactic 3 due to oom error on requested size of 9 detected for tactic 4."
LINES = [
    *(f"[{LETTERS[rule.severity]}] [TRT] {one}" for rule in RULES for one in rule.example),
    *(one for rule in RULES for one in rule.example),
    *(
        "[V] Layers:",
        "[V] Engine Layer Information:",
        "[I] [DlaLayer] {x}",
        "[I] quiet",
        "",
        "more",
    ),
    "[I]  Time(ms)  Avg.(ms)  Median(ms)  Time(%)  Layer",
    "[I]  1.5  0.25  0.2  7.5  a + b",
    "Name: broken",
    "Layer(Reformat): Reformatting CopyNode for Input Tensor 0 to c, Tactic: 0x0, x (Float[1]) -> y "
    "(Int8[1])",
    "[03/04/2031-05:06:07] [TRT] [E] 10: Could not find any implementation for node a.",
]


def splice(seed, lines):
    chooser = random.Random(seed)  # noqa: S311
    return "\n".join(chooser.choice(LINES) for _ in range(lines))


def events(text):
    return [event.to_document() for event in parse_lines(text.split("\n"))]


@each("seed", range(20))
def test_what_is_remembered_of_lines_changes_nothing(seed, monkeypatch):
    text = "\n".join([splice(seed, 60)] * 3)
    remembered = events(text)
    with monkeypatch.context() as patch:  # the rows of a table share one monkeypatch
        for cached in ("known_event", "joined"):
            patch.setattr(reader, cached, getattr(reader, cached).__wrapped__)
        patch.setattr("trtcal.evidence.log.lines.CACHED_LENGTH", -1)
        assert remembered == events(text)


def test_a_message_seen_before_is_not_read_again(monkeypatch):
    read = []
    recognise = recognition.recognise
    monkeypatch.setattr(
        recognition, "recognise", lambda *args: read.append(args) or recognise(*args)
    )
    placed = list(parse_lines([SKIPPED, "[V] quiet"] * 5_000))
    assert [event.line for event in placed] == list(range(1, 10_001, 2))
    assert len(read) < 10


def test_a_listing_without_end_is_bounded_and_says_so(tmp_path):
    path = tmp_path / "build.log"
    layer = "Layer(K): c{}, Tactic: 0x1, x (Int8[1]) -> y (Int8[1])\n"
    path.write_text("".join(layer.format(number) for number in range(MAX_LAYERS + 7)))
    document = log_document(path)
    assert len(document["layers"]) == MAX_LAYERS
    assert document["summary"]["left_out"]["layers"] == 7


def test_kinds_and_subjects_beyond_what_is_kept_separate_are_counted(monkeypatch, tmp_path):
    monkeypatch.setattr("trtcal.evidence.log.summary.MAX_GROUPS", 3)
    monkeypatch.setattr("trtcal.evidence.log.summary.MAX_SUBJECTS", 2)
    path = tmp_path / "build.log"
    lines = [f"[W] Odd thing {'x' * count}" for count in range(9)]
    lines += [f"[W] Tensor t{count} is uniformly zero." for count in range(9)]
    path.write_text("\n".join(lines[9:] + lines))
    left_out = log_document(path)["summary"]["left_out"]
    assert left_out == {"ungrouped": 7, "subjects": 14, "layers": 0}


def test_the_document_is_the_same_however_the_log_comes_in(tmp_path):
    text = splice(1, 400).encode()
    whole, pieces = [], []
    LogWriter("x", whole.append).write(portions([text]))
    LogWriter("x", pieces.append).write(
        portions(text[at : at + 7] for at in range(0, len(text), 7))
    )
    assert b"".join(whole) == b"".join(pieces)
    path = tmp_path / "x"
    path.write_bytes(text)
    document = log_document(path)
    parsed = parse_file(path)
    events = [event.to_document() for event in parsed.events if event.category not in FACTS]
    assert document["events"] == events
    assert document["layers"] == [layer.to_document() for layer in parsed.layers]


@pytest.mark.parametrize("seed", range(4))
def test_mutated_logs_neither_raise_nor_lose_events(seed, monkeypatch):
    monkeypatch.setattr(log_fuzz, "MAX_LINE_S", math.inf)  # the benchmark's question
    chooser = random.Random(seed)  # noqa: S311
    ends = Counter(log_fuzz.check(*one) for one in islice(log_fuzz.inputs(10_000, chooser), 160))
    assert set(ends) <= {"fine", "refused"}
    assert ends["fine"] > 100


@each("seed", range(20))
def test_any_bytes_may_come_while_a_builder_prints(seed):
    live = Live()
    live.feed(log_fuzz.mutated(random.Random(seed)))  # noqa: S311
    live.close()
    assert live.findings()


def test_a_line_of_ten_megabytes(tmp_path):
    path = tmp_path / "build.log"
    path.write_bytes(b"[E] " + b"PWN(a + " * 1_300_000 + b"\n[W] End")
    first, last = parse_file(path).events
    assert len(first.message) < 5_000
    assert (last.line, last.message) == (2, "End")


def ways(pattern):
    """Bound the ways in which a pattern can be tried from one place: wide repeats multiply.

    The last one takes what is left and cannot fail.
    """
    items = [item for item in pattern if str(item[0]) != "AT"]
    counts = [
        _ways(str(name), value, item is items[-1]) for item in items for name, value in [item]
    ]
    return math.prod(counts)


def _ways(name, value, is_last):
    if name == "SUBPATTERN":
        items = list(value[3])
        return ways(items[:-1]) if is_last and _is_rest(items) else ways(items)
    if name == "BRANCH":
        return max(ways(branch) for branch in value[1])
    if name in ("MAX_REPEAT", "MIN_REPEAT"):
        _, most, inner = value
        return ways(inner) * (min(int(most), MAX_TEXT) if most > 64 else 1)
    return 1


def _is_rest(items):
    return len(items) == 1 and str(items[0][0]).endswith("REPEAT") and str(items[0][1][2]) == REST


REST = str(_parser.parse("."))


@each("rule", RULES)
def test_no_pattern_can_be_tried_in_too_many_ways(rule):
    pattern = _parser.parse(rule.pattern)
    places = 1 if str(pattern[0][0]) == "AT" else MAX_TEXT
    assert ways(pattern) * places <= 10**7


@each("prefix", MESSAGES.prefixes)
def test_no_prefix_of_a_line_can_be_tried_in_too_many_ways(prefix):
    assert ways(_parser.parse(prefix.replace("(?=", "(?:"))) <= 10**6


def test_a_growing_file_is_followed_and_read_anew_when_it_is_replaced(tmp_path):
    path = tmp_path / "build.log"
    found = []

    def follow():
        for lines in portions_of_growing_file(path):
            found.extend(line for line in lines.splitlines() if line)
            if b"end" in found:
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    path.write_bytes(b"one\ntw")
    wait_for(lambda: b"one" in found)
    with path.open("ab") as file:
        file.write(b"o\n")
    wait_for(lambda: b"two" in found)
    (tmp_path / "new.log").write_bytes(b"three\nend\n")
    (tmp_path / "new.log").replace(path)
    thread.join(600)
    assert found == [b"one", b"two", b"three", b"end"]


def wait_for(condition):
    for _ in range(60_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come")


def test_blocks_come_as_they_are_written(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"a\nb")
    with path.open("rb") as file:
        assert list(blocks_of(file)) == [b"a\nb"]


def test_live_counts_findings_and_keeps_the_latest():
    now = iter([0.0, 312.4])
    live = Live(clock=lambda: next(now))
    live.feed(b"[V] quiet\n[W] Tensor a is uniformly zero.\n[W] Tensor b is unif")
    live.feed(b"ormly zero.\n[I] Engine built in 2.5 sec.\n" + SKIPPED.encode())
    live.close()
    assert live.counts == {"uncalibrated": 2, "tactic_skipped": 1}
    assert live.text() == "312 s, 2 uncalibrated, 1 tactics skipped, last: tactic_skipped 4"
