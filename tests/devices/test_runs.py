"""Commands on a device, with the real worker: this machine as `local:`, ONNX Runtime as its runtime."""

import json
import sys

import pytest

from tests.conftest import SAMPLES
from tests.fixtures.commands import answer, refused, succeed
from tests.fixtures.networks import conv_net, samples
from tests.fixtures.slow import SLOW
from trtcal.cli.main import run_command
from trtcal.config import read_config
from trtcal.errors import BackendError
from trtcal.evaluate.comparison import Comparison, warnings
from trtcal.evidence.manifest import read_build
from trtcal.pipeline import run
from trtcal.wings.devices.backend import DeviceBackend

DIGITS = SAMPLES / "digits"
PROJECT = f"""
model = "{DIGITS}/digits.onnx"
output = "run"
limits = ["top1 >= -20.0", "latency_p50@here <= 60000 ms", "speedup@here >= 0.0001"]

[calibration]
data = "{DIGITS}/calibration.npz"
methods = ["minmax"]
method = "minmax"
improve = "off"

[evaluation]
data = "{DIGITS}/test.npz"
rounds = 8
layer_samples = 8

[build]
targets = ["@here"]
"""


def devices(folder, *names):
    """Return the tables of devices that are this machine, each with a folder of its own."""
    table = '[devices.{0}]\nhost = "local:"\npython = "{1}"\nfolder = "{2}/device-{0}"\n'
    return "".join(table.format(name, sys.executable, folder) for name in names)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder in which a whole run on the device was made."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "trtcal.toml").write_text(PROJECT + devices(folder, "here"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run_command(["run", "--no-history"]) == 0
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return a folder with a network, its INT8 form, data and devices."""
    monkeypatch.chdir(tmp_path)
    conv_net(tmp_path / "net.onnx")
    samples(tmp_path / "data.npz")
    (tmp_path / "trtcal.toml").write_text(devices(tmp_path, "here", "there"))
    for words in ("calibrate net.onnx --data data.npz", "quantize net.onnx -o int8.onnx"):
        assert run_command([*words.split()]) == 0
    return tmp_path


def test_a_run_on_a_device_is_measured_and_judged_there(place):
    report = json.loads((place / "run" / "report.json").read_text())
    comparison = Comparison.read(place / "run" / "comparison.json")
    for row in comparison.rows:
        assert (row.latency.on, row.latency.runs, row.latency.is_gpu) == ("@here", 8, False)
        assert [(time.target, time.is_measured) for time in row.times] == [("@here", True)]
    built = read_build(place / "run" / "builds" / "int8-minmax-@here")
    assert (built.target, built.backend, built.gpu) == ("@here", "onnxruntime", None)
    limits = {each["limit"]: each["state"] for each in report["measured"]["verdict"]["limits"]}
    on_device = [state for limit, state in limits.items() if "@here" in limit]
    assert on_device == ["holds", "holds"]
    page = (place / "run" / "report.html").read_text()
    assert "CPU @here" in page
    assert "GPU @here" not in page


def project(folder, text):
    """Write a configuration for the network of the fixture, and return it."""
    (folder / "run.toml").write_text(
        'model = "net.onnx"\noutput = "run"\n[calibration]\ndata = "data.npz"\nimprove = "off"\n'
        'methods = ["minmax", "entropy"]\nmethod = "minmax"\n[evaluation]\ndata = "data.npz"\n'
        f"rounds = 4\nlayer_samples = 2\n{text}\n" + devices(folder, "here", "there")
    )
    return read_config(folder / "run.toml")


def test_what_has_no_engine_there_is_compared_by_its_model_and_says_so(here, monkeypatch):
    """The first device judges; the second has times of what was built there."""
    build_in = DeviceBackend.build_in

    def refusing(backend, model, options, folder):
        if model.name == "int8-entropy" and options.target == "@here":
            raise BackendError("no kernel", "another plan")
        return build_in(backend, model, options, folder)

    monkeypatch.setattr(DeviceBackend, "build_in", refusing)
    config = project(here, '[build]\ntargets = ["@here", "@there"]')
    result = run(config)
    assert result.missing_builds == {"int8-entropy for @here": "no kernel; another plan"}
    comparison = Comparison.read(here / "run" / "comparison.json")
    rows = {row.name: row for row in comparison.rows}
    measured = {name: [time.target for time in row.times] for name, row in rows.items()}
    assert measured["int8-minmax"] == ["@here", "@there"]
    assert measured["int8-entropy"] == ["@there"]
    assert (rows["int8-entropy"].latency.on, rows["int8-minmax"].latency.on) == ("", "@here")
    said = " ".join(warnings(comparison))
    assert "int8-entropy: it has no engine on @here" in said
    assert "int8-minmax: it has no engine" not in said


def test_an_interrupted_run_builds_nothing_again(here, monkeypatch):
    config = project(here, '[build]\ntargets = ["@here"]')
    built, build_in = [], DeviceBackend.build_in

    def counting(backend, model, options, folder):
        built.append(model.name)
        return build_in(backend, model, options, folder)

    monkeypatch.setattr(DeviceBackend, "build_in", counting)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trtcal.pipeline.stages.compare", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(config)
    first = [*built]
    run(config)
    assert sorted(first) == ["int8-entropy", "int8-minmax", "net"]
    assert built == first


def interrupted(*_, **__):
    raise KeyboardInterrupt


def test_models_are_compared_on_a_device(here, capsys):
    words = ("net.onnx", "int8.onnx", "--data", "data.npz", "--rounds", 6)
    document = answer(capsys, "compare", *words, "--on", "here", "-o", "on.json")
    local = answer(capsys, "compare", *words, "-o", "local.json")
    comparison = Comparison.read(here / "on.json")
    assert [row.latency.on for row in comparison.rows] == ["@here", "@here"]
    assert document["digest"] == local["digest"]  # the engines compute the same there
    succeed(capsys, "build", "int8.onnx", "--target", "@here", "-o", "int8-here")
    mixed = ("compare", "net.onnx", "int8-here", "--data", "data.npz")
    assert "`--on here`" in refused(capsys, *mixed)
    succeed(capsys, *mixed, "--on", "@here", "-o", "mixed.json")
    assert Comparison.read(here / "mixed.json").rows[1].latency.on == "@here"


def test_engines_of_a_device_are_tested_against_each_other(here, capsys):
    succeed(capsys, "build", "int8.onnx", "--target", "@here", "-o", "int8-here")
    words = ("ab", "net.onnx", "int8-here", "--data", "data.npz", "--limit", "sqnr_db >= 1")
    words += ("--limit", "speedup >= 0.0001", "--allow-undecided")
    document = answer(capsys, *words, "--on", "here", "--reference", "net.onnx")
    latency = document["measured"]["latency"]
    assert latency["on"] == "@here"
    assert latency["blocks"] >= 40


def search(capsys, *words):
    words = ("search", "net.onnx", "--data", "data.npz", "--on", "here", *words)
    return answer(capsys, *words, "--improve", "off", "--limit", "sqnr_db >= 10")
