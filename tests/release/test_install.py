"""`.ci/install` takes what the lock names or says so, and never takes a changed package."""

import os
import platform
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.fixtures.slow import SLOW
from tests.fixtures.tables import each
from tests.release.lock import ROOT
from trtcal.config import tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["rtx"]]

COVERED = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="the lock is for x86-64"
)


@pytest.fixture
def tree(tmp_path):
    """Make a tree with a lock and an index of one package, whose digest is not the locked one."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "install", tmp_path / ".ci")
    with zipfile.ZipFile(tmp_path / "packaging-1.0-py3-none-any.whl", "w") as wheel:
        info = "packaging-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: packaging\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return tmp_path


def install(tree, python=sys.executable, what=(), **settings):
    own = {name: one for name, one in os.environ.items() if name != "LOCKED"}
    environment = {**own, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tree), **settings}
    command = [tree / ".ci" / "install", python, *what]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def lock(tree, version):
    text = f"packaging=={version} \\\n    --hash=sha256:{'0' * 64}\n    # via trtcal\n"
    (tree / "requirements.lock").write_text(text)


@SLOW
@COVERED
@pytest.mark.parametrize("locked", ["", "1"])
def test_a_package_that_is_not_the_locked_one_stops_everything(tree, locked):
    lock(tree, "1.0")
    run = install(tree, LOCKED=locked)
    assert run.returncode == 1
    assert "nothing was taken in its place" in run.stderr
    assert "no hash is checked" not in run.stderr


@SLOW
@COVERED
def test_ci_takes_locked_packages_or_none(tree):
    lock(tree, "2.0")
    run = install(tree, LOCKED="1")
    assert run.returncode == 1
    assert "LOCKED=1 allows only locked packages." in run.stderr


def noting(tree, platform):
    """Write a Python of a platform, which notes what it is asked to do and lacks TensorRT-RTX."""
    python = tree / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && echo {platform} CPython 3.12.1 && exit\n'
        f'echo "$*" >> {tree}/asked\nfor last; do :; done\n'
        f'case "$*" in *.needed) cat "$last" > {tree}/named;; *rtx*) exit 1; esac\n'
    )
    python.chmod(0o755)
    return python


@each(
    "what,extras",
    [
        ((), ["-e .[dev,rtx]", "-e .[dev]"]),
        (["demo"], ["-e .[rtx]", "-e ."]),
        (["copy"], ["--no-compile ."]),
    ],
)
def test_where_the_lock_does_not_apply_the_newest_are_taken_and_a_line_says_so(tree, what, extras):
    run = install(tree, noting(tree, "Darwin arm64"), what)
    assert run.returncode == 0
    assert "does not cover Darwin arm64" in run.stderr
    assert "no hash is checked" in run.stderr
    asked = (tree / "asked").read_text().splitlines()
    (tree / "asked").unlink()
    assert [" ".join(line.split()[-2:]) for line in asked] == ["--upgrade pip", *extras]


@each("what,needed", [("demo", NEEDED), ("copy", PROJECT["dependencies"])])
def test_the_demo_and_images_take_from_the_lock_what_trtcal_needs(tree, what, needed):
    lock(tree, "1.0")
    shutil.copy(ROOT / "pyproject.toml", tree)
    assert install(tree, noting(tree, "Linux x86_64"), [what]).returncode == 0
    *_, line, own = (tree / "asked").read_text().splitlines()
    assert "--require-hashes --constraint requirements.lock" in line
    assert (tree / "named").read_text().splitlines() == needed
    assert own.endswith("--no-deps -e ." if what == "demo" else "--no-deps .")
