import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from trtcal.calibration import ObserveOptions, Profile, Settings, observe, profile
from trtcal.calibration.profile import DATA, Phases
from trtcal.cli.main import run_command
from trtcal.cli.output import size_in_bytes
from trtcal.errors import InputError

COUNT = 30


def profile_of(model, data, tensors, **options):
    return observe(model, data, tensors, ObserveOptions(batch=1, threads=1, **options)).profile


def test_slow_data_are_found_and_the_prediction_is_checked(scene, tmp_path):
    made = profile_of(*scene)
    assert made.waited_s > 0
    slow = replace(made, elapsed_s=9.0, waited_s=6.0, busy=0.5 * made.cores)
    advice = slow.advice()
    assert (advice.limit, advice.change) == ("loading the data", DATA)
    assert advice.gain == pytest.approx(3.0)
    slow.write(tmp_path / "profile.json")
    fast = replace(made, elapsed_s=4.0)
    text = fast.compare_prediction(Profile.read(tmp_path / "profile.json"))
    assert text.startswith("predicted: 3.00 times as fast; it is 2.25")


def test_every_byte_and_sample_is_in_it(scene):
    model, data, tensors = scene
    profile = profile_of(model, data, tensors)
    assert profile.samples == 30
    assert profile.bytes["load"] == data.arrays["x"][:].nbytes
    assert set(profile.seconds) == {"open", "load", "infer", "count", "checkpoint"}
    assert min(profile.seconds.values()) >= 0 < profile.elapsed_s
    text = "\n".join(profile.lines())
    assert "30 samples in" in text
    assert "limited by" in text


@pytest.mark.parametrize(
    ("busy", "cores", "workers", "gain"), [(1.0, 4, 1, 4.0), (3.9, 4, 1, 1.0), (1.0, 4, 4, 1.0)]
)
def test_idle_cores_are_what_more_workers_would_bring(busy, cores, workers, gain):
    seconds = {"infer": 9.0, "count": 1.0}
    profile = Profile("", "", Settings(workers, 1), seconds, {}, 10, 10.0, busy=busy, cores=cores)
    advice = profile.advice()
    assert advice.gain == pytest.approx(gain)
    assert (f"--workers {cores}" in advice.change) == (gain > 1)


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
    """Of one that waits, then says what it knows."""
    code = "import time; from trtcal.calibration.profile import process_age_s as age; "
    code += "first = age(); time.sleep(0.5); print(first, age())"
    first, second = map(float, subprocess.check_output([sys.executable, "-c", code]).split())
    assert 0 < first < second - 0.4


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
    assert "30 samples in" in said
    assert "by 2 workers with" in said
    document = json.loads((tmp_path / "calibration.profile.json").read_text())
    assert document["measured"]["settings"]["workers"] == 2
    assert run_command(words) == 0


@pytest.mark.parametrize(
    ("text", "size"), [("512MB", 512 * 10**6), ("1.5GiB", 3 << 29), ("7", 7), ("4 g", 4 * 10**9)]
)
def test_sizes_are_read(text, size):
    assert size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "-4GB", "4XB", "GB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InputError, match="is not a size"):
        size_in_bytes(text)
