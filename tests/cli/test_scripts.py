"""A script is a program: it runs if the user names it or trusts the file that does."""

import json
import shutil

import numpy as np
import pytest

import trtcal
from calibrators import registry
from calibrators.range import LARGEST_AMAX
from tests.conftest import SAMPLES
from tests.fixtures.commands import refused
from tests.fixtures.fails import fails
from trtcal.cli.main import DEFECT, run_command
from trtcal.documents import digest_file
from trtcal.errors import InputError

DIGITS = SAMPLES / "digits"
DATA = f"""
import numpy as np
from pathlib import Path

def load_data():
    data = np.load({str(DIGITS / "calibration.npz")!r})["image"][:64]
    return ({{"image": one[None]}} for one in data)
"""
METRIC = "def metric(outputs, labels):\n    return {'first': float(outputs['logits'][0, 0])}\n"
CONFIG = f"""
model = {json.dumps(str(DIGITS / "digits.onnx"))}
[calibration]
data = "mine.py"
methods = ["minmax"]
[evaluation]
data = "mine.py:load_data"
metric = "metric.py"
[build]
targets = ["cpu"]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    note = f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).write_text(__file__)\n"
    (tmp_path / "mine.py").write_text(note + DATA)
    (tmp_path / "metric.py").write_text(note + METRIC)
    (tmp_path / "trtcal.toml").write_text(CONFIG)
    shutil.copy(DIGITS / "digits.onnx", tmp_path / "other.onnx")
    return tmp_path


def with_model(*words):
    return [*words, str(DIGITS / "digits.onnx")]


COMMANDS = [
    ["run", "--no-history"],
    with_model("check-data"),
    with_model("calibrate"),
    [*with_model("quantize"), "--improve", "fast", "-o", "int8.onnx"],
    [*with_model("compare"), "other.onnx"],
    [*with_model("ab"), "other.onnx", "--limit", "agreement >= -1"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_no_command_runs_what_only_the_configuration_names(folder, capsys, command):
    err = refused(capsys, *command)
    assert str(folder / "mine.py") in err
    assert "--trust" in err
    assert not (folder / "ran").exists()


def test_a_metric_is_a_script_too(folder, capsys):
    words = ["--data", DIGITS / "test.npz", "other.onnx"]
    err = refused(capsys, *with_model("compare"), *words)
    assert f"{folder / 'metric.py'} (`evaluation.metric`)" in err
    assert not (folder / "ran").exists()


def test_what_is_named_on_the_command_line_or_trusted_runs(folder):
    for words in (["--data", "mine.py"], ["--data", str(folder / "mine.py")], ["--trust"]):
        (folder / "ran").unlink(missing_ok=True)
        assert run_command([*with_model("calibrate"), *words]) == 0
        assert (folder / "ran").read_text().endswith("mine.py")


def test_a_run_records_the_digests_of_its_scripts(folder):
    with fails(InputError, "trtcal.toml"):
        trtcal.run("trtcal.toml")
    done = trtcal.run("trtcal.toml", trust=True)
    data, metric = digest_file(folder / "mine.py"), digest_file(folder / "metric.py")
    recorded = json.loads((done.folder / "run.json").read_text())["scripts"]
    assert recorded == {
        "calibration.data": data,
        "evaluation.data": data,
        "evaluation.metric": metric,
    }


class Fatal(BaseException):
    """No `Exception`, as an interrupt or the end of the program are none."""


@pytest.mark.parametrize(
    "raised", ["SystemExit(0)", "GeneratorExit", "type('F', (BaseException,), {})"]
)
@pytest.mark.parametrize("place", ["at its top", "load_data", "metric"])
def test_no_script_ends_the_program(folder, capsys, raised, place):
    mine = "" if place == "at its top" else "def load_data():\n    "
    (folder / "mine.py").write_text(f"{mine}raise {raised}\n")
    (folder / "metric.py").write_text(f"def metric(outputs, labels):\n    raise {raised}\n")
    data = "mine.py" if place != "metric" else DIGITS / "test.npz"
    words = ["--data", data, "--metric-file", "metric.py", "other.onnx"]
    err = refused(capsys, *with_model("compare"), *words)
    assert err.count("error: script") == err.count("error: ") == err.count("hint: ") == 1


@pytest.mark.parametrize("error", [SystemExit(0), Fatal("no more"), ZeroDivisionError()], ids=repr)
@pytest.mark.parametrize("is_made", [True, False])
def test_no_calibrator_ends_the_program(folder, capsys, monkeypatch, error, is_made):
    def fail(histogram=None):
        raise error

    monkeypatch.setitem(registry._registered, "mine", lambda: fail if is_made else fail())
    words = ("--data", DIGITS / "calibration.npz", "--method", "mine")
    err = refused(capsys, *with_model("calibrate"), *words)
    where = " on tensor 'image'" if is_made else ""
    assert f"'mine' failed{where}: {type(error).__name__}" in err
    assert err.count("error: ") == 1


def test_nothing_else_ends_the_program_with_status_0_either(capsys, monkeypatch):
    def fail():
        raise SystemExit(0)

    monkeypatch.setattr("trtcal.backends.targets.machine", fail)
    err = refused(capsys, "doctor", "--json", status=DEFECT)
    assert err.startswith("error: defect in trtcal: SystemExit")


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy", "mse", "auto"])
def test_values_at_the_end_of_float32_get_a_range(folder, method):
    images = np.load(DIGITS / "calibration.npz")["image"]
    images[0] = np.finfo(np.float32).max
    data = {"image": images[:32]}
    found = trtcal.calibrate(DIGITS / "digits.onnx", data, method=method).ranges["image"]
    assert found.amax <= LARGEST_AMAX
    assert found.observed_amax == np.finfo(np.float32).max
    assert method != "minmax" or (
        found.amax == LARGEST_AMAX and "lowered to 1.69e+38" in found.note
    )
