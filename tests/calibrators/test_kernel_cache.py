"""Compiled kernels are kept in the user's cache folder: nothing outlives an uninstallation."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import calibrators
from tests.fixtures.tables import each

COMPILE = """
import numpy
from calibrators.counting import warm
from calibrators.imports import Compiled
Compiled.left = -1
warm(numpy.zeros(8, numpy.uint32), 1)
print(sum(warm.kernel.stats.cache_hits.values()))
"""


@pytest.fixture
def site(tmp_path):
    """Return a folder with the package as an installation has it: modules alone."""
    package = Path(calibrators.__file__).parent
    shutil.copytree(package, tmp_path / "site/calibrators", ignore=lambda *_: {"__pycache__"})
    return tmp_path / "site"


def run(site, code, before="", **settings):
    own = {name: one for name, one in os.environ.items() if not name.startswith("NUMBA_")}
    environment = {**own, "PYTHONPATH": str(site), "XDG_CACHE_HOME": str(site.parent / "cache")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", before + code],
        cwd=site.parent,
        env={**environment, **{name: str(value) for name, value in settings.items()}},
        capture_output=True,
        text=True,
    )


def compiled_in(folder):
    return sorted({path.suffix for path in folder.rglob("*.nb?")})


def test_an_installation_gets_no_compiled_kernels_and_the_next_process_has_them(site):
    runs = [run(site, COMPILE) for _ in range(2)]
    assert [(done.stdout, done.stderr) for done in runs] == [("0\n", ""), ("1\n", "")]
    assert compiled_in(site) == []
    assert compiled_in(site.parent / "cache") == [".nbc", ".nbi"]


def test_the_folder_that_the_user_sets_for_numba_is_taken(site):
    assert run(site, COMPILE, NUMBA_CACHE_DIR=site.parent / "mine").returncode == 0
    assert compiled_in(site.parent / "mine") == [".nbc", ".nbi"]
    assert not (site.parent / "cache").exists()


def test_another_packages_code_is_kept_where_numba_keeps_it(site):
    (site / "theirs.py").write_text("from numba import njit\nf = njit(cache=True)(lambda x: x)\n")
    done = run(site, COMPILE + "import theirs\ntheirs.f(1)")
    assert done.stderr == ""
    assert compiled_in(site / "calibrators") == []
    assert compiled_in(site / "__pycache__") == [".nbc", ".nbi"]


FULL = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"


@each("case", ["no folder", "no room"])
def test_kernels_run_where_nothing_can_be_kept(site, case):
    (site.parent / "file").write_text("")
    settings = {"XDG_CACHE_HOME": site.parent / "file"} if case == "no folder" else {}
    done = run(site, COMPILE, FULL if case == "no room" else "", **settings)
    assert (done.returncode, done.stderr) == (0, "")
    assert compiled_in(site.parent) == []


def test_a_folder_that_an_older_trtcal_left_is_named(tmp_path):
    """Kernels lay beside the package; their folder without modules hides the one that is installed."""
    left = tmp_path / "site" / "calibrators"
    (left / "__pycache__").mkdir(parents=True)
    (left / "__pycache__" / "counting.warm-94.py312.1.nbc").write_bytes(b"")
    root = Path(calibrators.__file__).parent.parent
    visible = f"import sys\nsys.path[:] = [p for p in sys.path if p != {str(root)!r}]\n"
    for command in ("doctor", "calibrate"):
        code = f"from trtcal.cli.main import run_command\nsys.exit(run_command({[command]}))"
        done = run(tmp_path / "site", code, visible)
        if done.returncode == 1 and "No module named 'trtcal'" in done.stderr:
            pytest.skip("trtcal is here by its folder alone")
        assert done.returncode == 2
        assert done.stderr.splitlines() == [
            f"error: {left} hides the modules of trtcal",
            "hint: delete this folder, which an uninstalled trtcal left",
        ]
