"""The current folder is data: no module, configuration or script that lies in it has a say."""

import subprocess
import sys

import pytest

from tests.fixtures.commands import environment
from tests.fixtures.slow import SLOW

INSTALLED = [
    *("numpy", "onnx", "onnxruntime", "numba", "scipy", "click", "yaml", "calibrators", "ray"),
]


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a module of every name that Python has, each of which notes that it ran."""
    place = tmp_path / "data"
    place.mkdir()
    for name in {*sys.stdlib_module_names, *INSTALLED}:
        (place / f"{name}.py").write_text(
            f"open({str(place / 'ran')!r}, 'a').write(__name__ + ' ')"
        )
    (tmp_path / "trtcal").write_text("from trtcal.cli.main import main\nmain()\n")
    return place


def ran(folder, command, *arguments):
    """Run a command line in the folder; return its status, and the modules of the folder that ran."""
    line = [sys.executable, *command, *map(str, arguments)]
    done = subprocess.run(line, cwd=folder, env=environment())
    found = folder / "ran"
    return done.returncode, found.read_text().split() if found.exists() else []


@SLOW
def test_workers_import_nothing_from_the_current_folder(folder, digits):
    words = ("calibrate", digits / "digits.onnx", "--data", digits / "calibration.npz")
    assert ran(folder, [folder.parent / "trtcal"], *words, "--workers", 2) == (0, [])


def test_builders_import_nothing_from_the_current_folder(folder, digits):
    words = ("build", digits / "digits.onnx", "--target", "cpu", "-o", folder.parent / "build")
    assert ran(folder, [folder.parent / "trtcal"], *words) == (0, [])


def test_run_as_a_module_it_takes_nothing_from_the_current_folder_either(folder):
    bare = [sys.executable, "-c", "import runpy, sys; print(*sys.modules)"]
    for name in subprocess.check_output(bare, text=True).split():
        (folder / f"{name}.py").unlink(missing_ok=True)  # Python itself needs them for `-m`
    words = ("log", "--explain", "--json")
    assert ran(folder, ["-m", "trtcal.cli.main"], *words) == (0, [])


def test_no_library_is_configured_by_the_current_folder(tmp_path):
    (tmp_path / "matplotlibrc").write_text("font.size: 3\n")
    (tmp_path / ".numba_config.yaml").write_text("cache_dir: here\n")
    code = (
        "import trtcal.reporting.charts, calibrators.counting, matplotlib\n"
        "calibrators.counting.load_kernels()\n"
        "from numba.core import config; config.reload_config()\n"
        "assert matplotlib.rcParams['font.size'] == 10, 'matplotlib'\n"
        "assert config.CACHE_DIR == '', 'numba'\n"
    )
    assert ran(tmp_path, ["-c", code]) == (0, [])
