"""The worker's runtime for `trtexec` alone, with a program that stands in for it.

They prove that options are written and files are read as the sources of TensorRT's samples have them,
not that TensorRT does anything with them: nothing of it has run on a GPU yet.
"""

import json
import math
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from calibrators.tensorrt_cache import cache_of_ranges
from tests.fixtures import trtexec
from tests.fixtures.fails import fails
from tests.fixtures.local_device import here
from tests.fixtures.slow import SLOW
from tests.fixtures.tables import each
from trtcal.backends.options import BuildOptions
from trtcal.backends.tensorrt import trtexec_command
from trtcal.documents.digests import digest_bytes
from trtcal.wings.devices.worker import trtexec_runtime
from trtcal.wings.devices.worker.frames import Fault
from trtcal.wings.devices.worker.power import Meter
from trtcal.wings.devices.worker.runtimes import Tensor

VERSIONS = {"8502": "8.5.2", "8601": "8.6.1", "100300": "10.3.0", "110100": "11.1.0"}
PROFILE = {"a:x": [[1, 3], [8, 3], [32, 3]]}
QDQ = {"route": "qdq", "quantized": True, "fp16": False, "float32": {}, "profiles": []}
CACHE = {"route": "cache", "kind": "entropy2", "ranges": {"x": 1.0}, "precisions": {}}
FEEDS = {"a:x": Tensor("float32", (1, 3), np.float32([[1, math.nan, -math.inf]]).tobytes())}


ENDS = {
    "inputs": [{"name": "a:x", "dtype": "float32", "shape": [-1, 3]}],
    "outputs": [{"name": "y", "dtype": "float32", "shape": [-1, 3]}],
}


KEY, ENGINE = digest_bytes(b"build"), b"engine of a model"
LAYERS = trtexec.layer_info("10.3.0", trtexec.NODES).encode()
__all__ = ["here"]


class Device:
    """A folder with jobs, and a `trtexec` of some version."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.log = folder, []
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.setattr(tempfile, "tempdir", "/nowhere")  # all is in the device's folder
        monkeypatch.setattr(trtexec_runtime, "open_meter", Meter)
        (folder / "model").write_bytes(b"a model")
        (folder / "work").mkdir()

    def install(self, digits, **options):
        trtexec_runtime.version.cache_clear()
        self.calls = trtexec.install(self.folder, VERSIONS[digits], **options)

    def job(self, options=None, **fields):
        paths = SimpleNamespace(path=lambda name: str(self.folder / name))
        return SimpleNamespace(options=options or {}, fields=fields, path=paths.path)

    def build(self, options):
        return trtexec_runtime.build(self.job(options), str(self.folder / "work"), self.log.append)

    def engine(self, name=""):
        path = self.folder / f"engine{name}"
        path.write_bytes(b"engine of " + name.encode())
        return str(path)

    def words(self):
        """Return the options of each call of the program, which it knew."""
        return [json.loads(line) for line in self.calls.read_text().splitlines()]


@pytest.fixture
def device(tmp_path, monkeypatch):
    return Device(tmp_path, monkeypatch)


def test_its_version_is_what_it_prints_first(device):
    assert trtexec_runtime.version() is None or device  # nothing is installed yet
    for digits, version in VERSIONS.items():
        device.install(digits)
        assert trtexec_runtime.version() == version


def test_every_version_builds_with_options_that_it_has(device):
    for digits in VERSIONS:
        device.install(digits)
        built = device.build({**QDQ, "profiles": [PROFILE], "layer_times": True})
        work = device.folder / "work"
        assert built["files"].keys() == {"engine", "layers", "layer_times"}
        assert (work / "engine.plan").read_bytes() == b"engine of a model"
        assert "Layers" in json.loads((work / "layers.json").read_text())
        assert json.loads((work / "layer-times.json").read_text())[0] == {"count": 100}
        assert "--optShapes='a:x':8x3" in device.words()[-2]
        assert "--shapes='a:x':8x3" in device.words()[-1]
    assert any("Engine loaded" in line for line in device.log)


def test_its_options_are_those_of_the_line_that_a_build_shows():
    shapes = {"x": ((1, 3), (8, 3), (32, 3)), "y": ((2,), (2,), (4,))}
    options = BuildOptions("gpu", shapes, workspace_bytes=3 << 19, optimization_level=2)
    request = {**QDQ, "profiles": [shapes], "workspace_bytes": 3 << 19, "optimization_level": 2}
    for version in ("8.6.1", "10.3.0", "11.1.0"):
        line = trtexec_command(version, options, (shapes,), True, "m", "e").split()
        numbers = tuple(int(part) for part in version.split("."))[:2]
        words = trtexec_runtime.option_words(request, numbers)
        ours = {"trtexec", "--onnx=m", "--saveEngine=e", "--skipInference", "--verbose", "--noTF32"}
        assert set(line) - ours == set(words)


TYPED = [
    ((8, 6), QDQ, ["--int8"]),
    ((8, 6), {**QDQ, "quantized": False, "fp16": True}, ["--fp16"]),
    (
        (8, 6),
        {**QDQ, "quantized": False, "fp16": True, "float32": {"a": "fp32", "b:c": "fp32"}},
        ["--fp16", "--precisionConstraints=prefer", "--layerPrecisions=a:fp32,'b:c':fp32"],
    ),
    ((10, 3), {**QDQ, "fp16": True}, ["--stronglyTyped"]),
    ((9, 2), QDQ, ["--stronglyTyped"]),
    ((11, 1), QDQ, []),
    ((10, 3), CACHE, ["--int8", "--calib=calibration.cache"]),
    (
        (8, 6),
        {**CACHE, "constraints": "obey", "precisions": {"a": "int8", "b": "fp16"}},
        [
            "--int8",
            "--calib=calibration.cache",
            "--fp16",
            "--precisionConstraints=obey",
            "--layerPrecisions=a:int8,b:fp16",
        ],
    ),
]


@each("numbers, request, words", TYPED)
def test_precision_is_asked_for_as_each_version_takes_it(numbers, request, words):
    assert trtexec_runtime.typing_words(request, numbers) == words


REFUSED = [
    ("110100", CACHE),
    ("100300", {**CACHE, "kind": "minmax"}),
    ("100300", {**CACHE, "route": "dynamic-ranges"}),
    ("8601", {**CACHE, "route": "calibrator"}),
    ("8601", {**QDQ, "profiles": [PROFILE, PROFILE]}),
    ("8502", {**QDQ, "optimization_level": 3}),
    ("8601", {**QDQ, "profiles": [{"a,b": [[1], [1], [1]]}]}),
    ("8601", {**QDQ, "fp16": True, "float32": {"it's": "fp32"}}),
]


@each("digits, request", REFUSED)
def test_what_its_options_cannot_say_is_refused_before_it_is_called(device, digits, request):
    device.install(digits)
    with fails(Fault, f"trtexec {VERSIONS[digits]} on the device", hint="Python package"):
        device.build(request)
    assert device.words() == []


def test_the_cache_is_that_of_the_version_on_the_device(device):
    device.install("100300")
    built = device.build({**CACHE, "ranges": {"x": 1.0, "a b": 0.1}})
    expected = cache_of_ranges("10.3.0", "entropy2", {"x": 1.0, "a b": 0.1})
    assert (device.folder / "work" / "calibration.cache").read_bytes() == expected
    assert built["files"]["cache"].endswith("calibration.cache")


def test_its_first_error_is_the_build_s(device):
    device.install("8601")
    (device.folder / "model").write_bytes(b"broken")
    with fails(Fault, "trtexec 8.6.1", "ModelImporter.cpp:726: no such operator", hint="log"):
        device.build(QDQ)


def test_without_it_or_with_an_old_one_there_is_a_command(device, monkeypatch):
    monkeypatch.setattr(trtexec_runtime, "program", lambda: None)
    trtexec_runtime.version.cache_clear()
    with fails(Fault, "there is none", hint="apt-get install"):
        trtexec_runtime.open("engine", ENDS)
    monkeypatch.setattr(trtexec_runtime, "version", lambda: "8.4.3")
    with fails(Fault, "there is 8.4.3"):
        trtexec_runtime.open("engine", ENDS)


def test_a_batch_comes_back_with_types_and_what_json_has_no_word_for(device):
    for digits in VERSIONS:
        device.install(digits)
        engine = trtexec_runtime.open(device.engine(), ENDS)
        assert engine.inputs == ENDS["inputs"]
        output = engine.run(FEEDS, ["y"])["y"]
        assert output[:2] == ("float32", (1, 3))
        expected = np.float32([2, math.nan, -math.inf])
        np.testing.assert_array_equal(np.frombuffer(output.data, np.float32), expected)
        with fails(Fault, "trtexec wrote only the outputs y"):
            engine.run(FEEDS, ["z"])
    assert [path.name for path in device.folder.iterdir() if path.is_dir()] == ["work"]


VALUES = "-nan, nan(ind), inf, -inf"


def test_every_spelling_of_no_number_is_read():
    text = f'[ {{ "name" : "inf, nan", "dimensions" : "4", "values" : [ {VALUES} ] }} ]'
    tensor = trtexec_runtime.read_outputs(text, {"inf, nan": "float16"})["inf, nan"]
    expected = np.float16([math.nan, math.nan, math.inf, -math.inf])
    np.testing.assert_array_equal(np.frombuffer(tensor.data, np.float16), expected)


WRONG = (
    "[",
    '{"name": 1}',
    '[{"name": "y", "dimensions": "2", "values": [1]}]',
    '[{"name": "z", "dimensions": "1", "values": [1]}]',
    '[{"name": "y", "dimensions": "1", "values": ["a"]}]',
)


@each("text", WRONG)
def test_outputs_that_are_none_are_one_error(text):
    with fails(Fault, "trtexec's outputs cannot be read"):
        trtexec_runtime.read_outputs(text, {"y": "float32"})


def test_a_scalar_has_values_and_no_shape(tmp_path):
    scalar = Tensor("float32", (), np.float32(3).tobytes())
    words = trtexec_runtime.fed_words({"s": scalar}, {"s": "float32"}, str(tmp_path))
    assert words == ["--loadInputs=s:0.bin"]
    text = '[{"name": "y", "dimensions": "", "values": [3]}]'
    assert trtexec_runtime.read_outputs(text, {"y": "float32"}) == {"y": scalar}


@each("ends", [{}, {"inputs": [{"name": "x"}], "outputs": []}, {"inputs": 3, "outputs": []}])
def test_an_engine_of_unknown_types_cannot_be_run(device, ends):
    device.install("8601")
    with fails(Fault, "trtexec does not tell what the engine's inputs are"):
        trtexec_runtime.open(device.engine(), ends)


def test_before_10_integers_are_narrow(device):
    ids = [{"name": "ids", "dtype": "int64", "shape": [1]}]
    for digits, dtype in (("8601", "int32"), ("100300", "int64")):
        device.install(digits)
        engine = trtexec_runtime.open(device.engine(), {"inputs": ids, "outputs": ids})
        assert engine.inputs == engine.outputs == [{"name": "ids", "dtype": dtype, "shape": [1]}]
        tensor = Tensor("int64", (1,), np.int64([7]).tobytes())
        words = trtexec_runtime.fed_words({"ids": tensor}, {"ids": dtype}, str(device.folder))
        assert words == ["--loadInputs=ids:0.bin", "--shapes=ids:1"]
        assert (device.folder / "0.bin").read_bytes() == np.array([7], dtype).tobytes()


def timed(device, rounds, names="ABC", **fields):
    paths = [device.engine(name * number) for number, name in enumerate(names)]
    job = device.job(ENDS, rounds=rounds, **fields)
    folder = str(device.folder / "work")
    return trtexec_runtime.time(paths, FEEDS, job, folder, device.log.append)


def test_engines_take_turns_and_every_version_has_its_transfers(device):
    for digits, names in (("8601", "A"), ("110100", "ABC")):
        device.install(digits)
        result = timed(device, 5, names)
        times, compute = np.array(result["times_ms"]), np.array(result["compute_ms"])
        assert times.shape == compute.shape == (5, len(names), 2)
        np.testing.assert_allclose(times - compute, 0.5)
        # Each engine has its own time, and the runs of a call follow each other.
        scale = np.array([11, 12, 13])[: len(names)]
        runs = np.array([0, 1, 0, 1, 0]) / 8
        np.testing.assert_allclose(compute, (runs[:, None] + scale)[..., None].repeat(2, 2))
        assert result["energy_mj"] == [None] * len(names)
        assert result["clocks_mhz"] is None
    calls = [Path(words[0]).name.replace("engine", "") for words in device.words()[-18:-6]]
    assert calls == ["", "B", "CC", "CC", "B", "", "B", "CC", "", "", "CC", "B"]


@each("digits", VERSIONS)
def test_a_cuda_graph_is_taken_only_where_it_was_asked_for(device, digits):
    device.install(digits)
    timed(device, 1, "A", cuda_graph=True)
    timed(device, 1, "A")
    with_graph, without = device.words()[0], device.words()[-1]
    if digits.startswith("11"):
        assert "--noCudaGraph" in without
        assert "--noCudaGraph" not in with_graph
    else:
        assert "--useCudaGraph" in with_graph
        assert "--useCudaGraph" not in without


@each("digits", VERSIONS)
def test_an_engine_without_a_graph_is_timed_with_a_warning(device, digits):
    device.install(digits)
    names = ["", "loop"]
    assert timed(device, 1, names)["warnings"] == []
    [warning] = timed(device, 1, names, cuda_graph=True)["warnings"]
    assert "without using CUDA graph" in warning


def test_clocks_that_move_are_a_warning(device, monkeypatch):
    device.install("100300")
    seen = iter([[300.0, 1500.0], [1000.0, 900.0]])  # in the two calls, of which each begins idle
    monkeypatch.setattr(Meter, "sampling", lambda self: nullcontext(next(seen)))
    result = timed(device, 1, "A")
    assert result["clocks_mhz"] == [1500.0, 1000.0]
    assert "from 1500 to 1000 MHz" in result["warnings"][0]


def test_fewer_runs_than_were_asked_for_are_an_error(device):
    device.install("8601", runs=1)
    with fails(Fault, "trtexec measured 1 runs, not 3"):
        timed(device, 12)


@SLOW
def test_the_worker_builds_runs_and_times_with_it(here, tmp_path, monkeypatch):
    trtexec.install(tmp_path, "10.3.0")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with here.connect() as connection:
        assert connection.call("hello", limit=0)[0]["runtimes"]["trtexec"] == "10.3.0"
        about = {"runtime": "trtexec", "model": connection.upload(b"a model"), "options": QDQ}
        log = []
        built = connection.job({"kind": "build", **about}, KEY, log=log.append)
        assert built["version"] == "10.3.0"
        assert "TensorRT.trtexec [TensorRT v100300]" in "".join(log)
        digest = built["files"]["engine"]["digest"]
        assert connection.download(digest, built["files"]["engine"]["size"]) == ENGINE
        layers = built["files"]["layers"]
        assert connection.download(layers["digest"], layers["size"]) == LAYERS
        head = [{"name": "a:x", "dtype": "float32", "shape": [1, 3]}]
        data = np.float32([1, 2, 3]).tobytes()
        engine = {"runtime": "trtexec", "engine": digest, "options": ENDS}
        answer, values = connection.call("run", {**engine, "feeds": head}, data, limit=12)
        assert answer["outputs"] == [{"name": "y", "dtype": "float32", "shape": [1, 3]}]
        assert values == np.float32([2, 4, 6]).tobytes()
        feeds = connection.upload(json.dumps(head).encode() + b"\n" + data)
        job = {**engine, "kind": "measurement", "engines": [digest], "feeds": feeds, "rounds": 2}
        assert np.shape(connection.job(job, digest_bytes(b"time"))["times_ms"]) == (2, 1, 2)
