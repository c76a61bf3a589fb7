"""Running a user's Python file: it can import its neighbours, and its mistakes are `InputError`s.

Whether a file may run at all is `trtcal.config.Config.check_trusted`'s question.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trtcal.documents.streams import to_errors
from trtcal.errors import InputError


def run_file(path: Path) -> dict[str, Any]:
    """Run a Python file and return its globals; `InputError` if there is none."""
    if not path.is_file():
        raise InputError(f"script {path} does not exist or is not a file", "check the path")
    return runpy.run_path(str(path))


def function_in(path: Path, name: str, hint: str) -> Callable[..., Any]:
    """Run a Python file and return a function of it; `InputError`, with the hint, if it has none."""
    function: Callable[..., Any] | None = run_file(path).get(name)
    if not callable(function):
        raise InputError(f"script {path} has no function {name!r}", hint)
    return function


@contextlib.contextmanager
def running(path: Path, hint: str) -> Iterator[None]:
    """Let the script import its neighbours, keep its prints off results, and name its mistakes."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        with to_errors():
            yield
    except (InputError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _failed(path, error, hint) from error
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _failed(path: Path, error: BaseException, hint: str) -> InputError:
    line = _line(path, error)
    at = f" at line {line}" if line else ""
    text = " ".join(str(error).split())[:300]
    return InputError(
        f"script {path} failed{at}: {type(error).__name__}: {text}", f"correct the script; {hint}"
    )


def _line(path: Path, error: BaseException) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return lines[-1] if lines else None
