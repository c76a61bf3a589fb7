"""The commit of this trtcal: what `make dist` recorded, or git's where this is a clone."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
DESCRIBE = (
    "-c",
    "core.fsmonitor=",
    "describe",
    "--always",
    "--dirty",
    "--abbrev=12",
    "--exclude=*",
)


def revision(package: Path = PACKAGE) -> str:
    """Return the commit, "-dirty" after it if files are changed; "" for any other copy.

    Git is never asked about another repository, such as one with an environment inside.
    """
    root = package.parent
    with suppress(OSError):
        return (package / "commit.txt").read_text().strip()
    with suppress(OSError, ValueError):
        if (root / ".git").exists() and '\nname = "trtcal"' in (
            root / "pyproject.toml"
        ).read_text():
            own = {name: value for name, value in os.environ.items() if name[:4] != "GIT_"}
            places = f"--git-dir={root / '.git'}", f"--work-tree={root}", "--no-optional-locks"
            command = ["git", *places, *DESCRIBE]
            done = subprocess.run(command, env=own, capture_output=True, text=True)  # noqa: S603
            return done.stdout.strip()
    return ""
