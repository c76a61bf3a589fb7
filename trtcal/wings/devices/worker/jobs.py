"""A job's own processes: a supervisor, and its child, which does the work.

Both hold the lock of the job and that of the device, as does every program that they start. So nobody
takes the device, or starts the job again, before the last of them has ended.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Callable

from . import machine, runtimes
from .blobs import Blobs
from .frames import FULL_BYTES, Fault, fault_of, full_disk
from .lock import pauses, turn
from .timing import time_engines

_locks: list[int] = []
MAX_ROUNDS = 20_000  # of one engine: the times are one line of an answer


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
    fields = read(path, "job.json")["job"]
    check = functools.partial(_check_cancelled, path)
    try:
        with turn(fields["kind"], check=check) as handle:
            _locks[:] = [alive, handle]
            write(path, "running", {})
            child = os.fork()
            if not child:
                _work(folder, path, fields)
            with contextlib.suppress(OSError):  # it does so itself, sooner or later
                os.setpgid(child, child)
            _watch(child, path, check)
    except Exception as error:
        _fail(folder, path, error)


def _check_cancelled(path: str) -> None:
    if os.path.exists(os.path.join(path, "cancel")):
        raise Fault("resource", "the job was cancelled", "the same command starts it again")


def _watch(child: int, path: str, check: Callable[[], None]) -> None:
    """Wait for the child; a fault if it was killed, crashed or was cancelled."""
    waits = pauses()
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended:
        try:
            check()
        except Fault:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        next(waits)
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
        write(path, "result.json", result)
    except BaseException as error:
        _fail(folder, path, error)
    finally:
        sys.stdout.flush()
        os._exit(0)


def _fail(folder: str, path: str, error: BaseException) -> None:
    fault = fault_of(error, folder)
    if fault.kind == "backend" and shutil.disk_usage(folder).free < FULL_BYTES:
        fault = full_disk(folder)  # which the runtime has called by another name
    for name in ("work", "reserve"):  # room for what follows
        entry = os.path.join(path, name)
        shutil.rmtree(entry, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(entry)
    write(path, "error.json", fault.fields())


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
    if len(paths) * int(job.fields["rounds"]) > MAX_ROUNDS:
        what = f"{len(paths)} engines are timed in {MAX_ROUNDS // len(paths)} rounds at most"
        raise Fault("input", what, "ask for fewer")
    with open(job.path("feeds"), "rb") as file:
        described = json.loads(file.readline())
        feeds = runtimes.unpack(described, file.read())
    if callable(getattr(job.runtime, "time", None)):
        return dict(job.runtime.time(paths, feeds, job, folder, log))
    graph = {"cuda_graph": bool(job.fields.get("cuda_graph"))}
    options = job.fields.get("engine_options") or [job.options] * len(paths)
    engines = [job.runtime.open(p, dict(each, **graph)) for p, each in zip(paths, options)]
    for engine in engines:
        engine.prepare(feeds)
    return time_engines(engines, job, log)


KINDS: dict[str, Callable[[Job, str, Callable[[str], None]], dict[str, Any]]] = {
    "build": _build,
    "measurement": _time,
}


def read(path: str, name: str) -> Any:
    """Return a JSON file of a job, None if it is not there or cut off."""
    try:
        with open(os.path.join(path, name), encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, ValueError):
        return None


def write(path: str, name: str, value: Any) -> None:
    """Write a JSON file of a job, whole or not at all."""
    temporary = os.path.join(path, name + ".new")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, os.path.join(path, name))
