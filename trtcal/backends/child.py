"""Run a builder in a child process: it may crash, hang or print what it likes."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

import trtcal
from trtcal.backends.transcript import Transcript
from trtcal.errors import BackendError, InputError, ResourceError, TrtcalError

REQUEST = "request.json"
ERROR = "error.txt"
REFUSAL = "refusal.txt"
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


def run_worker(
    module: str, request: dict[str, Any], folder: Path, log: Path, time_limit_s: float
) -> None:
    """Run `python -m module` in `folder`; what it prints goes to `log`, and as JSON lines beside it.

    `BackendError` with the builder's last error if it fails or is killed by a signal, `InputError`
    if it refuses the request, `ResourceError` if it takes longer than `time_limit_s`.
    """
    (folder / REQUEST).write_text(json.dumps(request))
    started = time.monotonic()
    if not 0 < time_limit_s < MONTH_S:
        raise InputError(f"the time limit is {time_limit_s} s", "give seconds, above 0")
    with (
        log.open("wb", buffering=0) as text,
        log.with_suffix(".jsonl").open("wb", buffering=0) as records,
        closing(Transcript(text, records)) as transcript,
    ):
        status = _run([sys.executable, "-m", module, REQUEST], folder, transcript, time_limit_s)
    measured = {"seconds": round(time.monotonic() - started, 3)}
    (folder / "measured.json").write_text(json.dumps(measured))
    if status:
        raise _failure(status, folder, log)


def _run(command: list[str], folder: Path, transcript: Transcript, time_limit_s: float) -> int:
    child = subprocess.Popen(  # noqa: S603  # our own interpreter and module
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        env=_environment(folder),
    )
    with child:
        try:
            _follow(child, transcript, time.monotonic() + time_limit_s)
            return child.wait()
        except (TimeoutError, subprocess.TimeoutExpired):
            raise ResourceError(
                f"the builder was stopped after {time_limit_s:g} s", "raise --time-limit"
            ) from None
        finally:
            if child.poll() is None:
                child.kill()


def _follow(child: subprocess.Popen[bytes], transcript: Transcript, deadline: float) -> None:
    """Copy what the child writes until it has ended; `TimeoutError` at the deadline."""
    output: IO[bytes] = child.stdout  # type: ignore[assignment]  # it is a pipe
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while True:
            ended = child.poll() is not None
            ready = selector.select(min(AFTERWARDS_S, max(0.0, deadline - time.monotonic())))
            data = output.read(1 << 16) if ready else b""
            if data:
                transcript.write(data)
                if watch := _watch.get():
                    watch(data)
            elif ended:
                return
            elif ready:  # it closed its output and goes on
                child.wait(max(0.0, deadline - time.monotonic()))
            if time.monotonic() > deadline:
                raise TimeoutError


def _environment(folder: Path) -> dict[str, str]:
    """Let the child import the same trtcal, installed or not, and leave no file outside `folder`."""
    home = str(Path(trtcal.__file__).parent.parent)
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **ours, "TMPDIR": str(folder)}


def _failure(status: int, folder: Path, log: Path) -> TrtcalError:
    hint = "read the build log: `trtcal log` explains its lines"
    if status == -signal.SIGKILL:
        return BackendError(
            f"the builder was killed (SIGKILL); last line: {_last_line(log)}",
            "the system kills what takes too much memory: give it more, or a smaller --workspace",
        )
    if status < 0:
        return BackendError(
            f"the builder crashed ({_signal(-status)}); last line: {_last_line(log)}",
            "read the build log; a crash in its parser usually comes from the last node named there",
        )
    if (folder / REFUSAL).exists():
        return InputError((folder / REFUSAL).read_text(), "`trtcal doctor` shows the versions here")
    said = folder / ERROR
    text = said.read_text() if said.exists() else _last_line(log)
    return BackendError(f"the builder failed: {text}", hint)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "(none)")[:300]


def fail(message: str) -> None:
    """In a worker: say in one sentence what went wrong and end."""
    Path(ERROR).write_text(message)
    sys.exit(1)


def refuse(message: str) -> None:
    """In a worker: say in one sentence what of the request can't be done here and end."""
    Path(REFUSAL).write_text(message)
    sys.exit(1)


def read_request() -> dict[str, Any]:
    """In a worker: return the request."""
    request: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    return request
