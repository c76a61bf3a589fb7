"""How a module of Python is run in a process of its own: what it knows, and how it is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import trtcal

ISOLATED = "-I"
START = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""What a child begins with: it knows the modules that its parent knows, none of the current folder."""


def command_of(module: str, *arguments: str) -> list[str]:
    """Return the line that runs a module with this trtcal, installed or not, and keeps no bytecode."""
    home = str(Path(trtcal.__file__).parent.parent)
    paths = [*(os.path.abspath(one) for one in sys.path if one), home]
    return [sys.executable, ISOLATED, "-B", "-c", START, json.dumps(paths), module, *arguments]


def run_module(
    module: str, folder: Path, limit_s: float, environment: dict[str, str]
) -> tuple[int, str]:
    """Run a module in a folder; return its status, and the end of what it printed.

    `subprocess.TimeoutExpired` after `limit_s` seconds; no process of its group outlives this call.
    """
    log = folder / "log.txt"
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
            status = child.wait(limit_s)
        finally:
            _end(child)
    return status, _tail(log)


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.kill()
    child.wait()


def _tail(log: Path, most: int = 4096) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - most))
        return file.read().decode("utf-8", "replace")
