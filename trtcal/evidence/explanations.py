"""What is known of each name in logs and diagnoses: for `trtcal log --explain` and the reference."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from trtcal.errors import InputError
from trtcal.evidence.findings import KINDS, sentence
from trtcal.evidence.log.reader import events_of
from trtcal.evidence.log.recognition import CATEGORIES, RULE_NAMED, RULES
from trtcal.evidence.log.rules import Rule, Value
from trtcal.evidence.log.summary import summarize

MESSAGE, CATEGORY, FINDING = "message", "category", "finding"
LEVELS = (b"", b"[E] ", b"[W] ", b"[V] ")  # of a message that was pasted without its own
LEAST_WORDS = 4  # of a message that no rule knows


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
    names = (field.name for field in fields(Explanation) if hasattr(rule, field.name))
    shared = {name: getattr(rule, name) for name in names}
    return Explanation(about=MESSAGE, examples=tuple(map(str.strip, rule.example)), **shared)


def explain(text: str) -> tuple[Explanation, ...]:
    """Return what a name stands for, or what lines of a log say; `InputError` if nothing."""
    known = tuple(explanations())
    plain = re.sub(r"[\s-]+", "_", text.strip().lower())
    if matches := tuple(explanation for explanation in known if explanation.name == plain):
        return matches
    names = dict.fromkeys(explanation.name for explanation in known)
    near = " or ".join(difflib.get_close_matches(plain, names, cutoff=0.5))
    if lines := _of_lines(text, not near and len(text.split()) >= LEAST_WORDS):
        return lines
    hint = f"did you mean {near}?" if near else "`trtcal log --explain` lists all of them"
    raise InputError(f"no message and no finding has the name {text!r}", hint)


def _of_lines(text: str, is_message: bool) -> tuple[Explanation, ...]:
    """Return the rules that know lines, the cause first; else what the first error says of itself."""
    raw = text.strip().encode("utf-8", "replace")
    read = [tuple(events_of([level + raw])) for level in LEVELS]
    events = next((events for events in read if any(e.rule for e in events)), read[is_message])
    findings = summarize(events)["findings"]
    ranked = [finding["rule"] for finding in findings]
    names = dict.fromkeys([*ranked, *(event.rule and event.rule.name for event in events)])
    rules = tuple(_of_rule(RULE_NAMED[name]) for name in names if name)
    return rules or tuple(_unknown(finding, events[0].fields) for finding in findings[:1])


def _unknown(finding: dict[str, Any], known: dict[str, Value]) -> Explanation:
    parts = {"Place": known.get("where"), "Error code": known.get("code")}
    said = "".join(f" {name}: {value}." for name, value in parts.items() if value)
    texts = (f"{finding['meaning']}{said}", CATEGORIES[finding["category"]].why, finding["fix"])
    return Explanation("unknown", MESSAGE, *texts, finding["category"], finding["severity"])
