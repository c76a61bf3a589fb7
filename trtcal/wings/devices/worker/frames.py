"""Requests and answers: one line of JSON, followed by as many bytes as its `size` says."""

from __future__ import annotations

import errno
import json
import shutil
from typing import Any, BinaryIO, Sequence

from trtcal.errors import TrtcalError

LINE_BYTES = 1 << 20
DATA_BYTES = 1 << 31
BLOCK_BYTES = 1 << 20
FULL_BYTES = 1 << 20
KINDS = {2: "input", 3: "backend", 4: "resource"}  # by exit status


class Fault(Exception):  # noqa: N818  # an error of the device, as an answer carries it
    """One problem as an answer carries it: kind "input", "backend", "resource" or "busy"."""

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.kind, self.message, self.hint = kind, message, hint

    def fields(self) -> dict[str, str]:
        """Return it as JSON has it."""
        return {"kind": self.kind, "message": self.message, "hint": self.hint}


def fault_of(error: BaseException, folder: str) -> Fault:
    """Return what an answer says of any error; a full disk and no memory are resources."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, TrtcalError):
        return Fault(KINDS[error.exit_status], error.message, error.hint or "")
    if isinstance(error, MemoryError):
        return Fault("resource", "the device has no memory left", "end other programs there")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return full_disk(folder)
    if isinstance(error, OSError):
        return Fault("resource", f"the device cannot use its files: {error}")
    return Fault("backend", f"{type(error).__name__}: {error}")


def full_disk(folder: str, needed: int = 0) -> Fault:
    """Return the error of a disk with no room for what is sent or built, of `needed` bytes if known."""
    free = shutil.disk_usage(folder).free >> 20
    lacks = f"has no room for {needed >> 20} MiB" if needed else "is full"
    what = f"the disk of the device {lacks}: {free} MiB are free in {folder}"
    return Fault("resource", what, "free space there, or `trtcal device clean NAME`")


def read_request(source: BinaryIO) -> dict[str, Any] | None:
    """Return a request, None at the end of the stream or where it is cut."""
    line = source.readline(LINE_BYTES)
    return dict(json.loads(line.decode("utf-8"))) if line.endswith(b"\n") else None


def read_data(source: BinaryIO, request: dict[str, Any]) -> bytes:
    """Return the bytes of a request; `EOFError` where they are cut."""
    size = whole(request, "size", DATA_BYTES)
    data = source.read(size)
    if len(data) < size:
        raise EOFError
    return data


def write_frame(target: BinaryIO, fields: dict[str, Any], parts: Sequence[Any] = ()) -> None:
    """Write one answer; `parts` are what its bytes consist of, in order."""
    views = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
    line = json.dumps(dict(fields, size=sum(view.nbytes for view in views)))
    target.write(line.encode("utf-8") + b"\n")
    for view in views:
        target.write(view)
    target.flush()


def whole(request: dict[str, Any], name: str, most: int) -> int:
    """Return a whole number of a request, 0 if it is missing."""
    number = request.get(name, 0)
    if type(number) is not int or not 0 <= number <= most:
        raise Fault("input", f"{name} is {number!r}, not a whole number to {most}")
    return number
