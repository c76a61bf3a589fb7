from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from calibrators import Histogram
from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import conv_net, rng, save, weight
from tests.fixtures.overflow import in_float16, overflow_net
from trtcal.backends import taps as module
from trtcal.backends.sessions import open_session, run_session
from trtcal.backends.taps import Taps, lay_out
from trtcal.model.tensors import sources

IMAGES = rng(8).standard_normal((6, 3, 16, 16)).astype(np.float32)


def conv(name, source, weights, result, **attributes):
    return helper.make_node("Conv", [source, weights], [result], name, pads=[1] * 4, **attributes)


def network(tmp_path, channels, activation):
    """Two convolutions with an activation, a residual addition, a Concat, and odd channel numbers."""
    nodes = [
        conv("first", "x", "w1", "a"),
        helper.make_node(activation, ["a"], ["b"], "act1"),
        conv("second", "b", "w2", "c"),
        helper.make_node("Add", ["c", "b"], ["d"], "add"),
        helper.make_node(activation, ["d"], ["e"], "act2"),
        helper.make_node("Concat", ["b", "e"], ["f"], "concat", axis=1),
        conv("third", "f", "w3", "g"),
        helper.make_node("MaxPool", ["g"], ["h"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Transpose", ["h"], ["t"], "transpose", perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["t", "w4"], ["y"], "matmul"),
    ]
    weights = {
        "w1": weight(channels, 3, 3, 3, seed=1),
        "w2": weight(channels, channels, 3, 3, seed=2),
        "w3": weight(7, 2 * channels, 3, 3, seed=3),
        "w4": weight(7, 4, seed=4),
    }
    shapes = {"x": ["n", 3, "h", "w"]}, {"y": ["n", "h2", "w2", 4]}
    return onnx.load(save(tmp_path / "net.onnx", nodes, weights, *shapes))


def plainly(proto, tensors, feeds):
    extended = onnx.ModelProto()
    extended.CopyFrom(proto)
    extended.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors)
    return run_session(open_session(extended), tensors, feeds)


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "Sigmoid", "Tanh"])
@pytest.mark.parametrize("channels", [8, 16, 5, 13])
def test_taps_read_what_the_plain_way_reads(tmp_path, channels, activation):
    proto = network(tmp_path, channels, activation)
    tensors = ["b", "c", "e", "f", "g", "h", "t"]
    batches = [IMAGES[:2], IMAGES[2:4], IMAGES[4:, :, :12, :8], IMAGES[:2], IMAGES[:1]]
    made = {name: Histogram() for name in tensors}
    plain = {name: Histogram() for name in tensors}
    with Taps(laid_out(proto, tmp_path), tensors, {"x": IMAGES[:1]}) as taps:
        (lane,) = taps.lanes
        for batch in batches:
            count(made, lane.read({"x": batch}, range(len(batch))))
            for name, values in zip(tensors, plainly(proto, tensors, {"x": batch}), strict=True):
                plain[name].update(values)
        count(made, lane.rest())
    for name in tensors:
        assert (made[name].count, made[name].zeros) == (plain[name].count, plain[name].zeros), name
        assert made[name].minimum == pytest.approx(plain[name].minimum, rel=1e-4, abs=1e-5)
        assert made[name].maximum == pytest.approx(plain[name].maximum, rel=1e-4, abs=1e-5)


def laid_out(proto, folder):
    lay_out(proto, folder)
    return folder


def copied(reading):
    return replace(reading, values=reading.values.copy())


def count(histograms, readings):
    for reading in readings:
        histograms[reading.tensor].update(reading.values, reading.padding)


def test_taps_round_a_float16_model_once(tmp_path):
    source = overflow_net(tmp_path / "net.onnx", "plain")
    proto = onnx.load(in_float16(tmp_path / "half.onnx", source))
    tensors = [node.output[0] for node in proto.graph.node if node.op_type != "Cast"]
    feeds = {"x": rng().standard_normal((4, 16)).astype(np.float32)}
    with Taps(laid_out(proto, tmp_path), tensors, feeds) as taps:
        (lane,) = taps.lanes
        read = {
            one.tensor: one.values.copy()
            for one in (*lane.read(feeds, range(len(feeds["x"]))), *lane.rest())
        }
        opened = taps.folder / module.MODEL
        open_session(opened, as_it_is=True, optimized=tmp_path / "session.onnx")
        nodes = len(onnx.load(opened).graph.node)
        assert len(onnx.load(tmp_path / "session.onnx").graph.node) == nodes
    for name, values in zip(tensors, plainly(proto, tensors, feeds), strict=True):
        np.testing.assert_array_equal(np.sort(read[name], None), np.sort(values, None), name)


def test_batches_are_collected_until_there_are_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_BATCHES", 3)
    proto = network(tmp_path, 8, "Relu")
    feeds = [{"x": IMAGES[i : i + 1]} for i in range(6)]
    with Taps(laid_out(proto, tmp_path), ["b", "h"], feeds[0]) as taps:
        (lane,) = taps.lanes
        read = [[copied(one) for one in lane.read(each, range(1))] for each in feeds]
        assert [len(readings) for readings in read] == [0, 0, 2, 0, 0, 2]
        assert not lane.rest()
        for number, (first, second) in enumerate(zip(read[2], read[5], strict=True)):
            name = ("b", "h")[number]
            for reading, part in ((first, feeds[:3]), (second, feeds[3:])):
                values = np.concatenate([plainly(proto, [name], each)[0] for each in part])
                np.testing.assert_allclose(
                    np.sort(reading.values, None)[-40:], np.sort(values, None)[-40:], 1e-3
                )
        folder = taps.folder
    assert not folder.exists()


def test_a_wrong_place_is_noticed_and_read_plainly(tmp_path, monkeypatch):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    right = module.locate

    def wrong(optimized, original, tensors):
        places = right(optimized, original, tensors)
        known = {value.name for value in optimized.graph.output}
        return {name: name if name in known else places["b"] for name in places}

    monkeypatch.setattr(module, "locate", wrong)
    feeds = {"x": IMAGES[:, :, :8, :8]}
    with Taps(laid_out(proto, tmp_path), ["b", "e", "g"], feeds) as taps:
        (lane,) = taps.lanes
        readings = [*lane.read(feeds, range(len(feeds["x"]))), *lane.rest()]
    for reading, values in zip(readings, plainly(proto, ["b", "e", "g"], feeds), strict=True):
        np.testing.assert_allclose(
            np.sort(reading.values, None)[-9:], np.sort(values, None)[-9:], 1e-3
        )


def test_moved_values_are_derived(tmp_path):
    proto = network(tmp_path, 8, "Relu")
    assert sources(proto, ["b", "f", "t", "x"]) == {
        "b": ("b",),
        "f": ("b", "e"),
        "t": ("h",),
        "x": ("x",),
    }


def test_a_concat_with_a_constant_is_counted_itself(tmp_path):
    nodes = as_nodes("[concat] a = Concat<axis=1>(x, k)  [matmul] y = MatMul(a, w)")
    weights = {"k": np.ones((1, 2), np.float32), "w": weight(6, 3)}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": [1, 4]}, {"y": [1, 3]})
    assert sources(onnx.load(path), ["a"]) == {"a": ("a",)}
