import numpy as np
import onnxruntime
import pytest
from onnx import helper

from calibrators import Histogram
from tests.data.pictures import everything
from tests.fixtures.fails import fails
from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import samples, save
from trtcal.calibration import (
    ObserveOptions,
    cached,
    calibrate,
    observe,
    read_observation,
    write_observation,
)
from trtcal.data import open_dataset
from trtcal.errors import InputError
from trtcal.model import load_model
from trtcal.quantization import prepare
from trtcal.ranges import Calibration


def test_histograms_hold_what_the_network_computes(scene):
    model, data, tensors = scene
    assert tensors == ["x", "b", "g"]
    seen = observe(model, data, tensors, ObserveOptions(batch=5))
    proto = type(model.proto)()
    proto.CopyFrom(model.proto)
    proto.graph.output.extend([helper.ValueInfoProto(name=name) for name in ("b", "g")])
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    images = everything(data)
    values = dict(zip(("b", "g"), session.run(["b", "g"], {"x": images}), strict=True))
    for name, array in {"x": images, **values}.items():
        assert seen.histograms[name].count == array.size
        assert seen.histograms[name].amax == pytest.approx(np.abs(array).max(), rel=1e-6)
    expected = Histogram()
    expected.update(images)
    assert seen.histograms["x"] == expected


def test_an_observation_survives_being_written(scene, tmp_path):
    seen = observe(*scene, ObserveOptions(batch=8))
    write_observation(tmp_path / "histograms.npz", seen)
    assert read_observation(tmp_path / "histograms.npz").digest == seen.digest
    (tmp_path / "bad.npz").write_bytes((tmp_path / "histograms.npz").read_bytes()[:-200])
    with pytest.raises(InputError):
        read_observation(tmp_path / "bad.npz")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"x": [[NaN, 0]]}', '{"x": 3}', "{"])
def test_reaches_that_nobody_wrote_are_refused(scene, tmp_path, text):
    write_observation(tmp_path / "histograms.npz", observe(*scene))
    arrays = dict(np.load(tmp_path / "histograms.npz"))
    np.savez(tmp_path / "changed.npz", **{**arrays, "reaches": np.array(text)})
    with pytest.raises(InputError, match="wrong field"):
        read_observation(tmp_path / "changed.npz")


def test_kept_histograms_are_used_only_for_the_same_model_and_data(scene, tmp_path):
    model, data, tensors = scene
    path, calls = tmp_path / "histograms.npz", []

    def make():
        calls.append(1)
        return observe(model, data, tensors)

    first = cached(path, model, data, tensors, make)
    assert cached(path, model, data, tensors, make).digest == first.digest
    assert len(calls) == 1
    cached(path, model, data, tensors[:1], make)
    assert len(calls) == 2


def test_nan_inside_the_network_is_an_error(tmp_path):
    nodes = as_nodes("[sqrt] a = Sqrt(x)  [matmul] y = MatMul(a, w)")
    weights = {"w": np.ones((8, 2), np.float32)}
    path = save(tmp_path / "net.onnx", nodes, weights, {"x": ["n", 8]}, {"y": ["n", 2]})
    model = load_model(path)
    data = open_dataset(samples(tmp_path / "data.npz", shape=(8,)), model)
    with fails(InputError, "a", "NaN"):
        observe(prepare(model), data, ["a"])


def test_a_calibration_survives_being_written(scene, tmp_path):
    seen = observe(*scene)
    made = calibrate(seen, "percentile", {"percentile": 99})
    made.write(tmp_path / "calibration.json")
    assert Calibration.read(tmp_path / "calibration.json") == made
    assert made.parameters == {"percentile": 99}
    assert 0.005 < made.ranges["x"].clipped < 0.015


def test_one_observation_serves_every_method(scene):
    seen = observe(*scene)
    amax = {name: calibrate(seen, name).ranges["x"].amax for name in ("minmax", "percentile")}
    assert calibrate(seen, "minmax").ranges["x"].clipped == 0
    assert amax["percentile"] < amax["minmax"] == seen.histograms["x"].amax


def test_unknown_methods_are_refused(scene):
    with fails(InputError, "magic"):
        calibrate(observe(*scene), "magic")


def test_a_network_of_which_only_the_input_is_quantized(tmp_path):
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "conv")]
    weights = {"w": np.ones((4, 3, 3, 3), np.float32)}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 6, 6]})
    model = load_model(path)
    data = open_dataset(samples(tmp_path / "data.npz", count=5), model)
    seen = observe(prepare(model), data, ["x"])
    assert seen.histograms["x"].count == 5 * 3 * 8 * 8
