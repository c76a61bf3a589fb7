"""The typical changes of docs/architecture.md: each stands in docs/patches and works as it stands."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import trtcal
from trtcal.quantization import write_quantized

ROOT = Path(trtcal.__file__).parent.parent
FOLDER = ROOT / "docs" / "patches"
HUNK = re.compile(r"^@@ [^\n]* @@[^\n]*\n", re.MULTILINE)


@dataclass(frozen=True)
class Change:
    """How many files a change may touch, and a command that only the changed package takes.

    `shown` stands in what the command prints.
    """

    files: int
    command: tuple[str, ...]
    shown: tuple[str, ...]


COMPARED = ("compare", "digits.onnx", "int8.onnx", "--data", "test.npz", "--rounds", "2")
CHANGES = {
    "metric": Change(2, (*COMPARED, "--limit", "same_sign >= 90"), ("same sign %", "holds")),
    "limit": Change(
        1,
        ("build", "int8.onnx", "--target", "cpu", "-o", "b", "--limit", "failed_tactics == 0"),
        ("failed_tactics == 0.0", "holds"),
    ),
}
"""By the name of its patch."""


def changed(text):
    """Return by file the pairs of lines before and after that a unified diff has."""
    files = {}
    for part in re.split(r"^--- a/", text, flags=re.MULTILINE)[1:]:
        head, *hunks = HUNK.split(part)
        name = re.search(r"^\+\+\+ b/(.*)$", head, re.MULTILINE)[1]
        lines = [hunk.splitlines(keepends=True) for hunk in hunks]
        files[name] = [
            tuple("".join(line[1:] for line in hunk if line[0] in " " + sign) for sign in "-+")
            for hunk in lines
        ]
    return files


def apply(text, folder, backwards=False):
    """Change the files of a folder as a unified diff says, or undo that."""
    for name, hunks in changed(text).items():
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


def run(package, command, folder):
    environment = {**os.environ, "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    code = "from trtcal.cli.main import main; main()"
    command = [sys.executable, "-c", code, *command]
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
    assert {path.stem for path in FOLDER.glob("*.patch")} == {*CHANGES}


@pytest.mark.parametrize("name", CHANGES)
def test_a_typical_change_touches_few_files_and_works(name, package, digits_folder):
    change, text = CHANGES[name], (FOLDER / f"{name}.patch").read_text(encoding="utf-8")
    assert len(changed(text)) <= change.files
    before = contents(package)
    apply(text, package)
    result = run(package, change.command, digits_folder)
    assert result.returncode == 0, result.stderr
    assert all(shown in result.stdout for shown in change.shown), result.stdout
    apply(text, package, backwards=True)
    assert contents(package) == before


@pytest.mark.parametrize("name", ["metric", "limit"])
def test_without_the_change_the_name_is_an_error(name, digits_folder):
    result = run(ROOT, CHANGES[name].command, digits_folder)
    assert result.returncode == 2
    assert "is not a metric" in result.stderr
