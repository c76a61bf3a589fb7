"""Inputs as real models have them: scalars, constants, no axis for samples, samples of other sizes."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.data.pictures import PLAIN, gallery
from tests.fixtures.fails import fails
from tests.fixtures.stored import CHANGED, part
from trtcal.backends.sessions import open_session, run_session
from trtcal.config import DataConfig
from trtcal.data import open_dataset
from trtcal.data.dataset import fixed_batch
from trtcal.errors import InputError
from trtcal.model import load_model

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
X = np.random.default_rng(0).standard_normal((6, 3, 4)).astype(np.float32)


def model(nodes, inputs, outputs):
    """A model of nodes `(op, inputs, outputs)`, inputs `name: (type, shape)`, float32 outputs."""
    made = [helper.make_node(op, read, give, **more) for op, read, give, more in nodes]
    ins = [helper.make_tensor_value_info(name, *what) for name, what in inputs.items()]
    outs = [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs.items()]
    graph = helper.make_graph(made, "test", ins, outs)
    opset = [helper.make_opsetid("", 17)]
    return load_model(helper.make_model(graph, opset_imports=opset, ir_version=8))


def scaled(first="n", scale=(INT64, [])):
    """y = x * scale, of which x is of shape [first, 3, 4]."""
    nodes = [("Cast", ["scale"], ["s"], {"to": FLOAT}), ("Mul", ["x", "s"], ["y"], {})]
    inputs = {"x": (FLOAT, [first, 3, 4]), "scale": scale}
    return model(nodes, inputs, {"y": [first, 3, 4]})


def runs(net, dataset, size=4):
    """What the model makes of all samples."""
    session = open_session(net.proto)
    names = [spec.name for spec in net.outputs]
    made = [run_session(session, names, feeds) for feeds in dataset.batches(size)]
    return [np.concatenate(parts) for parts in zip(*made, strict=True)]


@pytest.mark.parametrize("value", [3, np.int64(3), np.array(3), np.array([3])])
def test_a_scalar_is_given_once_for_all_samples(tmp_path, value):
    net = scaled()
    np.savez(tmp_path / "data.npz", x=X, scale=np.asarray(value, np.int64))
    for data in ({"x": X, "scale": value}, tmp_path / "data.npz"):
        dataset = open_dataset(data, net)
        assert len(dataset) == 6
        np.testing.assert_array_equal(runs(net, dataset)[0], X * 3)


def test_a_scalar_may_differ_from_sample_to_sample():
    net, scales = scaled(), np.arange(6)
    dataset = open_dataset({"x": X, "scale": scales}, net)
    np.testing.assert_array_equal(
        runs(net, dataset)[0], X * scales[:, None, None].astype(np.float32)
    )
    feeds = [{"x": X[i : i + 1], "scale": i} for i in range(6)]
    assert open_dataset(feeds, net).fingerprint == dataset.fingerprint


def test_a_folder_of_npy_takes_a_scalar_too(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "scale.npy", np.int64(2))
    net = scaled()
    np.testing.assert_array_equal(runs(net, open_dataset(tmp_path, net))[0], X * 2)


@pytest.mark.parametrize("value", [2.5, "a", 2**70])
def test_a_number_that_the_input_does_not_hold_is_refused(value):
    with fails(InputError, "scale"):
        open_dataset({"x": X, "scale": value}, scaled())


def test_a_constant_has_the_shape_of_its_input_or_of_one_sample():
    table = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    for shape in ([3, 4], ["n", 3, 4]):
        net = scaled(scale=(FLOAT, shape))
        np.testing.assert_array_equal(
            runs(net, open_dataset({"x": X, "scale": table}, net))[0], X * table
        )
    net = scaled(scale=(FLOAT, ["n", 3, 4]))
    for given in (table[None], np.stack([table] * 6)):
        np.testing.assert_array_equal(
            runs(net, open_dataset({"x": X, "scale": given}, net))[0], X * table
        )
    with fails(InputError, "scale"):
        open_dataset({"x": X, "scale": np.stack([table] * 5)}, net)


def test_constants_of_trtcal_toml_are_fed_to_images_and_arrays(tmp_path):
    images = gallery(tmp_path / "images", 5)
    nodes = [("Mul", ["x", "gain"], ["a"], {}), ("Add", ["a", "table"], ["y"], {})]
    inputs = {"x": (FLOAT, ["n", 3, 8, 8]), "gain": (FLOAT, []), "table": (FLOAT, [8])}
    net = model(nodes, inputs, {"y": ["n", 3, 8, 8]})
    settings = DataConfig(constants={"gain": 2, "table": [1.0] * 8})
    for data in (tmp_path / "images", images, {"x": images}, [images[:2], images[2:]]):
        dataset = open_dataset(data, net, PLAIN, settings=settings)
        np.testing.assert_array_equal(runs(net, dataset, 2)[0], images * 2 + 1)
    with fails(InputError, "other"):
        open_dataset(images, net, settings=DataConfig(constants={"other": 1}))
    with fails(InputError, "gain"):
        open_dataset(images, net, settings=DataConfig(constants={"gain": [1, 2], "table": [1] * 8}))


def test_a_batch_of_one_that_is_built_in_is_run_sample_by_sample():
    net = scaled(first=1)
    assert fixed_batch(net) == 1
    dataset = open_dataset({"x": X, "scale": 2}, net)
    np.testing.assert_array_equal(runs(net, dataset, 1)[0], X * 2)


def sequence(shape, outputs=None):
    """An LSTM of shape [length, 1, 4] -> [length, 1, 1, 2], with its weights inside."""
    random = np.random.default_rng(3).standard_normal
    weights = {"w": random((1, 8, 4)), "r": random((1, 8, 2))}
    made = [
        onnx.numpy_helper.from_array(value.astype(np.float32), name)
        for name, value in weights.items()
    ]
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=2)
    ins = [helper.make_tensor_value_info("x", FLOAT, shape)]
    outs = [helper.make_tensor_value_info("y", FLOAT, [shape[0], 1, 1, 2])]
    graph = helper.make_graph([node], "test", ins, outs, made)
    return load_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )


@pytest.mark.parametrize("shape", [[5, 1, 4], ["length", 1, 4], ["any", 1, 4]])
def test_a_sequence_first_has_no_axis_for_samples(shape):
    net = sequence(shape)
    data = np.random.default_rng(4).standard_normal((6, 5, 1, 4)).astype(np.float32)
    session = open_session(net.proto)
    alone = [run_session(session, ["y"], {"x": one[None]})[0] for one in data]
    for given in (data, list(data)):
        dataset = open_dataset(given, net)
        assert len(dataset) == 6
        made = runs(net, dataset)[0]
        assert made.shape == (6, 5, 1, 1, 2)
        np.testing.assert_array_equal(made, np.concatenate(alone))
    assert not np.array_equal(made[0], made[1])


def test_sequences_of_different_lengths_are_samples_of_their_own():
    net = sequence(["length", 1, 4])
    feeds = [np.ones((length, 1, 4), np.float32) for length in (3, 3, 5)]
    dataset = open_dataset(feeds, net)
    assert dataset.shapes == ((2, {"x": (3, 1, 4)}), (1, {"x": (5, 1, 4)}))
    shapes = [feeds["x"].shape for feeds in dataset.batches(8)]
    assert shapes == [(1, 3, 1, 4), (1, 3, 1, 4), (1, 5, 1, 4)]


def test_an_axis_that_says_nothing_of_itself_is_declared():
    net = model([("Relu", ["x"], ["y"], {})], {"x": (FLOAT, ["a", 4])}, {"y": ["a", 4]})
    feeds = [np.ones((length, 4), np.float32) for length in (3, 5)]
    assert len(open_dataset(feeds, net)) == 8
    declared = open_dataset(feeds, net, settings=DataConfig(sample_axis=False))
    assert [feeds["x"].shape for feeds in declared.batches(8)] == [(1, 3, 4), (1, 5, 4)]


def any_size():
    nodes = [("Relu", ["x"], ["y"], {})]
    return model(nodes, {"x": (FLOAT, ["n", 3, "w"])}, {"y": ["n", 3, "w"]})


WIDTHS = (4, 4, 6, 6, 6, 4)


def of_sizes():
    return [np.full((1, 3, width), number, np.float32) for number, width in enumerate(WIDTHS)]


def test_feeds_of_different_sizes_are_grouped_in_their_order(tmp_path):
    net, feeds = any_size(), of_sizes()
    for number, array in enumerate(feeds):
        np.savez(tmp_path / f"{number}.npz", x=array)
    for data in (feeds, tmp_path):
        dataset = open_dataset(data, net)
        assert [one["x"].shape[::2] for one in dataset.batches(2)] == [
            (2, 4),
            (2, 6),
            (1, 6),
            (1, 4),
        ]
        some = part(dataset, 1, 5)
        assert [one["x"].shape[::2] for one in some.batches(9)] == [(1, 4), (3, 6)]
        assert some.shapes == ((1, {"x": (3, 4)}), (3, {"x": (3, 6)}))
    assert open_dataset(tmp_path, net).fingerprint == open_dataset(feeds, net).fingerprint


def test_a_size_that_changes_between_passes_is_an_error():
    sizes = iter([WIDTHS, WIDTHS[::-1]])
    dataset = open_dataset(
        lambda: [of_sizes()[0][..., :1].repeat(w, 2) for w in next(sizes)], any_size()
    )
    with fails(InputError, CHANGED):
        list(dataset.batches(2))


def test_a_fixed_batch_takes_samples_of_one_size():
    net = model([("Relu", ["x"], ["y"], {})], {"x": (FLOAT, [2, 3, "w"])}, {"y": [2, 3, "w"]})
    assert len(open_dataset(of_sizes()[:2], net)) == 2
    with fails(InputError, "3 samples", "at 2"):
        open_dataset(of_sizes(), net)
