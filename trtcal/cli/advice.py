"""The command that is worth running next: the last line on standard error, ready to paste.

What a command made, and from which files, is written down beside the engines that this user built, so
that a later command can name the files of an earlier one.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from trtcal.documents.streams import command_line
from trtcal.errors import TrtcalError

if TYPE_CHECKING:
    from trtcal.cli.options import Options

MADE = "made.jsonl"
_next: list[str] = []  # the command worth running next, if there is one

Files = dict[str, str]


def remember(output: Path, **sources: str | Path | None) -> None:
    """Write down which files something was made from; that this fails stops nothing."""
    from trtcal.documents import append_line, state_path

    known = {name: os.path.abspath(path) for name, path in sources.items() if path is not None}
    with contextlib.suppress(TrtcalError):
        append_line(state_path(MADE), json.dumps({"made": os.path.abspath(output), **known}))


def recall(output: Path) -> Files:
    """Return the files that something was last made from, of those that are still there."""
    from trtcal.documents import state_path
    from trtcal.documents.bounds import read_bytes

    place, sources = os.path.abspath(output), Files()
    with contextlib.suppress(TrtcalError):
        for line in read_bytes(state_path(MADE)).splitlines():
            entry = _entry(line)
            if entry.pop("made", None) == place:
                sources = entry
    return {name: _short(path) for name, path in sources.items() if os.path.exists(path)}


def _entry(line: bytes) -> Files:
    """Return the files of a line, none if it is damaged."""
    from trtcal.documents.bounds import parse_json

    with contextlib.suppress(ValueError):
        entry = parse_json(line)
        if isinstance(entry, dict) and all(isinstance(path, str) for path in entry.values()):
            return entry
    return {}


def _short(path: str) -> str:
    """Return a path as it is typed here: relative, unless it is elsewhere."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def advise(options: Options, *words: str | Path | None, why: str = "") -> None:
    """Keep the command that is worth running next; not with -q and --json, nor if a file is unknown."""
    from trtcal.cli.output import is_quiet, note

    if is_quiet() or getattr(options, "as_json", False) or None in words:
        return
    if why:
        note(f"note: {why}")
    _next[:] = [command_line(*words)]


def say_next(*, is_done: bool = True) -> None:
    """Print the command that was kept, if the work was done, and forget it."""
    if _next and is_done:
        from trtcal.cli.output import note  # `--help` imports nothing heavy

        note(f"next: {_next[0]}")
    _next.clear()


def advise_on_loss(options: Options, reference: Path, variant: Path) -> None:
    """Advise optimizations for a variant that loses too much, or the search if it has them."""
    sources = recall(variant)
    data = sources.get("data")
    if optimizations := sources.get("optimizations"):
        ranges = ("--calibration", sources.get("ranges"), "--data", data)
        advise(options, "search", reference, *ranges, "--optimizations", optimizations)
    else:
        improved = f"{reference.stem}-improved.onnx"
        advise(options, "quantize", reference, "--data", data, "--improve", "fast", "-o", improved)


def advise_samples(needed: int, seen: int) -> None:
    """Say how many more samples would decide what is open."""
    from trtcal.cli.output import note

    more = f"about {needed - seen:,} more samples would settle it, {needed:,} in total"
    note(f"note: undecided: {more}")
