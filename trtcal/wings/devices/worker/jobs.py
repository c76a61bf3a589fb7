"""Jobs: detached work whose state is a folder, one at a time on a device.

    jobs/KEY/   alive (locked while the job lives), job.json, log, running; result.json or error.json

A job is a supervisor and its child, which does the work. Both hold two locks, as does every program
that they start: `alive`, and the lock of the device once it is their turn. The system frees a lock when
the last of them ends, however they end. So a job whose `alive` is free and that has no result is dead.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from typing import Any, Callable, Iterator

from . import machine, runtimes
from .blobs import Blobs
from .frames import Fault, fault_of, full_disk, whole
from .timing import time_engines

LOG_BYTES = 1 << 18
RESERVE_BYTES = 1 << 14
HOLDER_BYTES = 1 << 10
LONGEST_PAUSE_S = 0.2
FULL_BYTES = 1 << 20
LOCK = "TRTCAL_DEVICE_LOCK"
"""Variable with the path of the device's lock, where it is not `LOCK_PATH`."""
LOCK_PATH = "/tmp/trtcal-device.lock"  # noqa: S108  # one for all users; opened as such

_locks: list[int] = []


class Jobs:
    """The jobs of a folder."""

    def __init__(self, folder: str) -> None:
        self.folder, self.blobs = folder, Blobs(folder)
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start a job, join the one of this key that lives, or keep its result; return the state."""
        path, job = self._path(request.get("key")), request.get("job")
        if not isinstance(job, dict) or job.get("kind") not in KINDS:
            raise Fault("input", "a job has a kind, {}".format(" or ".join(KINDS)))
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
        result = _read(path, "result.json")
        files = result.get("files", {}).values() if result else ()
        return bool(result) and all(os.path.exists(self.blobs.path(f["digest"])) for f in files)

    def _spawn(self, path: str, job: dict[str, Any], alive: Any) -> None:
        _empty(path)
        with open(os.path.join(path, "reserve"), "wb") as file:  # room for an error on a full disk
            file.write(bytes(RESERVE_BYTES))
        about = {"job": job, "user": machine.user(), "boot": machine.boot(), "since": time.time()}
        _write(path, "job.json", about)
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

    def poll(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return the state of a job, and its log from `offset`."""
        path, offset = self._path(request.get("key")), whole(request, "offset", 1 << 50)
        with self._mutex():
            state = self._state(path)
        with contextlib.suppress(FileNotFoundError), open(os.path.join(path, "log"), "rb") as log:
            log.seek(offset)
            return state, log.read(LOG_BYTES)
        return state, b""

    def _state(self, path: str) -> dict[str, Any]:
        about = _read(path, "job.json")
        if not about:
            raise Fault("input", f"the device has no job {os.path.basename(path)}", "start it")
        lives = _try_lock(os.path.join(path, "alive"), fcntl.LOCK_SH) is None
        if lives and not os.path.exists(os.path.join(path, "running")):
            return {"state": "queued", "ahead": _holder()}
        if lives:
            return {"state": "running"}
        result = _read(path, "result.json")
        if result:
            return {"state": "done", "result": result}
        return {"state": "failed", "error": _read(path, "error.json") or self._death(about)}

    def _death(self, about: dict[str, Any]) -> dict[str, str]:
        if shutil.disk_usage(self.folder).free < FULL_BYTES:
            return full_disk(self.folder).fields()
        how = "its processes were killed"
        if about.get("boot") != machine.boot():
            how = "the device restarted"
        kind = about["job"]["kind"]
        what = f"the job {kind!r} on the device ended without a result: {how}"
        return Fault("resource", what, "the same command starts it anew").fields()

    def cancel(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have a job end; return its state."""
        path = self._path(request.get("key"))
        with self._mutex():
            state = self._state(path)
            if state["state"] in ("queued", "running"):
                _write(path, "cancel", {})
        return state

    def all(self) -> list[dict[str, Any]]:
        """Return key, kind, user, start and state of every job."""
        with self._mutex():
            return [self._about(path) for path in self._paths()]

    def _about(self, path: str) -> dict[str, Any]:
        about = _read(path, "job.json") or {}
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
                    what = "a job %r of %s is %s on the device, since %s"
                    text = what % (about["kind"], about["user"], about["state"], since)
                    raise Fault("resource", text, "wait for it")
            entries = [os.path.join(self.folder, name) for name in os.listdir(self.folder)]
            ours = [path for path in entries if _is_ours(os.path.basename(path))]
            size = sum(map(_size, ours))
            for path in ours:
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        with contextlib.suppress(OSError):  # others have files there
            os.rmdir(self.folder)
        with contextlib.suppress(OSError, Fault), turn(wait_s=0.0):
            os.unlink(lock_path())
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


def _read(path: str, name: str) -> Any:
    try:
        with open(os.path.join(path, name), encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, ValueError):  # ValueError: cut off by a full disk or a restart
        return None


def _write(path: str, name: str, value: Any) -> None:
    temporary = os.path.join(path, name + ".new")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, os.path.join(path, name))


# The lock of the device.


def lock_path() -> str:
    """Return the path of the lock that all users of the device share."""
    return os.environ.get(LOCK, LOCK_PATH)


def _open_lock() -> int:
    """Return the lock file, which any user may have created, open for reading and writing."""
    path, flags = lock_path(), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        os.fchmod(handle, 0o666)  # whatever the umask of who came first
    except FileExistsError:  # without O_CREAT: the system refuses it for files of others in /tmp
        handle = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise Fault("resource", f"{path} on the device is not a file", "remove it there")
    return handle


def _take_lock(how: int) -> int | None:
    """Return the device's lock if it is free, None if others have it."""
    try:
        handle = _open_lock()
    except FileNotFoundError:  # removed since it existed
        return None
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
        if os.fstat(handle).st_ino == os.stat(lock_path()).st_ino:
            return handle
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.ENOENT):
            os.close(handle)
            raise
    os.close(handle)
    return None


@contextlib.contextmanager
def turn(
    is_shared: bool = False,
    wait_s: float = float("inf"),
    check: Callable[[], None] = lambda: None,
    kind: str = "",
) -> Iterator[int]:
    """Wait for the device and hold it, shared with others who share; a busy error after `wait_s`."""
    how, pauses = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX, _pauses()
    ends = time.monotonic() + wait_s
    handle = _take_lock(how)
    while handle is None:
        check()
        if time.monotonic() > ends:
            raise Fault("busy", "the device is in use by %s" % (_holder() or "others"))
        next(pauses)
        handle = _take_lock(how)
    try:
        if not is_shared:
            _sign(handle, {"user": machine.user(), "kind": kind, "since": time.time()})
        yield handle
    finally:
        os.close(handle)


def _sign(handle: int, holder: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a full disk
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(holder).encode(), 0)


def _holder() -> str:
    """Return who holds the device, as they wrote it; nothing if nobody did."""
    try:
        with open(lock_path(), "rb") as file:
            holder = json.loads(file.read(HOLDER_BYTES).decode())
        since = time.strftime("%H:%M", time.localtime(float(holder["since"])))
        return "{} ({}, since {})".format(holder["user"], holder["kind"], since)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return ""


def _pauses() -> Iterator[None]:
    pause = 0.005
    while True:
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
        yield


# Inside the job's own processes.


class Job:
    """What a runtime sees of a job: its fields, its options, and its blobs."""

    def __init__(self, fields: dict[str, Any], blobs: Blobs) -> None:
        self.fields, self.blobs = fields, blobs
        self.options: dict[str, Any] = fields.get("options") or {}

    def path(self, name: str) -> str:
        """Return the path of the blob whose digest is a field of the job, or of its options."""
        return self.blobs.existing(self.fields.get(name, self.options.get(name)))

    @property
    def runtime(self) -> Any:
        """Return the module of its runtime."""
        return runtimes.runtime(self.fields.get("runtime"))


def run_program(command: list[str], folder: str, say: Callable[[str], None]) -> int:
    """Run a program of a job, and say each line of its output; return its exit status."""
    with subprocess.Popen(  # noqa: S603  # a runtime's own program
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=_locks,
        encoding="utf-8",
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            say(line)
    return process.returncode


def supervise(folder: str, path: str, alive: int) -> None:
    """Wait for the device, do a job in a child process, and record how that ended."""
    fields = _read(path, "job.json")["job"]
    check = functools.partial(_check_cancelled, path)
    try:
        with turn(check=check, kind=fields["kind"]) as lock:
            _locks[:] = [alive, lock]
            _write(path, "running", {})
            child = os.fork()
            if not child:
                _work(folder, path, fields)
            _watch(child, path, check)
    except Exception as error:
        _fail(folder, path, error)


def _check_cancelled(path: str) -> None:
    if os.path.exists(os.path.join(path, "cancel")):
        raise Fault("resource", "the job was cancelled", "the same command starts it anew")


def _watch(child: int, path: str, check: Callable[[], None]) -> None:
    """Wait for the child; a fault if it was killed, crashed or was cancelled."""
    pauses = _pauses()
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended:
        try:
            check()
        except Fault:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        next(pauses)
        ended, status = os.waitpid(child, os.WNOHANG)
    if os.WIFSIGNALED(status):
        raise _killed(os.WTERMSIG(status))


def _killed(number: int) -> Fault:
    if number == signal.SIGKILL:
        return Fault(
            "resource",
            "the job on the device was killed, as systems do when memory runs out",
            "end other programs there, or use a smaller --batch",
        )
    name = signal.Signals(number).name
    return Fault("backend", f"the runtime on the device crashed ({name})", "read the log")


def _work(folder: str, path: str, fields: dict[str, Any]) -> None:
    """Do a job, write its result or error, and end this process."""
    os.setpgid(0, 0)
    work = os.path.join(path, "work")
    try:
        os.mkdir(work)
        result = KINDS[fields["kind"]](Job(fields, Blobs(folder)), work, _log)
        shutil.rmtree(work)
        _write(path, "result.json", result)
    except BaseException as error:
        _fail(folder, path, error)
    finally:
        sys.stdout.flush()
        os._exit(0)


def _fail(folder: str, path: str, error: BaseException) -> None:
    for name in ("work", "reserve"):  # room for what follows
        entry = os.path.join(path, name)
        shutil.rmtree(entry, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(entry)
    _write(path, "error.json", fault_of(error, folder).fields())


def _log(text: str) -> None:
    os.write(1, (text.rstrip("\n") + "\n").encode("utf-8", "replace"))


def _build(job: Job, folder: str, log: Callable[[str], None]) -> dict[str, Any]:
    started, runtime = time.monotonic(), job.runtime
    built = runtime.build(job, folder, log)
    seconds = time.monotonic() - started
    files = {name: job.blobs.keep(path) for name, path in built.pop("files").items()}
    about = {"version": runtime.version(), "hardware": machine.hardware(), "plugins": []}
    return dict(about, **dict(built, files=files, seconds=seconds))


def _time(job: Job, folder: str, log: Callable[[str], None]) -> dict[str, Any]:
    paths = [job.blobs.existing(digest) for digest in job.fields["engines"]]
    with open(job.path("feeds"), "rb") as file:
        described = json.loads(file.readline())
        feeds = runtimes.unpack(described, file.read())
    if hasattr(job.runtime, "time_engines"):
        return dict(job.runtime.time_engines(paths, feeds, job, log))
    options = dict(job.options, cuda_graph=bool(job.fields.get("cuda_graph")))
    engines = [job.runtime.open(path, options) for path in paths]
    for engine in engines:
        engine.prepare(feeds)
    return time_engines(engines, job, log)


KINDS: dict[str, Callable[[Job, str, Callable[[str], None]], dict[str, Any]]] = {
    "build": _build,
    "time": _time,
}
