"""Pages of the repository that lie outside docs/, and links that lead there."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import ROOT
from tests.docs.reference.markdown import contents

DOCS = ROOT / "docs"
OUTSIDE = [
    *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    ROOT / "reports" / "README.md",
    *sorted(ROOT.glob("samples/**/*.md")),
]
SAMPLES = """\
# Samples and reports

What lies in the folders `samples` and `reports` of the repository.

"""
FILE = re.compile(r"^(<!--\s*file:\s*(.+?)\s*-->\n(?:<!--.*-->\n)*)```(\w+)\n", re.MULTILINE)
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s#]+)")


def _home(path: Path) -> Path:
    """Return where a page outside docs/ stands in the site."""
    name = "-".join(path.relative_to(ROOT).with_suffix("").parts).lower()
    return DOCS / "reference" / "repository" / f"{name}.md"


HOMES = {path: _home(path) for path in OUTSIDE} | {ROOT / "README.md": DOCS / "index.md"}


def relinked(text: str, source: Path, page: Path) -> str:
    """Return the text of a file as the site's page has it: its links lead to pages of the site."""

    def link(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / found[2]))
        return found[1] + os.path.relpath(HOMES.get(target, target), page.parent)

    return LINK.sub(link, text)


def captioned(text: str) -> str:
    """Return a page in which a block after `<!-- file: NAME -->` has the name as its caption."""
    return FILE.sub(r"\1```{code-block} \3\n:caption: \2\n\n", text)


def pages() -> Iterator[tuple[str, str]]:
    """Yield the pages that lie outside docs/, and the list of those in folders."""
    samples = [_home(path).stem for path in OUTSIDE if path.parent != ROOT]
    yield "repository/samples.md", SAMPLES + contents(samples, ":maxdepth: 1")
    for path in OUTSIDE:
        page = _home(path)
        text = relinked(path.read_text(), path, page)
        yield str(page.relative_to(DOCS / "reference")), text
