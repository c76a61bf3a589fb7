"""Decides from a line's raw bytes whether it can be an event at all: nearly all of the speed.

A verbose log has a hundred lines of no interest for each that has some, and they carry a plain
prefix that tells their severity: verbose or information. Such a line can only matter if its message
begins as a rule's does, or holds one of the few literals of rules that begin with a name. Two quick
tests settle that. Every other line is searched for all literals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from trtcal.buildlog.recognition import RULES
from trtcal.buildlog.rules import Rule

# A line is looked at up to here.
SEARCHED = 1 << 16

MARKS = (
    *("[E]", "[W]", "[F]", "[!]", "[E:", "[W:", "[F:", ": E ", ": W ", ": F ", "E onnx", "W onnx"),
    *("WARN", "ERROR", "FATAL", "CRITICAL", "Warning:", "Error:", "warning:", "error:"),
    *("Warning]", "Error]", "Error Code", "Layer(", "LayerType: ", "Layers:", "Time(ms)"),
    *("Time (ms)", "Engine Layer Information", "[DlaLayer]", "No layer is running on DLA"),
)
# Headings that are no event but change what the next lines mean.
HEADINGS = (
    *("Layers:", "Engine Layer Information", "Name: ", "Layer("),
    *("[DlaLayer]", "No layer is running on DLA"),
)
TABLE = ("(ms)",)
QUIET_PREFIX = (
    rb"[ \t]*(?:\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] )?"
    rb"(?:(?:\[TRT\] )?\[[VIX]\](?: \[TRT\])?|\[TensorRT\] (?:VERBOSE|INFO):"
    rb"|(?:VERBOSE|INFO|DEBUG): \[TRT\]:|\[Severity\.(?:VERBOSE|INFO)\])[ \t]*"
)
# What may be one more logger's prefix behind the first: then the line is not known to be quiet.
NESTED = (
    rb"[ \t\x1b\r]|\[(?:[A-Z!][\]:]|\d\d/|\d{4}-|TRT|Tens|Torch|trt|Sever|Logger|modelopt)"
    rb"|\[[A-Z]{4,8}\]"
    rb"|\d{4}-\d\d-|\d{1,3}:|[EWF]\d{4} |[A-Z]{4,8}:|[EWF] [\w/]"
)

Node = dict[bytes, "Node"]
END: bytes = b""


def any_of(literals: Iterable[str]) -> bytes:
    """Return a pattern that matches wherever one of the literals begins.

    Common beginnings are shared, so that at most positions one look at one byte is enough: a plain
    alternation would try every literal at every position.
    """
    root: Node = {}
    for literal in sorted(set(literals)):
        _insert(root, literal.encode())
    return _pattern(root)


def _insert(node: Node, literal: bytes) -> None:
    for index in range(len(literal)):
        if END in node:
            return  # a shorter literal already matches here
        node = node.setdefault(literal[index : index + 1], {})
    node[END] = {}


def _pattern(node: Node) -> bytes:
    if END in node:
        return b""
    branches = [re.escape(byte) + _pattern(child) for byte, child in sorted(node.items())]
    return branches[0] if len(branches) == 1 else b"(?:" + b"|".join(branches) + b")"


# Every timed kernel's line begins so: what follows must decide.
COMMON = frozenset({"Tactic: "})


def _is_told_by_beginning(rule: Rule) -> bool:
    return bool(rule.beginnings) and COMMON.isdisjoint(rule.beginnings)


BEGINNINGS = {
    *HEADINGS,
    *(start for rule in RULES if _is_told_by_beginning(rule) for start in rule.beginnings),
}
# Rules about errors and warnings need no look at a line whose logger calls it something less.
ANYWHERE = {
    needle
    for rule in RULES
    if not _is_told_by_beginning(rule) and rule.severity in ("info", "verbose")
    for needle in rule.needles
}
TALKING = NESTED + b"|" + any_of(BEGINNINGS)
TAGGED = re.compile(QUIET_PREFIX).match
QUIET = re.compile(QUIET_PREFIX + b"(?!" + TALKING + b")").match
LATER = re.compile(any_of((*ANYWHERE, *TABLE))).search
LITERALS = {*MARKS, *(needle for rule in RULES for needle in rule.needles)}
SEARCH = re.compile(any_of(LITERALS)).search
GLOG = re.compile(rb"[EWF]\d{4} \d\d:").match


def may_matter(raw: bytes) -> bool:
    """Whether a line can be an event, or change what the next lines mean."""
    if QUIET(raw):
        return LATER(raw, 0, SEARCHED) is not None
    if TAGGED(raw):
        return True
    return SEARCH(raw, 0, SEARCHED) is not None or GLOG(raw) is not None
