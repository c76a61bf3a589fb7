"""The lock of the device, which all its users share: who has it computes.

Jobs have it alone, single runs share it. The system frees it when the last process ends that has it. A
gate stands before it: who waits for the lock waits in the gate, so that runs which follow each other
closely let a job pass.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from typing import Any, Callable, Iterator

from . import machine
from .frames import Fault

VARIABLE = "TRTCAL_DEVICE_LOCK"
LOCK_PATH = "/tmp/trtcal-device.lock"  # noqa: S108  # one for all users; opened as such
GATE = ".gate"
HOLDER_BYTES = 1 << 10
LONGEST_PAUSE_S = 0.2


def lock_path() -> str:
    """Return the path of the lock: that in `TRTCAL_DEVICE_LOCK`, else one for the whole device."""
    return os.environ.get(VARIABLE, LOCK_PATH)


def pauses() -> Iterator[None]:
    """Sleep before each item, longer from one to the next."""
    pause_s = 0.005
    while True:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        yield


@contextlib.contextmanager
def turn(
    kind: str = "", wait_s: float = float("inf"), check: Callable[[], None] = lambda: None
) -> Iterator[int]:
    """Wait for the device and hold it: alone for a `kind` of job, else shared with those who share.

    `check` is called while it waits, and may raise. A busy error after `wait_s`.
    """
    ends = time.monotonic() + wait_s
    gate = _wait(lock_path() + GATE, fcntl.LOCK_EX, ends, check)
    try:
        handle = _wait(lock_path(), fcntl.LOCK_EX if kind else fcntl.LOCK_SH, ends, check)
    finally:
        os.close(gate)
    try:
        if kind:
            _sign(handle, {"user": machine.user(), "kind": kind, "since": time.time()})
        yield handle
        if kind:
            _sign(handle, {})
    finally:
        os.close(handle)


def _wait(path: str, how: int, ends: float, check: Callable[[], None]) -> int:
    handle, waits = _take(path, how), pauses()
    while handle is None:
        check()
        if time.monotonic() > ends:
            raise Fault("busy", f"the device is in use by {holder() or 'others'}")
        next(waits)
        handle = _take(path, how)
    return handle


def _take(path: str, how: int) -> int | None:
    """Return a lock if it is free, None if others have it."""
    with contextlib.suppress(FileNotFoundError):  # removed since it was opened
        handle = _open(path)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(handle, how | fcntl.LOCK_NB)
            if os.fstat(handle).st_ino == os.stat(path).st_ino:
                return handle
        os.close(handle)
    return None


def _open(path: str) -> int:
    """Return a lock file, which any user may have created, open for reading and writing."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        os.fchmod(handle, 0o666)  # whatever the umask of who came first
    except FileExistsError:  # without O_CREAT: the system refuses it for files of others in /tmp
        handle = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise Fault("resource", f"{path} on the device is not a file", "remove it there")
    return handle


def _sign(handle: int, about: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a full disk, which says less then
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(about).encode(), 0)


def holder() -> str:
    """Return who had the device last, as they wrote it; nothing if nobody did."""
    try:
        with open(lock_path(), "rb") as file:
            about = json.loads(file.read(HOLDER_BYTES).decode())
        since = time.strftime("%H:%M", time.localtime(float(about["since"])))
        return f"{about['user']} ({about['kind']}, since {since})"
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return ""


def remove_lock() -> None:
    """Remove the files of the lock if nobody has it; those of another user stay."""
    with contextlib.suppress(OSError, Fault), turn("clean", wait_s=0.0):
        os.unlink(lock_path() + GATE)
        os.unlink(lock_path())
