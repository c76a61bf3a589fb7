"""The typical changes of docs/architecture.md: each patch touches few files and works as it stands."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trtcal
from trtcal.quantization import write_quantized

ROOT = Path(trtcal.__file__).parent.parent
FOLDER = ROOT / "docs" / "patches"
HUNK = re.compile(r"^@@ [^\n]* @@[^\n]*\n", re.MULTILINE)
FILES = {"metric": 2, "limit": 1, "precision": 3, "backend": 4}
"""How many files a change may touch, by the name of its patch."""
HEAD = """
import contextlib, io, shutil
from trtcal.cli.main import run_command

def run(line, status=0):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert run_command(line.split()) == status, line
    return text.getvalue()
"""
COMPARE = "compare digits.onnx {} --data test.npz --rounds 2 --limit {}"
SCRIPTS = {
    "metric": f"""
text = run("{COMPARE.format("int8.onnx", "same_sign>=90")}")
assert "same sign %" in text and "holds" in text
""",
    "limit": """
text = run("build int8.onnx --target cpu -o b --limit failed_tactics==0")
assert "failed_tactics == 0.0" in text and "holds" in text
""",
    "precision": f"""
from trtcal.formats import NARROW
from trtcal.model import load_model
from trtcal.quantization.qdq import asked_precisions

assert "e5m2" in NARROW
run("calibrate digits.onnx --data calibration.npz")
run("quantize digits.onnx --precision e5m2 --calibration calibration.json -o narrow.onnx")
asked = asked_precisions(load_model("narrow.onnx").proto)
assert {{*asked.values()}} == {{"e5m2", "fp32"}}, asked
run("{COMPARE.format("narrow.onnx", "top1>=-3.0")}")
run("build narrow.onnx --target sm86 -o build", 2)
run("build narrow.onnx --target cpu -o build")
""",
    "backend": f"""
shutil.copyfile("digits.onnx", "float.onnx")
run("build float.onnx --target mirror -o build")
run("diagnose build")
run("{COMPARE.format("build", "agreement>=99.0")}")
run("build digits.onnx --backend mirror --target sm89 -o other", 2)
""",
}
"""What only the changed package does, by the name of the patch."""


def hunks_of(text):
    """Return by file the pairs of lines before and after that a unified diff has."""
    files = {}
    for part in re.split(r"^--- (?=a/|/dev/null)", text, flags=re.MULTILINE)[1:]:
        head, *hunks = HUNK.split(part)
        name = re.search(r"^\+\+\+ b/(.*)$", head, re.MULTILINE)[1]
        lines = [
            re.split(r"^diff ", hunk, flags=re.MULTILINE)[0].splitlines(True) for hunk in hunks
        ]
        files[name] = [
            tuple("".join(line[1:] for line in hunk if line[0] in " " + sign) for sign in "-+")
            for hunk in lines
        ]
    return files


def apply(text, folder, backwards=False):
    """Change the files of a folder as a unified diff says, or undo that."""
    for name, hunks in hunks_of(text).items():
        path = folder / name
        content = path.read_text(encoding="utf-8") if path.exists() else ""
        for pair in hunks:
            before, after = reversed(pair) if backwards else pair
            assert content.count(before) == 1 or not before, f"{name}: {before}"
            content = content.replace(before, after, 1) if before else after
        path.write_text(content, encoding="utf-8")
        if not content:
            path.unlink()


def contents(folder):
    return {
        path: path.read_bytes() for path in folder.rglob("*") if path.suffix in (".py", ".toml")
    }


def run(package, name, folder):
    environment = {**os.environ, "PYTHONPATH": str(package), "XDG_STATE_HOME": str(folder)}
    command = [sys.executable, "-c", HEAD + SCRIPTS[name]]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def digits_folder(tmp_path_factory):
    """A folder with the digits sample and its INT8 model."""
    folder = tmp_path_factory.mktemp("digits")
    for name in ("digits.onnx", "calibration.npz", "test.npz"):
        shutil.copy(ROOT / "samples" / "digits" / name, folder)
    model = folder / "digits.onnx"
    int8 = trtcal.quantize(model, trtcal.calibrate(model, folder / "calibration.npz"))
    write_quantized(folder / "int8.onnx", int8)
    return folder


@pytest.fixture
def package(tmp_path):
    """A copy of the package."""
    for name in ("trtcal", "calibrators"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    return tmp_path


def test_every_patch_is_tried():
    assert {path.stem for path in FOLDER.glob("*.patch")} == {*FILES} == {*SCRIPTS}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_typical_change_touches_few_files_and_works(name, package, digits_folder):
    text = (FOLDER / f"{name}.patch").read_text(encoding="utf-8")
    assert 0 < len(hunks_of(text)) <= FILES[name]
    assert run(package, name, digits_folder).returncode, "the package does it without the patch"
    before = contents(package)
    apply(text, package)
    result = run(package, name, digits_folder)
    assert result.returncode == 0, result.stderr
    apply(text, package, backwards=True)
    assert contents(package) == before
