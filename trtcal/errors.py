"""Every error that trtcal raises on purpose, the exit status that each one becomes, and the version.

    TrtcalError
    ├── GateFailed     1   the work is done and a limit that the user set is broken
    ├── InputError     2   a model, dataset, file, name or option is not usable
    ├── BackendError   3   a builder or runtime failed, crashed, or is not installed
    │   └── NativeCrash    a runtime ends its process with a model, in any process
    ├── ResourceError  4   memory, disk or time ran out
    └── Interrupted  130   the user interrupted the work; the same command starts it again

Anything else that escapes is a defect of trtcal and is reported as one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

__version__ = "0.2.0"
"""The version of trtcal, which stands here so that every room may import it."""

INTERRUPTED = 130
MODEL = "MODEL"
"""Placeholder in hints for the model's path without `.onnx`, where who raises does not know it."""
DATA = "DATA"
"""Placeholder in hints for the path of the data to judge on."""


def some(items: Iterable[str], shown: int = 3) -> str:
    """Return the first few names for a message, and how many more there are.

    >>> some(["a", "b", "c", "d"], shown=2)
    'a, b and 2 more'
    """
    every = list(items)
    more = f" and {len(every) - shown} more" if len(every) > shown else ""
    return ", ".join(every[:shown]) + more


class TrtcalError(Exception):
    """One problem in one sentence (what, where), and a hint that says what to do about it.

    `page` is the page of the documentation that helps, such as "docs/data.md#formats". Without one the
    command line names the page of the module that raised the error; an empty one names none.

    >>> try:
    ...     load_model("missing.onnx")
    ... except TrtcalError as error:
    ...     print(error.message, error.exit_status)
    model missing.onnx does not exist or is not a file 2
    """

    exit_status = 2

    def __init__(self, message: str, hint: str | None = None, page: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.page = page
        if hint and sys.version_info >= (3, 11):
            self.add_note(f"hint: {hint}")  # a traceback and a notebook show it


class GateFailed(TrtcalError):  # noqa: N818  # a broken limit is not an error
    """A limit that the user set is broken; the results are written all the same.

    >>> GateFailed("top1 is -2 points (limit >= -1.0 points)").exit_status
    1
    """

    exit_status = 1


class InputError(TrtcalError):
    """A file, name or option that the user gave is missing, corrupt, or does not fit the rest.

    >>> try:
    ...     calibrate("samples/digits/digits.onnx", "samples/digits/test.npz", "median")
    ... except InputError as error:
    ...     print(error.message)
    unknown method 'median'
    """

    exit_status = 2


class BackendError(TrtcalError):
    """A builder or runtime failed, crashed, or is not installed.

    >>> BackendError("no tensorrt here", "install it").exit_status
    3
    """

    exit_status = 3


class NativeCrash(BackendError):  # noqa: N818  # the field says so
    """A runtime ends its process with a model: `signal` is SIGSEGV or another, `ops` its operators."""

    def __init__(self, message: str, hint: str, signal: str, ops: tuple[str, ...]) -> None:
        super().__init__(message, hint)
        self.signal, self.ops = signal, ops


class ResourceError(TrtcalError):
    """Memory, disk or time ran out.

    >>> ResourceError("the disk is full", "make room").exit_status
    4
    """

    exit_status = 4


class Interrupted(TrtcalError):  # noqa: N818  # to be interrupted is not an error
    """The user interrupted the work; what was done is kept where that is possible."""

    exit_status = INTERRUPTED


def check_choice(value: object, known: Iterable[str | None], problem: str) -> None:
    """`InputError` with a problem and the known names if a value is none of them."""
    if value not in (names := tuple(known)):
        raise InputError(problem, f"choose one of: {', '.join(filter(None, names))}")
