"""Run a builder in a child process: it may crash, hang or print what it likes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import trtcal
from trtcal.errors import BackendError, InputError, ResourceError

REQUEST = "request.json"
ERROR = "error.txt"
MONTH_S = 31 * 24 * 3600


def run_worker(
    module: str, request: dict[str, Any], folder: Path, log: Path, time_limit_s: float
) -> None:
    """Run `python -m module` in `folder`, everything it prints going to `log`.

    `BackendError` with the builder's last error if it fails or is killed by a signal,
    `ResourceError` if it takes longer than `time_limit_s`.
    """
    (folder / REQUEST).write_text(json.dumps(request))
    started = time.monotonic()
    if not 0 < time_limit_s < MONTH_S:
        raise InputError(f"the time limit is {time_limit_s} s", "give seconds, above 0")
    command = [sys.executable, "-m", module, REQUEST]
    with log.open("wb") as output:
        child = subprocess.Popen(  # noqa: S603  # our own interpreter and module
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=_environment(),
        )
        try:
            status = child.wait(time_limit_s)
        except subprocess.TimeoutExpired:
            raise ResourceError(
                f"the builder was stopped after {time_limit_s:g} s", "raise --time-limit"
            ) from None
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    measured = {"seconds": round(time.monotonic() - started, 3)}
    (folder / "measured.json").write_text(json.dumps(measured))
    if status:
        raise BackendError(*_failure(status, folder, log))


def _environment() -> dict[str, str]:
    """Let the child import the same trtcal, installed or not."""
    home = str(Path(trtcal.__file__).parent.parent)
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}


def _failure(status: int, folder: Path, log: Path) -> tuple[str, str]:
    if status < 0:
        name = signal.Signals(-status).name
        return (
            f"the builder crashed ({name}); last line: {_last_line(log)}",
            "read the build log; a crash in its parser usually comes from the last node named there",
        )
    said = folder / ERROR
    text = said.read_text() if said.exists() else _last_line(log)
    return f"the builder failed: {text}", "read the build log: `trtcal log` explains its lines"


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "(none)")[:300]


def fail(message: str) -> None:
    """In a worker: say in one sentence what went wrong and end."""
    Path(ERROR).write_text(message)
    sys.exit(1)


def read_request() -> dict[str, Any]:
    """In a worker: return the request."""
    request: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    return request
