"""The table of messages that are known, and how one is found.

A rule is recognised by its `pattern` in the text of a message: what stays when the logger's prefix,
the source location and the `Error Code` wrapper are gone (see `unwrap`). Before any pattern runs,
one literal of its `needle` must stand in the line; so most lines of a verbose log reach no pattern.
Patterns use bounded or single lazy repetitions on at most `MAX_TEXT` characters: no line can make
the reader slow.

The rules stand in `messages.toml`; those of failures that occur in some versions alone, on some GPUs
or with some software development kits in `known_failures.toml`, which are tried first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import re2

from trtcal.config import read_toml
from trtcal.documents import from_fields

Value = str | int | float

MAX_TEXT = 8192
MEMORY_BYTES = 64 << 20

LOCATION = re.compile(r"[\w./+-]{1,120}\.(?:cpp|cc|cu|h|hpp|py):\d{1,6}: ")
WRAPPER = re.compile(
    r"(?:\w{1,6}=\d{1,6},[Cc]ode=[\w.]{1,60},[Ii]nfo(?:rmation)?=)?"
    r"(?:Error\[\d{1,3}\]: )?(?:\d{1,3}: )?"
    r"(?:(?P<where>\[[^\]\n]{1,300}\]|[\w:~]{1,120}):? )?"
    r"Error Code:? (?P<code>\d{1,3}):? (?:(?P<kind>[A-Z][A-Za-z ]{1,40}?) ?\()?"
)
# TensorRT has no more codes; a larger number is a tensor's name.
NUMBERED = re.compile(r"(?:Error\[\d{1,2}\]: )?(\d|1[0-3]): (?=[A-Z\[({/]|\S{1,300}: )")
RECORDED = re.compile(r"Error\[(\d{1,2})\]: ")
# ../builder/file.cpp (12) - Misc Error in function: -1 (TEXT)
OLD_WRAPPER = re.compile(
    r"(?:[A-Z]:)?[\w./\\+-]{1,120}\.(?:cpp|cu|h) ?\(\d{1,6}\) - (?P<kind>\w{1,30} Error) in "
    r"(?P<where>[\w:~`'-]{1,200}(?:\(\))?): ?-?\d{1,9} ?\((?P<text>.+)\)$",
    re.DOTALL,
)
ENDS_REASON = re.compile(r"(?s).\)(?:$|[\"'`*<\\\n])|\.\s?\)")
INNER = re.compile(r"\[[\w./:<>~-]{1,200}:\d{1,6}:? ?[\w:<>~]{0,120}\] ")
ASSERTED = re.compile(r"^Assertion .{1,300}? failed\. (?=\S)")
PLACE = re.compile(r"\.?\s{1,4}In [\w:~<>]{1,120} at \S{1,300}:\d{1,6}\s*$")

MARKED = re.compile(r"^(`|\*\*?|['\"])(.+)\1$")
HEAD = re.compile(r"\^((?:[\w ,/'=:&<>!;%-]|\\[.\[\]()])+)")
MIN_HEAD = 4
PART = re.compile("%([A-Za-z_]+)%")

INTEGERS = ("bytes", "mib", "mb", "count", "index", "batch", "number", "requested", "code")
FLOATS = ("seconds", "ms", "percent", "low", "high", "scale", "qps")


@dataclass(frozen=True)
class Rule:
    """One known message: all that is known of it, and all that is printed about it.

    `meaning` says what is so, `why` why it is bad (its category's, where it has none of its own), `fix`
    what to do; `example` has a line of each wording, that of the oldest TensorRT first.

    Named groups of `pattern` become fields of the event; the group `subject` becomes its subject.
    A group's name ends in its type or unit (`_bytes`, `_ms`, `count`, ...), else it is text.
    `needle` gives literals, one of which the message contains, where they are not those that begin
    it: `starts`, or what the pattern begins with. `levels` restricts a broad rule to lines of these
    severities; "" stands for a line whose logger reports none. `versions` are those of TensorRT in
    which the message is known to occur, such as `7.2-10`; they never reject a line. `place` is where
    in TensorRT it comes from, `file.cpp::function`: all of its parts must stand in the message.
    `fixed` is the version without the failure, `needs` the GPU or software with which it occurs, and
    `threads` are public reports (`owner/name#number`). `tags` say what the message means for the
    build:

    - `fatal`: it made no engine; `built`: it made one; `bare`: it explains no more than an error
      without a rule; `foremost`: what follows without a prefix belongs to it, all but errors;
    - `echo`: the line follows from an error before it, or repeats that something failed;
    - `apart`: the line is no part of the message before it, though it only follows from it;
    - `vague`: the line says where a build failed; another one often says why;
    - `encloses`: what follows without a prefix belongs to it, even an error;
    - `harmless`: it only looks like a loss: shown after all other findings;
    - `survived`: a build can go on behind it;
    - `risky`: accuracy is likely to suffer; `minor`: it costs nothing, or layers show it better;
    - `wants_memory`: a kernel lacks memory; `slower`: INT8 is slower; `overflows`: FP16 may overflow.
    """

    name: str
    pattern: str
    example: tuple[str, ...]
    category: str
    meaning: str
    why: str
    fix: str
    severity: str = "info"
    needle: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    versions: str = ""
    place: str = ""
    fixed: str = ""
    needs: str = ""
    threads: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    @cached_property
    def needles(self) -> tuple[str, ...]:
        """The literals, one of which the message must contain."""
        return self.needle or self.beginnings

    @cached_property
    def beginnings(self) -> tuple[str, ...]:
        """The literals, one of which begins the message; none if it may begin with anything."""
        if self.starts:
            return self.starts
        head = literal_head(self.pattern)
        return (head,) if len(head) >= MIN_HEAD else ()

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The compiled pattern."""
        return re.compile(self.pattern)

    def match(self, body: Body, severity: str | None) -> re.Match[str] | None:
        """Find the rule's message in a body whose text has a needle."""
        if self.levels and (severity or "") not in self.levels:
            return None
        if self.place and not all(part in body.whole for part in self.place.split("::")):
            return None
        return self.regex.search(body.text)


@dataclass(frozen=True)
class Category:
    """What messages can be about, and `why` they are bad.

    `shown` counts them in one line. As findings of a diagnosis those with a subject are of the kind
    `each`, one a subject, the others `together`; `cause` is what they mean for a node that they name.
    Background is about the course of a build, a fact about who built what: it goes into the summary
    alone; what is noted asks for nothing. `risk` is that of losing accuracy.
    """

    meaning: str
    why: str = ""
    shown: str = ""
    each: str = ""
    together: str = ""
    cause: str = ""
    risk: str = "none"
    is_background: bool = False
    is_fact: bool = False
    is_noted: bool = False


@dataclass(frozen=True)
class Messages:
    """A table of messages: rules, their categories, the prefixes of loggers, and severities by word.

    In a match of one of `prefixes` the last group, if there is one, is the word for a severity.
    """

    categories: dict[str, Category]
    rules: tuple[Rule, ...]
    prefixes: tuple[str, ...]
    severities: dict[str, str]


def read_messages(path: Path, *first: Path) -> Messages:
    """Read a table of messages, and the rules of other files before its own."""
    *others, document = map(read_toml, (*first, path))
    groups = [group for table in (*others, document) for group in table["group"]]
    parts = {name: "".join(text) for name, text in document["parts"].items()}
    prefixes = (fill("".join(prefix["pattern"]), parts) for prefix in document["prefix"])
    numbered = tuple(text.replace("<level>", f"<level{n}>") for n, text in enumerate(prefixes))
    tables = document["category"]
    categories = {name: from_fields(Category, fields) for name, fields in tables.items()}
    entries = ({**group, **rule} for group in groups for rule in group["rule"])
    rules = ({"why": categories[entry["category"]].why, **entry} for entry in entries)
    words = {word: name for name, words in document["severities"].items() for word in words}
    return Messages(categories, tuple(_rule(entry, parts) for entry in rules), numbered, words)


def fill(text: str, parts: Mapping[str, str]) -> str:
    """Return a pattern with the shared parts, `%NAME%`, put in."""
    return PART.sub(lambda part: parts[part[1]], text)


def _rule(entry: Mapping[str, Any], parts: Mapping[str, str]) -> Rule:
    """Return an entry as a rule, its shared parts put in and its pattern's pieces joined."""
    examples = [entry["example"]] if isinstance(entry["example"], str) else entry["example"]
    joined = {**entry, "pattern": "".join(entry["pattern"]), "example": examples}
    texts = {key: value for key, value in joined.items() if isinstance(value, str)}
    return from_fields(Rule, {**joined, **{key: fill(text, parts) for key, text in texts.items()}})


def literal_head(pattern: str) -> str:
    """Return the literal text that an anchored pattern begins with, or an empty string."""
    match = HEAD.match(pattern)
    if match is None:
        return ""
    head = match[1]
    if pattern[match.end() : match.end() + 1] in ("?", "*", "{"):
        head = head[:-1]
    return re.sub(r"\\(.)", r"\1", head)


@dataclass(frozen=True)
class Body:
    """A message without location and wrapper, what these gave, and the whole message."""

    text: str
    fields: dict[str, Value]
    whole: str


def unwrap(message: str) -> Body:
    """Take location and error-code wrapper off a message.

    `[file.cpp::function::12] Error Code 4: Internal Error (TEXT)`, `4: TEXT`, `Error Code: 9: TEXT`,
    `file.cpp:12: TEXT` and `file.cpp (12) - Misc Error in function: -1 (TEXT)` all become TEXT.
    """
    whole = message = message[:MAX_TEXT]
    fields: dict[str, Value] = {}
    if location := LOCATION.match(message):
        message = message[location.end() :]
    if old := OLD_WRAPPER.match(message):
        return Body(old["text"], {"kind": old["kind"], "where": old["where"]}, whole)
    if wrapper := WRAPPER.match(message):
        fields["code"] = int(wrapper["code"])
        texts = {"kind": wrapper["kind"], "where": wrapper["where"]}
        fields.update({key: value.strip("[]:") for key, value in texts.items() if value})
        message = message[wrapper.end() :]
    elif numbered := NUMBERED.match(message) or RECORDED.match(message):
        fields["code"] = int(numbered[1])
        message = message[numbered.end() :]
    message = inside(message) if "kind" in fields or message.endswith(".)") else message
    return Body(PLACE.sub("", message) if " In " in message else message, fields, whole)


def inside(text: str) -> str:
    """Return what stands before the parenthesis that closes without having opened in a text.

    >>> inside("Assertion f(x) failed.)`. Why?"), inside("cut")
    ('Assertion f(x) failed.', 'cut')
    """
    depth = 1
    for parenthesis in re.finditer(r"[()]", text):
        depth += 1 if parenthesis[0] == "(" else -1
        if not depth and ENDS_REASON.match(text, parenthesis.start() - 1):
            return text[: parenthesis.start()]
    return text


def in_words(message: str) -> str:
    """Return what a builder's message says, without the places in its code and failed assertions.

    >>> in_words("[a.cpp::run::4] Error Code 2: Internal Error (Assertion x failed. No runners)")
    'No runners'
    """
    return ASSERTED.sub("", INNER.sub("", unwrap(message).text)).strip() or message


def typed_fields(match: re.Match[str]) -> dict[str, Value]:
    """Return the named groups that took part, all but the subject, each in its type."""
    groups = match.groupdict().items()
    named = {name: text for name, text in groups if text and not name.startswith("subject")}
    return {name: _typed(name, text) for name, text in named.items()}


def subject_of(match: re.Match[str]) -> str | None:
    """Return the subject: of alternatives (`subject`, `subject2`), the one that took part."""
    texts = (text for name, text in match.groupdict().items() if name.startswith("subject"))
    subject = next((text.strip() for text in texts if text and text.strip()), None)
    return subject and MARKED.sub(r"\2", subject)


def _typed(name: str, text: str) -> Value:
    unit = name.rpartition("_")[2]
    try:
        return int(text) if unit in INTEGERS else float(text) if unit in FLOATS else text.strip()
    except ValueError:
        return text


class RuleIndex:
    """Rules in order, found by how a message begins: most need not be asked."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        asked = [
            ({start[:MIN_HEAD] for start in rule.beginnings}, (needle, rule))
            for rule in rules
            for needle in rule.needles
        ]
        heads = {"", *(head for own, _ in asked for head in own)}
        self.by_head = {
            head: tuple(pair for own, pair in asked if not own or head in own) for head in heads
        }

    def find(self, body: Body, severity: str | None) -> tuple[Rule, re.Match[str]] | None:
        """Return the first rule that knows a body's text, with its match."""
        text = body.text
        for needle, rule in self.by_head.get(text[:MIN_HEAD], self.by_head[""]):
            if needle in text and (match := rule.match(body, severity)):
                return rule, match
        return None


def any_of(texts: Iterable[str]) -> str:
    """Return a pattern of literals."""
    return "|".join(sorted({re.escape(text) for text in texts}))


def automaton(pattern: str) -> Any:
    """Compile a pattern for bytes, whose search takes one pass however many literals it has."""
    options = re2.Options()
    options.max_mem = MEMORY_BYTES
    options.encoding = re2.Options.Encoding.LATIN1  # type: ignore[attr-defined,unused-ignore]  # the stubs lack it
    return re2.compile(pattern.encode(), options)
