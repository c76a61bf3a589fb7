"""The page of the documentation that helps with an error: that of the module that raised it."""

from __future__ import annotations

from pathlib import Path
from traceback import walk_tb

from trtcal.config import read_toml
from trtcal.errors import TrtcalError

PAGES = {
    name if name == "calibrators" else f"trtcal.{name}": page
    for page, names in read_toml(Path(__file__).with_suffix(".toml")).items()
    for name in names.split()
}


def page_of(error: TrtcalError) -> str | None:
    """Return the page for an error: its own, else that of the innermost module that has one."""
    if error.page is not None:
        return error.page
    frames = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    pages = (page_of_module(name) for name in reversed(frames))
    return next((page for page in pages if page), None)


def page_of_module(name: str) -> str | None:
    """Return the page of a module, that of the nearest package above it if it has none of its own."""
    while name and name not in PAGES:
        name = name.rpartition(".")[0]
    page = PAGES.get(name)
    return page and f"docs/{page}"
