"""From one message to one event: the rules of all tables, and what to do where none fits."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from trtcal.documents.overview import Shown
from trtcal.evidence.log.rules import (
    LOCATION,
    Body,
    Rule,
    RuleIndex,
    Value,
    read_messages,
    subject_of,
    typed_fields,
    unwrap,
)

SEVERITIES = ("error", "warning", "info", "verbose", "unknown")

MESSAGES = read_messages(
    *(Path(__file__).with_name(f"{name}.toml") for name in ("messages", "known_failures"))
)
CATEGORIES, RULES = MESSAGES.categories, MESSAGES.rules
RULE_NAMED = {rule.name: rule for rule in RULES}
INDEX = RuleIndex(RULES)
CACHED_MESSAGES = 4096  # messages seen before: logs repeat themselves


@dataclass(frozen=True)
class Event(Shown):
    """One fact: where it stands, how bad its logger thought it was, what it is about.

    `line` counts from 1. `subject` is the tensor, layer, tactic, option or file concerned, exactly
    as printed, or None. `fields` holds the typed values of the message, and under `rule` the name
    of the rule that knew it; an error or warning that no rule knows has no `rule`.
    """

    line: int
    severity: str
    category: str
    subject: str | None
    message: str
    fields: dict[str, Value] = field(default_factory=dict)

    @property
    def is_finding(self) -> bool:
        """Whether it says something about the build's quality, not only about its course."""
        return not CATEGORIES[self.category].is_background

    @property
    def rule(self) -> Rule | None:
        """The rule that knew it, if one of the table did."""
        return RULE_NAMED.get(str(self.fields.get("rule")))

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of its rule."""
        return self.rule.tags if self.rule else ()

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form, the fields flattened beside the others; numbers not finite are null."""
        floats = {name: v for name, v in self.fields.items() if isinstance(v, float)}
        infinite = (name for name, value in floats.items() if not math.isfinite(value))
        own = {name: value for name, value in vars(self).items() if name != "fields"}
        return {**self.fields, **dict.fromkeys(infinite), **own}


MAX_MESSAGE = 4096
QUOTED = re.compile(
    r"\b(?:tensor|layer|node|input|output|weights)(?: named?)?:? "
    r"(['\"`])(?P<name>[^'\"`]{1,500})\1",
    re.IGNORECASE,
)
# TensorRT's own form for what an error is about: `name: what is wrong`.
NAME_FIRST = re.compile(
    r"(?!Assertion\b|(?!onnx)\w{1,100}::)(?P<name>[^\s:]\S{0,500}?"
    r"|(?:\(Unnamed Layer\* |\{ForeignNode\[).{1,500}?|\S{1,300} \+ .{1,500}?"
    r"|%[\w.]{1,100} : .{1,500}?\)(?:, scope: \S{1,300}?)?(?: # \S{1,300}?)?): (?=[A-Za-z])"
)
# What distinguishes a node's name from a word, where only the form speaks for one: conv_1, /a/b, x.3
NODE = re.compile(r"(?=.*[a-z])(?=.*[_/\d*])(?!.*(?:\.\w{1,4}|\(\))$)")
MAX_NAMED = 1000
WORD = re.compile(r"\S{1,500}")
FILE = re.compile(r"^\S*\.(?:onnx|engine|plan|trt|cache|so)$")
# What stands without quotation marks: the whole name at the end, else one that looks like a node's.
MENTIONED = re.compile(
    r"\b(?:(?:tensor|layer|node|input|output|op):?|dimensions for) "
    r"(?P<name>\(Unnamed Layer\* \d{1,6}\) \[\w{1,40}\](?:_output\w{0,9})?"
    r"|\{ForeignNode\[[^\s\]]{1,500}\]\}|(?=\S{0,200}[/_\d])[\w/.:]{1,500}(?<![.:])|\w{1,100}(?=\.?$))",
    re.IGNORECASE,
)
ANY_QUOTED = re.compile(r"(?<!\w)(['\"`])(?P<name>[^\s'\"`]{2,300})\1")
ENDS_PREFIX = re.compile(
    r"(?:^[`'\"*|]{1,3}|[:\]|>#/;*=-] {1,8}|[=\uff1a>])(?=[A-Z]|\d\d?: \[)|(?<=[^\x00-\x7f]) ?(?=[A-Z])"
)
MAX_PREFIX = 160
UNKNOWN_CATEGORY = {"error": "error", "warning": "other_warning"}


def belongs(event: Event, message: str) -> bool:
    """Whether a line without any logger's prefix only goes on with the event before it.

    A message that is certain to be TensorRT's does not, unless it repeats that the build failed, or
    the event's line ended before its message.
    """
    if "encloses" in event.tags or not event.message:
        return True
    tags, has_code = _own_tags(message)
    if tags is None:
        return not has_code
    return "echo" in tags and "apart" not in tags and "fatal" in event.tags


@lru_cache(maxsize=CACHED_MESSAGES)
def _own_tags(message: str) -> tuple[tuple[str, ...] | None, bool]:
    """Return the tags of the rule that knows a message, if one does, and if it has an error code."""
    body = unwrap(message)
    known = INDEX.find(body, None)
    return known and known[0].tags, "code" in body.fields


def with_next(event: Event, message: str) -> Event:
    """Return an event together with the line behind it: what both say, if a line was broken in two."""
    if not event.message:
        return recognise(event.line, event.severity, message) or event
    between = " " if message.startswith("(") else "\n"  # a reason in parentheses ends a message
    text = f"{event.message}{between}{message}"[:MAX_MESSAGE]
    for space in (" ", ""):
        broken = event.message.replace("\n", space)
        if joined := _joined(event, broken, f"{broken}{space}{message}"):
            return replace(joined, line=event.line, message=text)
    return replace(event, message=text)


def _joined(event: Event, broken: str, whole: str) -> Event | None:
    """Return what a whole message says, where its first part alone says nothing, or too much."""
    body, first = unwrap(whole), unwrap(broken)
    known = INDEX.find(body, event.severity)
    if known is None or not known[1].start() < len(first.text) < known[1].end():
        return None
    rule, match = known
    if event.rule is not None:
        subject = event.subject or ""
        is_last = first.text.rstrip(".)").endswith(subject.rstrip(".)"))
        goes_on = match.end() < len(body.text) or _is_open(subject)
        if rule is not event.rule or not (subject and is_last and goes_on):
            return None
    return _event(event.line, event.severity, whole, body, known)


def _is_node(text: str) -> bool:
    return bool(WORD.fullmatch(text) and NODE.search(text)) and not LOCATION.match(f"{text}: ")


def _is_open(name: str) -> bool:
    return any(name.count(left) > name.count(right) for left, right in ("[]", "{}", "()"))


def recognise(line: int, severity: str | None, message: str) -> Event | None:
    """Return what a message says, or None if it is of no interest.

    `severity` is what the logger's prefix gives; a known message has one of its own for a logger
    that gives none.
    """
    body = unwrap(message)
    known = INDEX.find(body, severity)
    if known is None and (severity is None or ("Error Code" in message and not body.fields)):
        body, known = _behind_another(message)
    if known is None:
        return _unknown(line, severity, message, body)
    return _event(line, severity, message, body, known)


def _behind_another(message: str) -> tuple[Body, tuple[Rule, re.Match[str]] | None]:
    """Return the known message that stands behind a prefix which no logger is known to write."""
    for end in ENDS_PREFIX.finditer(message, 0, MAX_PREFIX):
        body = unwrap(message[end.end() :])
        known = INDEX.find(body, None)
        if (known and known[0].beginnings) or "where" in body.fields:
            return body, known
    return unwrap(message), None


def _event(
    line: int, severity: str | None, message: str, body: Body, known: tuple[Rule, re.Match[str]]
) -> Event:
    rule, match = known
    is_error = severity == "error" and rule.category == UNKNOWN_CATEGORY["warning"]
    kind = severity or rule.severity, "error" if is_error else rule.category
    fields = {"rule": rule.name, **body.fields, **typed_fields(match)}
    subject = subject_of(match) or (_guess_subject(body) if "bare" in rule.tags else None)
    return Event(line, *kind, subject, message[:MAX_MESSAGE], fields)


def _unknown(line: int, severity: str | None, message: str, body: Body) -> Event | None:
    """Keep an error or warning that no rule knows: better plain than lost."""
    if severity is None and "where" in body.fields:
        severity = "error"
    category = UNKNOWN_CATEGORY.get(severity or "")
    if severity is None or category is None or not (message or severity == "error"):
        return None
    fields: dict[str, Value] = dict(body.fields)
    return Event(line, severity, category, _guess_subject(body), message[:MAX_MESSAGE], fields)


def _guess_subject(body: Body) -> str | None:
    """Return what a message seems to be about, by the forms in which TensorRT names it."""
    if match := QUOTED.search(body.text):
        return match["name"]
    if match := NAME_FIRST.match(body.text):
        name = match["name"]
        if "code" in body.fields or NODE.search(name) or FILE.search(name):
            return name
    parts = body.text[:MAX_NAMED].partition("\n")[0].rstrip(".").split(": ")
    if node := next(filter(_is_node, parts), None):
        return node
    match = MENTIONED.search(body.text[:MAX_NAMED]) or ANY_QUOTED.search(body.text[:MAX_NAMED])
    return match["name"] if match else None


TO_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class UnplacedEvent:
    """An event wherever it stands, made once for equal lines; `event` has no line of its own.

    Two of them are equal only if they are the same object.
    """

    def __init__(self, event: Event) -> None:
        self.event = event

    @cached_property
    def tail(self) -> str:
        """Its JSON behind the value of the first key, `line`."""
        document = self.event.to_document()
        del document["line"]
        return "," + TO_JSON(document)[1:]

    @cached_property
    def lasting(self) -> bytes:
        """Canonical JSON of what another build of the same model would print too, if anything."""
        if not self.event.is_finding:
            return b""
        facts = [self.event.category, self.event.severity, self.event.subject]
        return TO_JSON(facts).encode("utf-8", "surrogatepass")

    @cached_property
    def failure(self) -> tuple[str, str] | None:
        """What failed, by an error: the same with and without the place in TensorRT."""
        if self.event.severity != "error":
            return None
        first = self.event.message.partition("\n")[0]
        return self.event.category, self.event.subject or unwrap(first).text

    def at(self, line: int, repeated: int | None = None) -> Event:
        """Return the event at a line; `repeated` is the line of the failure that it only repeats."""
        known, fields = self.event, self.event.fields
        if repeated is not None:
            fields = {**fields, "repeats": repeated}
        return Event(line, known.severity, known.category, known.subject, known.message, fields)


@lru_cache(maxsize=CACHED_MESSAGES)
def known_event(severity: str | None, message: str) -> UnplacedEvent | None:
    """Return what a message says, as `recognise` does, wherever it stands."""
    event = recognise(0, severity, message)
    return UnplacedEvent(event) if event else None


@lru_cache(maxsize=CACHED_MESSAGES)
def joined(event: UnplacedEvent, message: str) -> UnplacedEvent:
    """Return an event together with the line behind it."""
    return UnplacedEvent(with_next(event.event, message))


NEAR_LINES, MAX_FAILURES = 32, 64


class Repeats:
    """Remembers where the last errors stand, those with a place and those without."""

    def __init__(self) -> None:
        self._lines: tuple[dict[tuple[str, str], int], ...] = ({}, {})

    def first_line(self, event: UnplacedEvent, line: int) -> int | None:
        """Return the line of the error that this one says again in another form, if it does."""
        failure = event.failure
        if failure is None:
            return None
        is_placed = "where" in event.event.fields
        same, other = self._lines[is_placed], self._lines[not is_placed]
        if len(same) >= MAX_FAILURES:
            same.clear()
        same[failure] = line
        first = other.get(failure)
        return first if first is not None and line - first <= NEAR_LINES else None
