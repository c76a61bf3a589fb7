"""The jobs of a folder: started, followed, cancelled and removed.

    jobs/KEY/   alive (locked while the job lives), job.json, log, running; result.json or error.json

A job whose `alive` is free and that has no result is dead, however it ended.
"""

from __future__ import annotations

import contextlib
import fcntl
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

LOG_BYTES = 1 << 18
RESERVE_BYTES = 1 << 14


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
        lives = _try_lock(os.path.join(path, "alive"), fcntl.LOCK_SH) is None
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

    def all(self) -> list[dict[str, Any]]:
        """Return key, kind, user, start and state of every job."""
        with self._mutex():
            return [self._about(path) for path in self._paths()]

    def _about(self, path: str) -> dict[str, Any]:
        about = read(path, "job.json") or {}
        described = {"key": "sha256:" + os.path.basename(path), "user": about.get("user")}
        kind, state = about.get("job", {}).get("kind"), self._state(path)["state"]
        return dict(described, kind=kind, since=about.get("since"), state=state)

    def _paths(self) -> list[str]:
        folder = os.path.join(self.folder, "jobs")
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        paths = [os.path.join(folder, name) for name in names]
        return [path for path in paths if os.path.exists(os.path.join(path, "job.json"))]

    def clean(self) -> int:
        """Remove all that workers left in the folder; return bytes. A job that lives is an error."""
        with self._mutex():
            for about in map(self._about, self._paths()):
                if about["state"] in ("queued", "running"):
                    since = time.strftime("%H:%M", time.localtime(about["since"]))
                    what = f"a job {about['kind']!r} of {about['user']} is {about['state']}"
                    raise Fault("resource", f"{what} on the device, since {since}", "wait for it")
            entries = [os.path.join(self.folder, name) for name in os.listdir(self.folder)]
            ours = [path for path in entries if _is_ours(os.path.basename(path))]
            size = sum(map(_size, ours))
            for path in ours:
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        with contextlib.suppress(OSError):  # others have files there
            os.rmdir(self.folder)
        lock.remove_lock()
        return size

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


def _empty(path: str) -> None:
    for name in os.listdir(path):
        entry = os.path.join(path, name)
        if os.path.isdir(entry):
            shutil.rmtree(entry)
        elif name != "alive":
            os.unlink(entry)
