"""The version that a release has: the same in the package, its tag, CHANGELOG.md and CITATION.cff."""

import re
from pathlib import Path
from typing import Any

from tests.release.lock import ROOT
from trtcal.config import tomllib

TAG = re.compile(r"v\d+(\.\d+)*(\S*)")


def version_faults(version: str, tags: list[str], root: Path) -> list[str]:
    """Return what contradicts a version, for the tags of a commit and the files beside it.

    Only a commit with a tag such as v1.2.0 is a release: another one may be of a version to come.
    """
    releases = [tag for tag in tags if TAG.fullmatch(tag)]
    wrong = [f"tag {tag} is not v{version}" for tag in releases if tag != f"v{version}"]
    sections = re.findall(r"^## (\S+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if releases and version not in sections:
        wrong.append(f"CHANGELOG.md has no section of {version}")
    cited = re.findall(r"^version: (\S+)", (root / "CITATION.cff").read_text(), re.MULTILINE)
    if releases and cited != [version]:
        wrong.append(f"CITATION.cff has version {', '.join(cited) or 'none'}, not {version}")
    return wrong


def project() -> dict[str, Any]:
    """Return the table `project` of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table
