"""The connection to a device: OpenSSH's client, or a process here for `local:`, and the worker.

Every operation of the worker can be repeated. So a connection that is cut is made again, and the
operation repeated. Nothing that the device sends is trusted: lines and sizes have bounds, values are
checked, and control characters in text are made visible. A log is data, not text to print.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import math
import os
import re
import secrets
import shlex
import stat
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtcal.config import HOST
from trtcal.documents.bounds import parse_json
from trtcal.documents.digests import canonical_json, digest_blocks, digest_bytes
from trtcal.documents.streams import visible
from trtcal.errors import BackendError, InputError, ResourceError, TrtcalError
from trtcal.wings.devices.packing import BOOT, pack
from trtcal.wings.devices.registry import Facts, facts_of
from trtcal.wings.devices.worker.blobs import DIGEST
from trtcal.wings.devices.worker.frames import DATA_BYTES, LINE_BYTES, write_frame
from trtcal.wings.devices.worker.job_folder import LOG_BYTES
from trtcal.wings.devices.worker.lock import GATE, LOCK_PATH

if TYPE_CHECKING:
    from trtcal.config import DeviceConfig

Answer = dict[str, Any]
Show = Callable[[str], None]

LOCAL = "local:"
FOLDER = "~/.cache/trtcal-device"
PROGRAM = "TRTCAL_SSH"
"""Variable with the ssh program and options for it, where it is not `ssh`."""
OPTIONS = (
    *("BatchMode=yes", "ConnectTimeout=15", "ServerAliveInterval=15", "ServerAliveCountMax=4"),
    *("ClearAllForwardings=yes", "ForwardAgent=no", "RemoteCommand=none", "ControlMaster=auto"),
    "ControlPersist=60",
)
GPU = (
    "docker info 2>&1 | grep -q 'Runtimes:.* nvidia'"
    " && echo --runtime nvidia -e NVIDIA_VISIBLE_DEVICES=all"
)
"""What gives a container the GPU, on a server and on a Jetson alike; nothing without one."""
RETRIES_S = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0)
POLLS_S = (0.02, 0.05, 0.1, 0.2)
POLL_S = 0.5
BUSY_S, BUSY_LIMIT_S = 1.0, 4 * 3600.0
START_S = 120.0
ENGINE_OPS, ENGINE_ENDS = ("open", "run"), 5  # an engine that crashes does so each time
ANSWER_S = 900.0
CHUNK_BYTES = 1 << 22
LOG_LIMIT_BYTES = 1 << 28
GREETING_LINES = 1000
CLOSE_S = 2.0
TEXT = 2000
PASSING = re.compile("closed|reset|broken pipe|control master|exit status 255", re.IGNORECASE)
ERRORS: dict[object, type[TrtcalError]] = {
    "input": InputError,
    "resource": ResourceError,
    "busy": ResourceError,
}
UNREACHED = re.compile("refused|resolve|route|timed out")
NO_PYTHON = (0, 126, 127)  # it ran something else, which ended; the shell cannot run it, or find it
OTHER_PYTHON = (
    "name a Python there: `trtcal device add ... --python PATH`, or `python` in trtcal.toml"
)
CHECK = "`trtcal device check` shows what the device has"


class Cut(Exception):  # noqa: N818  # what became of a connection
    """The connection ended: `is_sent` tells whether that was after a request."""

    def __init__(self, reason: str, is_sent: bool) -> None:
        super().__init__(reason)
        self.is_sent = is_sent


class Connection:
    """A worker on a device, started where it is needed and again after each cut.

    >>> with Connection(device) as connection:
    ...     connection.call("hello")[0]["hardware"]["name"]
    """

    def __init__(self, device: DeviceConfig, name: str = "") -> None:
        self.device, self.name = device, name or visible(device.host.rstrip(":"))
        self._channel: Channel | None = None
        self._was_reached = False
        self._lock = threading.Lock()  # sessions may run in several threads
        if not HOST.fits(device.host):  # such as an option of ssh
            what = f"the host {visible(device.host)!r} is no address that ssh takes"
            raise InputError(what, "write USER@HOST or ssh://USER@HOST:PORT")

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker, but not its jobs."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    @cached_property
    def facts(self) -> Facts:
        """What the device said of itself when it was first reached."""
        return facts_of(self.call("hello", limit=0)[0])

    def call(
        self,
        op: str,
        fields: Mapping[str, Any] | None = None,
        data: bytes | memoryview = b"",
        limit: int = DATA_BYTES,
    ) -> tuple[Answer, bytes]:
        """Return the answer to one operation, and its bytes, of which there are `limit` at most.

        After a cut it connects again and repeats. The worker's errors are raised as `InputError`,
        `BackendError` or `ResourceError`; `BackendError` if the device cannot be reached or sends what
        is no answer, `ResourceError` if the connection ends again and again.
        """
        request, retries, ends = {**(fields or {}), "op": op}, iter(RETRIES_S), 0
        until, was_busy = time.monotonic() + BUSY_LIMIT_S, False
        while True:
            try:
                answer, received = self._exchange(request, data, limit)
            except Cut as cut:
                ends += cut.is_sent
                is_last = op in ENGINE_OPS and ends == ENGINE_ENDS
                self._pause(cut, None if is_last else next(retries, None), op)
                continue
            if answer["ok"]:
                return answer, received
            fault = answer.get("error")
            is_busy = isinstance(fault, dict) and fault.get("kind") == "busy"
            error = error_of(fault, self.name)
            if not is_busy or time.monotonic() > until:
                raise error
            if not was_busy:
                say_waiting(error.message)
            was_busy = True
            time.sleep(BUSY_S)

    def _exchange(
        self, request: Answer, data: bytes | memoryview, limit: int
    ) -> tuple[Answer, bytes]:
        with self._lock:
            if self._channel is None:
                self._channel = Channel(self.device, self.name, self._was_reached)
                self._was_reached = True
            try:
                return self._channel.exchange(request, data, limit)
            except BaseException:  # what follows in the stream is unknown
                self.close()
                raise

    def _pause(self, cut: Cut, pause_s: float | None, op: str) -> None:
        if pause_s is None:
            what = f"the connection to {self.name} ended again and again during {op!r}: {cut}"
            raise ResourceError(what, f"start the same command again; {CHECK}") from cut
        time.sleep(pause_s)

    def upload(self, source: Path | bytes) -> str:
        """Send a file or bytes, only what the device does not have yet; return the digest."""
        with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as file:
            digest = digest_blocks(iter(lambda: file.read(1 << 20), b""))
            total = file.tell()
            have = self._put(digest, total, 0, b"")
            for _ in range(16 + 4 * (total // CHUNK_BYTES)):
                if have == total:
                    return digest
                file.seek(have)
                have = self._put(digest, total, have, file.read(CHUNK_BYTES))
        raise BackendError(f"{self.name} does not take a file of {total} bytes", CHECK)

    def _put(self, digest: str, total: int, offset: int, block: bytes) -> int:
        fields = {"digest": digest, "total": total, "offset": offset}
        have = self.call("put", fields, block, limit=0)[0].get("have")
        if type(have) is not int or not 0 <= have <= total:
            raise BackendError(f"{self.name} has {have!r} of {total} bytes of a file", CHECK)
        return have

    def download(self, digest: object, size: object) -> bytes:
        """Return a blob of `size` bytes; `BackendError` if what arrives is something else."""
        if not isinstance(digest, str) or not DIGEST.match(digest) or type(size) is not int:
            raise BackendError(f"{self.name} names a file without digest and size", CHECK)
        data = bytearray()
        while len(data) < size:
            length = min(CHUNK_BYTES, size - len(data))
            fields = {"digest": digest, "offset": len(data), "length": length}
            block = self.call("get", fields, limit=length)[1]
            if not block:
                break
            data += block
        if len(data) != size or "sha256:" + hashlib.sha256(data).hexdigest() != digest:
            raise BackendError(f"{self.name} sent a file that does not have its digest", CHECK)
        return bytes(data)

    def clean(self, end_jobs: bool = False) -> int:
        """Delete all files there; return their bytes. `ResourceError` if a job runs and may not end."""
        removed = self.call("clean", {"end_jobs": end_jobs}, limit=0)[0].get("removed_bytes")
        if type(removed) is not int or removed < 0:
            raise BackendError(f"{self.name} says that it deleted {removed!r} bytes", CHECK)
        return removed

    def job(
        self,
        job: Mapping[str, Any],
        key: str | None = None,
        log: Show = lambda _: None,
        waiting: Show = lambda _: None,
        limit_s: float = math.inf,
    ) -> Answer:
        """Start a job, or join the one of this key (by default `key_of` it); return its result.

        `log` gets the job's log as it grows: text of the device, which may hold control characters.
        `waiting` gets who has the device while the job waits for it, which is printed too. An
        interrupted job goes on, and the same one joins it; one with a `nonce`, which no other can
        join, is cancelled. So is one that runs longer than `limit_s` seconds: `ResourceError`.
        """
        key = key or key_of(job)
        self.call("start", {"key": key, "job": dict(job)}, limit=0)
        try:
            return self._follow(key, log, waiting, limit_s)
        except KeyboardInterrupt:
            if "nonce" in job:
                with suppress(TrtcalError):
                    self.call("cancel", {"key": key}, limit=0)
            raise

    def _follow(self, key: str, log: Show, waiting: Show, limit_s: float) -> Answer:
        decoder, offset = codecs.getincrementaldecoder("utf-8")("replace"), 0
        ahead, reported, until = "", "", math.inf
        pauses = chain(POLLS_S, repeat(POLL_S))
        while True:
            if is_late := time.monotonic() > until:
                self.call("cancel", {"key": key}, limit=0)
            answer, data = self._poll(key, offset)
            offset += len(data)
            if data:
                log(decoder.decode(data))
            if answer.get("state") == "running":
                until = min(until, time.monotonic() + limit_s)
            if len(data) == LOG_BYTES:
                continue
            if answer.get("state") not in ("queued", "running"):
                return self._result(answer, limit_s if is_late else math.inf)
            before, ahead = ahead, str(answer.get("ahead") or "")
            if ahead == before and ahead not in ("", reported):  # one alone may be the job itself
                reported = ahead
                say_waiting(f"{self.name}: the device is in use by {ahead}")
                waiting(ahead)
            time.sleep(next(pauses))

    def _poll(self, key: str, offset: int) -> tuple[Answer, bytes]:
        answer, data = self.call("poll", {"key": key, "offset": offset}, limit=LOG_BYTES)
        if offset + len(data) > LOG_LIMIT_BYTES:
            size = (offset + len(data)) >> 20
            raise BackendError(f"{self.name} sent a log of over {size} MiB", CHECK)
        return answer, data

    def _result(self, answer: Answer, stopped_s: float) -> Answer:
        if answer.get("state") == "failed":
            error = error_of(answer.get("error"), self.name)
            if stopped_s < math.inf and isinstance(error, ResourceError):
                what = f"the job was stopped after the time limit of {stopped_s:g} s"
                raise ResourceError(what, "raise --time-limit") from error
            raise error
        result = answer.get("result")
        if answer.get("state") != "done" or not isinstance(result, dict):
            raise BackendError(f"{self.name} sent a job's result that is none", CHECK)
        return result


class Channel:
    """One process that is connected to a worker; `was_reached`: the device has answered before."""

    def __init__(self, device: DeviceConfig, name: str, was_reached: bool) -> None:
        self.name, self.number, self.was_reached, self.is_late = name, 0, was_reached, False
        self.complaints: deque[str] = deque(maxlen=20)
        self.host = device.host
        mark = secrets.token_hex(8)
        self.process = subprocess.Popen(  # noqa: S603  # ssh, or the user's Python
            command_of(device, mark),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the command, which then closes this
        )
        self.requests: Any = self.process.stdin
        self.answers: Any = self.process.stdout
        self.drain = threading.Thread(target=self._drain, args=(self.process.stderr,), daemon=True)
        self.drain.start()
        try:
            with self._deadline(START_S):
                self._greet(mark.encode() + b" ")
        except BaseException:
            self.close()
            raise

    def _drain(self, stream: Any) -> None:
        with stream:
            for line in iter(lambda: stream.readline(LINE_BYTES), b""):
                self.complaints.append(_text(line))

    def _greet(self, mark: bytes) -> None:
        """Wait for the worker, and send it if the device does not have it."""
        for _ in range(GREETING_LINES):
            line = self._line()
            if line == mark + b"ready\n":
                return
            if line == mark + b"send\n":
                self._write(pack())
            elif line.startswith(mark):
                raise _not_started(_text(line[len(mark) :]), self.name)
        raise BackendError(f"{self.name} sent {GREETING_LINES} lines that are no worker's", CHECK)

    def exchange(
        self, request: Answer, data: bytes | memoryview, limit: int
    ) -> tuple[Answer, bytes]:
        """Send a request; return the answer and its bytes. `BackendError` if it is none."""
        self.number += 1
        with self._deadline(ANSWER_S):
            with suppress(BrokenPipeError):  # the reason is read below
                write_frame(self.requests, {**request, "id": self.number}, [data])
            answer = self._answer(limit)
            received = self.answers.read(answer["size"])
        if len(received) != answer["size"]:
            raise self._cut()
        return answer, received

    def _answer(self, limit: int) -> Answer:
        try:
            answer = _visible(parse_json(self._line()))
        except ValueError as error:
            raise BackendError(
                f"{self.name} sent an answer that is no JSON: {error}", CHECK
            ) from error
        is_answer = isinstance(answer, dict) and answer.get("id") == self.number
        size = answer.get("size") if is_answer else None
        if not is_answer or type(answer.get("ok")) is not bool or type(size) is not int:
            raise BackendError(f"{self.name} sent something that is no answer", CHECK)
        if not 0 <= size <= limit:
            raise BackendError(f"{self.name} sent {size} bytes, of which {limit} fit", CHECK)
        return dict(answer)

    def _line(self) -> bytes:
        line: bytes = self.answers.readline(LINE_BYTES)
        if line.endswith(b"\n"):
            return line
        if len(line) == LINE_BYTES:
            raise BackendError(f"{self.name} sent a line of over {LINE_BYTES >> 20} MiB", CHECK)
        raise self._cut()

    def _write(self, data: bytes) -> None:
        with suppress(BrokenPipeError):
            self.requests.write(data)
            self.requests.flush()

    @contextmanager
    def _deadline(self, seconds: float) -> Iterator[None]:
        timer = threading.Timer(seconds, self._expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _expire(self) -> None:
        self.is_late = True
        self.process.kill()

    def _cut(self) -> Exception:
        """Return what the end of the stream means: a cut, or that the worker never started."""
        self.close()
        status, reason = self.process.returncode, next(reversed(self.complaints), "")
        reason = "it does not answer" if self.is_late else reason or f"exit status {status}"
        is_known = self.was_reached or self.number > 0
        if self.is_late or is_known or status < 0 or PASSING.search(reason):
            return Cut(reason, self.number > 0)
        return BackendError(f"{self.name} cannot be reached: {reason}", self._hint(status, reason))

    def _hint(self, status: int, reason: str) -> str:
        if status in NO_PYTHON:
            return OTHER_PYTHON
        login = f"`{os.environ.get(PROGRAM, 'ssh')} {shlex.quote(self.host)}`"
        if "host key" in reason.lower():
            return f"log in once with {login}, and compare and accept the host's key"
        if UNREACHED.search(reason):
            return f"check host and port, and that sshd runs there: {login}"
        return f"{login} must log in without a password, and start a shell"

    def close(self) -> None:
        """End the process."""
        for stream in (self.requests, self.answers):
            with suppress(OSError):
                stream.close()
        try:
            self.process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.drain.join(CLOSE_S)


def say_waiting(why: str) -> None:
    """Print that the command waits for the device."""
    from trtcal.cli.output import remark  # only there is -q known

    remark(f"{why}; this command waits")


def key_of(job: Mapping[str, Any]) -> str:
    """Return the key of a job: another one where a newer worker may do it otherwise."""
    return digest_bytes(canonical_json({**job, "worker": digest_bytes(pack())}))


def error_of(fault: object, name: str) -> TrtcalError:
    """Return the error that a worker's answer carries."""
    fields = fault if isinstance(fault, dict) else {}
    message, hint = fields.get("message"), fields.get("hint")
    kind = ERRORS.get(str(fields.get("kind")), BackendError)
    return kind(f"{name}: {message or 'it failed'}"[:TEXT], str(hint or CHECK)[:TEXT])


def _not_started(reason: str, name: str) -> TrtcalError:
    if reason.startswith("python "):
        what = f"{name} has {reason.title()}; the worker needs Python 3.8"
        return BackendError(what, OTHER_PYTHON)
    what = f"{name} cannot start the worker: {reason.removeprefix('error ')}"
    return ResourceError(
        what, "free space there, or name a folder: `trtcal device add ... --folder PATH`"
    )


def _text(line: bytes) -> str:
    return visible(line.decode("utf-8", "replace").strip())[:TEXT]


def _visible(value: Any) -> Any:
    """Return a JSON value whose texts have no control characters."""
    if isinstance(value, dict):
        return {visible(key): _visible(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_visible(item) for item in value]
    return visible(value) if isinstance(value, str) else value


def command_of(device: DeviceConfig, mark: str) -> list[str]:
    """Return the command that connects to a worker."""
    line = remote_line(device, mark)
    if device.host == LOCAL:
        return ["sh", "-c", line]
    program = shlex.split(os.environ.get(PROGRAM, "ssh"))
    options = [*OPTIONS, f"ControlPath={_control_folder()}/%C"]
    return [*program, "-T", *(part for o in options for part in ("-o", o)), "--", device.host, line]


def remote_line(device: DeviceConfig, mark: str) -> str:
    """Return what the device's shell runs; in a container the folder and the lock are those outside."""
    folder, worker = device.folder or FOLDER, pack()
    start = shlex.join([device.python, "-c", BOOT])
    about = shlex.join([hashlib.sha256(worker).hexdigest(), str(len(worker)), mark])
    if not device.container:
        return f"exec {start} {shlex.quote(folder)} {about}"
    home = '"$HOME"/' if folder.startswith("~/") else ""
    place = home + shlex.quote(folder[2:] if home else folder)
    locks = (LOCK_PATH, LOCK_PATH + GATE)
    mounts = " ".join(['-v "$F:$F"', *(f"-v {path}:{path}" for path in locks)])
    first = f'F={place}; mkdir -p "$F"; touch {shlex.join(locks)}; G=$({GPU})'
    run = f"exec docker run --rm -i $G {mounts} {shlex.quote(device.container)}"
    return f'{first}; {run} {start} "$F" {about}'


def _control_folder() -> Path:
    """Return the private folder of the sockets of shared connections, which must have a short path."""
    run = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = Path(run or "/tmp", f"trtcal-ssh-{os.getuid()}")  # noqa: S108  # checked below
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        what = f"{folder} is no private folder of yours"
        raise ResourceError(what, "remove it: connections of ssh are shared there")
    return folder
