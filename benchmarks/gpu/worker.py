"""The modules that are sent to a device, here alone: `import trtcal.wings` would need all of trtcal."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[2] / "trtcal/wings/devices"


def module(name: str) -> Any:
    """Return a module of the worker, which needs the standard library only."""
    if str(HOME) not in sys.path:
        sys.path.append(str(HOME))
    return import_module(f"worker.{name}")
