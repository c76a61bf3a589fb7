"""Ranges, precisions and calibrators for TensorRT up to 10, on a stand-in for its network.

The stand-in has only what real packages were seen to have (`make test-tensorrt`); whether TensorRT
then does what it should needs a GPU.
"""

import numpy as np
import pytest

from calibrators.range import FLOOR, scale_of
from tests.calibration.formats.tables import calibration
from tests.calibrators.bindings import CACHE, Builder, HostMemory, calls
from tests.fixtures.commands import shows
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net, samples
from tests.fixtures.tables import each
from tests.tensorrt.stand_in import (
    Layer,
    LayerOfWeights,
    Network,
    Tensor,
    chain,
    module,
    parsed,
    ranges_of,
)
from trtcal.backends.options import ROUTES, Route
from trtcal.backends.tensorrt_network import (
    api,
    calibrator_for,
    match_ranges,
    routed,
    set_layer_precisions,
    with_parser_tensors,
)
from trtcal.backends.tensorrt_objects import set_ranges
from trtcal.calibration.formats.tensorrt_cache import cache_of
from trtcal.errors import BackendError, InputError
from trtcal.model import TensorSpec, load_model

TRT = module("8.6")
UNNAMED = "(Unnamed Layer* 3) [Shuffle]_output"
OLD, NEW = ("8.6", "10.16"), ("11.4", "rtx")


def request(route, **changed):
    body = {"route": route, "ranges": {}, "precisions": {}, "constraints": None}
    return {**body, "kind": "entropy2", **changed}


def run(network, asked, trt=TRT):
    """Go through a route; return the settings for the builder and what was said."""
    said = []
    with routed(trt, network, asked, lambda letter, text: said.append(f"{letter} {text}")) as made:
        if "calibrator" in made:
            calls(made["calibrator"]).read_calibration_cache()
    return made, said


@pytest.mark.parametrize("version", OLD)
def test_versions_up_to_10_have_every_route(version):
    found = api(module(version))
    assert set(found.calibrators) == {"entropy", "entropy2", "legacy", "minmax"}
    assert set(found.constraints) == {"obey", "prefer"}
    for route in ROUTES[1:]:
        found.check(route, "entropy2")


@each("version", NEW)
@each("route", ROUTES[1:])
def test_later_versions_refuse_every_route_but_qdq(version, route):
    trt = module(version)
    with fails(BackendError, trt.__version__, route):
        run(chain("x", "y"), request(route, ranges={"x": 1.0}), trt)


def test_features_are_searched_and_not_derived_from_the_version():
    trt = module("10.16")
    del trt.ITensor.set_dynamic_range
    del trt.IInt8MinMaxCalibrator
    found = api(trt)
    assert not found.dynamic_ranges
    found.check("cache", "entropy2")
    for route, kind in (("dynamic-ranges", "entropy2"), ("cache", "minmax")):
        with pytest.raises(BackendError):
            found.check(route, kind)


def test_every_tensor_gets_its_range_in_float32():
    network = chain("x", "a", "y")
    ranges = {"x": 1.0, "a": 2.5, "y": 0.1}
    found = match_ranges(TRT, network, ranges)
    set_ranges(TRT, network, ranges)
    assert found.given == ("x", "a", "y")
    amax = np.float32(0.1)
    assert ranges_of(network) == {"x": (-1, 1), "a": (-2.5, 2.5), "y": (-amax, amax)}


def test_what_has_no_range_is_named_and_counted():
    network = chain("x", UNNAMED, "a", "y")
    found = match_ranges(TRT, network, {"x": 1.0, "a": 1.0, "old": 1.0})
    assert (found.missing, found.foreign) == ((UNNAMED, "y"), ("old",))
    assert ranges_of(network) == {}


def test_only_floats_that_are_executed_need_a_range():
    outputs = [Tensor("ids", "DataType.INT32"), Tensor("size", is_shape_tensor=True), None]
    network = Network([Tensor("x", "DataType.HALF")], [Layer("split", [], outputs)])
    found = match_ranges(TRT, network, {"x": 1.0})
    assert (found.given, found.missing) == (("x",), ())


@each(
    "amax, says",
    [
        (0.0, "0"), (float("inf"), "infinite"), (float("nan"), "not a number"),
        (-1.0, "negative"), (1e-40, "denormal"), ("1", "not a number"), (True, "not a number"),
    ],
)  # fmt: skip
def test_a_range_that_is_none_is_refused_and_nothing_is_set(amax, says):
    network = chain("x", "y")
    with fails(InputError, "y", says):
        match_ranges(TRT, network, {"x": 1.0, "y": amax})
    assert ranges_of(network) == {}


@pytest.mark.parametrize(("ranges", "name"), [({"": 1.0}, "''"), ({"z": 1.0}, "1")])
def test_ranges_of_no_tensor_are_refused(ranges, name):
    with fails(InputError, name):
        match_ranges(TRT, chain("x", "y"), ranges)


def test_a_range_that_tensorrt_refuses_is_an_error():
    network = chain("x", "y")
    network.inputs[0].refuses = True
    with fails(BackendError, "x"):
        set_ranges(TRT, network, {"x": 1.0})


def test_layers_get_the_precision_of_the_plan_and_others_none():
    network = chain("x", "a", "b", "c", "d")
    plan = {"to a": "int8", "to b": "fp32", "to c": "fp16"}
    assert set_layer_precisions(TRT, network, plan, "obey") == ()
    types = [layer.precision for layer in network.layers]
    assert types == ["DataType.INT8", "DataType.FLOAT", "DataType.HALF", None]


def test_a_layer_that_is_not_there_is_named_and_under_obey_refused():
    network, plan = chain("x", "a"), {"to a": "int8", "gone": "fp32"}
    with fails(InputError, "1", "gone", hint="--constraints prefer"):
        set_layer_precisions(TRT, network, plan, "obey")
    assert network.layers[0].precision is None
    assert set_layer_precisions(TRT, network, plan, "prefer") == ("gone",)


@pytest.mark.parametrize(("layer", "precision"), [("", "int8"), ("to a", "int4")])
def test_unnamed_layers_and_unknown_precisions_are_refused(layer, precision):
    with fails(InputError, repr(layer), repr(precision)):
        set_layer_precisions(TRT, chain("x", "a"), {layer: precision}, "prefer")


@each("version", OLD)
@each("kind", ["entropy2", "minmax", "entropy"])
def test_the_cache_route_answers_with_our_ranges_in_this_versions_header(
    version, kind, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    trt = module(version)
    asked = request("cache", ranges={"x": 1.0, "y": 255 * 2048.5 / 2048}, kind=kind)
    made, _ = run(chain("x", "y"), asked, trt)
    header = {"8.6": "8600", "10.16": "101601"}[version]
    names = {"entropy2": "EntropyCalibration2", "minmax": "MinMaxCalibration"}
    text = f"TRT-{header}-{names.get(kind, 'EntropyCalibration')}\nx: 3c010204\ny: 4000890a\n"
    assert calls(made["calibrator"]).read_calibration_cache() == text.encode()
    assert (tmp_path / "calibration.cache").read_text() == text  # for trtexec
    assert made["int8"]


def test_what_the_parser_made_has_the_range_that_follows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trt, ours = module("10.16"), {"x": 1.0, "y": 3.0, "p": 0.5}
    trt.IConstantLayer = LayerOfWeights
    assert with_parser_tensors(trt, parsed(), ours) == {
        **ours, "w": 2.0, "product": 3.0, "b": FLOOR, "b rows": FLOOR, "softmax": 0.5, "best": 0.5,
    }  # fmt: skip
    _, said = run(parsed(), request("cache", ranges=ours), trt)
    known = "I 9 tensors have the given range"
    assert said[:2] == [known, "W 2 float tensors have no range: loop, row"]
    lines = (tmp_path / "calibration.cache").read_text().splitlines()
    assert len(lines) == 10
    assert f"w: {scale_of(2.0).view(np.uint32):x}" in lines
    exported = cache_of(calibration(ours), "10.16.1").decode().splitlines()
    assert set(exported) <= set(lines)
    network = parsed()
    run(network, request("dynamic-ranges", ranges=ours), trt)
    assert ranges_of(network)["softmax"] == (-0.5, 0.5)


def test_a_cache_that_tensorrt_does_not_take_is_an_error_not_an_empty_calibration(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    route = routed(TRT, chain("x"), request("cache", ranges={"x": 1.0}), print)
    with fails(BackendError, "x"), route as made:
        Builder({"x": 4}, refuses=True).build(made["calibrator"])


def test_the_route_says_what_has_no_range_and_what_is_not_there():
    plan = {"to a": "int8", "to y": "int8", "gone": "fp32"}
    asked = request("dynamic-ranges", ranges={"x": 1.0, "old": 2.0}, precisions=plan)
    made, said = run(chain("x", "a", "y\n[E] y"), {**asked, "constraints": "prefer"})
    assert made == {"int8": True, "fp16": False, "precision_constraints": "prefer"}
    assert said == [
        "W 2 layers of the plan are not in TensorRT's network: to y, gone",
        "I 1 tensors have the given range",
        r"W 2 float tensors have no range: a, 'y\n[E] y'",
        "W 1 ranges belong to no tensor of TensorRT's network: old",
    ]


def test_obeying_a_plan_needs_a_range_for_every_int8_layer():
    plan = {"to a": "int8", "to y": "int8"}
    asked = request("dynamic-ranges", ranges={"x": 1.0}, precisions=plan, constraints="obey")
    with fails(InputError, "1", "to y", hint="--constraints prefer"):
        run(chain("x", "a", "y"), asked)
    _, said = run(chain("x", "a", "y"), {**asked, "constraints": "prefer"})
    shows("\n".join(said), "W 1", "to y")


def test_constraints_that_a_version_lacks_are_refused():
    trt = module("8.6")
    del trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS
    asked = request("dynamic-ranges", ranges={"x": 1.0}, constraints="obey")
    with fails(BackendError, "8.6.0"):
        run(chain("x"), asked, trt)


@pytest.fixture
def fed(tmp_path, monkeypatch):
    """The request of the route `calibrator` for a sample network and its data."""
    monkeypatch.setattr("calibrators.tensorrt_builder.PyCudaMemory", HostMemory)
    monkeypatch.chdir(tmp_path)
    samples(tmp_path / "data.npz", count=24)
    model = load_model(conv_net(tmp_path / "model.onnx"))
    shapes = {"x": ((1, 3, 8, 8), (5, 3, 8, 8), (8, 3, 8, 8))}
    body = Route("calibrator", data=tmp_path / "data.npz").to_request(model.inputs, shapes)
    return {**body, "model": "model.onnx"}


def test_the_calibrator_route_feeds_the_dataset_and_keeps_what_tensorrt_chose(fed, tmp_path):
    said, builder = [], Builder({"x": 5 * 3 * 8 * 8 * 4})
    with routed(TRT, chain("x"), fed, lambda *words: said.append(words)) as made:
        builder.build(made["calibrator"])
    images = np.load(tmp_path / "data.npz")["x"]
    assert b"".join(seen["x"] for seen in builder.seen) == images[:20].tobytes()
    assert said == [("I", "TensorRT read 20 calibration samples and left out 4")]
    assert (tmp_path / "calibration.cache").read_bytes() == CACHE


def build_and_fail(fed, error):
    with routed(TRT, chain("x"), fed, print) as made:
        Builder({"x": 5 * 3 * 8 * 8 * 4}, at_most=1).build(made["calibrator"])
        raise error


def test_a_build_that_fails_says_what_failed_in_the_calibrator_first(fed, monkeypatch):
    with fails(RuntimeError, "no engine"):
        build_and_fail(fed, RuntimeError("no engine"))
    monkeypatch.setattr(HostMemory, "copy", lambda *_: 1 / 0)
    with fails(BackendError, "division by zero"):
        build_and_fail(fed, RuntimeError("no engine"))


def test_a_build_that_never_calibrates_is_an_error(fed):
    with fails(BackendError, "no batch", "INT8"):
        run(chain("x"), fed)


def test_data_that_break_on_the_way_are_input_errors(fed):
    images = np.zeros((24, 3, 8, 8), np.float32)
    images[7] = np.nan
    np.savez(fed["data"], x=images)
    with fails(InputError, "NaN"), routed(TRT, chain("x"), fed, print) as made:
        Builder({"x": 5 * 3 * 8 * 8 * 4}).build(made["calibrator"])


def test_data_that_are_missing_are_said_before_the_build(fed):
    with fails(InputError, "gone.npz"):
        calibrator_for(TRT, {**fed, "data": "gone.npz"})


def test_half_inputs_are_calibrated_in_float32_and_integers_as_they_are(tmp_path):
    route = Route("calibrator", data=tmp_path)
    specs = (TensorSpec("h", "float16", (2, 3)), TensorSpec("ids", "int32", (2, 4)))
    body = route.to_request(specs, {})
    assert body["types"] == {"h": "float32", "ids": "int32"}
    assert body["feeds"] == {"h": [2, 3], "ids": [2, 4]}
