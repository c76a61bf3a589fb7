"""Which engines this user's trtcal has built: the evidence that a manifest is ours."""

from __future__ import annotations

import json
import os
from pathlib import Path

from trtcal.documents import append_line
from trtcal.errors import TrtcalError

FILE = "engines.jsonl"


def ledger_path() -> Path:
    """Return where engines are written down: `$XDG_STATE_HOME/trtcal`, else `~/.local/state/trtcal`."""
    state = os.environ.get("XDG_STATE_HOME", "")
    home = Path(state) if os.path.isabs(state) else Path(os.path.expanduser("~/.local/state"))
    return home / "trtcal" / FILE


def record_engine(engine: str, manifest: str) -> str | None:
    """Write down the digests of an engine and its manifest; return why not if that fails."""
    try:
        append_line(ledger_path(), _line(engine, manifest))
    except TrtcalError as error:
        return error.message
    return None


def is_recorded(engine: str, manifest: str) -> bool:
    """Whether `record_engine` wrote this pair down."""
    wanted = _line(engine, manifest)
    try:
        with ledger_path().open(encoding="utf-8", errors="replace") as file:
            return any(line.rstrip("\n") == wanted for line in file)
    except OSError:
        return False


def _line(engine: str, manifest: str) -> str:
    return json.dumps({"engine": engine, "manifest": manifest})
