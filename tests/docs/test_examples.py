"""Every example of the documents runs, one test a page: `python -m pytest tests/docs -k detectors`.

The blocks of a page run in order in a folder that has what a clone has. CONTRIBUTING.md has
the convention.
"""

import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import IO

import matplotlib as mpl
import pytest
import yaml

from tests.docs.make import main as make_files
from tests.docs.pages import PAGES, ROOT, Block, commands_of, differs, name_of, read_blocks
from tests.fixtures.killing import forked
from tests.fixtures.slow import slow_but
from tests.fixtures.tables import each
from trtcal.cli.main import main
from trtcal.config import read_toml

LONGEST_S = 1200
HAS_RTX = importlib.util.find_spec("tensorrt_rtx") is not None
RUNNING = ("console", "python", "run", "toml", "yaml", "json")
KNOWN = (*RUNNING, "sh", "text", "csv", "dockerfile", "groovy", "html", "cpp", "ini", "markdown")
WITH_EXAMPLES = [
    page
    for page in PAGES
    if any(one.language in RUNNING or one.comments for one in read_blocks(page))
]
RUN = ("console", "python")
QUOTED = re.compile(r"'[^']*'")
PLAIN = re.compile(r"((trtcal|python -m tests\.docs\.make) [^|&;<>$*]*( && |$))+")
"""Programs that need no shell: their modules are imported once, not by every command."""

QUICK = [
    page
    for page in WITH_EXAMPLES
    if name_of(page) == "docs/tutorial.md"
    or not any(one.language in RUN or "run" in one.comments for one in read_blocks(page))
]
"""The tutorial, and the pages of which nothing is run."""


class Session:
    """A page's folder, and what its blocks have left: files, names of Python, the last output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, object] = {"__name__": "__main__"}
        self.printed = ""
        self.is_other_target = False
        bin_folder = str(Path(sys.executable).parent)
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([bin_folder, os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "HOME": str(folder),  # in which the device `local:` has its files
            "MPLCONFIGDIR": mpl.get_cachedir(),  # where a list of fonts is
            "XDG_DATA_HOME": str(folder / ".data"),
            "XDG_STATE_HOME": str(folder / ".data"),
        }

    def run(self, block: Block, place: str) -> None:
        """Run a block, or check it, as its language and the comments before it ask."""
        if "file" in block.comments:
            self._write(block)
        if "output" in block.comments:
            self._compare(block.text, self.printed, place)
        action = getattr(self, f"_{block.language}", None)
        if action is not None:
            action(block, place)

    def _write(self, block: Block) -> None:
        path = (self.folder / block.comments["file"]).resolve()
        assert path.is_relative_to(self.folder.resolve())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)

    def _console(self, block: Block, place: str) -> None:
        for command in commands_of(block):
            printed = self._execute(command.text, command.status, place)
            if command.output:
                self._compare("\n".join(command.output), printed, f"{place}: {command.text}")

    def _run(self, block: Block, place: str) -> None:
        self._execute(block.text, 0, place)

    def _execute(self, command: str, status: int, place: str) -> str:
        if command.startswith("cd "):  # holds for the commands and files that follow
            self.folder /= command.removeprefix("cd ")
            os.chdir(self.folder)
            return ""
        if "sm89" in command and not HAS_RTX:  # the extra may be missing here
            command, self.is_other_target = command.replace("sm89", "cpu"), True
        is_plain = PLAIN.fullmatch(QUOTED.sub("", command))
        end, printed = (self._forked if is_plain else self._in_bash)(command)
        if end != status:
            pytest.fail(f"{place}: {command}\nexit status {end}, not {status}\n{printed}")
        return printed

    def _in_bash(self, command: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", command],  # noqa: S607  # as a reader has it
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST_S,
        )
        return done.returncode, done.stdout

    def _forked(self, command: str) -> tuple[int, str]:
        """Run programs one after the other in forks, which have their modules already."""
        with tempfile.TemporaryFile("w+") as printed:
            for part in command.replace("\\\n", "").split(" && "):
                end = forked(partial(self._program, shlex.split(part), printed))
                if end:
                    break
            printed.seek(0)
            return end, printed.read()

    def _program(self, words: list[str], printed: IO[str]) -> None:
        signal.alarm(LONGEST_S)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, file in enumerate((nothing, printed.fileno(), printed.fileno())):
            os.dup2(file, number)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w", 1)
        warnings.resetwarnings()  # the program's own, not those of the tests
        program, sys.argv = (main, words) if words[0] == "trtcal" else (make_files, words[2:])
        try:
            program()
        except SystemExit as end:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code)

    def _python(self, block: Block, place: str) -> None:
        if "file" in block.comments:
            compile(block.text, place, "exec")
            return
        out = io.StringIO()
        with redirect_stdout(out):
            exec(compile(block.text, place, "exec"), self.names)  # noqa: S102
        self.printed = out.getvalue()

    def _compare(self, expected: str, printed: str, place: str) -> None:
        if not self.is_other_target and differs(expected, printed):
            pytest.fail(f"{place}\n--- the page has\n{expected}\n--- printed is\n{printed}")

    def _toml(self, block: Block, _: str) -> None:
        (self.folder / ".block.toml").write_text(block.text)
        read_toml(self.folder / ".block.toml")

    def _yaml(self, block: Block, _: str) -> None:
        list(yaml.safe_load_all(block.text))

    def _json(self, block: Block, _: str) -> None:
        json.loads(block.text)


def lay_out(folder: Path) -> None:
    """Put into a folder what a clone has; its reports are copied, because pages write there."""
    for entry in ("samples", "docs", "Makefile", "README.md", "pyproject.toml"):
        (folder / entry).symlink_to(ROOT / entry)
    shutil.copytree(ROOT / "reports", folder / "reports")


@pytest.mark.parametrize("page", slow_but(WITH_EXAMPLES, *QUICK), ids=name_of)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    session = Session(tmp_path)
    for block in read_blocks(page):
        needed = block.comments.get("needs", "").replace(",", " ").split()
        if "skip" in block.comments or not all(map(importlib.util.find_spec, needed)):
            continue
        session.run(block, f"{name_of(page)}:{block.line}")


@each("page", PAGES)
def test_the_blocks_of_a_page_are_fenced_and_name_their_language(page):
    wrong = [
        one.line
        for one in read_blocks(page)
        if one.language not in KNOWN and not one.language.startswith("{")
    ]
    assert wrong == [], f"indented, or of an unknown language, in {name_of(page)}, lines {wrong}"


@each(
    "expected, printed, is_other",
    [
        ("a\nb", "a\nb\n", False),
        ("a\nb", "a\nc\n", True),
        ("a ... c", "a b c", False),
        ("a ... c", "a b d", True),
        ("a\n...\nd", "a\nb\nc\nd", False),
        ("a\n...\nd", "a\nd", False),
        ("a\n...", "b\na", True),
        ("1.5", "125", True),
    ],
)
def test_dots_stand_for_anything(expected, printed, is_other):
    assert differs(expected, printed) is is_other
