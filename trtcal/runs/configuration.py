"""Which configuration a run had: the digest of its file, and the git commit of its folder."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

from trtcal.documents import Document, digest_bytes
from trtcal.documents.bounds import read_bytes

GIT_S = 10.0
HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def configuration_of(path: Path) -> Document:
    """Return `digest` and `commit` of a configuration, and whether it `differs` from that commit's.

    All are None where there is no file; `commit` and `differs` where git has no commit of its folder.
    """
    if not path.is_file():
        return {"digest": None, "commit": None, "differs": None}
    data = read_bytes(path)
    commit = _revision(path.parent, "HEAD")
    found = _revision(path.parent, f"HEAD:./{path.name}") if commit else None
    differs = None if commit is None else _blob(data, len(commit)) != found
    return {"digest": digest_bytes(data), "commit": commit, "differs": differs}


def _revision(folder: Path, name: str) -> str | None:
    """Return the hash that git has for a name; no hook or filter runs for that."""
    command = ["git", "-C", str(folder), "rev-parse", "--verify", "--quiet", name]
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    found = done.stdout.decode("ascii", "replace").strip()
    return found if HASH.fullmatch(found) else None


def _blob(data: bytes, digits: int) -> str:
    """Return the hash under which git keeps a file (its object format: SHA-1, or SHA-256)."""
    made = hashlib.new("sha1" if digits == 40 else "sha256", usedforsecurity=False)
    made.update(b"blob %d\0" % len(data) + data)
    return made.hexdigest()
