"""From one message to one event: the rules of all tables, and what to do where none fits."""

from __future__ import annotations

import re

from trtcal.evidence.log import (
    rules_build as rules_course,
)
from trtcal.evidence.log import (
    rules_kernels,
    rules_other,
    rules_precision,
    rules_scales,
)
from trtcal.evidence.log.events import Event, Value
from trtcal.evidence.log.rules import Body, Rule, RuleIndex, subject_of, typed_fields, unwrap

RULES: tuple[Rule, ...] = (
    *rules_scales.RULES,
    *rules_precision.RULES,
    *rules_kernels.RULES,
    *rules_course.RULES,
    *rules_other.RULES,
)
RULE_NAMED = {rule.name: rule for rule in RULES}
INDEX = RuleIndex(RULES)

MAX_MESSAGE = 4096
QUOTED = re.compile(
    r"\b(?:tensor|layer|node|input|output|weights)(?: named?)?:? "
    r"(['\"`])(?P<name>[^'\"`]{1,500})\1",
    re.IGNORECASE,
)
# TensorRT's own form for what an error is about: `name: what is wrong`.
NAMED = re.compile(
    r"(?!Assertion\b|(?!onnx)\w{1,100}::)(?P<name>[^\s:]\S{0,500}?"
    r"|(?:\(Unnamed Layer\* |\{ForeignNode\[).{1,500}?|\S{1,300} \+ .{1,500}?): (?=[A-Za-z])"
)
# What tells a node's name from a word, where only the form speaks for one: conv_1, /a/b, x.3
NODE = re.compile(r"(?=.*[a-z])(?=.*[_/\d*])(?!.*\.\w{1,4}$)")
UNKNOWN_CATEGORY = {"error": "error", "warning": "other_warning"}


def knows(message: str) -> bool:
    """Whether a message without any logger's prefix is still certain to be TensorRT's."""
    body = unwrap(message)
    return "code" in body.fields or INDEX.find(body.text, None) is not None


def recognise(line: int, severity: str | None, message: str) -> Event | None:
    """Return what a message says, or None if it is of no interest.

    `severity` is what the logger's prefix tells; a known message has one of its own for a logger
    that tells none.
    """
    body = unwrap(message)
    found = INDEX.find(body.text, severity)
    if found is None:
        return _unknown(line, severity, message, body)
    rule, match = found
    return Event(
        line=line,
        severity=severity or rule.severity,
        category=rule.category,
        subject=subject_of(match),
        message=message[:MAX_MESSAGE],
        fields={"rule": rule.name, **body.fields, **typed_fields(match)},
    )


def _unknown(line: int, severity: str | None, message: str, body: Body) -> Event | None:
    """Keep an error or warning that no rule knows: better plain than lost."""
    if severity is None and "where" in body.fields:
        severity = "error"
    category = UNKNOWN_CATEGORY.get(severity or "")
    if severity is None or category is None or not message:
        return None
    fields: dict[str, Value] = dict(body.fields)
    subject = _guess_subject(body, severity)
    return Event(line, severity, category, subject, message[:MAX_MESSAGE], fields)


def _guess_subject(body: Body, severity: str) -> str | None:
    if match := QUOTED.search(body.text):
        return match["name"]
    match = NAMED.match(body.text)
    if match and ("code" in body.fields or (severity == "error" and NODE.search(match["name"]))):
        return match["name"]
    return None
