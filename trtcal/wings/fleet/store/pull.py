"""Pull: a run's folder out of a store, all of it or nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from trtcal.documents import FILES, replacing_entries
from trtcal.documents.bounds import MB
from trtcal.errors import InputError, ResourceError
from trtcal.runs.origin import check_replaceable
from trtcal.wings.fleet.store.record import Record
from trtcal.wings.fleet.store.store import ArtifactStore, parallel


def pull(
    store: ArtifactStore,
    record: Record,
    folder: Path,
    owned: Collection[str],
    advance: Callable[[int], None] = lambda count: None,
) -> int:
    """Put a run's files into a folder, in place of a run that was there; return their size in bytes.

    Every file is checked against its digest before any takes its place. `owned` are the entries that
    runs write; how names look was checked when the record was read. `InputError` if a name is of
    another entry, the folder holds something else than a run, or an object is missing or corrupted;
    `ResourceError` if there is no room.
    """
    for name in record.subjects:
        if name.partition("/")[0] not in owned:
            raise InputError(f"{name!r} is not a file that a run writes", "update trtcal")
    check_replaceable(folder)
    digests = dict.fromkeys(record.subjects.values())
    objects = {stored.digest: stored for stored in parallel(store.objects.required, digests)}
    total = sum(objects[digest].size for digest in record.subjects.values())
    changing = [name for name in owned if name != FILES or name in record.subjects]
    with replacing_entries(folder, changing) as place:
        _check_room(place, total)

        def fetch(subject: tuple[str, str]) -> None:
            name, digest = subject
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            store.objects.copy(objects[digest], path)

        for _ in parallel(fetch, record.subjects.items()):
            advance(1)
    return total


def _check_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise ResourceError(
            f"the run has {size / MB:.0f} MB, and {folder.parent.parent} has room for "
            f"{free / MB:.0f} MB",
            "free disk space, or choose another folder with -o",
        )
