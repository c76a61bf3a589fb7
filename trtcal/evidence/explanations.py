"""What is known of each name in logs and diagnoses: for `trtcal log --explain` and the reference."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from trtcal.errors import InputError
from trtcal.evidence.findings import KINDS, sentence
from trtcal.evidence.log.recognition import CATEGORIES, RULES
from trtcal.evidence.log.rules import Rule

MESSAGE, CATEGORY, FINDING = "message", "category", "finding"


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
    examples: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        if self.about != MESSAGE:
            return "a category of messages" if self.about == CATEGORY else "a kind of finding"
        versions = f", {in_versions(self.versions)}" if self.versions else ""
        return f"{self.severity}, in category {self.category}{versions}"


def in_versions(text: str) -> str:
    """Return a range of versions in words.

    >>> in_versions("7.2-10"), in_versions("8.0-"), in_versions("-7")
    ('TensorRT 7.2 to 10', 'TensorRT 8.0 and later', 'TensorRT up to 7')
    """
    first, _, last = text.partition("-")
    if first and last:
        return f"TensorRT {first} to {last}"
    return f"TensorRT {first} and later" if first else f"TensorRT up to {last}"


def explanations() -> Iterator[Explanation]:
    """Yield what there is to explain: each category with its messages, then the kinds of findings."""
    for name, category in CATEGORIES.items():
        yield Explanation(name, CATEGORY, sentence(category.meaning), category.why)
        yield from (_of_rule(rule) for rule in RULES if rule.category == name)
    for name, kind in KINDS.items():
        yield Explanation(name, FINDING, kind.meaning, kind.why, kind.fix)


def _of_rule(rule: Rule) -> Explanation:
    texts = (rule.meaning, rule.why, rule.fix)
    examples = tuple(text.strip() for text in rule.example)
    known = (rule.category, rule.severity, rule.versions)
    return Explanation(rule.name, MESSAGE, *texts, *known, examples)


def explain_name(name: str) -> tuple[Explanation, ...]:
    """Return what a name stands for, which may be a message and a kind; `InputError` if nothing."""
    known = tuple(explanations())
    plain = re.sub(r"[\s-]+", "_", name.strip().lower())
    if matches := tuple(explanation for explanation in known if explanation.name == plain):
        return matches
    names = dict.fromkeys(explanation.name for explanation in known)
    near = " or ".join(difflib.get_close_matches(plain, names, cutoff=0.5))
    hint = f"did you mean {near}?" if near else "`trtcal log --explain` lists all of them"
    raise InputError(f"no message and no finding has the name {name!r}", hint)
