"""Trace: from a digest in production back to model, data, ranges, plan, compiler, verdict."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtcal.documents import Document, digest_file, to_fields
from trtcal.documents.bounds import ARRAYS_BYTES, check_file
from trtcal.errors import InputError
from trtcal.runs.diff import RunDifference, compare_runs
from trtcal.runs.statement import ALGORITHM
from trtcal.wings.fleet.store.objects import MissingError
from trtcal.wings.fleet.store.record import SHORTEST_DIGEST, BuiltEngine, Record, time_of
from trtcal.wings.fleet.store.store import ArtifactStore, Damaged

GOOD = ("SHIP", "SHIP WITH CARE")


@dataclass(frozen=True)
class Origin:
    """Where a file came from: the newest run that has it, the file's names there, and its build.

    `others` are older runs with the same file. `last_good` is the last run before this one that was to
    be shipped, of the same project or model and for the same target; `changed` is what differs from
    it. `unread` are runs that could not be read: one of them may have the file too.
    """

    digest: str
    record: Record
    names: tuple[str, ...]
    build: BuiltEngine | None
    others: tuple[str, ...]
    last_good: Record | None
    changed: RunDifference | None
    unread: tuple[Damaged, ...]

    def to_document(self) -> Document:
        """Return the JSON form."""
        good, changed = self.last_good, self.changed
        return {
            "digest": self.digest,
            "names": list(self.names),
            "run": self.record.to_document(),
            "build": self.build and to_fields(self.build),
            "others": list(self.others),
            "last_good": good and good.to_document(),
            "changed": changed and changed.to_document(),
            "unread": [vars(run) for run in self.unread],
        }


def digest_wanted(text: str) -> str:
    """Return the digest of a file, or a digest or its first digits as they are, with the algorithm.

    `InputError` if it is neither.
    """
    path = Path(text)
    if os.path.exists(path):  # False too for what is longer than a name may be
        check_file(path, ARRAYS_BYTES)
        return digest_file(path)
    digits = text.removeprefix(ALGORITHM)
    if re.fullmatch(rf"[0-9a-f]{{{SHORTEST_DIGEST},64}}", digits):
        return ALGORITHM + digits
    raise InputError(
        f"{text!r} is neither a file nor a digest",
        f"give the file of an engine, or sha256: and at least {SHORTEST_DIGEST} digits",
    )


def find_origin(store: ArtifactStore, digits: str) -> Origin:
    """Return where the file of a digest, or of its first digits, came from.

    `MissingError` if no run has it, `InputError` if several files begin so.
    """
    return origin_of(digits, *store.records(), store.location.shown)


def origin_of(
    digits: str, records: Sequence[Record], unread: Sequence[Damaged], where: str
) -> Origin:
    """Return where a file came from, out of the runs of a store, the newest first."""
    files = [(digest, record) for record in records for digest in record.subjects.values()]
    having = {digest: record for digest, record in reversed(files) if digest.startswith(digits)}
    if not having:
        left = f"; {len(unread)} runs cannot be read" if unread else ""
        raise MissingError(
            f"no run in {where} has a file {digits}{left}",
            "`trtcal store list` shows the runs, `trtcal store verify` the damaged objects",
        )
    if len(having) > 1:
        several = ", ".join(sorted(having)[:3])
        raise InputError(f"{len(having)} files begin with {digits}: {several}", "give more digits")
    ((digest, record),) = having.items()
    names = tuple(name for name, own in record.subjects.items() if own == digest)
    build = next((built for built in record.builds if built.engine in names), None)
    good = last_good(records, record, build)
    return Origin(
        digest,
        record,
        names,
        build,
        tuple(record.identity for record in records if digest in record.subjects.values())[1:],
        good,
        compare_runs(good.run, record.run) if good else None,
        tuple(unread),
    )


def last_good(records: Sequence[Record], after: Record, build: BuiltEngine | None) -> Record | None:
    """Return the last run made before another that was to be shipped; `records` are newest first.

    It is of the same project or the same FP32 model, and for the target of the build if there is one.
    """
    until = time_of(after.run.made_at), after.digest
    for record in records:
        is_before = (time_of(record.run.made_at), record.digest) < until
        is_same = record.run.name == after.run.name or record.model == after.model
        fits = build is None or build.target in record.targets
        if is_before and is_same and fits and record.run.verdict in GOOD:
            return record
    return None
