"""Writes the files that a page's examples begin from: `python -m tests.docs.make NAME`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tests.docs import costly_layer

MAKERS: dict[str, Callable[[Path], None]] = {"costly_layer": costly_layer.make}

if __name__ == "__main__":
    MAKERS[sys.argv[1]](Path())
