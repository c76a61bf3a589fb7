"""The documents say what is so: links lead somewhere, commands and code run."""

import os
import re
import shlex
from pathlib import Path

import click

from tests.docs.pages import PAGES, ROOT, name_of, read_blocks
from tests.docs.reference import pages
from tests.fixtures.tables import each
from trtcal.cli.main import cli, commands

REFERENCE = {ROOT / "docs" / "reference" / name for name, _ in pages()}
README = (ROOT / "README.md").read_text()


LONGEST_README = 150
COMMANDS_PAGE = (ROOT / "docs" / "commands.md").read_text()


def test_the_readme_is_short():
    assert len(README.splitlines()) <= LONGEST_README


def test_the_readme_begins_with_the_two_commands():
    commands = re.findall(r"^```sh\n(.*?)```", README, re.MULTILINE | re.DOTALL)[0].splitlines()
    assert [line.split("#")[0].split() for line in commands] == [["make", "demo"], ["make", "test"]]


def test_the_readme_has_three_commands_for_your_own_model():
    block = README.split("## Your own model", 1)[1].split("\n## ", 1)[0]
    assert re.findall(r"^\$ trtcal (\w+)", block, re.MULTILINE) == ["run", "diagnose", "init"]


def test_the_documents_name_every_command():
    for name in commands():
        assert f"`trtcal {name}`" in COMMANDS_PAGE


def test_the_architecture_answers_every_question():
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| ((?:add|change) [^|]+) \| `(trtcal|calibrators)/", page, re.MULTILINE)
    assert len(rows) == 14


@each("path", PAGES)
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
    shown = (one for one in read_blocks(path) if one.language != "run")
    texts = (re.sub(r"\\\n", " ", one.text) for one in shown)
    return [
        (name_of(path), line)
        for text in texts
        for line in re.findall(r"^(?:\$ )?(trtcal .*)$", text, re.MULTILINE)
    ]


def options_of(command):
    """Return the options of a command, as they are typed."""
    return {name for option in command.params for name in option.opts + option.secondary_opts}


@each("page, line", [pair for path in PAGES for pair in commands_in(path)])
def test_commands_in_documents_have_only_options_that_exist(page, line):
    words = shlex.split(line, comments=True)[1:]
    command, context, place = cli, click.Context(cli, info_name="trtcal"), 0
    while isinstance(command, click.Group) and words[place] not in options_of(command):
        is_named = words[place] in command.list_commands(context)
        name = words[place] if is_named else command.default
        command = command.get_command(context, name)
        context, place = click.Context(command, info_name=name, parent=context), place + is_named
    assert {word for word in words if re.match("--?[a-z]", word)} <= options_of(command)
