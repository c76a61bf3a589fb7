"""A wheel in a new environment knows its commit and runs; `tests.release.bare` tries all ways."""

import sys
from pathlib import Path

import click
import pytest

from tests.fixtures.slow import SLOW
from tests.release.bare import UV, WAYS, Place, archives, ended, tried
from tests.release.demo import demo
from tests.release.dist import output
from tests.release.lock import ROOT
from trtcal.cli.revision import DESCRIBE
from trtcal.errors import __version__

REPOSITORY = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository")


@SLOW
@REPOSITORY
def test_an_installed_wheel_knows_its_commit_and_runs(tmp_path):
    """Its dependencies are those of this environment, without the trtcal that is linked there."""
    with archives() as sources:
        place = Place(tmp_path / "place", sys.executable, *sources)
        place.run(*UV, "venv", "--offline", "--python", sys.executable, place.folder)
        python = place.programs / "python"
        place.run(*UV, "pip", "install", "--offline", "--no-deps", "--python", python, place.wheel)
    (site,) = place.folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(str(Path(click.__file__).parent.parent))
    commit = output("git", *DESCRIBE).strip()
    assert ended(place, tmp_path, "--version") == f"trtcal, version {__version__} (commit {commit})"
    assert ended(place, tmp_path, "doctor") == "works"
    assert "missing" not in demo(place.programs, tmp_path / "demo")["verdict"]
    assert not list(site.rglob("*.nb?"))


def test_an_installation_that_fails_is_a_row_that_says_why(tmp_path):
    nothing = tmp_path / "nothing.whl"
    row = tried(
        sys.executable, "uv pip install trtcal.whl", (nothing, nothing, nothing), runs=False
    )
    assert row[4].startswith("fails: ")
    assert set(row[2:4] + row[5:]) == {"-"}
    assert row[1] in WAYS
