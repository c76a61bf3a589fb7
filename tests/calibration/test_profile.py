import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.fixtures.commands import shows
from tests.fixtures.fails import fails
from trtcal.calibration import ObserveOptions, observe, profile
from trtcal.calibration.profile import Phases
from trtcal.cli.main import run_command
from trtcal.cli.output import size_in_bytes
from trtcal.errors import InputError

COUNT = 30


def profile_of(model, data, tensors, **options):
    return observe(model, data, tensors, ObserveOptions(batch=1, threads=1, **options)).profile


def test_every_byte_and_sample_is_in_it(scene):
    model, data, tensors = scene
    profile = profile_of(model, data, tensors)
    assert profile.samples == 30
    assert profile.bytes["load"] == data.arrays["x"][:].nbytes
    assert set(profile.seconds) == {"open", "load", "infer", "count", "checkpoint"}
    assert min(profile.seconds.values()) >= 0 < profile.elapsed_s
    text = "\n".join(profile.lines())
    shows(text, "30 samples", "cores")


def test_the_phases_add_up_to_the_time_since_the_start(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(profile, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(profile, "process_age_s", lambda: 2.5)
    phases = Phases()
    for name, seconds in (("observe", 4.0), ("write", 0.5), ("observe", 1.0)):
        now += seconds
        phases.lap(name)
    assert phases.seconds == {"start-up": 2.5, "observe": 5.0, "write": 0.5}


def test_the_age_of_a_process_is_counted_from_its_start():
    """Python's own start is in it."""
    code = "from trtcal.calibration.profile import process_age_s as age; "
    code += "first = age(); print(first, age())"
    first, second = map(float, subprocess.check_output([sys.executable, "-c", code]).split())
    assert 0 < first <= second


def test_a_profile_has_every_phase_and_limit(scene, tmp_path):
    words = ["calibrate", str(scene[0].path), "--data", str(tmp_path / "data.npz"), "--profile"]
    where = tmp_path / "calibration.json"
    assert run_command([*words, "-o", str(where)]) == 0
    measured = json.loads(where.with_suffix(".profile.json").read_text())["measured"]
    assert min(measured["phases"].values()) >= 0
    assert sum(measured["phases"].values()) >= measured["elapsed_s"]
    assert set(measured["limits"]) == {"infer", "count"}
    assert min(measured["limits"].values()) > 0


def test_the_command_line_says_where_the_time_went(scene, tmp_path, capsys):
    words = ["calibrate", str(scene[0].path), "--data", str(tmp_path / "data.npz"), "--profile"]
    words += ["-o", str(tmp_path / "calibration.json"), "--workers", "2"]
    assert run_command(words) == 0
    said = capsys.readouterr().err
    shows(said, "30 samples", "2 workers")
    document = json.loads((tmp_path / "calibration.profile.json").read_text())
    assert document["measured"]["settings"]["workers"] == 2


@pytest.mark.parametrize(
    ("text", "size"), [("512MB", 512 * 10**6), ("1.5GiB", 3 << 29), ("7", 7), ("4 g", 4 * 10**9)]
)
def test_sizes_are_read(text, size):
    assert size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "-4GB", "4XB", "GB"])
def test_what_is_no_size_is_refused(text):
    with fails(InputError, text, hint="512MB"):
        size_in_bytes(text)
