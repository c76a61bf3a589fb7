"""The section of the changelog of a version, which a release's page shows.

It fails where the tag, the version of the sources and the changelog disagree, where the section has no
date, and where `Unreleased` still has entries.

    python -m tests.release.notes v0.2.0
"""

import re
import sys

from tests.release.lock import ROOT
from trtcal.errors import __version__

CHANGELOG = ROOT / "CHANGELOG.md"
HEAD = re.compile(r"^## (\S+)(?: - (.+))?\n", re.MULTILINE)


def main() -> int:
    """Print the section of the tag, or what is wrong; return the exit status."""
    wrong, section = notes(sys.argv[1], __version__, CHANGELOG.read_text())
    for fault in wrong:
        print(f"notes: {fault}", file=sys.stderr)
    print("" if wrong else section)
    return int(bool(wrong))


def notes(tag: str, version: str, changelog: str) -> tuple[list[str], str]:
    """Return what is wrong with a release, and the text below the heading of its version."""
    texts = HEAD.split(changelog)[1:]
    sections = {name: (date, text) for name, date, text in zip(*[iter(texts)] * 3, strict=True)}
    wrong = [] if tag == f"v{version}" else [f"the tag is {tag}, the version {version}"]
    if re.search(r"^- ", sections.get("Unreleased", ("", ""))[1], re.MULTILINE):
        wrong.append(f"CHANGELOG.md has entries under Unreleased: they belong to {version}")
    date, text = sections.get(version, ("", ""))
    if not text.strip():
        wrong.append(f"CHANGELOG.md has no section {version}")
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", date or ""):
        wrong.append(f"CHANGELOG.md: the section {version} has no date such as 2027-01-31")
    return wrong, text.strip()


if __name__ == "__main__":
    sys.exit(main())
