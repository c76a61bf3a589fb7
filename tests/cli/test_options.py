"""A command's dataclass: each field's annotation gives the parameter, and templates fill tables."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import click
import pytest
from click.testing import CliRunner

from tests.fixtures.tables import each
from trtcal.cli import output
from trtcal.cli.options import JsonOptions, argument, option
from trtcal.cli.output import filled, note, print_table, progress, warning
from trtcal.errors import InputError


class Sample(JsonOptions, example="trtcal sample net.onnx"):
    """Show what was given."""

    model: Path = argument()
    others: tuple[Path, ...] = argument()
    count: int | None = option("A number.", "-c", least=2)
    kind: Literal["a", "b"] = option("One of two.", default="a")
    names: tuple[str, ...] = option("Several.", "--name")
    pair: tuple[Path, Path] | None = option("Two.")
    quick: bool = option("A flag.")
    output: Path = option("Where.", "-o")

    def _run(self):
        click.echo(repr(self))


class Long(JsonOptions, example="trtcal long"):
    """Print rows, a note and a warning."""

    def _run(self):
        print_table(["abc"[one] * 200 for one in range(3)], {"name": "{0}"}, shown=2)
        note("a note")
        warning("a warning", "a remedy")


def test_quiet_leaves_notes_out_and_no_warning():
    run = CliRunner().invoke(Long.command(), ["-q"])
    assert run.stderr == "warning: a warning\nhint: a remedy\n"
    assert CliRunner().invoke(Long.command(), []).stderr.startswith("a note\n")


def test_verbose_leaves_nothing_out():
    short, whole = (CliRunner().invoke(Long.command(), words).stdout for words in ([], ["-v"]))
    assert "1 more: use -v" in short
    assert "more" not in whole


@pytest.mark.parametrize(("columns", "width"), [("60", 60), ("", 84)])
def test_a_table_without_a_terminal_is_as_wide_as_columns_says(columns, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    print_table([["a" * 80]], {"name": "{0}"})
    assert max(map(len, capsys.readouterr().out.splitlines())) == width


@pytest.mark.parametrize("quiet", [False, True])
def test_progress_on_a_pipe_is_a_line_every_ten_seconds(monkeypatch, capsys, quiet):
    seconds = iter([0.0, 9.0, 11.0, 12.0, 41.0])
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.delenv(output.NO_PROGRESS)
    with output.verbosity(quiet, False), progress("observing", 1000, "samples") as advance:
        for _ in range(4):
            advance(80)
    lines = ["observing: 160 of 1,000 samples, 11 s", "observing: 320 of 1,000 samples, 41 s"]
    assert capsys.readouterr().err.splitlines() == ([] if quiet else lines)


def run(*words):
    return CliRunner().invoke(Sample.command(), words)


def test_a_command_is_called_with_its_fields():
    words = "m o p -c 3 --kind b --name x --name y --pair q r --quick -o z --json"
    done = run(*words.split())
    assert done.exit_code == 0
    given = Sample(
        model=Path("m"),
        others=(Path("o"), Path("p")),
        count=3,
        kind="b",
        names=("x", "y"),
        pair=(Path("q"), Path("r")),
        quick=True,
        output=Path("z"),
        as_json=True,
    )
    assert done.output.strip() == repr(given)


@each(
    "words, says",
    [
        ("m -o z", "Missing argument 'OTHERS...'"),
        ("m o", "Missing option '-o' / '--output'"),
        ("m o -o z --kind c", "'c' is not one of 'a', 'b'"),
        ("m o -o z -c 1", "1 is not in the range x>=2"),
        ("m o --output", "Option '--output' requires an argument"),
    ],
)
def test_what_an_annotation_forbids_is_refused(words, says):
    done = run(*words.split())
    assert done.exit_code == 2
    assert says in done.output


@pytest.mark.parametrize("words", ["m o -o -rf", "m o --output=-rf", "m o --output -rf"])
def test_a_value_may_begin_with_a_hyphen(words):
    assert "output=PosixPath('-rf')" in run(*words.split()).output


def test_the_docstring_is_the_help_and_common_options_stand_last():
    text = run("--help").output
    assert "Show what was given." in text
    assert "Example: trtcal sample net.onnx" in text
    assert "[default: a]" in text
    assert text.index("--output") < text.index("--json")


def test_a_template_shows_fields_places_and_what_is_missing():
    @dataclass
    class Thing:
        size: float | None

    assert filled("{size:.1f} MB", Thing(2.0)) == "2.0 MB"
    assert filled("{size:.1f}", Thing(None), "-") == "-"
    assert filled("{0}: {1.size:g}", ("{x}", Thing(3.0))) == "{x}: 3"
    assert filled("{loss[kl]:.2g}", {"loss": {"kl": 0.25}}) == "0.25"


class Renamed(JsonOptions, example="trtcal renamed"):
    """Show what was given."""

    target: str | None = option("A target.", formerly="--build")

    def _run(self):
        click.echo(self.target)


def test_a_former_name_of_an_option_ends_with_the_one_of_today():
    assert CliRunner().invoke(Renamed.command(), ["--target", "a"]).stdout == "a\n"
    error = CliRunner().invoke(Renamed.command(), ["--build", "a b"]).exception
    assert isinstance(error, InputError)
    assert error.hint == "write `--target 'a b'`"
    assert "--build" not in CliRunner().invoke(Renamed.command(), ["--help"]).stdout
