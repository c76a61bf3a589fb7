"""The core works with trtcal/wings taken away, whether or not its entry points are still declared."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trtcal

ROOT = Path(trtcal.__file__).parent.parent
DIGITS = ROOT / "samples" / "digits"
CORE = sorted(path for path in (ROOT / "trtcal").iterdir() if path.name != "wings")
CUSTOMIZED = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if "__editable__" not in str(one)]
"""
"""Run at the start: an editable install would find a missing wing in this repository."""
IMPORTS = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """Return a folder with trtcal without its wings, and without their entry points."""
    folder = tmp_path_factory.mktemp("core")
    (folder / "trtcal").mkdir()
    for path in CORE:
        (folder / "trtcal" / path.name).symlink_to(path)
    (folder / "calibrators").symlink_to(ROOT / "calibrators")
    (folder / "sitecustomize.py").write_text(CUSTOMIZED)
    (folder / f"trtcal-{trtcal.__version__}.dist-info").mkdir()
    return folder


def python(folder, *words):
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def command(folder, *words):
    return python(folder, "-m", "trtcal.cli.main", *words)


def test_every_module_of_the_core_is_imported(core):
    files = [path for top in CORE for path in (top, *top.rglob("*")) if path.suffix == ".py"]
    modules = [path.relative_to(ROOT).with_suffix("") for path in files]
    names = [".".join(module.parts).removesuffix(".__init__") for module in modules]
    done = python(core, "-c", IMPORTS, *names)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_help_lists_the_commands_of_the_core_alone(core):
    done = command(core, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  compare " in done.stdout
    assert "  store " not in done.stdout


def test_a_run_needs_no_wing(core):
    text = f'model = "{DIGITS / "digits.onnx"}"\noutput = "run"\n'
    text += f'[calibration]\ndata = "{DIGITS / "calibration.npz"}"\nmethods = ["percentile"]\n'
    (core / "trtcal.toml").write_text(text)
    done = command(core, "run", "--no-history", "-q")
    assert done.returncode in (0, 1), done.stderr
    assert (core / "run" / "report.html").exists()
    assert not (core / "run" / "checkpoints.jsonl").exists()
    assert command(core, "verify", "run").returncode == 0


def test_what_needs_a_wing_says_so(core):
    words = ("prepare", DIGITS / "digits.onnx", "-o", "p.onnx", "--checkpoints", "chain")
    for line in (words, ("report", ".", "--price", "1")):
        done = command(core, *line)
        assert done.returncode == 2
        assert "the extension" in done.stderr
    assert command(core, "trace", "show", "run").returncode == 2
    assert python(core, "-c", "import trtcal; trtcal.from_torch").returncode == 1


def test_entry_points_without_their_wings_are_one_line_each(core, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(core, broken, symlinks=True)
    points = "[trtcal.commands]\nfleet = trtcal.wings.fleet:COMMANDS\n"
    (broken / f"trtcal-{trtcal.__version__}.dist-info" / "entry_points.txt").write_text(points)
    done = command(broken, "--help")
    assert done.returncode == 0
    assert "  compare " in done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert "'fleet'" in done.stderr
