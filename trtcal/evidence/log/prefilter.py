"""Skips the lines of a block that say nothing here, without splitting them out: most of the speed.

A verbose log has a hundred lines of no interest for each that has some. Two automata, made from the
rules and the prefixes of loggers, find the next line that may have some; what they pass over is only
counted. They err on one side: each line that could be an event, or could change what the next lines
mean, is found, and some more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import NamedTuple

from trtcal.evidence.log.lines import EMBEDDED, PREFIX
from trtcal.evidence.log.recognition import MESSAGES, RULES
from trtcal.evidence.log.rules import LOCATION, MIN_HEAD, Rule, any_of, automaton

PREFIX_BYTES = 1 << 10
# Headings that are no event but change what the next lines mean.
HEADINGS = (
    *("Layers:", "Engine Layer Information", "Name: ", "Layer("),
    *("[DlaLayer]", "No layer is running on DLA"),
)
TABLE = "(ms)"
# An error that TensorRT wraps; it may stand in a line of any severity.
WRAPPED = ("Error Code", "Error[", " Error in ")
NUMBERED = r"\d{1,2}: "
# Colours, and what a carriage return overwrote, can hide any of the other forms.
HIDDEN = r"\x1b|\r+[^\r\n]"
# A line that matters, joined to a quiet one.
JOINED = (
    r"(?:\[TRT\]|\d\]| [/|]) \[[EWF]\] |\[[EWF]\] \[TRT\]|\[TensorRT\] [EW][A-Z]{3,6}:"
    r"|(?:ERROR|WARNING): \[TRT\]"
)
QUIET = frozenset({"info", "verbose"})

TIME = r"[\d\d/\d\d/\d\d\d\d-\d\d:\d\d:\d\d] "
QUIET_TAGS = (
    *(f"{brand}[{level}]" for brand in ("", "[TRT] ") for level in "VIX"),
    *(f"[TensorRT] {word}:" for word in ("VERBOSE", "INFO")),
    *(f"{word}: [TRT]:" for word in ("VERBOSE", "INFO", "DEBUG")),
    *(f"[Severity.{word}]" for word in ("VERBOSE", "INFO")),
)

Node = dict[str, "Node"]


def _trie(texts: Iterable[str]) -> Node:
    r"""Return a trie of texts, symbol by symbol; `\d` stands for any digit."""
    root: Node = {}
    for text in texts:
        node = root
        for symbol in re.findall(r"\\d|.", text):
            node = node.setdefault(symbol, {})
    return root


def _outside(node: Node, more: str = "") -> str:
    r"""Return a pattern of all beginnings that leave a trie; `more` stays inside at its root."""
    edges = {edge if edge == r"\d" else re.escape(edge): child for edge, child in node.items()}
    others = [f"{edge}(?:{_outside(child)})" for edge, child in edges.items() if child]
    return "|".join([f"[^{''.join(edges)}{more}]", *others])


def _untagged() -> str:
    """Return a pattern of the beginnings of lines that carry no quiet tag."""
    tags, both = _trie(QUIET_TAGS), _trie([*QUIET_TAGS, TIME])
    return rf"[ \t]*(?:{_outside(both, ' 	')}|{_literal(TIME)}(?:{_outside(tags)}))"


def _literal(text: str) -> str:
    return re.escape(text).replace(r"\\d", r"\d")


TAG = rf"[ \t]*(?:{_literal(TIME)})?(?:{'|'.join(map(_literal, QUIET_TAGS))})"
# A pattern with groups inside of groups, up to five deep; RE2 refuses what is left of deeper ones.
ATOM = r"\\.|\[(?:\\.|[^\]\\])*\]|[^()\[\\]"
NESTED = reduce(lambda inner, _: rf"(?:{ATOM}|\({inner}*\))", range(4), rf"(?:{ATOM})")
LOOKAROUND = re.compile(rf"\(\?=(?P<last>{NESTED}*)\)(?=\)*(?:\||$))|\(\?(?:[=!]|<[=!]){NESTED}*\)")
WIDE = re.compile(r"\{(\d+),(?:\d{2,})?\}")
BEYOND_ASCII = re.compile(r"\[[^\]]*(?:\\u\w{4}|[^\x00-\x7f])[^\]]*\]|\\u\w{4}|[^\x00-\x7f]")


def loosened(pattern: str) -> str:
    """Return a pattern for RE2 that matches at least wherever the given one does.

    RE2 looks neither ahead nor behind: what must follow at the end becomes a part of the match, and
    everything else of that kind goes. Wide bounds go too, and letters beyond ASCII are any of them.
    """
    while LOOKAROUND.search(pattern):
        pattern = LOOKAROUND.sub(r"\g<last>", pattern)
    pattern = re.sub(r"\(\?P<\w+>", "(?:", pattern)
    pattern = BEYOND_ASCII.sub(r"[\\x80-\\xff]+", pattern)
    return WIDE.sub(lambda bound: "*" if bound[1] == "0" else "+", pattern)


def _beginning(rule: Rule) -> Iterator[str]:
    """Yield patterns of the beginnings of a rule's messages, up to one of its needles."""
    for head in {start[:MIN_HEAD] for start in rule.beginnings}:
        for needle in rule.needles:
            yield rf"{re.escape(head)}[^\n]*?{re.escape(needle)}"
            overlaps = (at for at in range(len(head)) if needle.startswith(head[at:]))
            yield from (re.escape(head[:at] + needle) for at in overlaps)


PIECES = tuple(f"(?:{loosened(pattern)})" for pattern in MESSAGES.prefixes)
QUIET_RULES = tuple(rule for rule in RULES if not (rule.levels and QUIET.isdisjoint(rule.levels)))


def _tagged() -> str:
    """Return a pattern of the lines with a quiet tag that may matter all the same."""
    starts = {beginning for rule in QUIET_RULES for beginning in _beginning(rule)}
    message = rf"(?:{loosened(LOCATION.pattern)})?(?:{'|'.join(sorted(starts))}|{NUMBERED})"
    pieces = (piece for piece in PIECES if not piece.startswith(r"(?:\["))
    other = "|".join([any_of(HEADINGS), *pieces])
    bracket = _outside(_trie(["TRT]"]))
    anywhere = {need for rule in QUIET_RULES if not rule.beginnings for need in rule.needles}
    later = rf"{any_of([*anywhere, *WRAPPED, TABLE])}|{HIDDEN}|{JOINED}"
    return (
        rf"{TAG}[ \t]*(?:\[TRT\][ \t]*(?:\[|{message}|{other})|\[(?:{bracket})|{message}|{other}"
        rf"|[^\n]*?(?:{later}))"
    )


def _with_literals() -> str:
    """Return a pattern of all lines that a logger's prefix begins, or that may matter without one."""
    needles = {needle for rule in RULES for needle in rule.needles}
    literals = any_of([*needles, *WRAPPED, *HEADINGS, TABLE])
    within = rf"{literals}|{loosened(EMBEDDED.pattern)}|{HIDDEN}"
    return rf"[ \t]*(?:{'|'.join(PIECES)})|[^\n]*?(?:{within})"


LEAVES_QUIET = automaton(rf"(?m)^(?:{_tagged()}|{_untagged()})")
MAY_MATTER = automaton(rf"(?m)^(?:{_with_literals()})")
IS_TAGGED = re.compile(TAG.encode())


class Quiet(NamedTuple):
    """Lines without interest: where they end, how many they are, and how many have a tag."""

    end: int
    lines: int
    tagged: int


def quiet_lines(text: bytes, start: int) -> Quiet:
    """Return how far the lines from a line's beginning on say nothing; each must have its end."""
    lines = tagged = 0
    place = start
    while True:
        match = LEAVES_QUIET.search(text, place)
        end = match.start() if match else len(text)
        count = text.count(b"\n", place, end)
        lines, tagged = lines + count, tagged + count
        if match is None or IS_TAGGED.match(text, end):
            return Quiet(end, lines, tagged)
        match = MAY_MATTER.search(text, end)
        place = match.start() if match else len(text)
        lines += text.count(b"\n", end, place)
        if place in (end, len(text)) or not IS_TAGGED.match(text, place):
            return Quiet(place, lines, tagged)


def has_prefix(line: bytes) -> bool:
    """Whether a known logger's prefix begins a line."""
    beginning = line[:PREFIX_BYTES].decode("utf-8", "replace").lstrip()
    return PREFIX.match(beginning) is not None
