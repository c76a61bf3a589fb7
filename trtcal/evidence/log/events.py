"""One fact out of a build log, and the words for what kind of fact it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Value = str | int | float

SEVERITIES = ("error", "warning", "info", "verbose", "unknown")

CATEGORIES = {
    "uncalibrated": "a tensor has no scale, or calibration could not give one",
    "tactic_skipped": "a kernel was left out of the choice, mostly for lack of memory",
    "tactic_failed": "a kernel was tried and failed",
    "fallback": "a layer runs on another device, or in another precision, than wanted",
    "precision_constraint": "a requested precision could not be obeyed, or contradicts another",
    "range": "a scale or dynamic range was set, guessed or refused",
    "weights_range": "weights or activations do not fit the narrower type",
    "no_implementation": "no kernel at all can run a layer: the build fails",
    "reformat": "a copy into another layout or data type was added",
    "error": "any other error",
    "memory": "how much memory was asked for, taken or found",
    "timing": "how long something took",
    "calibration_progress": "how calibration goes, and where its cache is",
    "deprecated": "an interface or option that will go away",
    "other_warning": "any other warning",
}

# What a log is full of; these count how the build went, the others are findings.
BACKGROUND = frozenset({"memory", "timing", "calibration_progress"})


@dataclass(frozen=True)
class Event:
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
        return self.category not in BACKGROUND

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form, the fields flattened beside the others."""
        return {
            **self.fields,
            "line": self.line,
            "severity": self.severity,
            "category": self.category,
            "subject": self.subject,
            "message": self.message,
        }
