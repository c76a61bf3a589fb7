"""The documents say what is so: links lead somewhere, commands and code run."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.conftest import SAMPLES
from trtcal.cli.main import COMMANDS, run_command

ROOT = SAMPLES.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("samples/**/*.md")])


def staged_commands():
    block = README.split("Stage by stage", 1)[1].split("Every command has", 1)[0]
    return [line.strip() for line in block.splitlines() if line.strip().startswith("trtcal ")]


def test_the_readme_begins_with_the_two_commands():
    commands = re.findall(r"^    (\S.*)$", README, re.MULTILINE)
    assert commands[0].startswith("make demo")
    assert commands[1].startswith("make test")


def test_the_stages_of_the_readme_work_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "samples").symlink_to(SAMPLES)
    commands = staged_commands()
    assert len(commands) == 8
    for command in commands:
        text = command.replace("--target sm89", "--target cpu")  # the extra may be missing here
        assert run_command(shlex.split(text)[1:]) == 0, command
    assert (tmp_path / "report.html").exists()


def test_the_commands_of_the_report_document_work_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "samples").symlink_to(SAMPLES)
    text = (ROOT / "docs" / "report.md").read_text()
    commands = re.findall(r"^    (trtcal .*)$", text, re.MULTILINE)
    assert len(commands) == 10
    for command in commands:
        text = command.replace("--target sm89", "--target cpu")  # the extra may be missing here
        assert run_command(shlex.split(text)[1:]) == 0, command
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "page.html").read_bytes()


def test_the_readmes_python_works(tmp_path):
    (tmp_path / "samples").symlink_to(SAMPLES)
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "entropy.onnx").exists()


def test_the_readme_names_every_command():
    for name in COMMANDS:
        assert f"trtcal {name}" in README


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_files_named_in_documents_exist(path):
    text = path.read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    named = re.findall(r"`((?:samples|docs|benchmarks|tests|trtcal|calibrators)/[\w./-]+)`", text)
    for target in links:
        assert (path.parent / target).exists(), target
    for target in named:
        assert (ROOT / target).exists(), target
