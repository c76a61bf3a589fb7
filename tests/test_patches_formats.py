"""The patches of docs/patches that add a precision and a backend: few files, and they work."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATCHES = ROOT / "docs" / "patches"
MOST_FILES = {"precision": 3, "backend": 4}
DIGITS = ROOT / "samples" / "digits"
PRECISION = """
from trtcal.cli.main import run_command
from trtcal.formats import NARROW
from trtcal.model import load_model
from trtcal.quantization.qdq import asked_precisions

assert "e5m2" in NARROW
assert run_command("calibrate {0}/digits.onnx --data {0}/calibration.npz -q".split()) == 0
line = "quantize {0}/digits.onnx --precision e5m2 --calibration calibration.json -o narrow.onnx -q"
assert run_command(line.split()) == 0
asked = asked_precisions(load_model("narrow.onnx").proto)
assert {{*asked.values()}} == {{"e5m2", "fp32"}}, asked
line = "compare {0}/digits.onnx narrow.onnx --data {0}/test.npz --rounds 2 -q --limit top1>=-3.0"
assert run_command(line.split()) == 0
assert run_command("build narrow.onnx --target sm86 -o build -q".split()) == 2
assert run_command("build narrow.onnx --target cpu -o build -q".split()) == 0
"""
BACKEND = """
import shutil

from trtcal.cli.main import run_command

shutil.copyfile("{0}/digits.onnx", "float.onnx")
assert run_command("build float.onnx --target mirror -o build -q".split()) == 0
assert run_command("diagnose build -q".split()) == 0
line = "compare {0}/digits.onnx build --data {0}/test.npz --rounds 2 -q --limit agreement>=99.0"
assert run_command(line.split()) == 0
assert run_command("build {0}/digits.onnx --backend mirror --target sm89 -o other -q".split()) == 2
"""
SCRIPTS = {"precision": PRECISION, "backend": BACKEND}


def changed(patch):
    return re.findall(r"^\+\+\+ b/(.+)$", patch.read_text(), re.MULTILINE)


def apply(patch, tree, *options):
    subprocess.run([shutil.which("git"), "apply", *options, patch], cwd=tree, check=True)


def contents(tree):
    return {
        str(path.relative_to(tree)): path.read_bytes()
        for path in tree.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_patch_adds_it_in_few_files_and_it_works_end_to_end(name, tmp_path):
    patch, tree = PATCHES / f"{name}.patch", tmp_path / "tree"
    for folder in ("trtcal", "calibrators"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
    before = contents(tree)
    assert 0 < len(changed(patch)) <= MOST_FILES[name]
    apply(patch, tree)
    place = tmp_path / "place"
    place.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "XDG_STATE_HOME": str(place),
    }
    script = SCRIPTS[name].format(DIGITS)
    subprocess.run([sys.executable, "-c", script], cwd=place, env=environment, check=True)
    apply(patch, tree, "--reverse")
    assert contents(tree) == before
