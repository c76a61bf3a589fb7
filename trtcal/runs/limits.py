"""Limits on change: `latency_p50>+5%` fails if the figure rose by more than that since the baseline.

With a sign the limit is on the change, in percent or in the figure's own unit; without one it is on the
value. `int8-percentile:top1<-0.5` is about one variant, else all that have the figure are held to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from trtcal.errors import InputError
from trtcal.runs.history import Entry

RULE = re.compile(
    r"(?:(?P<variant>.+):)?(?P<figure>\w+)\s*(?P<relation>[<>])\s*(?P<sign>[+-])?"
    r"(?P<limit>\d+(?:\.\d+)?)(?P<percent>\s*%)?"
)
HINT = "write it like latency_p50>+5%, top1<-0.5, log_findings>0 or int8-percentile:speedup<1.5"


@dataclass(frozen=True)
class Rule:
    """One limit; `is_change` where it is on the change since the baseline."""

    text: str
    variant: str | None
    figure: str
    is_more: bool
    limit: float
    is_change: bool
    is_relative: bool


@dataclass(frozen=True)
class Breach:
    """A figure that breaks a rule."""

    rule: str
    variant: str
    figure: str
    before: float | None
    after: float

    def __str__(self) -> str:
        was = "" if self.before is None else f" (it was {self.before:.6g})"
        return f"{self.variant}: {self.figure} is {self.after:.6g}{was}, against {self.rule}"


def parse_rule(text: str) -> Rule:
    """Read a rule; `InputError` if it is none."""
    found = RULE.fullmatch(text.strip())
    if found is None or (found["percent"] and not found["sign"]):
        raise InputError(f"{text!r} is no limit on a figure", HINT)
    limit = float(found["limit"]) * (-1 if found["sign"] == "-" else 1)
    return Rule(
        text.strip(),
        found["variant"],
        found["figure"],
        found["relation"] == ">",
        limit / 100 if found["percent"] else limit,
        found["sign"] is not None,
        found["percent"] is not None,
    )


def find_breaches(rule: Rule, before: Entry | None, after: Entry) -> tuple[Breach, ...]:
    """Return where a run breaks a rule; `InputError` if it has no such figure.

    Without a baseline, or where that lacks the figure, a rule on change is not broken.
    """
    keys = [
        key for key in after.figures if key[1] == rule.figure and rule.variant in (None, key[0])
    ]
    if not keys:
        known = ", ".join(sorted({figure for _, figure in after.figures}))
        raise InputError(f"run {after.number} has no figure for {rule.text!r}", f"known: {known}")
    return tuple(_breaches(rule, keys, before, after))


def _breaches(
    rule: Rule, keys: list[tuple[str, str]], before: Entry | None, after: Entry
) -> Iterator[Breach]:
    for key in keys:
        now, was = after.figures[key], before.figures.get(key) if before else None
        value = _judged(rule, was, now)
        if value is not None and (value > rule.limit if rule.is_more else value < rule.limit):
            yield Breach(rule.text, *key, was, now)


def _judged(rule: Rule, was: float | None, now: float) -> float | None:
    if not rule.is_change:
        return now
    if was is None:
        return None
    if not rule.is_relative:
        return now - was
    return now / was - 1.0 if was else None
