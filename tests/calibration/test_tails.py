"""The samples that reach farthest, held against all values at once."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from trtcal.backends.taps import Inside
from trtcal.calibration import ObserveOptions, cached, observe
from trtcal.calibration.extremes import REACHES, tails_of
from trtcal.calibration.observation import read_observation, write_observation
from trtcal.data import open_dataset
from trtcal.documents import read_document
from trtcal.model import load_model
from trtcal.ranges import Calibration, TensorRange, most_stretched

FLOAT = onnx.TensorProto.FLOAT
COUNT = 41


def find_tails(model, data, tensors):
    return tails_of(observe(model, data, tensors), data.files, tensors)


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


def test_the_tensors_of_which_most_is_cut_come_first():
    def ranges(**amax):
        table = {name: TensorRange(value, 4.0, 0.0) for name, value in amax.items()}
        return Calibration("m", {}, "model", "data", 1, "h", table, {})

    both = [ranges(a=4.0, b=2.0, c=3.0), ranges(a=4.0, b=3.9, c=1.0)]
    assert most_stretched(both, 5) == ["c", "b"]
    assert most_stretched(both, 1) == ["c"]


@pytest.mark.parametrize("batch", [1, 32])
def test_they_are_kept_in_the_file_where_it_is_known_whose_values_are_whose(tmp_path, batch):
    x = np.float32(np.random.default_rng(0).standard_normal((200, 3)))
    x[1::3] = 9.0  # equal ones: the first count
    for kind, shape, more in [("Abs", ["N", 3], {}), ("ReduceSum", [], {"keepdims": 0})]:
        model, data = one_node(tmp_path, kind, x, shape, **more)
        seen = observe(model, data, ["x", "y"], ObserveOptions(batch=batch, threads=2))
        write_observation(tmp_path / "h.npz", seen)
        reaches = tails_of(read_observation(tmp_path / "h.npz"), None, ["x", "y"]).tensors
        assert reaches == tails_of(seen, data.files, ["x", "y"]).tensors
        assert [(reach.index, reach.value) for reach in reaches["x"]] == [(1, 9), (4, 9), (7, 9)]
        assert ("y" in reaches) == (kind == "Abs" or batch == 1)


def test_a_file_without_them_is_made_again(tmp_path):
    model, data = one_node(tmp_path, "Abs", np.ones((3, 2), np.float32), ["N", 2])
    seen = observe(model, data, ["x"])
    for reaches, samples in [(None, 4), ({}, 3)]:
        write_observation(tmp_path / "h.npz", replace(seen, reaches=reaches))
        new = cached(tmp_path / "h.npz", model, data, ["x"], lambda: replace(seen, samples=4))
        assert new.samples == samples
