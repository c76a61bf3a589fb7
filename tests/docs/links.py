"""Check the links of the site to other sites, if they can be reached: `make links`."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tests.docs.pages import ROOT

PROBE = "https://www.sphinx-doc.org/"
OUT = ROOT / "docs" / "_build" / "links"


def main() -> int:
    """Return 0 if all links work, or if no other site can be reached."""
    if not _reaches(PROBE):
        print(f"links: not checked, {PROBE} cannot be reached")
        return 0
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-b", "linkcheck", "docs", str(OUT)],
        cwd=ROOT,
        check=False,
    )
    broken = [one for one in _results(OUT / "output.json") if one["status"] == "broken"]
    for one in broken:
        print(f"{one['filename']}:{one['lineno']}: {one['uri']}: {one['info']}")
    return 1 if broken else done.returncode


def _reaches(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):  # noqa: S310  # a constant
            return True
    except (urllib.error.URLError, OSError):
        return False


def _results(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    sys.exit(main())
