"""Content-addressed objects: bytes under their own SHA-256, checked whenever they are read.

An object is written whole or not at all: in a folder obstore does that by a rename. Small ones are put
if absent. Larger ones go up in parts, which obstore cannot do if absent: they are looked up first, and
two writers at once write the same bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.documents.digests import digest_blocks
from trtcal.errors import InputError
from trtcal.runs.statement import ALGORITHM
from trtcal.wings.fleet.store.location import Location, explaining

if TYPE_CHECKING:
    from obstore import ObjectMeta

ROOT = "objects/sha256/"
OBJECT = re.compile(rf"{ROOT}([0-9a-f]{{2}})/(\1[0-9a-f]{{62}})")
DIGEST = re.compile(rf"{ALGORITHM}[0-9a-f]{{64}}")
SINGLE_BYTES = 16 << 20  # larger files go up in parts; S3 takes 5 GB at once at most
PART_BYTES = 16 << 20  # S3 wants 5 MiB at least
PARTS = 10_000  # that S3 takes at most
AT_ONCE = 4  # parts of one file
BLOCK = 8 << 20  # read in one request, so that each has a bound in time


@dataclass(frozen=True)
class Stored:
    """An object in the store: its digest, its size in bytes, and when it was written."""

    digest: str
    size: int
    modified: datetime


class MissingError(InputError):
    """An object or a run that is not in the store."""


class CorruptedError(InputError):
    """An object in the store whose bytes are not those of its digest."""


def path_of(digest: str) -> str:
    """Return where an object lies; `ValueError` if the digest is none.

    >>> path_of("sha256:" + "ab" * 32)[:20]
    'objects/sha256/ab/ab'
    """
    if not DIGEST.fullmatch(digest):
        raise ValueError(f"{digest!r} is not a SHA-256 digest")
    hexadecimal = digest.removeprefix(ALGORITHM)
    return f"{ROOT}{hexadecimal[:2]}/{hexadecimal}"


@dataclass(frozen=True)
class Objects:
    """The objects at a location; files above `single` bytes go up in parts of `part` bytes or more."""

    location: Location
    single: int = SINGLE_BYTES
    part: int = PART_BYTES

    def find(self, digest: str) -> Stored | None:
        """Return what is known of an object without reading it, None if it is not there."""
        meta = self.location.find(path_of(digest))
        return _stored(meta, digest) if meta else None

    def add(self, source: Path, digest: str, fresh: timedelta, rewrite: bool = False) -> bool:
        """Store a file of this digest; return whether it was not there.

        One that was there is written again if it is older than `fresh`, so that no garbage collection
        that runs at once takes it, if its size is another, or on `rewrite`. `InputError` if the file's
        bytes are not those of the digest (any more): nothing is stored then.
        """
        size, stored = source.stat().st_size, self.find(digest)
        if stored and stored.size == size and not rewrite and age_of(stored.modified) < fresh:
            return False
        if size > self.single:
            self._put_parts(source, digest, size)
        else:
            data = b"".join(_read(source, digest))
            self.location.put(path_of(digest), data, replace=stored is not None)
        return stored is None

    def _put_parts(self, source: Path, digest: str, size: int) -> None:
        """Upload a large file in parts; obstore gives the upload up if the digest is another."""
        import obstore

        with explaining(self.location.shown):
            obstore.put(
                self.location.objects,
                path_of(digest),
                _read(source, digest),
                use_multipart=True,
                chunk_size=max(self.part, -(-size // PARTS)),
                max_concurrency=AT_ONCE,
            )

    def copy(self, stored: Stored, destination: Path) -> None:
        """Write an object into a new file; on an error the file is of no use."""
        blocks = self._blocks(stored)
        with destination.open("xb") as file:
            error = _corrupted(stored.digest, self.location)
            file.writelines(_checked(blocks, stored.digest, error))

    def check(self, stored: Stored) -> str | None:
        """Return what is wrong with an object after reading all of it, None if nothing is."""
        try:
            return None if digest_blocks(self._blocks(stored)) == stored.digest else "corrupted"
        except MissingError:
            return "missing"

    def listed(self) -> Iterator[Stored]:
        """Yield every object; other names are left out."""
        for meta in self.location.listed(ROOT):
            if match := OBJECT.fullmatch(meta["path"]):
                yield _stored(meta, ALGORITHM + match[2])

    def delete(self, digest: str) -> None:
        """Delete an object; one that is gone already is no error."""
        self.location.delete(path_of(digest))

    def required(self, digest: str) -> Stored:
        """Return what is known of an object; `MissingError` if it is not there."""
        stored = self.find(digest)
        if stored is None:
            raise _missing(digest, self.location)
        return stored

    def _blocks(self, stored: Stored) -> Iterator[bytes]:
        """Yield an object's bytes, not checked yet."""
        import obstore

        for start in range(0, stored.size, BLOCK):
            end = min(start + BLOCK, stored.size)
            with explaining(self.location.shown):
                try:
                    place = self.location.objects, path_of(stored.digest)
                    block = bytes(obstore.get_range(*place, start=start, end=end))
                except FileNotFoundError:
                    raise _missing(stored.digest, self.location) from None
            yield block


def _stored(meta: ObjectMeta, digest: str) -> Stored:
    return Stored(digest, meta["size"], meta["last_modified"])


def age_of(modified: datetime, now: datetime | None = None) -> timedelta:
    """Return how long ago something was written, by this machine's clock or as of `now`."""
    return (now or datetime.now(modified.tzinfo)) - modified


def _read(source: Path, digest: str) -> Iterator[bytes]:
    """Yield a file's bytes; `InputError` at their end if they are not those of the digest."""
    hint = "push it again when no program writes it"
    error = InputError(f"{source} changed while it was pushed", hint)
    with source.open("rb") as file:
        yield from _checked(iter(lambda: file.read(1 << 20), b""), digest, error)


def _checked(blocks: Iterable[bytes], digest: str, error: InputError) -> Iterator[bytes]:
    """Yield blocks; raise the error at their end if they are not those of the digest."""
    sha256 = hashlib.sha256()
    for block in blocks:
        sha256.update(block)
        yield block
    if ALGORITHM + sha256.hexdigest() != digest:
        raise error


def _missing(digest: str, location: Location) -> MissingError:
    return MissingError(
        f"{location.shown} has no object {digest}", "push the run of this object again"
    )


def _corrupted(digest: str, location: Location) -> CorruptedError:
    return CorruptedError(
        f"the object {digest} in {location.shown} is corrupted: its digest differs",
        "push the run of this object again: `trtcal store push RUN --rewrite`",
    )
