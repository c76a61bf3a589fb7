"""Whatever names are, terminals, JSON, CSV and Markdown keep their meaning."""

import ast
import csv
import io
import json
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import trtcal
from tests.cli.hostile_inputs import (
    JOINER,
    argument_commands,
    cells,
    in_json,
    in_protobuf,
    model_commands,
    run_commands,
    said,
    unseen,
    write_inputs,
)
from tests.fixtures.commands import PROGRAM, environment
from tests.fixtures.examples import examples
from tests.fixtures.networks import conv_net, samples
from tests.fixtures.slow import SLOW
from tests.reporting.hostile import NASTY, TEXTS, WORDS, Names, write_hostile_run
from tests.runs.runs import report
from trtcal.documents import read_document, read_json, write_document
from trtcal.ranges import Calibration, TensorRange
from trtcal.runs.history import History

KEPT = {True: f"\n{JOINER}", False: "\n"}


def check_harmless(command, status, out, err):
    assert status in range(5), (command, err)
    assert not unseen(out, KEPT["--md" in command]), command
    assert not unseen(err), command
    if "--json" in command and status < 2:
        json.loads(out)


@examples(3)
@example(list(NASTY))
@given(TEXTS)
def test_no_name_in_a_run_disturbs_what_any_command_prints(texts):
    with tempfile.TemporaryDirectory() as folder:
        run = write_hostile_run(Path(folder), in_protobuf(texts))
        for command in run_commands(Path(folder), run):
            status, out, err = said(*command)
            assert status < 2, (command, err)
            check_harmless(command, status, out, err)


@examples(2)
@example(["plain"])
@example(list(NASTY))
@given(TEXTS)
def test_no_name_in_a_model_or_in_data_does(texts):
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder), in_protobuf(texts))
        refused = []
        for command in model_commands(Path(folder)):
            status, out, err = said(*command)
            check_harmless(command, status, out, err)
            refused += [Path(command[3]).name] if status > 1 else []
        if texts == ["plain"]:  # data of another input, words as labels, files that are not there
            assert refused == ["other.npz", "labelled", "named"]


@examples(10)
@example("\x1b[31mred\u202e\u2028\x85")
@given(WORDS.map(lambda text: text.replace("\0", "0")))
def test_no_argument_does(text):
    with tempfile.TemporaryDirectory() as folder:
        for command in argument_commands(Path(folder), text):
            status, out, err = said(*command)
            assert status in range(5), (command, err)
            assert not unseen(out + err), command


HARD = (
    *("\x00", "\x1b[31m", "\x7f", "\x85", "\x9b2J", "\u2028", "\u202e", "\u2060", "\ufeff"),
    "\ud800",
)
HARD += ("\udcff", "\U000e0001", "=1+1")


def calibration(*names):
    ranges = {name: TensorRange(2.0, 3.0, 0.001, "x") for name in names}
    facts = ("minmax", {}, "sha256:m", "sha256:d", 128, "float32")
    return Calibration(*facts, ranges=ranges, unranged={})


@examples(20)
@example(list(HARD))
@given(st.lists(st.text(st.one_of(st.characters(), st.sampled_from("".join(HARD)))), unique=True))
def test_every_name_comes_back_out_of_files_and_out_of_what_json_prints(names):
    ranges = {name: TensorRange(2.0, 3.0, 0.001, name) for name in names}
    made = replace(calibration(), ranges=ranges)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calibration.json"
        document = made.write(path)
        assert read_document(path, "calibration", Calibration.schema_version) == document
        assert Calibration.read(path) == made
        _, out, _ = said("ranges", "show", path, "--json")
    assert not unseen(out)
    assert list(json.loads(out)["ranges"]) == [in_json(name) for name in document["ranges"]]


def test_a_copy_of_printed_json_is_still_the_document(tmp_path):
    names = [one for one in HARD if one != "\ud800"]
    document = write_document(tmp_path / "plan.json", {"kind": "thing", "names": names})
    made = calibration(*HARD)
    made.write(tmp_path / "calibration.json")
    _, out, _ = said("ranges", "show", tmp_path / "calibration.json", "--json")
    (tmp_path / "copy.json").write_text(out)
    assert Calibration.read(tmp_path / "copy.json") == made
    assert read_json(tmp_path / "plan.json") == document


@examples(8)
@example("\x1b[31m\u202e\x85\ud800")
@given(WORDS)
def test_a_log_comes_back_out_of_the_json_that_is_printed_of_it(text):
    line = " ".join(f"{text}x".encode("utf-8", "replace").decode().split())
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / Names([line]).file()
        log.write_text(f"[11/21/2026-05:00:00] [E] [TRT] {line}\n", errors="replace")
        made = Path(folder) / "made.json"
        _, out, err = said("log", log, "--json", "-o", made)
        assert not unseen(out + err)
        assert json.loads(out) == read_json(made)
        assert json.loads(out)["source"] == str(log)


BEGINNINGS = ("=", "+", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
FORMULAS = (
    *("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "a;=1", "a,-1", "\uff1d1", "\n=1"),
)


@examples(10)
@example(list(FORMULAS))
@example(['="x"', '";=1', "a\n=1"])
@given(st.lists(st.one_of(WORDS, st.sampled_from(FORMULAS)), min_size=1, max_size=5))
def test_no_cell_of_csv_is_a_formula_and_numbers_stay_numbers(texts):
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder) / "h.sqlite")
        for number, text in enumerate(in_protobuf(texts)):
            history.record(report(number, name=f"{text}", variant=f"{text}{number}"))
        arguments = ("history", "export", "--format", "csv", "--db", history.path)
        status, out, _ = said(*arguments)
        entries = history.entries()
    assert status == 0
    assert not unseen(out)
    for separator in ",;":  # as a spreadsheet of another country reads it
        for row in csv.reader(io.StringIO(out), delimiter=separator):
            assert not [cell for cell in row if cell.strip()[:1] in BEGINNINGS]
    texts_in = [cell for row in csv.reader(io.StringIO(out)) for cell in row[1:6]]
    assert not [cell for cell in texts_in if cell.strip().startswith("-")]
    values = [float(row[6]) for row in csv.reader(io.StringIO(out)) if row[0] != "run"]
    assert values == [value for one in entries for value in one.figures.values()]
    assert len(cells(out)) == 7 * (1 + len(values))


def test_what_an_alert_prints_is_shown_as_notes_beside_clean_json(tmp_path):
    db = tmp_path / "h.sqlite"
    History(db).record(report(1))
    alert = r"printf 'one\033[31m\ntwo\n'; printf 'three\n' >&2; exit 3"
    check = ("history", "check", "--db", db, "--limit", "speedup >= 50", "--json")
    status, out, err = said(*check, "--alert", alert)
    assert status == 1
    assert json.loads(out)["run"] == 1
    lines = err.splitlines()
    assert lines[:3] == ["alert: one\\x1b[31m", "alert: two", "alert: three"]
    assert lines[3].endswith("ended with status 3")


@pytest.mark.parametrize(
    "name", ["a b.onnx", "a\x1b[31m.onnx", "a\u202e'b\\.onnx", "a\nb.onnx", "$(x).onnx"]
)
def test_a_suggested_command_names_the_file_whatever_it_is_called(tmp_path, name):
    conv_net(tmp_path / name)
    samples(tmp_path / "data.npz")
    arguments = ("--data", tmp_path / "data.npz", "-o", tmp_path / "c.json")
    _, out, err = said("calibrate", tmp_path / name, *arguments)
    assert not unseen(out + err)
    command = next(line for line in err.splitlines() if line.startswith("next: "))
    line = f"printf '%s\\0' {command.removeprefix('next: ')}"
    words = subprocess.run(
        [str(shutil.which("bash")), "-c", line], capture_output=True, check=True
    ).stdout
    assert str(tmp_path / name) in words.decode().split("\0")


def test_warnings_and_prints_of_others_are_escaped_too(tmp_path):
    code = (
        "import sys, warnings\nfrom trtcal.backends import targets\nfrom trtcal.cli import main\n"
        "def machine():\n"
        "    print('a print\\x1b[31m')\n"
        "    warnings.warn('first\\x1b]0;x\\x07\\nsecond', stacklevel=1)\n"
        "    import logging; logging.getLogger('x').warning('a log\\u202e')\n"
        "    return {}\n"
        "targets.machine = machine\nsys.argv[1:] = ['doctor', '--json']\nmain.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert not unseen(done.stdout.decode() + done.stderr.decode())
    lines = done.stderr.decode().splitlines()
    assert lines[0] == "warning: UserWarning: first\\x1b]0;x\\x07 second"
    assert lines[1] == "a log\\u202e"
    assert b"a print\\x1b[31m" in done.stdout


@SLOW
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_script_of_the_users_prints_to_standard_error_and_nothing_hidden(tmp_path, workers):
    conv_net(tmp_path / "net.onnx")
    (tmp_path / "load.py").write_text(
        "import numpy as np\ndef load_data():\n    print('name\\x1b[2J')\n"
        "    yield {'x': np.ones((1, 3, 8, 8), np.float32)}\n"
    )
    given = ["--data", "load.py", "--workers", workers, "--batch", "1", "--json"]
    program = [*PROGRAM, "calibrate", "net.onnx", *given]
    done = subprocess.run(program, cwd=tmp_path, env=environment(), capture_output=True, check=True)
    assert json.loads(done.stdout)["ranges"]
    assert b"name\\x1b[2J" in done.stderr
    assert not unseen(done.stderr.decode())


def test_a_table_is_styled_on_a_terminal_and_its_names_are_not(tmp_path):
    calibration("a\x1b[5mb[red]c").write(tmp_path / "calibration.json")
    reading, writing = pty.openpty()
    program = [*PROGRAM, "ranges", "show", "calibration.json"]
    env = environment(TERM="xterm-256color")
    env.pop("NO_COLOR", None)
    subprocess.run(program, stdout=writing, cwd=tmp_path, env=env, check=True)
    shown = os.read(reading, 1 << 16).decode()
    assert "\x1b[1m" in shown
    assert "a\\x1b[5mb[red]c" in shown


PRINTERS = {
    "documents/streams.py": "the guard of both streams",
    "cli/output.py": "how a command prints",
    "backends/cuda.py": "a child process answers its parent",
    "backends/trial.py": "a forked child gives up both streams",
    "backends/onnxruntime_worker.py": "a child process, whose parent writes its log",
    "backends/tensorrt_worker.py": "a child process, whose parent writes its log",
    "extensions.py": "a wing that cannot be loaded is a warning",
    "reporting/pages.py": "a page of a wing that cannot be written is a warning",
    "model/checking.py": "a forked child gives up both streams",
    "runs/bundle/verifying.py": "runs alone on a device, and escapes what it prints",
    "wings/devices/worker/jobs.py": "a forked child, whose output is its job's log",
    "wings/devices/worker/measuring.py": "runs alone on a device, without trtcal",
}


def _prints(node):
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        whole = f"{node.value.id}.{node.attr}"
        return whole.strip("_") in (
            *("sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"),
            *("click.echo", "click.secho", "click.echo_via_pager", "warnings.warn"),
        )
    return isinstance(node, ast.Name) and node.id in ("print", "Console", "pprint", "echo")


def test_only_one_place_prints():
    package = Path(trtcal.__file__).parent
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if any(_prints(node) for node in ast.walk(ast.parse(path.read_text())))
    }
    assert found == set(PRINTERS)
