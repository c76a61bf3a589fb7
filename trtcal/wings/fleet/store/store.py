"""The runs in a store: found by digest, time and tag, and read with their Statements checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

from trtcal.documents import canonical_json, digest_bytes
from trtcal.documents.bounds import MB, parse_json
from trtcal.errors import InputError
from trtcal.runs.statement import ALGORITHM
from trtcal.wings.fleet.store.location import Location, open_location
from trtcal.wings.fleet.store.objects import CorruptedError, MissingError, Objects
from trtcal.wings.fleet.store.record import SHORTEST_DIGEST, Filter, Record, record_of, time_of

MARKER, FORMAT = "trtcal-store.json", 1
RUNS, TAGS = "runs/", "tags/"
RUN_NAME = re.compile(rf"{RUNS}\d{{8}}T\d{{6}}Z-[0-9a-f]{{64}}\.json")
TAG_NAME = re.compile(rf"{TAGS}([0-9a-f]{{64}})/([^/]+)")
STATEMENT_BYTES = 16 * MB
WORKERS = 8  # requests at once
ALL = Filter()
T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True)
class Damaged:
    """A run whose Statement cannot be used: its name in the store, and why."""

    path: str
    problem: str


class ArtifactStore:
    """The store at a location; `objects` are its files by digest."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.objects = Objects(location)

    @classmethod
    def open(cls, url: str, base: Path = Path()) -> ArtifactStore:
        """Return the store at a URL or folder; `InputError` if there is none, or of another format."""
        store = cls(open_location(url, base))
        store._check(store._marker())
        return store

    @classmethod
    def make(cls, url: str, base: Path = Path()) -> ArtifactStore:
        """Return the store at a URL or folder, made there if there is none yet."""
        store = cls(open_location(url, base, make=True))
        if store._marker() is None:
            mark = canonical_json({"kind": "trtcal-store", "format": FORMAT})
            store.location.put(MARKER, mark)
        store._check(store._marker())
        return store

    def _marker(self) -> bytes | None:
        return self.location.get(MARKER, most=1000)

    def _check(self, marker: bytes | None) -> None:
        if marker is None:
            raise InputError(
                f"there is no store at {self.location.shown}",
                "check --store; `trtcal store push RUN` creates a store",
            )
        with suppress(ValueError, TypeError, LookupError):
            if (mark := parse_json(marker))["kind"] == "trtcal-store":
                if mark["format"] != FORMAT:
                    raise InputError(
                        f"{self.location.shown} is a store of format {mark['format']!r}; this "
                        f"trtcal reads {FORMAT}",
                        "update trtcal",
                    )
                return
        raise InputError(f"{self.location.shown}/{MARKER} is damaged", "give another --store")

    def names(self, prefix: str) -> Iterator[str]:
        """Yield all names that begin so, in their order."""
        return (meta["path"] for meta in self.location.listed(prefix))

    def runs(self) -> list[str]:
        """Return the names of all runs' Statements, the newest first."""
        return sorted(filter(RUN_NAME.fullmatch, self.names(RUNS)), reverse=True)

    def tags(self) -> dict[str, tuple[str, ...]]:
        """Return the tags of all runs, by the digests of their Statements."""
        by_digest: dict[str, list[str]] = {}
        for name in self.names(TAGS):
            if match := TAG_NAME.fullmatch(name):
                by_digest.setdefault(ALGORITHM + match[1], []).append(match[2])
        return {digest: tuple(sorted(tags)) for digest, tags in by_digest.items()}

    def read(self, path: str) -> Record:
        """Return a run without its tags; `CorruptedError` if its Statement is not its digest's."""
        where, digest = f"{self.location.shown}/{path}", digest_in(path)
        data = self.location.get(path, STATEMENT_BYTES)
        if data is None:
            raise MissingError(f"{where} no longer exists", "list the runs again")
        if digest_bytes(data) != digest:
            raise CorruptedError(f"{where} is corrupted: its digest differs", "push that run again")
        try:
            record = record_of(parse_json(data), digest)
            if run_path(record) != path:
                raise ValueError(f"it is of {record.run.made_at}")
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise InputError(
                f"{where} is not a Statement that this trtcal reads: {error}", "update trtcal"
            ) from error
        return record

    def _read(self, path: str) -> Record | Damaged:
        try:
            return self.read(path)
        except InputError as error:
            return Damaged(path, error.message)

    def records(
        self, filters: Filter = ALL, last: int | None = None
    ) -> tuple[list[Record], list[Damaged]]:
        """Return the newest runs that are asked for, and those that cannot be read on the way there."""
        tags, damaged = self.tags(), list[Damaged]()

        def matching() -> Iterator[Record]:
            for record in parallel(self._read, self.runs()):
                if isinstance(record, Damaged):
                    damaged.append(record)
                elif filters.fits(record := replace(record, tags=tags.get(record.digest, ()))):
                    yield record

        return list(islice(matching(), last)), damaged

    def record(self, identity: str) -> Record:
        """Return the run whose digest begins so; `MissingError` if there is none, or several."""
        digits = identity.removeprefix(ALGORITHM)
        if not re.fullmatch(rf"[0-9a-f]{{{SHORTEST_DIGEST},64}}", digits):
            raise InputError(
                f"{identity!r} does not name a run: give at least {SHORTEST_DIGEST} digits of "
                "its digest",
                "`trtcal store list` shows the runs",
            )
        runs = [run for run in self.runs() if digest_in(run).startswith(ALGORITHM + digits)]
        if len(runs) != 1:
            how = f"{len(runs)} runs that begin" if runs else "no run that begins"
            raise MissingError(
                f"{self.location.shown} has {how} with {digits}",
                "`trtcal store list` shows the runs",
            )
        record = self.read(runs[0])
        return replace(record, tags=self.tags().get(record.digest, ()))

    def add(self, record: Record) -> bool:
        """Make a run whose files are stored visible; return whether it was not there.

        A server that ignores the condition writes the same bytes again: the name is that of its bytes.
        """
        path = run_path(record)
        data = canonical_json(record.statement)
        is_new = self.location.put(path, data)
        if not is_new and self.location.get(path, STATEMENT_BYTES) != data:
            self.location.put(path, data, replace=True)
        return is_new

    def tag(self, digest: str, tags: Iterable[str]) -> None:
        """Give a run tags."""
        for tag in tags:
            self.location.put(tag_path(digest, tag), b"")

    def untag(self, digest: str, tags: Iterable[str]) -> None:
        """Take tags from a run."""
        for tag in tags:
            self.location.delete(tag_path(digest, tag))


def run_path(record: Record) -> str:
    """Return the name of a run: the time, by which names sort, and the digest of its Statement."""
    stamp = time_of(record.run.made_at).strftime("%Y%m%dT%H%M%SZ")
    return f"{RUNS}{stamp}-{record.digest.removeprefix(ALGORITHM)}.json"


def digest_in(path: str) -> str:
    """Return the digest of a run's Statement, which is in its name."""
    return ALGORITHM + path.rpartition("-")[2].removesuffix(".json")


def tag_path(digest: str, tag: str) -> str:
    """Return the name of a tag."""
    return f"{TAGS}{digest.removeprefix(ALGORITHM)}/{tag}"


def parallel(work: Callable[[T], V], items: Iterable[T]) -> Iterator[V]:
    """Yield what `work` makes of each item, in order, some of them at once."""
    every = iter(items)
    with ThreadPoolExecutor(WORKERS) as pool:
        while batch := list(islice(every, 8 * WORKERS)):
            yield from pool.map(work, batch)
