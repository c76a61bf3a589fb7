"""Libraries that would read a file of the current folder as they are imported: it is data here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MATPLOTLIB, NUMBA = "matplotlibrc", ".numba_config.yaml"


@contextmanager
def without_file(name: str) -> Iterator[None]:
    """Let what is imported in the block find no file of this relative name."""
    exists = os.path.exists
    os.path.exists = lambda path: path != name and exists(path)
    try:
        yield
    finally:
        os.path.exists = exists


def import_njit() -> Any:
    """Return numba's `njit`; a configuration could name a cache, which is unpickled."""
    with without_file(NUMBA):
        from numba import njit
        from numba.core import config
    config._config_fname = ""  # it is looked for again whenever a function is compiled
    return njit
