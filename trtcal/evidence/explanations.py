"""What is known of each name in logs and diagnoses: for `trtcal log --explain` and the reference."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields

from trtcal.errors import InputError
from trtcal.evidence.findings import KINDS, sentence
from trtcal.evidence.log.reader import events_of
from trtcal.evidence.log.recognition import CATEGORIES, RULE_NAMED, RULES, Event
from trtcal.evidence.log.rules import Rule, inside
from trtcal.evidence.log.summary import summarize

MESSAGE, CATEGORY, FINDING = "message", "category", "finding"
LEVELS = ("", "[E] ", "[W] ", "[V] ")  # of a message that was pasted without its own


@dataclass(frozen=True)
class Explanation:
    """All that is known of one name: a log's message, a category of them, or a kind of finding.

    `why` says why it is bad, and is empty where it is not; `examples` are lines of logs.
    """

    name: str
    about: str
    meaning: str
    why: str = ""
    fix: str = ""
    category: str | None = None
    severity: str | None = None
    versions: str = ""
    fixed: str = ""
    needs: str = ""
    threads: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        if self.about != MESSAGE:
            return "a category of messages" if self.about == CATEGORY else "a kind of finding"
        versions = f", {in_versions(self.versions)}" if self.versions else ""
        fixed = f", fixed in {self.fixed}" if self.fixed else ""
        return f"{self.severity}, in category {self.category}{versions}{fixed}"


def in_versions(text: str) -> str:
    """Return a range of versions in words.

    >>> in_versions("7.2-10"), in_versions("8.0-"), in_versions("-7"), in_versions("8.5")
    ('TensorRT 7.2 to 10', 'TensorRT 8.0 and later', 'TensorRT up to 7', 'TensorRT 8.5')
    """
    first, dash, last = text.partition("-")
    if first and (last or not dash):
        return f"TensorRT {first} to {last}".removesuffix(" to ")
    return f"TensorRT {first} and later" if first else f"TensorRT up to {last}"


def explanations() -> Iterator[Explanation]:
    """Yield what there is to explain: each category with its messages, then the kinds of findings."""
    for name, category in CATEGORIES.items():
        yield Explanation(name, CATEGORY, sentence(category.meaning), category.why)
        yield from (_of_rule(rule) for rule in RULES if rule.category == name)
    for name, kind in KINDS.items():
        yield Explanation(name, FINDING, kind.meaning, kind.why, kind.fix)


def _of_rule(rule: Rule) -> Explanation:
    shared = {f.name: getattr(rule, f.name) for f in fields(Explanation) if hasattr(rule, f.name)}
    return Explanation(about=MESSAGE, examples=tuple(map(str.strip, rule.example)), **shared)


def explain(text: str) -> tuple[Explanation, ...]:
    """Return what a name stands for, or what lines of a log say; `InputError` if nothing."""
    known = tuple(explanations())
    plain = re.sub(r"[\s-]+", "_", text.strip().lower())
    near = " or ".join(difflib.get_close_matches(plain, {e.name for e in known}, cutoff=0.5))
    named = tuple(explanation for explanation in known if explanation.name == plain)
    if matches := named or _of_lines(text, is_message=not near and text.count(" ") > 2):
        return matches
    hint = f"did you mean {near}?" if near else "`trtcal log --explain` lists all of them"
    raise InputError(f"no message and no finding has the name {text!r}", hint)


def _of_lines(text: str, is_message: bool) -> tuple[Explanation, ...]:
    """Return the rules that know lines, the cause first; else what the first line says of itself."""
    reasons = text.strip(), inside(text.strip().lstrip("("))
    lines = (f"{level}{reason}" for reason in reasons for level in LEVELS)
    read = [tuple(events_of([line.encode("utf-8", "replace")])) for line in lines]
    events = next((events for events in read if any(e.rule for e in events)), read[is_message])
    findings = summarize(events)["findings"]
    names = dict.fromkeys([*(f["rule"] for f in findings), *(e.fields.get("rule") for e in events)])
    rules = tuple(_of_rule(RULE_NAMED[name]) for name in names if name in RULE_NAMED)
    return rules or tuple(_unknown(events[0], f["meaning"], f["fix"]) for f in findings[:1])


def _unknown(event: Event, meaning: str, fix: str) -> Explanation:
    parts = {"Place": event.fields.get("where"), "Error code": event.fields.get("code")}
    meaning += "".join(f" {name}: {value}." for name, value in parts.items() if value)
    return Explanation("unknown", MESSAGE, meaning, "", fix, event.category, event.severity)
