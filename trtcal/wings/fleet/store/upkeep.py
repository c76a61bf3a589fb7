"""Upkeep: verification reads all of a store again, garbage collection deletes what no run has.

A push may run at the same time as a collection. What it writes is younger than the grace period, and
what it finds there it writes again if it is older than a quarter of that (`transfer.FRESH`). Ages are
by the store's clock.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path

from trtcal.documents import Document
from trtcal.errors import GateFailed, InputError, ResourceError
from trtcal.wings.fleet.store.objects import ROOT, Stored, age_of
from trtcal.wings.fleet.store.record import Record
from trtcal.wings.fleet.store.store import RUNS, TAGS, ArtifactStore, parallel
from trtcal.wings.fleet.store.transfer import GRACE

PROBE = "gc/"
UNFINISHED = re.compile(r".+#\d+")
"""What obstore calls a file in a folder until it is whole."""


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


@dataclass(frozen=True)
class Collected:
    """What a collection deleted, or would delete: objects, bytes, unfinished files.

    `young` are objects that no run has and that are too young to be deleted.
    """

    objects: tuple[str, ...]
    bytes: int
    unfinished: int
    young: int


def collect_garbage(store: ArtifactStore, grace: timedelta = GRACE, dry: bool = False) -> Collected:
    """Delete what no run has and what is older than `grace`; with `dry` only say what that is.

    `InputError` if a run cannot be read: nothing is deleted then, for nobody knows what it has.
    `GateFailed` names a run that became visible meanwhile and lacks an object.
    """
    started, now = time.time(), clock_of(store)
    kept = reachable(store)
    orphans = [stored for stored in store.objects.listed() if stored.digest not in kept]
    old = [stored for stored in orphans if age_of(stored.modified, now) > grace]
    if not dry:
        old = [stored for stored in old if _delete(store, stored, now, grace, started)]
        _check_new_runs(store, {stored.digest for stored in old})
    unfinished = list(_unfinished(store.location.folder, now, grace))
    for path in [] if dry else unfinished:
        path.unlink(missing_ok=True)
    return Collected(
        tuple(stored.digest for stored in old),
        sum(stored.size for stored in old),
        len(unfinished),
        len(orphans) - len(old),
    )


def clock_of(store: ArtifactStore) -> datetime:
    """Return the store's time, which is that of an object that was just written there."""
    path, location = f"{PROBE}{uuid.uuid4().hex}", store.location
    location.put(path, b"")
    try:
        if (probe := location.find(path)) is None:
            raise ResourceError(f"{location.shown} loses what is written", "try again later")
        return probe["last_modified"]
    finally:
        location.delete(path)


def reachable(store: ArtifactStore) -> set[str]:
    """Return the digests of all files of all runs; `InputError` if one run cannot be read."""
    records, damaged = store.records()
    if damaged:
        raise InputError(
            f"{damaged[0].path}: {damaged[0].problem}; nothing is deleted",
            "`trtcal store verify` shows all damaged objects",
        )
    return {digest for record in records for digest in record.subjects.values()}


def _delete(
    store: ArtifactStore, stored: Stored, now: datetime, grace: timedelta, started: float
) -> bool:
    """Delete an object unless a push has just written it again; return whether it was deleted."""
    passed = timedelta(seconds=time.time() - started)
    if passed > max(grace, GRACE) / 4:
        raise ResourceError(
            "the collection took too long to continue safely", "start it again: `trtcal store gc`"
        )
    current = store.objects.find(stored.digest)
    if current is None or age_of(current.modified, now + passed) <= grace:
        return False
    store.objects.delete(stored.digest)
    return True


def _check_new_runs(store: ArtifactStore, deleted: set[str]) -> None:
    """`GateFailed` if a run that became visible meanwhile has an object that was deleted."""
    if not deleted:
        return
    records, _ = store.records()
    for record in records:
        lost = [
            digest
            for digest in deleted & set(record.subjects.values())
            if not store.objects.find(digest)
        ]
        if lost:
            raise GateFailed(
                f"run {record.identity} was pushed at the same time and lacks {len(lost)} objects",
                "push it again",
            )


def _unfinished(folder: Path | None, now: datetime, grace: timedelta) -> Iterator[Path]:
    """Yield files that killed writers left in a store that is a folder."""
    roots = [folder / root for root in (ROOT, RUNS, TAGS, PROBE)] if folder else []
    oldest = (now - grace).timestamp()
    for path in chain.from_iterable(root.rglob("*") for root in roots):
        if UNFINISHED.fullmatch(path.name) and path.lstat().st_mtime < oldest:
            yield path
