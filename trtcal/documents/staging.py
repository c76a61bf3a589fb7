"""Files that take each other's place all at once, and what killed commands left behind.

New files are first written into a *staging folder* `.trtcal-*` of the folder that they are for, which
its process holds locked. It becomes `.trtcal-commit` once it is whole: from there on the files are
the new ones, and `changes.json` in it lists the renames that are left. Whoever next uses the folder
makes these renames, and deletes staging folders whose process is gone. All names are of entries of
the folder itself, so that a list from elsewhere reaches nothing outside of it.

Where a run's folder has a record of its files, what is written there, or deeper, is recorded too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Collection, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path

from trtcal.documents.bounds import parse_json, read_bytes
from trtcal.documents.digests import FILES, digest_file, read_record, record_of
from trtcal.errors import InputError, ResourceError

PREFIX = ".trtcal-"
OF_NEW_FOLDER = ".made"
"""Ends the name of a staging folder for which the folder around it was made."""
COMMIT = f"{PREFIX}commit"
CHANGES = "changes.json"
NEW, OLD = "new", "old"
STEPS, KEY = "steps.jsonl", "steps.jsonl.key"
LOCK_S = 10.0
DEPTH = 4  # folders above a file in which changes may be pending: a run has builds/NAME/FILE


def unwritable(path: Path, error: OSError | ValueError) -> ResourceError:
    """Return the error for a place that can't be written to."""
    shown = re.sub(rf"{re.escape(PREFIX)}[^/]*/{NEW}/?", "", str(path))
    hint = "choose another output path, or check its permissions and the space on the disk"
    return ResourceError(f"cannot write {shown}: {getattr(error, 'strerror', None) or error}", hint)


class Workplace:
    """A folder inside another that goes with the process, or else with the next one's.

    Without `root` it is one for temporary files, of this user alone.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = _temporary() if root is None else root
        self.staging, handle = _new_staging(self.root, is_made=root is None)
        self._end = weakref.finalize(self, _discard, self.root, self.staging, handle)
        self.path = self.staging / NEW  # the folder around it is locked as long as it is there
        self.path.mkdir()
        self.name = str(self.path)

    def cleanup(self) -> None:
        """Delete the folder, and the one around it if that was made for it and is empty."""
        self._end()

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *error: object) -> None:
        self.cleanup()


def _temporary_path() -> Path:
    return Path(tempfile.gettempdir(), f"trtcal-{os.geteuid()}")


def _temporary() -> Path:
    """Return the folder of this user's temporary files; a fresh one if somebody else made that."""
    place = _temporary_path()
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, exist_ok=True)
        if _is_ours(place):
            return place
    return Path(tempfile.mkdtemp(prefix="trtcal-"))


def _is_ours(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _new_staging(root: Path, is_made: bool, tries: int = 100) -> tuple[Path, int]:
    """Return a new staging folder and the handle that keeps it locked; dead ones are cleared up."""
    is_made = is_made or not root.exists()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root):
            _settle(root)
            ending = OF_NEW_FOLDER if is_made else ""
            path = Path(tempfile.mkdtemp(prefix=PREFIX, suffix=ending, dir=root))
            handle = os.open(path, os.O_RDONLY)
            _try_lock(handle)
            return path, handle
    except (FileExistsError, FileNotFoundError):  # another process deleted it, empty, just now
        if not tries:
            raise
    return _new_staging(root, is_made, tries - 1)


def _discard(root: Path, path: Path, handle: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(handle)
    if path.name.endswith(OF_NEW_FOLDER):
        with contextlib.suppress(OSError):
            root.rmdir()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder for the block; `ResourceError` if another process keeps it for long."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + LOCK_S
        while _try_lock(handle) is False:
            if time.monotonic() > deadline:
                hint = "wait until that process ends"
                raise ResourceError(f"{folder} is in use by another process", hint)
            time.sleep(0.002)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool | None:
    """Lock an open folder; False if another process has it, None where folders can't be locked."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def is_staging(name: str) -> bool:
    """Tell whether an entry of a folder is not there yet, or no more."""
    return name.startswith(PREFIX)


def files_in(place: Path) -> Iterator[str]:
    """Yield the regular files in a folder, relative to it, in order, or "." of a file; no links."""
    if place.is_file():
        yield "."
    for folder, folders, names in os.walk(place):
        folders[:] = sorted(name for name in folders if not is_staging(name))
        for path in (Path(folder, name) for name in sorted(names)):
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(place).as_posix()


def place_in_run(path: Path) -> tuple[Path, Path] | None:
    """Return the folder of a run with a record of its files, and a path's place in it, if it has one.

    A link is at its own place, and not where it leads, unless it leads to a folder.
    """
    name = "" if path.is_dir() else path.name
    place = Path(os.path.realpath(path.parent if name else path), name)
    for folder in (place, *place.parents[:DEPTH]):
        if is_staging(folder.name) or (folder / KEY).exists():  # it is not there yet
            return None
        if os.path.lexists(folder / FILES):
            return folder, place.relative_to(folder)
    return None


def recover(path: Path) -> None:
    """Complete or undo what killed commands left of a file or folder, and in the folders above it.

    `ResourceError` if that fails.
    """
    for folder in (path, *path.absolute().parents[:DEPTH]):
        if os.path.isdir(folder / COMMIT):
            with unwritable_errors(folder), _locked(folder):
                _settle(folder)


def clear_places(paths: Iterable[Path]) -> None:
    """Complete or undo what killed commands left where these files and folders are.

    The current folder and that of temporary files are cleared up too.
    """
    places = {Path(), _temporary_path()}
    for path in paths:
        recover(path)
        places |= {path, path.parent, unfinished(path)}
    for folder in places:
        _clear(folder)
    with contextlib.suppress(OSError):  # it is not empty, or not there
        _temporary_path().rmdir()


def unfinished(result: Path) -> Path:
    """Return where a file or folder is before it is whole: beside it."""
    place = result if result.name else result.absolute()
    return place.parent / f"{place.name}.unfinished"


def _clear(folder: Path) -> None:
    with contextlib.suppress(OSError):  # what cannot be read or written was not left by us
        if any(is_staging(name) for name in os.listdir(folder)):
            with _locked(folder):
                _settle(folder)


def _settle(root: Path) -> None:
    """Make pending renames in a folder that is locked, and delete staging folders of dead processes."""
    for entry in [Path(root, name) for name in os.listdir(root) if is_staging(name)]:
        if entry.name == COMMIT:
            _finish(root)
            continue
        with contextlib.suppress(FileNotFoundError):  # its own process deletes it just now
            _discard_dead(root, entry)


def _discard_dead(root: Path, staging: Path) -> None:
    if _is_ours(staging):
        handle = os.open(staging, os.O_RDONLY)
        if _try_lock(handle):
            _discard(root, staging, handle)
        else:
            os.close(handle)


def _finish(root: Path) -> None:
    """Make the renames that are left; all of them are undone if one fails."""
    place = root / COMMIT
    _check_ours(place)
    if not os.path.lexists(place / CHANGES):  # all are made
        _drop(place)
        return
    new, gone = _pending(place / CHANGES)
    try:
        for name in gone:
            _move(root / name, place / OLD / name)
        for name in new:
            if os.path.lexists(place / NEW / name):
                _move(root / name, place / OLD / name)
                _move(place / NEW / name, root / name)
    except OSError:
        _undo(root, new, gone)
        _drop(place)
        raise
    _drop(place)


def _check_ours(place: Path) -> None:
    """`InputError` unless it is this user's: it names files to delete, and a link leads elsewhere."""
    for folder in (place, place / NEW, place / OLD):
        if os.path.lexists(folder) and not _is_ours(folder):
            hint = "ask its owner to run the command again"
            raise InputError(f"{folder} is a link, or belongs to another user", hint)


def _pending(path: Path) -> tuple[list[str], list[str]]:
    """Return the entries that come into a folder, and those that leave it."""
    try:
        changes = parse_json(read_bytes(path))
        return list(map(_checked, changes[NEW])), list(map(_checked, changes["gone"]))
    except (ValueError, TypeError, LookupError) as error:
        raise InputError(f"{path} is damaged: {error}", "delete the folder it is in") from None


def _drop(place: Path) -> None:
    (place / CHANGES).unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)


def _undo(root: Path, new: Iterable[str], gone: Iterable[str]) -> None:
    place = root / COMMIT
    for name in new:
        if not os.path.lexists(place / NEW / name):
            _move(root / name, place / NEW / name)
    for name in (*new, *gone):
        _move(place / OLD / name, root / name)


def _checked(name: object) -> str:
    if (
        not isinstance(name, str)
        or name in ("", "..")
        or Path(name).name != name
        or is_staging(name)
    ):
        raise ValueError(f"{name!r} is not a valid file name")
    return name


def _move(source: Path, destination: Path) -> None:
    if os.path.lexists(source):
        source.rename(destination)


class Changes:
    """The pending changes of one folder: entries of `new` come into it, those of `gone` leave it."""

    def __init__(self, root: Path) -> None:
        self.root, self.workplace = root, Workplace(root)
        self.new = self.workplace.path
        self.names, self.gone = dict[str, None](), dict[str, None]()
        self.recorded = dict[str, str | None]()
        self.is_run = False

    def files(self, prefix: Path) -> dict[str, str | None]:
        """Return the digests of the files to come below `prefix`, None of entries that change."""
        files = dict.fromkeys((prefix / name).as_posix() for name in (*self.gone, *self.names))
        for name in (name for name in self.names if name != FILES):
            for file in files_in(self.new / name):
                files[(prefix / name / file).as_posix()] = digest_file(self.new / name / file)
        return files

    def _record(self) -> None:
        """Stage the record as it is after the changes; only a new run replaces a damaged one."""
        try:
            before = read_record(self.root) or {}
        except InputError:
            if not self.is_run:
                return
            before = {}
        after = {file: digest for file, digest in before.items() if self._stays(file)}
        after |= {file: digest for file, digest in self.recorded.items() if digest}
        (self.new / FILES).write_bytes(record_of(after))
        self.names[FILES] = None

    def _stays(self, file: str) -> bool:
        is_changed = {file, *map(str, Path(file).parents)} & self.recorded.keys()
        return not is_changed and (not self.is_run or (self.root / file).is_file())

    def commit(self) -> None:
        """Let the entries of `names` and `gone` change, all or none."""
        if not self.names and not self.gone and not self.recorded:
            return
        place = self.workplace.staging
        (place / OLD).mkdir()
        with _locked(self.root):
            _settle(self.root)
            if self.recorded:
                self._record()
            names, gone = [*self.names], [name for name in self.gone if name not in self.names]
            (place / CHANGES).write_bytes(json.dumps({NEW: names, "gone": gone}).encode())
            if not gone and len(names) == 1 and not (self.root / names[0]).is_dir():
                (self.new / names[0]).replace(self.root / names[0])
                return
            place.rename(self.root / COMMIT)
            _finish(self.root)


class Batch:
    """Changes of several folders that take effect together."""

    def __init__(self) -> None:
        self.folders = dict[Path, Changes]()

    def of(self, folder: Path) -> Changes:
        """Return the changes of a folder."""
        key = folder.absolute()
        if key not in self.folders:
            self.folders[key] = Changes(folder)
        return self.folders[key]

    def commit(self) -> None:
        """Let everything change, folder by folder, that of a run after those in it."""
        for folder, changes in [*self.folders.items()]:
            place = (folder, Path()) if changes.is_run else place_in_run(folder)
            if place is not None:
                with unwritable_errors(place[0]):
                    self.of(place[0]).recorded |= changes.files(place[1])
        for folder in sorted(self.folders, key=lambda folder: -len(folder.parts)):
            with unwritable_errors(folder):
                self.folders[folder].commit()

    def close(self) -> None:
        """Delete the staging folders."""
        for changes in self.folders.values():
            changes.workplace.cleanup()


_batch: ContextVar[Batch | None] = ContextVar("batch", default=None)


@contextlib.contextmanager
def together() -> Iterator[Batch]:
    """Let all files that the block writes take their places at its end, or none if it fails.

    Until then what is read is what was there before. A block inside of another one belongs to it.
    """
    if (outer := _batch.get()) is not None:
        yield outer
        return
    batch = Batch()
    token = _batch.set(batch)
    try:
        yield batch
        batch.commit()
    finally:
        _batch.reset(token)
        batch.close()


@contextlib.contextmanager
def unwritable_errors(path: Path) -> Iterator[None]:
    """Turn errors of the system into one that names the place that was to be written."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise unwritable(path, error) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path whose file takes the place of `path` only if the block succeeds."""
    with together() as batch:
        with unwritable_errors(path):
            if path.exists() and not path.is_file():
                hint = "choose another output path"
                raise InputError(f"cannot write {path}: it exists and is not a regular file", hint)
            changes = batch.of(path.parent)
        try:
            yield changes.new / path.name
        except OSError as error:
            raise unwritable(path, error) from error
        changes.names[path.name] = None


def removing(path: Path) -> None:
    """Delete a file if it is there, inside `together()` at its end."""
    with together() as batch, unwritable_errors(path):
        if path.is_file():
            batch.of(path.parent).gone[path.name] = None


@contextlib.contextmanager
def resuming_entries(folder: Path, owned: Collection[str], key: str) -> Iterator[Path]:
    """Yield `FOLDER.unfinished`; if the block succeeds, its entries replace those `owned` of `folder`.

    If it fails or is killed, the next block with the same key finds them there, unless it wrote no
    `STEPS`. `ResourceError` if another process is in such a block, `InputError` if others wrote there.
    """
    place = unfinished(folder)
    handle = _claim(place)
    try:
        if os.read(handle, len(key) + 1) != key.encode():
            _clear_work(place)
            os.ftruncate(handle, 0)
            os.pwrite(handle, key.encode(), 0)
        yield place
        with replacing_entries(folder, owned) as new:
            for entry in _work(place):
                entry.rename(new / entry.name)
        (place / STEPS).unlink()
    finally:
        if not (place / STEPS).exists():
            shutil.rmtree(place, ignore_errors=True)
        os.close(handle)


def _claim(place: Path) -> int:
    """Return the handle that keeps a folder of unfinished work locked, which is made if need be."""
    with unwritable_errors(place):
        place.mkdir(parents=True, exist_ok=True)
        if not _is_ours(place) or ((names := os.listdir(place)) and KEY not in names):
            raise InputError(f"{place} contains files that are not of a run", "move it away")
        handle = os.open(place / KEY, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    if _try_lock(handle) is False:
        os.close(handle)
        raise ResourceError(f"{place} is in use by another process", "wait until that process ends")
    return handle


def _work(place: Path) -> list[Path]:
    return [entry for entry in place.iterdir() if not entry.name.startswith(STEPS)]


def _clear_work(place: Path) -> None:
    (place / STEPS).unlink(missing_ok=True)
    for entry in _work(place):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@contextlib.contextmanager
def replacing_entries(folder: Path, owned: Collection[str]) -> Iterator[Path]:
    """Yield an empty folder; if the block succeeds, its entries take the place of those `owned`.

    Other entries of `folder` stay as they are. If `owned` has `FILES`, all files are recorded there.
    """
    batch = Batch()
    with unwritable_errors(folder):
        changes = batch.of(folder)
    try:
        yield changes.new
        changes.names = dict.fromkeys(sorted(os.listdir(changes.new)))
        changes.gone = dict.fromkeys(name for name in owned if os.path.lexists(folder / name))
        changes.is_run = FILES in owned
        batch.commit()
    finally:
        batch.close()
