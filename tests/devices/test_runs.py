"""Commands on a device, with the real worker: this machine as `local:`, ONNX Runtime as its runtime."""

import itertools
import json
import re
import shlex
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import trtcal
from tests.conftest import SAMPLES
from tests.fixtures.commands import answer, refused, succeed
from tests.fixtures.commands import run as run_words
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net, samples
from tests.fixtures.slow import SLOW
from trtcal.backends.sessions import Session, run_once
from trtcal.cli.main import run_command
from trtcal.config import read_config
from trtcal.errors import BackendError, ResourceError
from trtcal.evaluate.comparison import Comparison, warnings
from trtcal.evaluate.latency import Latency
from trtcal.evaluate.on_device import backend_on
from trtcal.evaluate.search.pipeline import SearchOptions
from trtcal.evidence.manifest import read_build
from trtcal.pipeline.job import run
from trtcal.wings.devices.backend import DeviceBackend
from trtcal.wings.devices.trials import DeviceTrials

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


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a folder with a network, its INT8 form, data and two devices."""
    folder = tmp_path_factory.mktemp("project")
    conv_net(folder / "net.onnx")
    samples(folder / "data.npz")
    (folder / "trtcal.toml").write_text(devices(folder, "here", "there"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in ("calibrate net.onnx --data data.npz", "quantize net.onnx -o int8.onnx"):
            assert run_command([*words.split()]) == 0
    return folder


@pytest.fixture
def here(project, monkeypatch):
    monkeypatch.chdir(project)
    return project


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


@SLOW
def test_a_run_of_a_model_knows_the_devices_of_trtcal_toml(here, capsys):
    words = ("net.onnx", "--data", "data.npz", "--target", "@here", "-o", "model")
    status, _, err = run_words(capsys, "run", *words, "--improve", "off", "--no-history")
    assert status in (0, 1), err
    rows = Comparison.read(here / "model" / "comparison.json").rows
    assert {row.latency.on for row in rows} == {"@here"}


def configured(folder, targets, methods):
    """Return the configuration of a run of the network."""
    (folder / "run.toml").write_text(
        'model = "net.onnx"\noutput = "run"\n[calibration]\ndata = "data.npz"\nimprove = "off"\n'
        f'methods = {methods}\nmethod = "minmax"\n[evaluation]\ndata = "data.npz"\nrounds = 4\n'
        f"layer_samples = 2\n[build]\ntargets = {targets}\n{devices(folder, 'here', 'there')}"
    )
    return read_config(folder / "run.toml")


@SLOW
def test_what_has_no_engine_there_is_compared_by_its_model_and_says_so(here, monkeypatch):
    """The first device judges; the second has times of what was built there."""
    build_in = DeviceBackend.build_in

    def refusing(backend, model, options, folder):
        if model.name == "int8-entropy" and options.target == "@here":
            raise BackendError("no kernel", "another plan")
        return build_in(backend, model, options, folder)

    monkeypatch.setattr(DeviceBackend, "build_in", refusing)
    config = configured(here, ["@here", "@there"], ["minmax", "entropy"])
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


@SLOW
def test_an_interrupted_run_builds_nothing_again(here, monkeypatch):
    config = configured(here, ["@here"], ["minmax"])
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
    assert sorted(first) == ["int8-minmax", "net"]
    assert built == first


def interrupted(*_, **__):
    raise KeyboardInterrupt


def test_a_device_that_is_lost_while_it_runs_is_no_failure_of_the_model():
    class Lost(Session):
        def __init__(self):
            pass

        def run(self, *_):
            raise ResourceError("the connection to @here ended", "start the same command again")

    with fails(ResourceError, "the connection", hint="same command again"):
        run_once(Lost(), None, {})


def test_the_test_that_follows_a_comparison_is_of_the_same_device(here, capsys):
    """Without the limits on times of the device, which an A/B test does not take."""
    inputs = {name: array for name, array in np.load("data.npz").items() if name != "labels"}
    np.savez("inputs.npz", **inputs)
    words = ["net.onnx", "int8.onnx", "--data", "inputs.npz", "--rounds", "6", "--on", "here"]
    limits = ["--limit", "sqnr_db >= 30", "--limit", "latency_p50@here <= 60000 ms"]
    assert run_command(["compare", *words, *limits, "-o", "next.json"]) == 0
    err = capsys.readouterr().err
    (line,) = re.findall("^next: trtcal (ab .*)", err, re.MULTILINE)
    words = shlex.split(line)
    assert [words[k + 1] for k, word in enumerate(words) if word == "--limit"] == limits[1:2]
    assert "--on here" in line


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


@SLOW
def test_engines_of_a_device_are_tested_against_each_other(here, capsys):
    succeed(capsys, "build", "int8.onnx", "--target", "@here", "-o", "int8-here")
    words = ("ab", "net.onnx", "int8-here", "--data", "data.npz", "--limit", "sqnr_db >= 1")
    words += ("--limit", "speedup >= 0.0001", "--allow-undecided")
    document = answer(capsys, *words, "--on", "here", "--reference", "net.onnx")
    latency = document["measured"]["latency"]
    assert latency["on"] == "CPU @here"
    assert latency["blocks"] >= 40


@pytest.fixture
def searched(here):
    """Return what searches on the device, with time for the plans of the front; and edits its file."""

    def search():
        place = (*backend_on("here"), here / "search")
        device = DeviceTrials(*place, 1.5, itertools.count().__next__)
        settings = SearchOptions(improve="off", device=device)
        result = trtcal.search("net.onnx", "calibration.json", "data.npz", (), settings, "search")
        return result.found, device

    def edit(line, speeds):
        """Give engines of a trial, by their place in it, these speeds beside its first one."""
        path = here / "search" / "device.jsonl"
        lines = [*map(json.loads, path.read_text().splitlines())]
        for number, latency in enumerate(lines[line]["latencies"][1:], 1):
            speed = speeds.get(number, 0.5)
            latency["speedup"], latency["speedup_interval"] = speed, [speed - 0.005, speed + 0.005]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return search, edit


@SLOW
def test_a_search_keeps_what_is_surely_faster_on_the_device_and_resumes(searched, here):
    """What was timed stands in a file: with other times in it, the same search ends elsewhere."""
    search, edit = searched
    search()
    state = here / "search" / "device.jsonl"
    whole, floats = frozenset({"first", "second", "add", "gemm"}), 1
    edit(0, {1: 1.024})  # surely 1.019 times as fast
    findings, device = search()
    assert (device.kept.plan, device.is_complete) == (whole, False)
    trials = state.read_text().count("\n")
    edit(trials - 1, {floats: 0.99})
    findings, device = search()
    assert findings.recommended.plan == frozenset()  # as INT8 is not surely 1.02 times as fast
    edit(trials - 1, {floats: 0.5})
    findings, device = search()
    assert (findings.recommended.plan, findings.answer) == (whole, "int8")
    assert state.read_text().count("\n") == trials
    edit(0, {1: 1.027})
    _, device = search()
    assert device.kept.plan not in (whole, frozenset())


def test_plans_are_kept_where_all_in_int8_is_not_built_there(tmp_path, monkeypatch):
    def latency(speed):
        return Latency(1, 1, 1.0, 1.0, 1.0, (1.0, 1.0), speed, (speed, speed))

    device = DeviceTrials(None, "@here", tmp_path)
    device.kept, fast, whole = (SimpleNamespace(plan=frozenset(name)) for name in "kfw")
    timed = {(device.kept.plan, None): latency(1.0), (fast.plan, None): latency(1.5)}
    monkeypatch.setattr(device, "_time", lambda *_: timed)
    device._try([fast], whole, None, None)
    assert (device.kept, device.timed) == (fast, {})


def test_plans_of_one_estimated_time_are_tried_in_one_order(tmp_path):
    """Else another process would time other groups, and not find what was timed."""
    device = DeviceTrials(None, "@here", tmp_path)
    units = [f"layer{number}" for number in range(20)]
    costs = SimpleNamespace(plan_ms=lambda plan: 1.0)
    device.kept = SimpleNamespace(plan=frozenset(units))
    plans = device._near(SimpleNamespace(units=units, costs=costs), set())
    assert [*map(sorted, plans)] == sorted(map(sorted, plans))
    assert len(plans) == 20
