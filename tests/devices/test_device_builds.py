"""Engines that a device builds and runs: the real worker, by its own process on this machine."""

import fcntl
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

from tests.cuda import stand_in
from tests.fixtures import trtexec
from tests.fixtures.commands import answer, refused, shows, succeed
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net
from tests.fixtures.quantized import calibrated
from tests.fixtures.slow import SLOW
from tests.fixtures.tables import each
from trtcal.backends.building import build
from trtcal.backends.child import watching
from trtcal.backends.narrow_floats import is_narrow
from trtcal.backends.options import BuildOptions, Route
from trtcal.backends.registry import check_engine, find_backend, floated
from trtcal.backends.sessions import run_session
from trtcal.config import BuildConfig, Config, DeviceConfig, configured_devices, hardware_of
from trtcal.data import open_dataset
from trtcal.documents import write_document
from trtcal.errors import BackendError, InputError, ResourceError
from trtcal.evidence.manifest import MANIFEST, read_build
from trtcal.model import load_model
from trtcal.quantization import Plan, quantize, write_quantized
from trtcal.wings.devices.backend import _batches
from trtcal.wings.devices.connection import Connection
from trtcal.wings.devices.session import packed, timing_of, unpacked

VERSION = onnxruntime.__version__


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A device of this machine, in a folder of its own."""
    folder = tmp_path_factory.mktemp("device")
    devices = {"here": DeviceConfig("local:", sys.executable, folder=str(folder / "files"))}
    Config(devices=devices).in_use()
    yield devices["here"]
    Config().in_use()


@pytest.fixture(scope="module")
def scene(here, tmp_path_factory):
    """A model in INT8, its samples, and its builds for the CPU and for the device."""
    folder = tmp_path_factory.mktemp("scene")
    model, calibration, data = calibrated(conv_net(folder / "net.onnx"), folder)
    write_quantized(folder / "int8.onnx", quantize(model, calibration))
    loaded = load_model(folder / "int8.onnx")
    targets = "cpu", "@here"
    builds = (build_for(loaded, target, folder / target) for target in targets)
    return loaded, next(data.batches(8)), *builds


def build_for(model, target, folder, **options):
    backend, target = find_backend(None, target)
    return build(model, backend, BuildOptions(target, **options), folder)


def test_a_build_on_a_device_is_that_of_this_machine_but_for_its_target(scene):
    _, _, local, remote = scene
    expected = replace(local, target="@here", folder=remote.folder, measured=remote.measured)
    assert remote == expected
    assert remote.engine.read_bytes() == local.engine.read_bytes()
    assert remote.log.read_text()
    assert read_build(remote.folder) == remote
    assert remote.measured["device"].keys() >= {"system", "hardware", "driver", "power_mode"}


def test_its_session_computes_what_the_local_one_does(scene):
    model, feeds, *builds = scene
    local, remote = (check_engine(each.folder, model=model).open() for each in builds)
    for names in (None, [model.outputs[0].name], []):
        expected = run_session(local, names, feeds)
        for a, b in zip(expected, run_session(remote, names, feeds), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    assert (remote.ranks, remote.firsts, remote.rounds) == (local.ranks, local.firsts, False)
    assert [x.name for x in remote.get_inputs()] == [x.name for x in local.get_inputs()]
    ours, theirs = (s.get_modelmeta().custom_metadata_map for s in (remote, local))
    assert ours == theirs
    assert ours
    assert (remote.device, remote.is_gpu) == ("@here", False)
    assert remote.hardware == f"CPU, ONNX Runtime {VERSION}"


@SLOW
def test_float16_is_rounded_there_as_here(scene, tmp_path):
    _, feeds, *_ = scene
    model, calibration, _ = calibrated(conv_net(tmp_path / "net.onnx"), tmp_path)
    write_quantized(tmp_path / "fp16.onnx", quantize(model, calibration, Plan("fp16")))
    narrow = load_model(tmp_path / "fp16.onnx")
    folders = [build_for(narrow, target, tmp_path / target).folder for target in ("cpu", "@here")]
    local, remote = (check_engine(folder).open() for folder in folders)
    assert (local.rounds, remote.rounds) == (True, True)
    optimizers = len(remote.engine["options"]["disabled_optimizers"])
    (device,) = configured_devices().values()
    (other := check_engine(scene[3].folder).open()).time([other, remote], feeds, 1)
    jobs = map(json.loads, (p.read_text() for p in Path(device.folder).glob("jobs/*/job.json")))
    timed = [
        job["job"]["engine_options"] for job in jobs if len(job["job"].get("engines", ())) == 2
    ]
    sizes = [[len(options["disabled_optimizers"]) for options in each] for each in timed]
    assert [1, optimizers] in sizes
    assert optimizers > 1
    outputs = (run_session(session, None, feeds) for session in (local, remote))
    for a, b in zip(*outputs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_sessions_are_timed_there_in_turns(scene):
    _, feeds, _, remote = scene
    sessions = [check_engine(remote.folder).open() for _ in range(2)]
    timing = sessions[0].time(sessions, feeds, 3)
    assert timing.times_ms.shape == (3, 2, 2)
    assert (timing.times_ms > 0).all()
    assert (timing.compute_ms, timing.energy_mj) == (None, (None, None))
    assert timing.warm_up > 0
    other = sessions[0].time(sessions, feeds, 3)
    assert not np.array_equal(timing.times_ms, other.times_ms)  # measured again, not looked up


def test_the_log_comes_while_the_builder_runs(scene, tmp_path):
    model, *_ = scene
    pieces = []
    with watching(pieces.append):
        result = build_for(model, "@here", tmp_path / "build")
    assert b"".join(pieces) == result.log.read_bytes()
    records = (result.folder / "build.jsonl").read_text().splitlines()
    assert all({"seconds", "severity", "message"} == json.loads(line).keys() for line in records)


def tensor(name):
    return make_tensor_value_info(name, TensorProto.FLOAT, (4,))


def test_what_the_device_refuses_leaves_its_log_and_no_engine(here, tmp_path):
    node = make_node("Unknown", ["x"], ["y"], "n", domain="custom")
    graph = make_graph([node], "g", [tensor("x")], [tensor("y")])
    opsets = [make_opsetid("", 17), make_opsetid("custom", 1)]
    model = load_model(make_model(graph, opset_imports=opsets, ir_version=8))
    with fails(BackendError, "Unknown"):
        build_for(model, "@here", tmp_path / "build")
    assert not (tmp_path / "build" / "engine.onnx").exists()


def test_a_build_ends_at_its_time_limit(here, tmp_path, monkeypatch):
    model, poll = load_model(conv_net(tmp_path / "net.onnx")), Connection._poll

    def as_running(*arguments):
        answer, log = poll(*arguments)
        return {**answer, "state": answer["state"].replace("queued", "running")}, log

    monkeypatch.setattr(
        Connection, "_poll", as_running
    )  # the lock holds it for as long as it takes
    with open(os.environ["TRTCAL_DEVICE_LOCK"], "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with fails(ResourceError, "0.01 s", hint="--time-limit"):
            build_for(model, "@here", tmp_path / "build", time_limit_s=0.01)
    assert build_for(model, "@here", tmp_path / "build").engine.exists()


@each(
    "change, message",
    [
        ({"backend_version": "1.0.0"}, f"which has {VERSION} now"),
        ({"gpu": "NVIDIA Orin (sm87)"}, "@here has a CPU now"),
    ],
)
def test_an_engine_of_before_an_update_is_refused_with_the_command(
    scene, tmp_path, change, message
):
    _, _, _, remote = scene
    folder = tmp_path / "old"
    folder.mkdir(exist_ok=True)
    (folder / "engine.onnx").write_bytes(remote.engine.read_bytes())
    write_document(folder / MANIFEST, replace(remote, folder=folder, **change).to_document())
    with fails(InputError, message) as caught:
        check_engine(folder, trust=True)
    assert f"trtcal build int8.onnx --target @here -o {folder}" in caught.value.hint


def test_a_device_that_does_not_answer_is_one_error(scene, tmp_path, monkeypatch):
    model, _, _, remote = scene
    gone = DeviceConfig("local:", str(tmp_path / "python"))
    Config(devices={"here": gone}).in_use()
    try:
        with fails(BackendError, "@here"):
            check_engine(remote.folder)
        with fails(BackendError, "@here"):
            build_for(model, "@here", tmp_path / "build")
    finally:
        assert hardware_of("@here") == "@here"  # another machine under its name said nothing yet


def test_a_device_is_what_it_said_last(scene, here, monkeypatch):
    Config(devices={"here": here}).in_use()
    assert hardware_of("@here") == "cpu"
    assert BuildConfig(targets=("@here",)).rest_for(["@here"]) == "fp32"
    assert BuildConfig(targets=("@unknown",)).rest_for(["@unknown"]) == "fp16"
    assert floated(["@here", "sm89"]) == ("ConvTranspose",)
    with fails(InputError, "the device @unknown is not known"):
        floated(["@unknown", "sm89"])
    assert (hardware_of("sm89"), hardware_of("@unknown")) == ("sm89", "@unknown")


def test_a_device_has_its_own_backend(scene, tmp_path):
    model, *_ = scene
    with fails(InputError, "--backend onnxruntime is not for the device @here"):
        find_backend("onnxruntime", "@here")
    with fails(InputError, "the device @nowhere is not known"):
        find_backend(None, "@nowhere")
    for target in ("@here,sm89", "@slices", "@", "@a b"):
        with fails(InputError, f"target {target!r} is not a device"):
            find_backend(None, target)
    with fails(InputError, "no option --workspace"):
        build_for(model, "@here", tmp_path / "build", workspace_bytes=1 << 20)


def test_build_takes_a_device_of_trtcal_toml(scene, here, tmp_path, monkeypatch, capsys):
    model, *_ = scene
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trtcal.toml").write_text(
        f'[build]\ntargets = ["@board"]\n[devices.board]\nhost = "local:"\n'
        f'python = "{sys.executable}"\nfolder = "{here.folder}"\n'
    )
    printed = succeed(capsys, "build", model.path)
    shows(printed, "builds/@board/engine.onnx", f"onnxruntime {VERSION} for @board")
    document = answer(capsys, "diagnose", "builds/@board", "--model", model.path)
    assert document["kind"] == "diagnosis"
    shows(refused(capsys, "build", model.path, "--target", "@other"), "@other", "device add")


OUTPUT = {"name": "y", "dtype": "float32", "shape": [2, 2]}


@each(
    "described, size",
    [
        ([OUTPUT], 12),
        ([OUTPUT], 20),
        ([{**OUTPUT, "dtype": "object"}], 16),
        ([{**OUTPUT, "dtype": "O"}], 16),
        ([{**OUTPUT, "shape": [-1, 4]}], 16),
        ([{**OUTPUT, "shape": [1 << 70]}], 16),
        ([{**OUTPUT, "shape": None}], 16),
        ([{"name": "y"}], 0),
        (None, 0),
        ("y", 0),
    ],
)
def test_outputs_that_do_not_fit_their_description_are_refused(described, size):
    with fails(BackendError, "the device sent outputs"):
        unpacked(described, bytes(size))


def test_arrays_go_there_and_back():
    feeds = {
        "a": np.arange(6, dtype=">f4").reshape(2, 3),
        "b": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "none": np.empty((0, 4), np.float16),
        "flag": np.array(True),
    }
    back = unpacked(*packed(feeds))
    assert back.keys() == feeds.keys()
    for name, array in feeds.items():
        np.testing.assert_array_equal(back[name], array)
        assert back[name].dtype.newbyteorder("=") == array.dtype.newbyteorder("=")


TIMED = {
    "times_ms": [[[1.0, 1.5]], [[2.0, 2.5]]],
    "compute_ms": None,
    "energy_mj": [None],
    "clocks_mhz": [900.0, 910],
    "warm_up": 3,
    "warnings": ["throttled"],
}


def test_a_timing_is_read():
    timing = timing_of(TIMED, 2, 1)
    assert timing.times_ms.tolist() == TIMED["times_ms"]
    assert (timing.clocks_mhz, timing.warnings) == ((900.0, 910.0), ("throttled",))


@each(
    "change",
    [
        {"times_ms": [[[1.0, 1.5]]]},
        {"times_ms": [[[1.0, -1.5]], [[2.0, 2.5]]]},
        {"times_ms": [[[1.0, float("nan")]], [[2.0, 2.5]]]},
        {"times_ms": "fast"},
        {"compute_ms": [[1.0]]},
        {"energy_mj": []},
        {"energy_mj": [-1.0]},
        {"clocks_mhz": [900.0]},
        {"clocks_mhz": {}},
        {"warm_up": "many"},
        {"warnings": 3},
    ],
)
def test_a_timing_of_another_form_is_refused(change):
    with fails(BackendError, "the device sent times that do not fit"):
        timing_of({**TIMED, **change}, 2, 1)


def on_gpu(folder, version):
    """Return a device with a GPU and `trtexec` of a version: programs of tests in their places."""
    home = folder / version
    home.mkdir()
    calls = trtexec.install(home, version)
    stand_in.build(home)
    python = home / "python"
    variables = f'PATH="{home}:$PATH" LD_LIBRARY_PATH="{home}"'
    python.write_text(f'#!/bin/sh\n{variables} exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return DeviceConfig("local:", str(python), folder=str(home / "files")), calls


@pytest.fixture
def gpu(here, tmp_path):
    """A device `@gpu` with TensorRT 10.3, `@old` with 8.6.1, and the calls of their programs."""
    devices = {name: on_gpu(tmp_path, d) for name, d in {"gpu": "10.3.0", "old": "8.6.1"}.items()}
    Config(
        devices={"here": here} | {name: device for name, (device, _) in devices.items()}
    ).in_use()
    yield {name: calls for name, (_, calls) in devices.items()}
    Config(devices={"here": here}).in_use()


def doubled(path):
    """A model of which the program of the tests knows the output: two times the input."""
    node = make_node("Add", ["a:x", "a:x"], ["y"], "double")
    ends = [make_tensor_value_info(name, TensorProto.FLOAT, (1, 3)) for name in ("a:x", "y")]
    graph = make_graph([node], "g", ends[:1], ends[1:])
    path.write_bytes(
        make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    return load_model(path)


def test_a_device_with_a_gpu_builds_runs_and_times_by_trtexec(gpu, tmp_path):
    """Not TensorRT: a program that takes trtexec's options and writes its files."""
    model = doubled(tmp_path / "double.onnx")
    result = build_for(model, "@gpu", tmp_path / "build", layer_times=True)
    assert (result.backend, result.backend_version) == ("tensorrt", "10.3.0")
    assert re.fullmatch(r"Imaginary GTX 1 \(sm\d\d\)", result.gpu)
    assert not result.is_for_cpu
    assert result.engine.read_bytes() == b"engine of " + model.path.read_bytes()
    assert [layer.name for layer in result.layers] == ["stem_conv_myl0_1", "head_gemm_myl0_1"]
    assert {"layers.json", "layer-times.json"} <= {path.name for path in result.folder.iterdir()}
    assert "--stronglyTyped" in result.command
    assert hardware_of("@gpu") == result.gpu[-5:-1]
    session = check_engine(result.folder, model=model).open()
    assert (session.hardware, session.is_gpu) == (f"{result.gpu}, TensorRT 10.3.0", True)
    feeds = {"a:x": np.float32([[1.0, -2.5, 3.0]])}
    (output,) = run_session(session, ["y"], feeds)
    np.testing.assert_array_equal(output, 2 * feeds["a:x"])
    timing = session.time([session, session], feeds, 4)
    assert timing.times_ms.shape == timing.compute_ms.shape == (4, 2, 2)
    assert (timing.times_ms > timing.compute_ms).all()
    calls = [json.loads(line) for line in gpu["gpu"].read_text().splitlines()]
    assert "--useCudaGraph" in calls[-1]


@SLOW
def test_the_request_is_for_the_version_of_the_device(gpu, tmp_path):
    model, calibration, _ = calibrated(conv_net(tmp_path / "net.onnx"), tmp_path)
    write_quantized(tmp_path / "fp16.onnx", quantize(model, calibration, Plan("fp16")))
    narrow = load_model(tmp_path / "fp16.onnx")
    for name in ("gpu", "old"):
        build_for(narrow, f"@{name}", tmp_path / name)
    words = {name: json.loads(calls.read_text().splitlines()[0]) for name, calls in gpu.items()}
    assert "--stronglyTyped" in words["gpu"]
    assert ("--fp16" in words["old"], "--fp16" in words["gpu"]) == (True, False)
    sent = {name: (tmp_path / name / "engine.plan").read_bytes() for name in gpu}
    kinds = {name: onnx.load_from_string(data[len("engine of ") :]) for name, data in sent.items()}
    has = {name: is_narrow(proto) for name, proto in kinds.items()}
    assert has == {"gpu": True, "old": False}  # the parser of 8.6 gets float32


@SLOW
def test_an_engine_of_an_older_tensorrt_is_refused(gpu, tmp_path):
    result = build_for(doubled(tmp_path / "double.onnx"), "@gpu", tmp_path / "build")
    devices = configured_devices()
    Config(devices={**devices, "gpu": devices["old"]}).in_use()
    with fails(InputError, "tensorrt 10.3.0 of @gpu", "which has 8.6.1 now") as caught:
        check_engine(result.folder)
    assert "trtcal build" in caught.value.hint


@SLOW
def test_a_device_without_what_builds_says_so(gpu, tmp_path):
    home = tmp_path / "10.3.0"
    (home / "trtexec").unlink()
    with fails(BackendError, "@gpu", "nothing that builds", hint="trtcal device check gpu"):
        build_for(doubled(tmp_path / "double.onnx"), "@gpu", tmp_path / "build")


def test_the_builder_is_fed_whole_batches_in_its_types(scene, tmp_path):
    model, *_ = scene
    route = Route("calibrator", data=tmp_path / "data.npz")
    settings = route.to_request(model.inputs, {"x": ((1, 3, 8, 8), (4, 3, 8, 8), (4, 3, 8, 8))})
    data = open_dataset({"x": np.ones((10, 3, 8, 8), np.float32)}, model)
    batches = list(_batches(data, settings))
    assert [batch["x"].shape for batch in batches] == [(4, 3, 8, 8)] * 2
    assert batches[0]["x"].dtype == np.float32
