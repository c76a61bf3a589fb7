"""The worker's runtime for TensorRT: it does what a build here does, on stand-ins of TensorRT and CUDA.

`make test-tensorrt` checks in real packages that what it calls is there. Nothing ran on a GPU yet.
"""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrators.range import LARGEST_AMAX, LEAST_AMAX, single
from calibrators.tensorrt_cache import cache_of_ranges
from tests.calibrators import bindings
from tests.fixtures.fails import fails
from tests.fixtures.tables import each
from tests.tensorrt import stand_in, stand_in_engine
from tests.tensorrt.stand_in import Layer, Network, Tensor, chain
from tests.tensorrt.stand_in_engine import Builder, tensorrt
from trtcal.backends import tensorrt_network, tensorrt_objects
from trtcal.errors import TrtcalError
from trtcal.wings.devices.worker import cuda_driver, tensorrt_routes, tensorrt_runtime
from trtcal.wings.devices.worker.frames import Fault
from trtcal.wings.devices.worker.runtimes import Tensor as Array

REQUEST = {"route": "qdq", "quantized": True, "fp16": True, "float32": {}, "profiles": []}
ROUTE = {"kind": "entropy2", "precisions": {}, "constraints": None, "profiles": []}
VERSIONS = ("8.6", "10.16", "11.4")


# The same as here.


@given(st.floats(LEAST_AMAX, LARGEST_AMAX))
def test_a_range_is_rounded_as_here(amax):
    assert tensorrt_objects.single(amax) == float(single(amax))
    ours = tensorrt_routes.cache_of_ranges("10.16.1.11", "minmax", {"a: b": amax})
    assert ours == cache_of_ranges("10.16.1.11", "minmax", {"a: b": amax})


def here(trt, network, request):
    """Return what a build here sets, says and refuses."""
    messages = []
    try:
        with tensorrt_network.routed(
            trt, network, request, lambda letter, text: messages.append(f"[{letter}] {text}")
        ) as settings:
            calibrator = settings.get("calibrator")
            cache = calibrator.read_calibration_cache() if calibrator else None
        return messages[: len(messages) - bool(calibrator)], cache, ""
    except TrtcalError as error:
        return messages, None, error.message


def there(trt, network, request):
    """Return the same of a build on a device."""
    log, config = [], stand_in_engine.Config()
    messages = tensorrt_routes.Messages(
        SimpleNamespace(ILogger=stand_in_engine.tensorrt("8.6", None).ILogger), log.append
    )
    try:
        tensorrt_runtime.set_flags(trt, network, config, request, messages)
        routed = tensorrt_routes.Routed(trt, network, messages)
        calibrator = routed.take(SimpleNamespace(options=request), None)
        return log, calibrator.read_calibration_cache() if calibrator else None, ""
    except (Fault, TrtcalError) as error:
        return log, None, error.message


def partly_float():
    """Return a network with tensors that need no range: integers, a shape, one that is not there."""
    outputs = [Tensor("ids", "DataType.INT32"), Tensor("size", is_shape_tensor=True), None]
    return Network([Tensor("x", "DataType.HALF")], [Layer("split", [], outputs)])


NETWORKS = {
    "partly float": partly_float,
    "chain": lambda: chain("x", "a", "y\n[E] y"),
    "parsed": stand_in.parsed,
    "long": lambda: chain(*"xabcdefghy"),
}
PLANS = (
    {},
    {"precisions": {"to a": "int8", "gone": "fp16"}, "constraints": "prefer"},
    {"precisions": {"to a": "int8", "gone": "fp16"}, "constraints": "obey"},
    {"precisions": {"to a": "int8", "softmax": "fp32", "row": "int8"}, "constraints": "obey"},
)
RANGES = (
    {"x": 1.0, "y": 3.0, "p": 0.5},
    {"x": 0.1, "a": 1.9999999, "old": 2.0},
    {"z": 1.0},
    {"x": 0.0, "a": 1.0},
    {"x": math.inf},
)


@each("version", ["8.6", "10.16"])
@each("network", NETWORKS)
@each("plan", PLANS)
def test_ranges_and_plans_are_taken_said_and_refused_as_here(
    version, network, plan, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    trt = stand_in.module(version)
    trt.IConstantLayer = stand_in.LayerOfWeights
    for ranges in RANGES:
        for route in ("cache", "dynamic-ranges"):
            request = {**ROUTE, "route": route, "ranges": ranges, **plan}
            ours, theirs = NETWORKS[network](), NETWORKS[network]()
            messages, cache, error = here(trt, ours, request)
            log, sent, refused = there(trt, theirs, request)
            assert bool(error) == bool(refused)
            if not error:
                assert (log, sent) == (messages, cache)
                assert stand_in.ranges_of(theirs) == stand_in.ranges_of(ours)
            types = [layer.precision for layer in theirs.layers]
            assert types == [layer.precision for layer in ours.layers] or error


def test_what_a_version_lacks_is_refused():
    for route in ("cache", "dynamic-ranges"):
        request = {**ROUTE, "route": route, "ranges": {"x": 1.0}}
        _, _, error = there(stand_in.module("11.4"), chain("x", "y"), request)
        assert "11.4.0.106" in error
        assert "only the route qdq" in error


# Building and running.


class Device:
    """A stand-in of CUDA with one of TensorRT, and a folder."""

    def __init__(self, cuda, folder, monkeypatch):
        self.cuda, self.folder, self.monkeypatch, self.log = cuda, folder, monkeypatch, []
        monkeypatch.setattr(cuda_driver, "load_driver", lambda: cuda.library)
        monkeypatch.setattr(tensorrt_runtime, "WARM_UP_S", 0)
        monkeypatch.setattr(Builder, "calibrate", None)
        self.driver = stand_in_engine.Driver()
        self.driver.library = cuda.library
        (folder / "model").write_bytes(b"a model")
        (folder / "engine.plan").write_bytes(stand_in_engine.PLAN)

    def install(self, version, **faults):
        trt = tensorrt(version, self.driver, **faults)
        self.monkeypatch.setitem(tensorrt_runtime.importlib.sys.modules, "tensorrt", trt)
        return trt

    def build(self, request):
        job = SimpleNamespace(options=request, path=lambda name: str(self.folder / name))
        return tensorrt_runtime.build(job, str(self.folder), self.log.append)

    def engine(self, **options):
        return tensorrt_runtime.open(str(self.folder / "engine.plan"), options)


@pytest.fixture
def device(cuda, tmp_path, monkeypatch):
    return Device(cuda, tmp_path, monkeypatch)


def test_every_version_gets_types_flags_and_options_as_it_has_them(device):
    profiles = [{"x": [[1, 4], [2, 4], [2, 4]]}, {"x": [[3, 4], [4, 4], [8, 4]]}]
    request = {**REQUEST, "profiles": profiles, "workspace_bytes": 5, "optimization_level": 4}
    for version in VERSIONS:
        trt = device.install(version)
        built = device.build({**request, "verbosity": "none"})
        assert (device.folder / "engine.plan").read_bytes() == stand_in_engine.PLAN
        assert built["plugins"] == []
        assert built["files"].keys() == {"engine", "layers"}
        got = Builder.built
        typed = version != "8.6"
        assert got.config.flags == ([] if typed else [trt.BuilderFlag.INT8, trt.BuilderFlag.FP16])
        assert got.flags == {"8.6": 1, "10.16": 2, "11.4": 1}[version]
        assert got.config.cleared == [trt.BuilderFlag.TF32]
        shapes = [profile.shapes["x"] for profile in got.config.profiles]
        assert shapes == [((1, 4), (2, 4), (2, 4)), ((3, 4), (4, 4), (8, 4))]
        assert got.config.pools == {trt.MemoryPoolType.WORKSPACE: 5}
        assert got.config.builder_optimization_level == 4
        assert got.config.profiling_verbosity == trt.ProfilingVerbosity.NONE
        assert got.config.calibration_profile is None
    assert device.log[0] == "[I] tensorrt 8.6.0"
    assert device.cuda.held() == {}


def test_weak_types_keep_layers_in_float32(device):
    trt = device.install("8.6")
    device.build({**REQUEST, "quantized": False, "float32": {"to a": "fp32"}})
    flags = [trt.BuilderFlag.FP16, trt.BuilderFlag.PREFER_PRECISION_CONSTRAINTS]
    assert Builder.built.config.flags == flags
    assert Builder.built.network.layers[0].precision == trt.DataType.FLOAT


def test_layers_come_back_with_their_times(device):
    device.install("10.16")
    built = device.build(
        {**REQUEST, "profiles": [{"x": [[1, 4], [2, 4], [2, 4]]}], "layer_times": True}
    )
    layers, times = built["files"]["layers"], built["files"]["layer_times"]
    with open(layers) as file:
        assert file.read() == '{"Layers": [], "Bindings": ["x", "y"]} '
    with open(times) as file:
        count, one, two = json.load(file)
    assert count == {"count": 100}
    assert (one["name"], one["averageMs"], two["percentage"]) == ("one", 0.25, 75)


def test_an_engine_that_cannot_be_loaded_again_is_still_built(device):
    device.install("8.6", load=True)
    assert device.build(REQUEST)["files"].keys() == {"engine"}
    assert any("could not be inspected: The engine plan" in line for line in device.log)
    assert device.cuda.held() == {}


@each("fault, says", [("parse", "no such operator"), ("build", "TensorRT built no engine")])
def test_what_tensorrt_says_last_is_the_error(device, fault, says):
    device.install("10.16", **{fault: True})
    with fails(Fault, says):
        device.build(REQUEST)
    assert device.cuda.held() == {}


def test_ranges_become_a_calibrator_s_cache_or_the_network_s(device):
    ranges = {"x": 1.0, "a": 2.0, "y": 3.0}
    device.install("8.6")
    built = device.build({**ROUTE, "route": "cache", "ranges": ranges})
    cache = cache_of_ranges("8.6.0", "entropy2", ranges)
    assert Builder.built.config.int8_calibrator.read_calibration_cache() == cache
    assert (device.folder / "calibration.cache").read_bytes() == cache
    assert built["files"]["cache"] == str(device.folder / "calibration.cache")
    device.build({**ROUTE, "route": "dynamic-ranges", "ranges": ranges})
    assert stand_in.ranges_of(Builder.built.network)["y"] == (-3.0, 3.0)
    Builder.calibrate = lambda calibrator: bindings.Builder({"x": 4}, refuses=True).build(
        calibrator
    )
    with fails(Fault, "did not accept the ranges of its cache"):
        device.build({**ROUTE, "route": "cache", "ranges": ranges})


BATCHES = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
FED = {
    **ROUTE,
    "route": "calibrator",
    "feeds": {"x": [2, 4]},
    "profiles": [{"x": [[1, 4], [2, 4], [8, 4]]}, {"x": [[9, 4], [9, 4], [9, 4]]}],
}


class Reader(bindings.Builder):
    """Reads each batch from the device's memory."""

    cuda = None

    def read(self, address, size):
        return self.cuda.read(address, size)


def calibrate(device, batches=BATCHES, **options):
    described = json.dumps([{"name": "x", "dtype": "float32", "shape": [2, 4]}]).encode() + b"\n"
    (device.folder / "data").write_bytes(b"".join(described + batch.tobytes() for batch in batches))
    reader = Reader({"x": 32}, **options)
    reader.cuda = device.cuda
    device.monkeypatch.setattr(Builder, "calibrate", staticmethod(reader.build))
    device.install("8.6")
    return device.build(FED), reader.seen


def test_a_calibrator_feeds_the_batches_of_a_blob(device):
    built, seen = calibrate(device)
    assert [batch["x"] for batch in seen] == [batch.tobytes() for batch in BATCHES]
    with open(built["files"]["cache"], "rb") as file:
        assert file.read() == bindings.CACHE
    assert "[I] TensorRT read 6 calibration samples" in device.log
    assert Builder.built.config.calibration_profile.shapes == {"x": ((1, 4), (2, 4), (8, 4))}
    assert device.cuda.held() == {}


def test_a_calibration_that_breaks_or_stops_is_an_error(device):
    with fails(Fault, "TensorRT stopped after batch 2 of the data"):
        calibrate(device, at_most=2)
    device.cuda.room(8)
    with fails(Fault, "calibration inside TensorRT failed", "out of memory"):
        calibrate(device)
    assert device.cuda.held() == {}


def feeds(rows):
    array = np.random.default_rng(rows).random((rows, 4), np.float32)
    return {"x": Array("float32", array.shape, array.tobytes())}


@each("version", VERSIONS)
def test_batches_of_any_size_that_a_profile_holds_come_back(device, version):
    device.install(version)
    engine = device.engine()
    assert engine.inputs == [{"name": "x", "dtype": "float32", "shape": [-1, 4]}]
    for rows in (2, 2, 8, 1):
        batch = feeds(rows)
        assert engine.run(batch, None) == {"y": batch["x"]}
    assert engine.run(feeds(1), []) == {}
    engine.close()
    assert device.cuda.held() == {}


def test_a_time_is_of_the_whole_and_of_the_kernels(device):
    device.install("10.16")
    for graph in (False, True):
        engine = device.engine(cuda_graph=graph)
        engine.prepare(feeds(2))
        device.cuda.library.stand_in_fail(-1, 0, 0)
        start = len(device.cuda.calls())
        assert engine.launch() == pytest.approx((3, 1))  # each piece of work takes a millisecond
        assert ("cuGraphLaunch" in device.cuda.calls()[start:]) == graph
        assert engine.warnings == []
        for batch in (feeds(2), feeds(8)):  # by the graph too, and of another size than its
            assert engine.run(batch, ["y"]) == {"y": batch["x"]}
        engine.close()
    assert device.cuda.held() == {}


def test_an_engine_without_a_graph_is_timed_with_a_warning(device):
    device.install("10.16")
    device.monkeypatch.setenv("CUDA_STAND_IN", "cuStreamBeginCapture_v2:900")
    engine = device.engine(cuda_graph=True)
    engine.prepare(feeds(2))
    assert "without a CUDA graph" in engine.warnings[0]
    assert engine.launch() == pytest.approx((3, 1))
    engine.close()


def wrong(**changes):
    return {"x": feeds(2)["x"]._replace(**changes)}


WRONG = [
    ({}, None, "inputs x are not fed"),
    (feeds(9), None, "the engine's input x cannot have the shape [9, 4]"),
    (wrong(dtype="float64"), None, "the engine's input x is float32, not float64"),
    (feeds(2), ["z"], "the engine has no output z"),
]


@each("batch, names, says", WRONG)
def test_batches_that_do_not_fit_are_one_error(device, batch, names, says):
    device.install("11.4")
    engine = device.engine()
    with fails(Fault, says):
        engine.run(batch, names)
    assert engine.run(feeds(2), None).keys() == {"y"}  # the next one fits
    engine.close()
    assert device.cuda.held() == {}


@each(
    "fault, says",
    [("load", "not whole"), ("run", "Cuda Runtime (700"), ("sizes", "depends on values")],
)
def test_an_engine_that_fails_says_what_tensorrt_said(device, fault, says):
    device.install("10.16", **{fault: True})
    with fails(Fault, says):
        engine = device.engine()
        try:
            engine.run(feeds(2), None)
        finally:
            engine.close()
    assert device.cuda.held() == {}


def test_integers_of_onnx_fit_those_of_tensorrt_8():
    tensor = Array("int64", (2,), np.int64([-3, 7]).tobytes())
    assert tensorrt_routes.converted(tensor, "ids", "int32") == np.int32([-3, 7]).tobytes()
    tensor = tensor._replace(data=np.int64([0, 2**31]).tobytes())
    with fails(Fault, "ids", "int32"):
        tensorrt_routes.converted(tensor, "ids", "int32")


def test_without_tensorrt_or_with_an_old_one_it_is_one_error(device, monkeypatch):
    monkeypatch.setitem(tensorrt_runtime.importlib.sys.modules, "tensorrt", None)
    assert tensorrt_runtime.version() is None
    assert [item["what"] for item in tensorrt_runtime.lacks()] == ["TensorRT's Python package"]
    with fails(Fault, "TensorRT cannot be loaded on the device", hint="trtcal device check"):
        device.engine()
    device.install("8.6").__version__ = "8.4.3.1"
    with fails(Fault, "TensorRT 8.4.3.1 is older than 8.5"):
        device.build(REQUEST)


def test_without_a_gpu_tensorrt_is_not_even_asked(device, monkeypatch):
    device.install("8.6").Runtime = None
    monkeypatch.setenv("CUDA_STAND_IN", "cuInit:100")
    for work in (device.engine, lambda: device.build(REQUEST)):
        with fails(Fault, "cuInit failed: no CUDA-capable device is detected"):
            work()
    assert tensorrt_runtime.lacks() == []
    monkeypatch.setenv("CUDA_STAND_IN", "cuInit:803")
    [lack] = tensorrt_runtime.lacks()
    assert "a CUDA driver that works" in lack["what"]
