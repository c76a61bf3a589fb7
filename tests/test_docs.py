"""The documents say what is so: links lead somewhere, commands and code run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.conftest import SAMPLES
from tests.docs.pages import PAGES, ROOT, name_of, read_blocks
from tests.docs.reference import pages
from trtcal.cli.main import COMMANDS, cli

REFERENCE = {ROOT / "docs" / "reference" / name for name, _ in pages()}
README = (ROOT / "README.md").read_text()


LONGEST_README = 150
COMMANDS_PAGE = (ROOT / "docs" / "commands.md").read_text()


def test_the_readme_is_short():
    assert len(README.splitlines()) <= LONGEST_README


def test_the_readme_begins_with_the_two_commands():
    commands = re.findall(r"^    (\S.*)$", README, re.MULTILINE)
    assert commands[0].startswith("make demo")
    assert commands[1].startswith("make test")


def test_the_readme_has_the_commands_for_a_model_of_ones_own():
    block = README.split("## Your own model", 1)[1].split("`pip install", 1)[0]
    commands = [line.split()[:2] for line in block.splitlines() if line.startswith("    trtcal ")]
    assert [words[1] for words in commands] == ["run", "calibrate", "quantize", "compare"]


def test_the_readmes_python_works(tmp_path):
    (tmp_path / "samples").symlink_to(SAMPLES)
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert done.stdout.strip() == b"SHIP"
    assert (tmp_path / "int8.onnx").exists()
    assert "int8" in (tmp_path / "report.html").read_text()


def test_the_documents_name_every_command():
    for name in COMMANDS:
        assert f"`trtcal {name}`" in COMMANDS_PAGE


def test_the_architecture_answers_every_question():
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| ((?:add|change) [^|]+) \| `(trtcal|calibrators)/", page, re.MULTILINE)
    assert len(rows) == 14


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_and_files_named_in_documents_exist(path):
    text = path.read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    named = re.findall(r"`((?:samples|docs|benchmarks|tests|trtcal|calibrators)/[\w./-]+)`", text)
    for target in links:
        there = Path(os.path.normpath(path.parent / target))
        assert there.exists() or there in REFERENCE, target
    for target in named:
        assert (ROOT / target).exists(), target


def commands_in(path):
    """Return the command lines of trtcal in a document's code blocks, continued lines joined."""
    texts = (re.sub(r"\\\n", " ", one.text) for one in read_blocks(path))
    return [
        (name_of(path), line)
        for text in texts
        for line in re.findall(r"^(?:\$ )?(trtcal .*)$", text, re.MULTILINE)
    ]


@pytest.mark.parametrize(("page", "line"), [pair for path in PAGES for pair in commands_in(path)])
def test_commands_in_documents_have_only_options_that_exist(page, line):
    words = shlex.split(line, comments=True)[1:]
    command = cli.get_command(None, words[0])
    if isinstance(command, click.Group):
        named = words[1] if words[1] in command.commands else getattr(command, "default", "check")
        command = command.commands[named]
    known = {
        name for parameter in command.params for name in parameter.opts + parameter.secondary_opts
    }
    assert {word for word in words if re.match("--?[a-z]", word)} <= known
