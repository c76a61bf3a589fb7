"""Verification: reads every object and every Statement of a store again, and names what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trtcal.documents import Document
from trtcal.wings.fleet.store.objects import Stored
from trtcal.wings.fleet.store.record import Record
from trtcal.wings.fleet.store.store import ArtifactStore, parallel


@dataclass(frozen=True)
class Problem:
    """Something wrong: what it is of, what, and which files of which runs need it."""

    what: str
    problem: str
    needed_by: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The problem in one line."""
        needed = f"; needed by {', '.join(self.needed_by)}" if self.needed_by else ""
        return f"{self.what}: {self.problem}{needed}"


@dataclass(frozen=True)
class Verified:
    """What a verification found: how much it read, what is wrong, and objects that no run has."""

    objects: int
    bytes: int
    runs: int
    problems: tuple[Problem, ...]
    orphans: tuple[str, ...]

    def to_document(self) -> Document:
        """Return the JSON form."""
        return {**vars(self), "problems": [vars(problem) for problem in self.problems]}


def verify_store(
    store: ArtifactStore, advance: Callable[[int], None] = lambda count: None
) -> Verified:
    """Read all of a store again: which objects are missing or corrupted, and which no run has.

    An object that no run has is not wrong: a push is going on, or one was killed.
    """
    records, damaged = store.records()
    listed = list(store.objects.listed())

    def check(stored: Stored) -> str | None:
        problem = store.objects.check(stored)
        advance(1)
        return problem

    states = dict(zip((stored.digest for stored in listed), parallel(check, listed), strict=True))
    needed = _needed(records)
    states |= {digest: "missing" for digest in needed if digest not in states}
    problems = [Problem(stored.path, stored.problem) for stored in damaged]
    problems += [
        Problem(digest, state, tuple(needed.get(digest, ())))
        for digest, state in states.items()
        if state and (state != "missing" or digest in needed)
    ]
    orphans = tuple(digest for digest in states if digest not in needed)
    size = sum(stored.size for stored in listed)
    return Verified(len(listed), size, len(records), tuple(problems), orphans)


def _needed(records: list[Record]) -> dict[str, list[str]]:
    """Return for each digest the files that have it, as run and name."""
    needed: dict[str, list[str]] = {}
    for record in records:
        for name, digest in record.subjects.items():
            needed.setdefault(digest, []).append(f"{record.identity}/{name}")
    return needed
