"""The sample plug-in, installed the way a user would, in a folder of its own."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import SAMPLES


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugin")
    source = folder / "source"
    source.mkdir()
    for file in (SAMPLES / "calibrator-plugin").iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder / "site")]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    return folder / "site"


def trtcal(installed, folder, *arguments):
    paths = os.pathsep.join([str(installed), str(SAMPLES.parent)])
    return subprocess.run(
        [sys.executable, "-m", "trtcal.cli.main", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_entry_point_makes_a_method(installed, tmp_path, digits):
    data = ("--data", str(digits / "calibration.npz"))
    model = str(digits / "digits.onnx")
    done = trtcal(
        installed, tmp_path, "calibrate", model, *data, "--method", "sigma", "-p", "sigmas=4"
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "calibration.json").read_text())
    assert (document["method"], document["parameters"]) == ("sigma", {"sigmas": 4})
    assert all(0 < item["amax"] <= item["observed_amax"] for item in document["ranges"].values())


def test_it_is_listed(installed, tmp_path):
    names = json.loads(trtcal(installed, tmp_path, "doctor", "--json").stdout)["calibrators"]
    assert "sigma" in names
