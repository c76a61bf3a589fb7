"""Libraries that would read a file of the current folder as they are imported: it is data here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

MATPLOTLIB, NUMBA = "matplotlibrc", ".numba_config.yaml"
Function = TypeVar("Function", bound=Callable[..., Any])


@contextmanager
def without_file(name: str) -> Iterator[None]:
    """Let what is imported in the block find no file of this relative name."""
    exists = os.path.exists
    os.path.exists = lambda path: path != name and exists(path)
    try:
        yield
    finally:
        os.path.exists = exists


def compiled(function: Function) -> Function:
    """Compile a function with numba, to run without the GIL, and keep the code for the next process.

    A configuration in the current folder could name another place for it, whose files are unpickled.
    """
    with without_file(NUMBA):
        from numba import njit
        from numba.core import config
    config._config_fname = ""  # it is looked for again at every compilation
    return cast("Function", njit(nogil=True, cache=True)(function))
