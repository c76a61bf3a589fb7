"""Lines that are passed over unread are lines of which reading makes nothing."""

import random
import re

import re2
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.examples import examples
from tests.fixtures.logs import SHAPES
from tests.fixtures.tables import each
from tests.fixtures.wrapped import BLOCKS, log
from trtcal.evidence.log import reader
from trtcal.evidence.log.prefilter import Quiet, loosened, quiet_lines
from trtcal.evidence.log.reader import events_of
from trtcal.evidence.log.recognition import MESSAGES, RULES

TAGS = ("[V] ", "[I] [TRT] ", "[X]  ", "  [03/04/2031-05:06:07] [V] [TRT] ", "[TRT] [V] ", "")
WORDS = (
    *("Registering layer: stem/conv for ONNX node: stem/conv", "stem [Conv] inputs: [a -> (1, 3)]"),
    "*************** Autotuning format combination: Half(8,1) -> Half(8,1) ***************",
    *("Tactic: 0x0000000000000012 Time: 0.25", "--------------- Timing Runner: stem (CaskConv)"),
    *("Error: hm", "Warning: odd", "[W] inner", "a.cpp:12: ", "4: ", "Error Code 3: ", "\x1b[0m"),
    *(
        "(ms)",
        "Time(ms) Avg.(ms) Time(%) Layer",
        "\r",
        "\r\r",
        "x\ry",
        "[TRT]",
        "[03/04/2031-05:06:0",
        "[",
    ),
    *("TRT: ", "| a - ", "- ", "# [W] ", "W0102 03:04:05.678901  12 a.cc:9] ", "ERROR from <a> "),
)
PREFIXES = (*TAGS, *(shape.partition("{}")[0] for shape, _ in SHAPES))


def events(text):
    return [event.to_document() for event in events_of([text])]


def unfiltered(text, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(reader, "quiet_lines", lambda text, start: Quiet(start, 0, 0))
        return events(text)


def mixed(chooser, count):
    """Return lines of prefixes, examples of rules and what stands in verbose logs, in any order."""
    lines = []
    for _ in range(count):
        prefix = "".join(chooser.choices(PREFIXES, k=chooser.choice((1, 1, 1, 2))))
        rule = chooser.choice(RULES)
        parts = (chooser.choice(WORDS), rule.example[-1], rule.example[-1][: chooser.randrange(40)])
        body = "".join(chooser.choices(parts, weights=(6, 2, 1), k=chooser.choice((1, 1, 2))))
        lines.extend(chooser.choice(BLOCKS) if chooser.random() < 0.02 else [prefix + body])
    return "\n".join(lines).encode() + b"\n"


@each("seed", range(60))
def test_events_are_those_of_reading_every_line(seed, monkeypatch):
    text = mixed(random.Random(seed), 300)  # noqa: S311
    assert events(text) == unfiltered(text, monkeypatch)
    text = "".join(f"{line}\n" for line in log(seed)).encode()
    assert events(text) == unfiltered(text, monkeypatch)


@each("rule", RULES)
def test_no_rule_is_passed_over_behind_any_prefix(rule, monkeypatch):
    text = "".join(f"{prefix}{rule.example[-1]}\n[V] quiet\n" for prefix in PREFIXES).encode()
    assert events(text) == unfiltered(text, monkeypatch)


def test_a_verbose_log_is_mostly_passed_over():
    lines = [f"[V] [TRT] {word} {number}" for number, word in enumerate(WORDS[:5] * 100)]
    text = "".join(f"{line}\n" for line in lines).encode()
    assert quiet_lines(text, 0) == Quiet(len(text), len(lines), len(lines))


def test_lines_without_a_tag_are_passed_over_and_not_counted_as_tagged():
    text = b"words\n[V] a\nmore words\n\n[I] b\nlast\n[W] c\nwords\n"
    assert quiet_lines(text, 0) == Quiet(text.index(b"[W]"), 6, 2)


@examples(120)
@given(st.text(alphabet="[]() :-#|0123456789/.,TRWEINFOVarning", max_size=80))
def test_a_loosened_prefix_matches_wherever_the_prefix_does(text):
    for piece in MESSAGES.prefixes:
        if re.match(piece, text, re.ASCII):
            assert re2.match(loosened(piece), text)
