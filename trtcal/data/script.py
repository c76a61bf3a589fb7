"""A Python file with `load_data()`, as for `polygraphy run --data-loader-script`.

It is the user's own code, run because the user named it. The whole file is run anew for each pass:
random numbers that are seeded at its top then come out the same, and no pass is kept in memory.
"""

from __future__ import annotations

import contextlib
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtcal.errors import InputError

FUNCTION = "load_data"
YIELDS = "its function must yield one dictionary {input: array} after another"
_END = object()


@dataclass(frozen=True)
class Script:
    """A Python file, and the function in it that gives the feeds."""

    path: Path
    function: str

    def __call__(self) -> Iterator[object]:
        """Run the file and yield what its function yields."""
        with running(self.path, YIELDS):
            hint = f"define {FUNCTION}(), or name another one: --data {self.path}:name"
            items = iter(function_in(self.path, self.function, hint)())
        while True:
            with running(self.path, YIELDS):
                item = next(items, _END)
            if item is _END:
                return
            yield item


def script_named(path: Path) -> Script | None:
    """Return the script if `path` is `file.py` or `file.py:function`, else None."""
    found = re.fullmatch(r"(.*\.py)(?::(\w+))?", str(path), re.DOTALL)
    return Script(Path(found[1]), found[2] or FUNCTION) if found else None


def function_in(path: Path, name: str, hint: str) -> Callable[..., Any]:
    """Run a Python file and return a function of it; `InputError`, with the hint, if it has none."""
    if not path.is_file():
        raise InputError(f"script {path} does not exist or is not a file", "check the path")
    found = runpy.run_path(str(path)).get(name)
    if not callable(found):
        raise InputError(f"script {path} has no function {name!r}", hint)
    function: Callable[..., Any] = found
    return function


@contextlib.contextmanager
def running(path: Path, hint: str) -> Iterator[None]:
    """Let the script import its neighbours, keep its prints off results, and name its mistakes."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (InputError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise _failed(path, error, hint) from error
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _failed(path: Path, error: BaseException, hint: str) -> InputError:
    line = _line(path, error)
    at = f" at line {line}" if line else ""
    text = " ".join(str(error).split())[:300]
    return InputError(
        f"script {path} failed{at}: {type(error).__name__}: {text}", f"mend the script; {hint}"
    )


def _line(path: Path, error: BaseException) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return lines[-1] if lines else None
