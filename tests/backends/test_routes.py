import json

import pytest

from tests.fixtures.commands import shows
from tests.fixtures.fails import fails
from tests.fixtures.networks import conv_net, samples, transposed_net
from tests.fixtures.quantized import calibrated
from trtcal.backends.child import run_worker
from trtcal.backends.options import ROUTES, Route
from trtcal.backends.registry import BACKENDS, find_backend
from trtcal.cli.main import run_command
from trtcal.errors import BackendError, InputError
from trtcal.model import load_model
from trtcal.quantization import quantize, write_quantized


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, calibration, _ = calibrated(conv_net(tmp_path / "net.onnx"), tmp_path)
    calibration.write(tmp_path / "calibration.json")
    write_quantized(tmp_path / "int8.onnx", quantize(model, calibration))
    samples(tmp_path / "data.npz")
    return tmp_path


def build(capsys, *arguments):
    status = run_command(["build", *arguments, "-o", "out"])
    return status, capsys.readouterr().err


RANGED = ("--route", "dynamic-ranges", "--calibration", "calibration.json")


@pytest.mark.parametrize("target", ["cpu", "sm89"])
@pytest.mark.parametrize(
    "route", [RANGED, ("--route", "cache", *RANGED[2:]), ("--route", "calibrator", "--data", "d")]
)
def test_only_tensorrt_has_routes_beside_qdq(place, capsys, target, route):
    backend, _ = find_backend(None, target)
    if not backend.availability().works:
        pytest.skip(f"{backend.name} is not installed")
    status, said = build(capsys, "net.onnx", "--target", target, *route)
    assert status == 2
    shows(said, "qdq", f"'{route[1]}'")
    assert not (place / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("--route", "cache"), "ranges"),
        (("--route", "calibrator"), "data"),
        (("--calibration", "calibration.json"), "Q/DQ"),
        (("--constraints", "obey"), "Q/DQ"),
    ],
)
def test_a_route_takes_what_is_its_own(place, capsys, arguments, name):
    status, said = build(capsys, "net.onnx", "--target", "gpu", *arguments)
    assert status == 2
    shows(said, name)


def test_ranges_of_another_model_are_refused(place, capsys):
    transposed_net(place / "other.onnx")
    status, said = build(capsys, "other.onnx", "--target", "gpu", *RANGED)
    assert status == 2
    shows(said, "calibration.json")


def test_a_plan_of_unknown_layers_is_refused(place, capsys):
    (place / "plan.json").write_text(json.dumps({"layers": {"frist": "fp32"}}))
    status, said = build(capsys, "net.onnx", "--target", "gpu", *RANGED, "--plan", "plan.json")
    assert status == 2
    shows(said, "first")


def test_a_model_with_qdq_takes_no_other_route(place):
    route = Route("dynamic-ranges", {"x": 1.0})
    route.check("tensorrt", ROUTES, load_model(place / "net.onnx"))
    with fails(InputError, "int8.onnx", "Q/DQ", hint="--route"):
        route.check("tensorrt", ROUTES, load_model(place / "int8.onnx"))


def test_the_plan_says_what_is_asked_and_the_build_which_route_it_took(place):
    route = Route("cache", {"x": 1.0}, {"first": "int8"}, calibration="sha256:abc")
    assert route.asked({"first": "fp32", "gemm": "fp32"}) == {"first": "int8", "gemm": "fp32"}
    assert route.record() == {"route": "cache", "calibration": "sha256:abc"}
    assert Route().record() == {}


def test_the_child_refuses_what_its_tensorrt_has_not(place):
    if not BACKENDS["tensorrt-rtx"].availability().works:
        pytest.skip("tensorrt-rtx is not installed")
    model = load_model(place / "net.onnx")
    shapes = {"x": ((1, 3, 8, 8),) * 3}
    request = {
        "module": "tensorrt_rtx",
        "model": str(model.path.absolute()),
        "engine": "engine.plan",
        "profiles": [shapes],
        "verbosity": "detailed",
        "capabilities": [],
        **Route("cache", {"x": 1.0}).to_request(model.inputs, shapes),
    }
    with fails(BackendError, "cache", "qdq", hint="Q/DQ"):
        run_worker("trtcal.backends.tensorrt_worker", request, place, time_limit_s=600)
    assert not (place / "engine.plan").exists()
