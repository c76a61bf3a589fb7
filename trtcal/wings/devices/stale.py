"""What in a folder was built on a device before something there was updated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trtcal.documents import is_staging, read_json
from trtcal.documents.streams import command_line
from trtcal.errors import InputError
from trtcal.evidence.manifest import MANIFEST, Build, read_build
from trtcal.runs.bundle.verifying import MANIFEST as BUNDLE
from trtcal.runs.origin import RUN_FILE
from trtcal.wings.devices.backend import build_command, gpu_of
from trtcal.wings.devices.registry import Facts

DEPTH = 8
"""Folders below the one that is searched."""


@dataclass(frozen=True)
class Stale:
    """A run, engine or bundle that is older than what its device has, and what makes it again."""

    kind: str
    path: str
    why: str
    command: str


def find_stale(root: Path, name: str, facts: Facts) -> list[Stale]:
    """Return what in a folder is stale, one entry for each run, bundle and engine of neither."""
    stale: dict[str, Stale] = {}
    for folder in _build_folders(root):
        with suppress(InputError):
            build = read_build(folder)
            if build.target == f"@{name}" and (why := "; ".join(_reasons(build, facts))):
                item = _stale(folder, build, why)
                stale.setdefault(item.path, item)
    return list(stale.values())


def _build_folders(root: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(root):
        is_deep = len(Path(place).relative_to(root).parts) == DEPTH
        shown = (name for name in folders if not (name.startswith(".") or is_staging(name)))
        folders[:] = [] if is_deep else sorted(shown)
        if MANIFEST in files:
            yield Path(place)


def _reasons(build: Build, facts: Facts) -> Iterator[str]:
    """Yield what was updated on the device since a build, as far as the build recorded it."""
    if build.backend != facts.backend:
        yield f"built by {build.backend}, and the device builds with {facts.backend}"
    elif build.backend_version != facts.version:
        yield f"{build.backend} {build.backend_version} -> {facts.version or 'none'}"
    if build.gpu != gpu_of(facts):
        yield f"GPU {build.gpu or 'none'} -> {gpu_of(facts) or 'none'}"
    recorded = build.measured.get("device") or {}
    for item in ("driver", "cuda"):
        before, now = recorded.get(item), getattr(facts.hardware, item)
        if before and before != now:
            yield f"{item} {before} -> {now or 'none'}"


def _stale(folder: Path, build: Build, why: str) -> Stale:
    for parent in folder.parents:
        if (parent / BUNDLE).is_file() and (parent / "engines").is_dir():
            return Stale("bundle", str(parent), why, "run again, then `trtcal bundle` of that run")
        if (parent / RUN_FILE).is_file():
            command = read_json(parent / RUN_FILE).get("command") or command_line("run")
            return Stale("run", str(parent), why, str(command))
    return Stale("engine", str(folder), why, build_command(build))
