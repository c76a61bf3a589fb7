"""Transfer: a run's folder into a store, its files first and what shows it last, and out of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from trtcal.documents import (
    FILES,
    Document,
    canonical_json,
    digest_bytes,
    digest_file,
    files_in,
    parsing,
    read_record,
    replacing_entries,
    to_fields,
)
from trtcal.documents.bounds import MB
from trtcal.errors import InputError, ResourceError
from trtcal.evidence.manifest import MANIFEST, read_build
from trtcal.reporting.document import read_report
from trtcal.runs.history import entry_of
from trtcal.runs.origin import REPORT_FILE, RUN_FILE, Origin, check_replaceable
from trtcal.runs.statement import RUN, statement
from trtcal.runs.verify import check_whole
from trtcal.wings.fleet.store.objects import DIGEST
from trtcal.wings.fleet.store.record import BuiltEngine, Record, check_names, check_tags, record_of
from trtcal.wings.fleet.store.store import ArtifactStore, parallel

GRACE = timedelta(hours=24)
"""How old an object is that no run has before garbage collection takes it."""
FRESH = GRACE / 4
"""An older object that is there already is written again, and a push looks again at its end.

So an object that a run relies on is at most a quarter of `GRACE` old once the run was pushed. A
collection reads the runs, then looks at each object's age again; it ends within another quarter. The
rest is for clocks that differ.
"""


@dataclass(frozen=True)
class Pushed:
    """A run that was pushed: whether it was not there, and which of its files were not, by digest."""

    record: Record
    is_new: bool
    new: frozenset[str]
    bytes: int


def push(
    store: ArtifactStore,
    folder: Path,
    record: Record,
    tags: Sequence[str] = (),
    rewrite: bool = False,
    advance: Callable[[int], None] = lambda count: None,
) -> Pushed:
    """Push a run's folder, as `record_of_folder` described it; the same run twice is there once.

    `rewrite` replaces objects that may be corrupted. `InputError` if a file changes meanwhile: then,
    and if the push is killed, no run is visible, and what was stored goes with the next garbage
    collection after `GRACE`.
    """
    tags = check_tags(tags)
    files = {digest: folder / path for path, digest in record.subjects.items()}
    new = _store(store, files, rewrite, advance)
    store.tag(record.digest, tags)
    is_new = store.add(record)
    new |= _store(store, files, False, lambda count: None)  # what a collection took meanwhile
    return Pushed(record, is_new, new, sum(files[digest].stat().st_size for digest in new))


def _store(
    store: ArtifactStore, files: dict[str, Path], rewrite: bool, advance: Callable[[int], None]
) -> frozenset[str]:
    """Store files that are not there; return their digests."""
    new = []
    add = partial(_add, store, rewrite)
    for digest, is_new in zip(files, parallel(add, files.items()), strict=True):
        new += [digest] if is_new else []
        advance(1)
    return frozenset(new)


def _add(store: ArtifactStore, rewrite: bool, file: tuple[str, Path]) -> bool:
    digest, path = file
    try:
        return store.objects.add(path, digest, FRESH, rewrite)
    except FileNotFoundError as error:
        raise InputError(f"{path} was deleted while it was pushed", "push the run again") from error


def record_of_folder(folder: Path, owned: Collection[str], name: str | None = None) -> Record:
    """Return a run's folder as the record that a store has of it.

    `owned` are the entries that runs write, `name` is the run's project. `InputError` if it is no run
    of `trtcal run`, is not as that left it, or changes while it is read.
    """
    run = Origin.read(folder)
    check_whole(folder)
    known = read_record(folder) or {}
    subjects = {
        name: known.get(name) or digest_file(folder / name) for name in files_of(folder, owned)
    }
    try:
        check_names(subjects)
    except ValueError as error:
        raise InputError(
            f"{folder}: {error}", "rename the model or the plan, and run again"
        ) from None
    report = read_report(folder / REPORT_FILE)
    record: Record = parsing(folder, lambda: _record(folder, run, report, subjects, name))
    if digest_file(folder / RUN_FILE) != subjects[RUN_FILE]:
        raise InputError(f"{folder} changed while it was read", "push it when the run has ended")
    return record


def files_of(folder: Path, owned: Collection[str]) -> list[str]:
    """Return the files in entries `owned`, in order; hidden ones and those of others are left out.

    `InputError` if a run without a record of its files has a link among them.
    """
    record = read_record(folder)
    for path in folder.rglob("*") if record is None else ():
        if path.is_symlink() and path.relative_to(folder).parts[0] in owned:
            what = "a store takes only files: replace the link with its file"
            raise InputError(f"{path} is a link", what)
    written = None if record is None else {FILES, *record}
    names = (name for name in files_in(folder) if name.split("/")[0] in owned and "/." not in name)
    return [name for name in names if written is None or name in written]


def _record(
    folder: Path, run: Origin, report: Document, subjects: dict[str, str], name: str | None
) -> Record:
    entry = entry_of(report, name)
    versions = {
        key: digest for key, digest in entry.digests.items() if not DIGEST.fullmatch(digest)
    }
    materials = {key: digest for key, digest in entry.digests.items() if key not in versions}
    materials |= {f"script {key}": digest for key, digest in run.scripts.items()}
    configuration = run.measured.configuration
    if configuration.digest:
        materials["configuration"] = configuration.digest
    if configuration.commit:
        versions["commit"] = configuration.commit
    predicate = {
        "model_name": report["comparison"]["rows"][0]["name"],
        "run": {**entry.to_document(), "digests": {**materials, **versions}},
        "builds": [to_fields(build) for build in builds_of(folder, subjects)],
        "configuration": to_fields(configuration),
    }
    document = statement(subjects, materials, RUN, predicate)
    return record_of(document, digest_bytes(canonical_json(document)))


def builds_of(folder: Path, subjects: dict[str, str]) -> Iterator[BuiltEngine]:
    """Yield the engines of a run that are among its files."""
    for path in sorted(folder.glob(f"builds/*/{MANIFEST}")):
        build = read_build(path)
        engine = build.engine.relative_to(folder).as_posix()
        if engine in subjects:
            yield BuiltEngine(
                engine,
                build.target,
                build.backend,
                build.backend_version,
                build.model_name,
                build.model,
                build.gpu,
                *(build.quantization.get(key) for key in ("method", "calibration", "plan")),
            )


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
