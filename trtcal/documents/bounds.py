"""Bounds of the files that are read: regular, of limited size, depth, growth and time.

`TRTCAL_BOUNDS=4` in the environment makes every bound four times as large. Times are of the processor,
so that neither a slow disk nor a busy machine counts.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trtcal.errors import InputError, ResourceError

VARIABLE = "TRTCAL_BOUNDS"
MB = 1_000_000
FILE_BYTES = 256 * MB
ARRAYS_BYTES = 1 << 40  # arrays are read from their files piece by piece
DEPTH = 100  # lists and objects inside one another
UNPACKED_BYTES, GROWTH = 256 * MB, 100  # what expands to more, and by more, is refused
FIRST_S, S_PER_MB = 5.0, 2.0
PAGE = "docs/threats.md#bounds"
AGAIN_S = 0.1  # a reader that catches everything is stopped once more
SUSPECT = re.compile(r"\d{19}|[eE]\+?0*[1-9]\d{2}")  # only then is each number looked at
INTEGERS = range(-(2**63), 2**64)


def scaled(bound: float) -> float:
    """Return a bound times what `TRTCAL_BOUNDS` says; `InputError` if that is no number above 0."""
    text = os.environ.get(VARIABLE, "1")
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        what = f"{VARIABLE} is {text!r}, not a number above 0"
        raise InputError(what, "set it to a number, such as 4", PAGE)
    return bound * factor


def raising(what: str = "bounds") -> str:
    """Return the hint on how to raise a bound."""
    return f"if you trust the file, set {VARIABLE}=10 for {what} ten times as large"


def check_file(path: Path, most: int = FILE_BYTES, hint: str = "check the path") -> int:
    """Return a file's size in bytes; `InputError` if it is missing, not regular, or too large."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", hint) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}", "check the path") from error
    if not stat.S_ISREG(status.st_mode):
        what = f"{path} is not a regular file"
        raise InputError(what, "give a file, not a folder, pipe or device")
    if status.st_size > scaled(most):
        text = f"{path} has {status.st_size / MB:.0f} MB, the bound is {scaled(most) / MB:.0f} MB"
        raise InputError(text, raising(), PAGE)
    return status.st_size


def read_bytes(path: Path, most: int = FILE_BYTES) -> bytes:
    """Return the bytes of a file; `InputError` if it cannot be read within bounds."""
    check_file(path, most)
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "check the path") from error


def check_growth(where: object, packed: int, unpacked: int) -> None:
    """Raise `InputError` if so many bytes (`unpacked`) are too many to come of so few (`packed`)."""
    free, growth = scaled(UNPACKED_BYTES), scaled(GROWTH)
    if unpacked > free and unpacked > growth * packed:
        what = f"{where} expands from {packed / MB:.3g} to {unpacked / MB:.0f} MB"
        bound = f"over {free / MB:.0f} MB the bound is {growth:.0f} times"
        raise InputError(f"{what}; {bound}", raising(), PAGE)


def parse_json(data: bytes | str, strict: bool = True) -> Any:
    """Return a JSON value; `ValueError` if it is none, too deep, or has numbers that none can hold.

    Other tools are not `strict`: they write any encoding, control characters in strings, any number.
    """
    if isinstance(data, bytes):
        data = data.decode("utf-8" if strict else json.detect_encoding(data), "surrogatepass")
    hooks: dict[str, Any] = {"parse_constant": _no_constant} if strict else {}
    if strict and SUSPECT.search(data):
        hooks |= {"parse_int": _integer, "parse_float": _number}
    try:
        value = json.loads(data, strict=strict, **hooks)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    check_depth(value)
    return value


TOO_DEEP = f"it is nested more than {DEPTH} deep"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _integer(text: str) -> int:
    if len(text) > 20 or int(text) not in INTEGERS:
        raise ValueError(f"the number {text[:30]} has more than 64 bits")
    return int(text)


def _number(text: str) -> float:
    if abs(float(text)) == float("inf"):
        raise ValueError(f"the number {text[:30]} is too large")
    return float(text)


def check_depth(value: object) -> None:
    """Raise `ValueError` if lists and objects are nested too deep."""
    pending = [(value, 1)]
    while pending:
        holder, depth = pending.pop()
        items = holder.values() if isinstance(holder, dict) else holder
        if depth > DEPTH:
            raise ValueError(TOO_DEEP)
        for item in items if isinstance(holder, (dict, list)) else ():  # type: ignore[attr-defined]
            if isinstance(item, (dict, list)):
                pending.append((item, depth + 1))


def seconds_for(size: float) -> float:
    """Return how many seconds a reader may take for so many bytes."""
    return scaled(FIRST_S + S_PER_MB * size / MB)


def too_slow(where: object, size: float) -> ResourceError:
    """Return the error for a file that takes too long."""
    text = f"{where} takes over {seconds_for(size):.0f} s to read, the bound for {size / MB:.3g} MB"
    return ResourceError(text, raising(), PAGE)


class Clock:
    """The time that a reader takes; `check` after each block raises `ResourceError` over the bound."""

    def __init__(self, where: object) -> None:
        self.where, self.size, self.started = where, 0, time.process_time()

    def check(self, size: int) -> None:
        """Count bytes that were read."""
        self.size += size
        if time.process_time() - self.started > seconds_for(self.size):
            raise too_slow(self.where, self.size)


@contextmanager
def in_time(where: object, size: float) -> Iterator[None]:
    """Raise `ResourceError` if the block takes longer than a reader may for so many bytes.

    It needs a timer of the main thread that nobody else uses; elsewhere there is no such bound.
    """
    if not _has_timer():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise too_slow(where, size)

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds_for(size), AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)


def _has_timer() -> bool:
    is_main = threading.current_thread() is threading.main_thread()
    is_there = is_main and hasattr(signal, "setitimer")
    return is_there and signal.getsignal(signal.SIGVTALRM) == signal.SIG_DFL
