"""The version and commit of this trtcal: as `make dist` recorded it, or as git has it in a clone."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

from trtcal.errors import __version__

PACKAGE = Path(__file__).parent.parent
DESCRIBE = [
    "-c",
    "core.fsmonitor=",
    "describe",
    "--always",
    "--dirty",
    "--abbrev=12",
    "--exclude=*",
]


def version_line(package: Path = PACKAGE) -> str:
    """Return what `trtcal --version` prints; another copy than those above has no commit."""
    commit = ""
    with suppress(OSError, ValueError):
        record = package / "commit.txt"
        commit = (record.read_text() if record.exists() else _described(package.parent)).strip()
    return f"trtcal, version {__version__}{commit and f' (commit {commit})'}"


def _described(root: Path) -> str:
    """Return git's name of the commit; another repository, with an environment in it, is not asked."""
    if (
        not (root / ".git").exists()
        or '\nname = "trtcal"' not in (root / "pyproject.toml").read_text()
    ):
        return ""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", f"--git-dir={root / '.git'}", f"--work-tree={root}", "--no-optional-locks"]
    return subprocess.run([*command, *DESCRIBE], env=own, capture_output=True, text=True).stdout  # noqa: S603
