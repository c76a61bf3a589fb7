"""The difference of two things in one shape: of engines, fusions, calibrations, runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Side = TypeVar("Side")
CHANGE_KINDS = ("worse", "better", "changed", "gone", "new")


@dataclass(frozen=True)
class Change(Generic[T]):
    """One property that differs; `before` is None for what is new, `after` for what is gone.

    `subject` is a layer, node, tensor or variant, `what` its property, such as `prediction` or `top1`.
    `is_better` is None where the change is neither better nor worse.
    """

    subject: str
    what: str
    before: T | None
    after: T | None
    is_better: bool | None = None

    @property
    def kind(self) -> str:
        """`new`, `gone`, `better`, `worse` or `changed`."""
        if self.before is None or self.after is None:
            return "new" if self.before is None else "gone"
        return {True: "better", False: "worse", None: "changed"}[self.is_better]

    @property
    def share(self) -> float | None:
        """Relative change of a figure: 0.05 is 5 % more; None from zero, and for what is no figure."""
        before, after = self.before, self.after
        if not isinstance(before, (int, float)) or not isinstance(after, (int, float)):
            return None
        return after / before - 1.0 if before else None

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**vars(self), "kind": self.kind, "share": self.share}


@dataclass(frozen=True)
class Difference(Generic[Side, T]):
    """Two things and what changed from one to the other; `unchanged` counts what did not."""

    before: Side
    after: Side
    changes: tuple[Change[T], ...]
    unchanged: int

    def counts(self) -> dict[str, int]:
        """Return how many changes there are of each kind."""
        kinds = [change.kind for change in self.changes]
        return {kind: kinds.count(kind) for kind in CHANGE_KINDS}

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form, for sides that are JSON."""
        return {**vars(self), "changes": [change.to_document() for change in self.changes]}


Table = Mapping[tuple[str, str], T]
"""Values by subject and property."""


def changes_of(
    before: Table[T],
    after: Table[T],
    is_better: Callable[[str, T, T], bool | None] = lambda what, before, after: None,
) -> tuple[Change[T], ...]:
    """Return what differs between two tables; `is_better` judges a property's change."""
    changes = []
    for subject, what in dict.fromkeys((*before, *after)):
        old, new = before.get((subject, what)), after.get((subject, what))
        if old != new:
            judged = None if old is None or new is None else is_better(what, old, new)
            changes.append(Change(subject, what, old, new, judged))
    return tuple(changes)
