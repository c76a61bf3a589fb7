import json
import subprocess
import sys
import time

import pytest

from trtcal.calibration import ObserveOptions, observe
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
    assert 0 < sum(profile.seconds.values()) < 2 * profile.elapsed_s
    text = "\n".join(profile.lines())
    assert "30 samples in" in text
    assert "cores busy" in text


def test_the_phases_add_up_to_the_time_of_the_process(scene, tmp_path):
    words = ["calibrate", str(scene[0].path), "--data", str(tmp_path / "data.npz"), "--profile"]
    started = time.time()
    code = "import sys, time; from trtcal.cli.main import run_command"
    code += "; run_command(sys.argv[1:]); print('ended', time.time())"
    where = tmp_path / "calibration.json"
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "-o", str(where)], check=True, capture_output=True
    )
    elapsed = float(done.stdout.rpartition(b"ended ")[2]) - started
    measured = json.loads(where.with_suffix(".profile.json").read_text())["measured"]
    spent = sum(measured["phases"].values())
    assert 0.95 * elapsed < spent < elapsed + 0.02  # the system counts a start in hundredths
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


@pytest.mark.parametrize(
    ("text", "size"), [("512MB", 512 * 10**6), ("1.5GiB", 3 << 29), ("7", 7), ("4 g", 4 * 10**9)]
)
def test_sizes_are_read(text, size):
    assert size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["", "much", "-4GB", "4XB", "GB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InputError, match="is not a size"):
        size_in_bytes(text)
