"""The version has one place, a release's tag agrees with it, and `--version` names the commit."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import trtcal
from tests.fixtures.commands import succeed
from tests.fixtures.slow import SLOW
from tests.release.lock import ROOT
from tests.release.versions import version_faults
from trtcal.cli.revision import version_line
from trtcal.errors import __version__

GIT = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
PLAIN = f"trtcal, version {__version__}"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## Unreleased\n\n## 1.2.0 - 2026-01-01\n"
    )
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2.0\n")
    return tmp_path


def test_a_release_is_tagged_with_its_version_which_has_a_section(root):
    assert version_faults("1.2.0", ["v1.2.0", "nightly"], root) == []
    assert version_faults("1.3.0", [], root) == []  # no release
    assert version_faults("1.3.0", ["nightly", "v1.2.0"], root) == [
        "tag v1.2.0 is not v1.3.0",
        "CHANGELOG.md has no section of 1.3.0",
        "CITATION.cff has version 1.2.0, not 1.3.0",
    ]
    assert version_faults("1.2.0", ["v1.2.0", "v1.2.0rc1"], root) == ["tag v1.2.0rc1 is not v1.2.0"]


def test_the_version_is_written_in_one_module():
    assert trtcal.__version__ == __version__
    written = re.compile(rf"\b{re.escape(__version__)}\b")
    files = [*(ROOT / "trtcal").rglob("*.py"), *(ROOT / "calibrators").rglob("*.py")]
    having = [path for path in files if written.search(path.read_text(encoding="utf-8"))]
    assert having == [ROOT / "trtcal" / "errors.py"]
    assert not written.search((ROOT / "pyproject.toml").read_text())


@pytest.fixture
def clone(tmp_path):
    """Return a folder with a repository of trtcal's layout, and the name of its commit."""
    (tmp_path / "trtcal").mkdir()
    (tmp_path / "trtcal" / "errors.py").write_text("")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "trtcal"\n')
    return tmp_path


def git(folder, *words):
    own = {name: one for name, one in os.environ.items() if not name.startswith("GIT_")}
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", *who, "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=own).stdout


def committed(folder):
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "x")
    return git(folder, "rev-parse", "HEAD")[:12]


@GIT
def test_a_clone_names_its_commit_and_whether_files_are_changed(clone, monkeypatch):
    commit = committed(clone)
    monkeypatch.setenv("GIT_DIR", str(clone / "elsewhere"))  # as in a hook of another repository
    assert version_line(clone / "trtcal") == f"{PLAIN} (commit {commit})"
    (clone / "trtcal" / "errors.py").write_text("changed")
    assert version_line(clone / "trtcal") == f"{PLAIN} (commit {commit}-dirty)"


@GIT
@pytest.mark.parametrize("case", ["site-packages", "vendored", "unpacked"])
def test_no_other_repository_is_asked(clone, tmp_path, case):
    """An environment in a project, a copy among a project's files, an archive without a repository."""
    package = clone / "trtcal"
    if case == "vendored":
        (clone / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    if case == "site-packages":
        package = clone / ".venv/lib/site-packages/trtcal"
        shutil.copytree(clone / "trtcal", package)
    if case != "unpacked":
        committed(clone)
    assert version_line(package) == PLAIN


@GIT
def test_what_a_build_recorded_is_taken_before_any_repository(clone):
    committed(clone)
    (clone / "trtcal" / "commit.txt").write_text("0123456789ab\n")
    assert version_line(clone / "trtcal") == f"{PLAIN} (commit 0123456789ab)"


def test_without_git_a_clone_has_no_commit(clone, monkeypatch):
    (clone / ".git").mkdir()
    monkeypatch.setenv("PATH", "")
    assert version_line(clone / "trtcal") == PLAIN


def test_the_command_prints_version_and_commit(capsys):
    assert succeed(capsys, "--version") == f"{version_line()}\n"
    assert version_line().startswith(f"trtcal, version {__version__}")


@SLOW
def test_an_archive_carries_what_is_recorded(tmp_path):
    """The build takes the record from the folder of the package, as `make dist` writes it."""
    tree = tmp_path / "tree"
    package = tree / "trtcal"
    package.mkdir(parents=True)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in (
        "trtcal/wings/fleet/templates/uplot.LICENSE",
        "trtcal/wings/graph/templates/dagre.LICENSE",
        "trtcal/__init__.py",
        "trtcal/errors.py",
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    (package / "commit.txt").write_text("0123456789ab\n")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, tree]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = Path(tmp_path).glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:  # built from the source distribution
        assert archive.read("trtcal/commit.txt") == b"0123456789ab\n"
