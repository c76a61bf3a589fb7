"""The jobs of a folder: started, followed, cancelled and removed.

    jobs/KEY/   alive (locked while the job lives), job.json, log, running; result.json or error.json

A job whose `alive` is free and that has no result is dead, however it ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import subprocess
import sys
import time
from typing import Any, Iterator

from . import lock, machine
from .blobs import Blobs
from .frames import FULL_BYTES, Fault, full_disk, whole
from .jobs import KINDS, read, write
from .lock import pauses

LOG_BYTES = 1 << 18
RESERVE_BYTES = 1 << 14
END_S = 10.0


class Jobs:
    """The jobs of a folder."""

    def __init__(self, folder: str) -> None:
        self.folder, self.blobs = folder, Blobs(folder)
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start a job, join the one of this key that lives, or keep its result; return the state."""
        path, job = self._path(request.get("key")), request.get("job")
        if not isinstance(job, dict) or job.get("kind") not in KINDS:
            raise Fault("input", f"a job has a kind, {' or '.join(KINDS)}")
        with self._mutex():
            os.makedirs(path, 0o700, exist_ok=True)
            alive = _try_lock(os.path.join(path, "alive"))
            if alive is not None:
                with alive:
                    if not self._is_done(path):
                        self._spawn(path, job, alive)
            return self._state(path)

    def _path(self, key: Any) -> str:
        return os.path.join(self.folder, "jobs", os.path.basename(self.blobs.path(key)))

    def _is_done(self, path: str) -> bool:
        """Whether a result is there, with the files that it names."""
        result = read(path, "result.json")
        files = result.get("files", {}).values() if result else ()
        return bool(result) and all(os.path.exists(self.blobs.path(f["digest"])) for f in files)

    def _spawn(self, path: str, job: dict[str, Any], alive: Any) -> None:
        _empty(path)
        with open(os.path.join(path, "reserve"), "wb") as file:  # room for an error on a full disk
            file.write(bytes(RESERVE_BYTES))
        about = {"job": job, "user": machine.user(), "boot": machine.boot(), "since": time.time()}
        write(path, "job.json", about)
        command = [sys.executable, "-B", sys.argv[0], self.folder, path, str(alive.fileno())]
        with open(os.path.join(path, "log"), "wb") as log:
            child = subprocess.Popen(  # noqa: S603  # this program
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[alive.fileno()],
            )
        self.children = [other for other in self.children if other.poll() is None] + [child]

    def wait(self) -> None:
        """Wait for the jobs that were started here."""
        for child in self.children:
            child.wait()

    def poll(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        """Return the state of a job, and its log from `offset`."""
        path, offset = self._path(request.get("key")), whole(request, "offset", 1 << 50)
        with self._mutex():
            state = self._state(path)
        with contextlib.suppress(FileNotFoundError), open(os.path.join(path, "log"), "rb") as log:
            log.seek(offset)
            return state, [log.read(LOG_BYTES)]
        return state, []

    def _state(self, path: str) -> dict[str, Any]:
        about = read(path, "job.json")
        if not about:
            raise Fault("input", f"the device has no job {os.path.basename(path)}", "start it")
        lives = _lives(path)
        if lives and not os.path.exists(os.path.join(path, "running")):
            return {"state": "queued", "ahead": lock.holder()}
        if lives:
            return {"state": "running"}
        result = read(path, "result.json")
        if result:
            return {"state": "done", "result": result}
        return {"state": "failed", "error": read(path, "error.json") or self._death(about)}

    def _death(self, about: dict[str, Any]) -> dict[str, str]:
        if shutil.disk_usage(self.folder).free < FULL_BYTES:
            return full_disk(self.folder).fields()
        how = "its processes were killed"
        if about.get("boot") != machine.boot():
            how = "the device restarted"
        kind = about["job"]["kind"]
        what = f"the job {kind!r} on the device ended without a result: {how}"
        return Fault("resource", what, "the same command starts it again").fields()

    def cancel(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have a job end; return its state."""
        path = self._path(request.get("key"))
        with self._mutex():
            state = self._state(path)
            if state["state"] in ("queued", "running"):
                write(path, "cancel", {})
        return state

    def clean(self, request: dict[str, Any]) -> int:
        """Remove all that workers left in the folder; return bytes.

        A job that lives is an error, or is ended before if the request says `end_jobs`.
        """
        with self._mutex():
            self._check_idle(bool(request.get("end_jobs")))
            entries = [os.path.join(self.folder, name) for name in os.listdir(self.folder)]
            ours = [path for path in entries if _is_ours(os.path.basename(path))]
            size = sum(map(_size, ours))
            for path in ours:
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        with contextlib.suppress(OSError):  # others have files there
            os.rmdir(self.folder)
        lock.remove_lock()
        return size

    def _check_idle(self, ends_jobs: bool) -> None:
        paths = glob.glob(os.path.join(glob.escape(self.folder), "jobs", "*"))
        living = [path for path in paths if _lives(path)]
        for path in living:
            if not ends_jobs:
                raise self._in_use(path)
            write(path, "cancel", {})
        waits, ends = pauses(), time.monotonic() + END_S
        while any(map(_lives, living)):
            next(waits)
            if time.monotonic() > ends:
                raise Fault("resource", "a job on the device does not end", "end its process there")

    def _in_use(self, path: str) -> Fault:
        about, state = read(path, "job.json"), self._state(path)["state"]
        since = time.strftime("%H:%M", time.localtime(about["since"]))
        what = f"a job {about['job']['kind']!r} of {about['user']} is {state} on the device"
        hint = "wait for it, or end it: `trtcal device clean NAME --end-jobs`"
        return Fault("resource", f"{what}, since {since}", hint)

    @contextlib.contextmanager
    def _mutex(self) -> Iterator[None]:
        """Hold the folder, so that no state changes between a look and what follows from it."""
        handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _is_ours(name: str) -> bool:
    return name in ("blobs", "jobs") or (name.startswith("worker-") and ".pyz" in name)


def _size(path: str) -> int:
    if os.path.isfile(path):
        return os.path.getsize(path)
    files = [os.path.join(top, name) for top, _, names in os.walk(path) for name in names]
    return sum(map(os.path.getsize, files))


def _try_lock(path: str, how: int = fcntl.LOCK_EX) -> Any:
    """Return the open file that holds the lock of a path, None if others have it."""
    file = open(path, "ab")  # noqa: SIM115  # the caller closes it
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _lives(path: str) -> bool:
    return _try_lock(os.path.join(path, "alive"), fcntl.LOCK_SH) is None


def _empty(path: str) -> None:
    for name in os.listdir(path):
        entry = os.path.join(path, name)
        if os.path.isdir(entry):
            shutil.rmtree(entry)
        elif name != "alive":
            os.unlink(entry)
