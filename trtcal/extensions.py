"""Where other packages join trtcal: entry points, of which none is imported before it is used.

Each group has one interface:

    trtcal.commands   a table of `Command`: commands and sub-commands, with their line in `--help`
    trtcal.loaders    a `trtcal.model.loaders.Loader`: models of other frameworks
    trtcal.journal    a `trtcal.runs.follower.Follower`: what follows a run
    trtcal.workers    a function (job, count) -> workers that observe a model on a cluster
    trtcal.devices    a function (target "@NAME") -> the `trtcal.backends.base.Backend` of a device
    trtcal.measurements  `files`, a function (files, rows, models) -> `reporting.measured.Measured`s of
                      other tools, and `archive`, a function that writes what measures elsewhere
    trtcal.pages      a function (folder of a run, report `Document`, name of the report's page) -> the
                      text of a page that goes beside the report as NAME.html, or None
    trtcal.exporters  a function (bundle `Draft`) -> notes, that adds files for a server
    trtcal.names      an object that stands at `trtcal.NAME`

`trtcal/wings/` has examples of each, which `pyproject.toml` joins. What cannot be imported is left
out, with a warning of one line. `importlib.metadata` finds the same, but takes 0.1 s at each start.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from trtcal.errors import InputError

COMMANDS, LOADERS, JOURNAL = "trtcal.commands", "trtcal.loaders", "trtcal.journal"
WORKERS, EXPORTERS, NAMES = "trtcal.workers", "trtcal.exporters", "trtcal.names"
DEVICES, MEASUREMENTS, PAGES = "trtcal.devices", "trtcal.measurements", "trtcal.pages"


class ExtensionWarning(UserWarning):
    """An extension cannot be imported, and is left out."""


@dataclass(frozen=True)
class Command:
    """A command of an extension: `module` has it as `command`, and `line` is what `--help` says of it.

    `name` is "store", or "history cost" for a sub-command; `section` the heading of a command in
    `trtcal --help`.
    """

    name: str
    line: str
    module: str
    section: str = ""

    def load(self) -> Any:
        """Return the click command; `InputError` if its module cannot be imported."""
        try:
            return import_module(self.module).command
        except Exception as error:
            raise InputError(
                f"the command {self.name!r} cannot be imported: {_reason(error)}",
                f"install the package of {self.module.partition('.')[0]} again",
            ) from error


@cache
def entry_points(group: str) -> dict[str, str]:
    """Return name -> `module:attribute` of a group, those of the package that comes first."""
    points: dict[str, str] = {}
    packages = set[str]()
    for folder in sys.path:
        for package, text in _declarations(folder or "."):
            if package not in packages and f"[{group}]" in text:
                points = {**_section(text, group), **points}
            packages.add(package)
    return points


def _declarations(folder: str) -> Iterator[tuple[str, str]]:
    """Yield each package in a folder of `sys.path`, and the text of its entry points."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info"))]
    except OSError:
        return
    for name in names:
        try:
            with open(f"{folder}/{name}/entry_points.txt", encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError):
            text = ""
        yield name.partition("-")[0].lower(), text


def _section(text: str, group: str) -> dict[str, str]:
    body = text.partition(f"[{group}]\n")[2].partition("\n[")[0]
    pairs = (line.partition("=") for line in body.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def load(group: str, name: str, purpose: str) -> Any:
    """Return one extension; `InputError` if it is not there, which `purpose` (a plural) needs."""
    extension = _loaded(group, name) if name in entry_points(group) else None
    if extension is None:
        raise InputError(
            f"{purpose} need the extension {name!r} of {group}, which is not installed",
            "install trtcal with its wings",
        )
    return extension


def load_all(group: str) -> dict[str, Any]:
    """Return the extensions of a group by their names, without those that cannot be imported."""
    extensions = {name: _loaded(group, name) for name in entry_points(group)}
    return {name: extension for name, extension in extensions.items() if extension is not None}


@cache
def _loaded(group: str, name: str) -> Any:
    module, _, attribute = entry_points(group)[name].partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:
        text = f"extension {name!r} of {group} is left out: {_reason(error)}"
        warnings.warn(text, ExtensionWarning, stacklevel=3)
        return None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(os.linesep)[0]}"
