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
        return {**vars(self), "problems": [vars(one) for one in self.problems]}


def verify_store(
    store: ArtifactStore, advance: Callable[[int], None] = lambda count: None
) -> Verified:
    """Read all of a store again: which objects are missing or corrupted, and which no run has.

    An object that no run has is not wrong: a push is going on, or one was killed.
    """
    records, damaged = store.records()
    found = list(store.objects.listed())

    def check(one: Stored) -> str | None:
        problem = store.objects.check(one)
        advance(1)
        return problem

    states = dict(zip((one.digest for one in found), parallel(check, found), strict=True))
    needed = _needed(records)
    states |= {digest: "missing" for digest in needed if digest not in states}
    problems = [Problem(one.path, one.problem) for one in damaged]
    problems += [
        Problem(digest, state, tuple(needed.get(digest, ())))
        for digest, state in states.items()
        if state and (state != "missing" or digest in needed)
    ]
    orphans = tuple(digest for digest in states if digest not in needed)
    size = sum(one.size for one in found)
    return Verified(len(found), size, len(records), tuple(problems), orphans)


def _needed(records: list[Record]) -> dict[str, list[str]]:
    """Return for each digest the files that have it, as run and name."""
    found: dict[str, list[str]] = {}
    for record in records:
        for name, digest in record.subjects.items():
            found.setdefault(digest, []).append(f"{record.identity}/{name}")
    return found
