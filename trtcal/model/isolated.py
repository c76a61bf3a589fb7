"""How a module of Python runs in a process of its own: what it knows, is asked, and how it is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtcal.documents import read_json, write_json
from trtcal.errors import TrtcalError

ISOLATED = "-I"
REQUEST, ANSWER = "request.json", "answer.json"
TAIL_BYTES = 4096  # of a log that are searched for its last line
START = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""What a child begins with: it knows the modules that its parent knows, none of the current folder."""


def command_of(module: str, *arguments: str) -> list[str]:
    """Return the line that runs a module with this trtcal, installed or not, and keeps no bytecode."""
    home = str(Path(__file__).parents[2])
    paths = [*(os.path.abspath(path) for path in sys.path if path), home]
    return [sys.executable, ISOLATED, "-B", "-c", START, json.dumps(paths), module, *arguments]


@dataclass(frozen=True)
class Answer:
    """What a child answered, nothing if it did not come to that; its status, and its last line."""

    found: dict[str, Any]
    status: int
    last_line: str


def ask(
    module: str,
    request: Mapping[str, Any],
    folder: Path,
    limit_s: float,
    environment: Mapping[str, str] | None = None,
) -> Answer:
    """Run a module that calls `answer` in a folder, and return what it found.

    `subprocess.TimeoutExpired` after `limit_s` seconds; no process of its group outlives this call.
    """
    write_json(folder / REQUEST, request)
    log = folder / "log.txt"
    status = _run(module, folder, log, limit_s, environment or {})
    reply = read_json(folder / ANSWER) if (folder / ANSWER).is_file() else {}
    return Answer(reply, status, last_line(log))


def answer(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """In the child: write what `work` makes of the request, or `error` and perhaps `hint`."""
    try:
        reply = work(read_json(Path(REQUEST)))
    except TrtcalError as error:
        reply = {"error": error.message, "hint": error.hint}
    except Exception as error:  # frameworks raise what they like
        reply = {"error": f"{type(error).__name__}: {error}".strip()}
    write_json(Path(ANSWER), reply)


def _run(
    module: str, folder: Path, log: Path, limit_s: float, environment: Mapping[str, str]
) -> int:
    """Return the status of a module, which prints into `log`."""
    with log.open("wb") as output:
        child = subprocess.Popen(  # noqa: S603  # our own interpreter and module
            command_of(module),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment, "TMPDIR": str(folder)},
            start_new_session=True,
        )
        try:
            return child.wait(limit_s)
        finally:
            _end(child)


def signal_name(number: int) -> str:
    """Return the name of a signal, SIGSEGV for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.kill()
    child.wait()


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty, 300 characters at most."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "(none)")[:300]
