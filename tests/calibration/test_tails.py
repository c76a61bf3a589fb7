"""The samples that reach farthest, held against all values at once."""

import numpy as np
import onnx
import pytest
from onnx import helper

from trtcal.backends.taps import Inside
from trtcal.calibration import observe
from trtcal.calibration.extremes import REACHES, find_tails, tails_of
from trtcal.calibration.observation import read_observation, write_observation
from trtcal.data import open_dataset
from trtcal.documents import read_document
from trtcal.model import load_model
from trtcal.ranges import Calibration, TensorRange, most_stretched

FLOAT = onnx.TensorProto.FLOAT
COUNT = 41  # more than two batches


def test_they_are_those_of_the_largest_magnitudes(scene, tmp_path):
    model, data, tensors = scene
    tails = find_tails(model, data, tensors)
    (feeds,) = data.batches(COUNT)
    everything = Inside(model.proto, tensors).read(feeds)
    assert tails.samples == COUNT
    assert set(tails.tensors) == set(tensors)
    for name, reaches in tails.tensors.items():
        largest = np.abs(everything[name].reshape(COUNT, -1)).max(axis=1)
        assert [one.index for one in reaches] == np.argsort(-largest, kind="stable")[
            :REACHES
        ].tolist()
        assert [one.value for one in reaches] == pytest.approx(sorted(largest)[::-1][:REACHES])
    document = tails.write(tmp_path / "tails.json")
    assert read_document(tmp_path / "tails.json", "tails")["digest"] == document["digest"]


def one_node(tmp_path, kind, x, shape, **attributes):
    """Return a model of one node, and data."""
    ends = [
        helper.make_tensor_value_info("x", FLOAT, ["N", x.shape[1]]),
        helper.make_tensor_value_info("y", FLOAT, shape),
    ]
    node = helper.make_node(kind, ["x"], ["y"], "node", **attributes)
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=x)
    model = load_model(tmp_path / "net.onnx")
    return model, open_dataset(tmp_path / "data.npz", model)


def test_values_that_are_not_finite_stretch_no_range(tmp_path):
    x = np.float32([[1.0, 2.0], [0.0, 0.5], [-0.125, 4.0], [0.0, 0.0]])
    model, data = one_node(tmp_path, "Reciprocal", x, ["N", 2])
    reaches = find_tails(model, data, ["y"]).tensors["y"]
    assert [(one.index, one.value) for one in reaches] == [(2, 8.0), (1, 2.0), (0, 1.0)]


def test_a_tensor_that_has_no_samples_along_its_first_axis_is_left_out(tmp_path):
    x = np.ones((5, 3), np.float32)
    model, data = one_node(tmp_path, "ReduceSum", x, [], keepdims=0)
    assert set(find_tails(model, data, ["x", "y"]).tensors) == {"x"}


def test_the_tensors_of_which_most_is_cut_come_first():
    def ranges(**amax):
        table = {name: TensorRange(value, 4.0, 0.0) for name, value in amax.items()}
        return Calibration("m", {}, "model", "data", 1, "h", table, {})

    both = [ranges(a=4.0, b=2.0, c=3.0), ranges(a=4.0, b=3.9, c=1.0)]
    assert most_stretched(both, 5) == ["c", "b"]
    assert most_stretched(both, 1) == ["c"]


@pytest.mark.parametrize("count", [5, 200])
def test_the_observing_pass_names_the_same_samples(tmp_path, count):
    x = np.float32(np.random.default_rng(0).standard_normal((count, 3)))
    x[1::3] = 9.0  # equal ones: the first count
    for kind, shape, more in [("Abs", ["N", 3], {}), ("ReduceSum", [], {"keepdims": 0})]:
        model, data = one_node(tmp_path, kind, x, shape, **more)
        seen = observe(model, data, ["x", "y"])
        write_observation(tmp_path / "h.npz", seen)
        reaches = read_observation(tmp_path / "h.npz").reaches
        tails = find_tails(model, data, ["x", "y"])
        assert tails_of(model, data, reaches, ["x", "y"]) == tails
        largest = np.argsort(-np.abs(x).max(axis=1), kind="stable")[:REACHES]
        assert [index for _, index in reaches["x"]] == largest.tolist()
        assert ("y" in reaches) == (kind == "Abs")
