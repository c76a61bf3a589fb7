"""Run a builder in a child process: it may crash, hang or print what it likes."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any, BinaryIO

from trtcal.backends.worker import ERROR, RAISED, REQUEST
from trtcal.errors import BackendError, InputError, ResourceError, TrtcalError
from trtcal.evidence.log.lines import split_line
from trtcal.evidence.log.rules import in_words
from trtcal.evidence.manifest import LOG
from trtcal.model.isolated import command_of, last_line, signal_name

OURS = re.compile(r"\[([EWIV])\] ?")
SEVERITIES = {"E": "error", "W": "warning", "I": "info", "V": "verbose"}
LONGEST_LINE = 1 << 20


class Transcript:
    """Writes bytes to `text` as they are and, message by message, to `records`.

    A record is `{"seconds": since the start, "severity": ..., "message": ...}` on a line of its own.
    A line without a logger's prefix goes on with the message before it.
    """

    def __init__(
        self, text: BinaryIO, records: BinaryIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._text, self._records, self._clock = text, records, clock
        self._started, self._rest = clock(), b""
        self._seconds, self._severity, self._length = 0.0, "unknown", 0
        self._message: list[str] = []

    def write(self, data: bytes) -> None:
        """Take what the builder wrote, cut anywhere."""
        self._text.write(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._rest) > LONGEST_LINE:
            self._line(self._rest)
            self._rest = b""

    def close(self) -> None:
        """Write out the last message, whole or not."""
        if self._rest:
            self._line(self._rest)
        self._end()

    def _line(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        if ours := OURS.match(text):
            severity, message, begins = SEVERITIES[ours[1]], text[ours.end() :], True
        else:
            prefix, message, begins = split_line(text)
            severity = prefix or "unknown"
        if begins:
            self._begin(severity, message)
        elif self._length + len(text) > LONGEST_LINE:
            self._begin(self._severity, text)
        else:
            self._message.append(text)
        self._length += len(text)

    def _begin(self, severity: str, message: str) -> None:
        self._end()
        self._seconds = round(self._clock() - self._started, 6)
        self._severity, self._message, self._length = severity, [message], 0

    def _end(self) -> None:
        if not self._message:
            return
        message = "\n".join(self._message).rstrip("\n")
        record = {"seconds": self._seconds, "severity": self._severity, "message": message}
        self._records.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        self._message = []


ERRORS_BY_STATUS = {kind.exit_status: kind for kind in (InputError, BackendError, ResourceError)}
MONTH_S = 31 * 24 * 3600
AFTERWARDS_S = 0.5
"""How long output of a dead child is waited for, which a process that it started could hold back."""


_watch: ContextVar[Callable[[bytes], object] | None] = ContextVar("watch", default=None)


@contextmanager
def watching(watch: Callable[[bytes], object]) -> Iterator[None]:
    """Give `watch` all that a builder prints inside the block, while it runs; it must not raise."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def run_worker(module: str, request: dict[str, Any], folder: Path, time_limit_s: float) -> None:
    """Run a module of Python in `folder`; what it prints goes to its log, and as JSON lines beside it.

    `BackendError` with the builder's last error if it fails or is killed by a signal, `ResourceError`
    if it takes longer than `time_limit_s`, and what it gave to `raise_in_parent`.
    """
    (folder / REQUEST).write_text(json.dumps(request))
    started = time.monotonic()
    if not 0 < time_limit_s < MONTH_S:
        what = f"{time_limit_s} s is not a time limit"
        raise InputError(what, "give a number of seconds above 0")
    with transcribing(folder / LOG) as write:
        status = _run(command_of(module, REQUEST), folder, write, time_limit_s)
    measured = {"seconds": round(time.monotonic() - started, 3)}
    (folder / "measured.json").write_text(json.dumps(measured))
    if status:
        raise _failure(status, folder, folder / LOG)


@contextmanager
def transcribing(log: Path) -> Iterator[Callable[[bytes], None]]:
    """Yield what takes a builder's output: it goes to the log, its records, and who is watching."""
    with (
        log.open("wb", buffering=0) as text,
        log.with_suffix(".jsonl").open("wb", buffering=0) as records,
        closing(Transcript(text, records)) as transcript,
    ):

        def write(data: bytes) -> None:
            transcript.write(data)
            if watch := _watch.get():
                watch(data)

        yield write


def _run(
    command: list[str], folder: Path, write: Callable[[bytes], None], time_limit_s: float
) -> int:
    child = subprocess.Popen(  # noqa: S603  # our own interpreter and module
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        env={**os.environ, "TMPDIR": str(folder)},  # it leaves no file elsewhere
    )
    with child:
        try:
            _follow(child, write, time.monotonic() + time_limit_s)
            return child.wait()
        except (TimeoutError, subprocess.TimeoutExpired):
            what = f"the builder was stopped after the time limit of {time_limit_s:g} s"
            raise ResourceError(what, "raise --time-limit") from None
        finally:
            if child.poll() is None:
                child.kill()


def _follow(
    child: subprocess.Popen[bytes], write: Callable[[bytes], None], deadline: float
) -> None:
    """Copy what the child writes until it has ended; `TimeoutError` at the deadline."""
    output: IO[bytes] = child.stdout  # type: ignore[assignment]  # it is a pipe
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while True:
            ended = child.poll() is not None
            ready = selector.select(min(AFTERWARDS_S, max(0.0, deadline - time.monotonic())))
            data = output.read(1 << 16) if ready else b""
            if data:
                write(data)
            elif ended:
                return
            elif ready:  # it closed its output and goes on
                child.wait(max(0.0, deadline - time.monotonic()))
            if time.monotonic() > deadline:
                raise TimeoutError


def _failure(status: int, folder: Path, log: Path) -> TrtcalError:
    hint = "read the build log: `trtcal log` explains its lines"
    if status == -signal.SIGKILL:
        what = f"the builder was killed (SIGKILL); last line: {last_line(log)}"
        why = "the operating system kills programs when memory runs out"
        return BackendError(what, f"{why}: add memory, or give a smaller --workspace")
    if status < 0:
        what = f"the builder crashed ({signal_name(-status)}); last line: {last_line(log)}"
        hint = "read the build log; the last node named there usually causes a crash of the parser"
        return BackendError(what, hint)
    if (folder / RAISED).exists():
        status, message, hint = json.loads((folder / RAISED).read_text())
        return ERRORS_BY_STATUS[status](message, hint)
    error = folder / ERROR
    text = error.read_text() if error.exists() else last_line(log)
    return BackendError(f"the builder failed: {in_words(text)}", hint)
