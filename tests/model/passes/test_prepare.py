import numpy as np
import onnx
import pytest
from onnx import helper

from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import conv_net, rng, save, weight
from trtcal.backends.sessions import open_session, run_session
from trtcal.model import load_model
from trtcal.quantization import prepare

IMAGES = {"x": rng(8).standard_normal((4, 3, 8, 8)).astype(np.float32)}


def batch_norm(prefix: str, channels: int, seed: int) -> dict[str, np.ndarray]:
    draw = rng(seed)
    return {
        f"{prefix}/gamma": draw.uniform(0.5, 2, channels).astype(np.float32),
        f"{prefix}/beta": draw.standard_normal(channels).astype(np.float32),
        f"{prefix}/mean": draw.standard_normal(channels).astype(np.float32),
        f"{prefix}/var": draw.uniform(0.5, 2, channels).astype(np.float32),
    }


def norm_node(name: str, source: str, result: str) -> onnx.NodeProto:
    parameters = [f"{name}/{part}" for part in ("gamma", "beta", "mean", "var")]
    return helper.make_node("BatchNormalization", [source, *parameters], [result], name)


def ops(model):
    return [node.op_type for node in model.proto.graph.node]


def same_outputs(path, tolerance=1e-4):
    model = load_model(path)
    before = run_session(open_session(model.proto), None, IMAGES)[0]
    prepared = prepare(model)
    after = run_session(open_session(prepared.proto), None, IMAGES)[0]
    np.testing.assert_allclose(after, before, rtol=tolerance, atol=tolerance)
    return prepared


@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_goes_into_its_convolution(tmp_path, bias):
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"][: 3 if bias else 2], ["a"], "conv"),
        norm_node("bn", "a", "y"),
    ]
    weights = {"w": weight(6, 3, 3, 3), **batch_norm("bn", 6, 1)}
    if bias:
        weights["b"] = rng(2).standard_normal(6).astype(np.float32)
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 6, 6, 6]})
    prepared = same_outputs(path)
    assert ops(prepared) == ["Conv"]
    assert list(prepared.proto.graph.node[0].output) == ["y"]


def test_batch_norm_goes_into_a_transposed_convolution(tmp_path):
    nodes = [helper.make_node("ConvTranspose", ["x", "w"], ["a"], "up"), norm_node("bn", "a", "y")]
    weights = {"w": weight(3, 6, 2, 2), **batch_norm("bn", 6, 1)}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 6, 9, 9]})
    assert ops(same_outputs(path)) == ["ConvTranspose"]


def test_batch_norm_stays_where_the_convolution_has_another_reader(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv"),
        norm_node("bn", "a", "b"),
        helper.make_node("Add", ["a", "b"], ["y"], "add"),
    ]
    weights = {"w": weight(6, 3, 3, 3), **batch_norm("bn", 6, 1)}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 6, 6, 6]})
    assert "BatchNormalization" in ops(same_outputs(path))


def test_what_does_nothing_is_taken_out(tmp_path):
    nodes = as_nodes(
        "[same] a = Identity(x)  [conv] b = Conv(a, w)  [drop] c = Dropout(b)  [relu] y = Relu(c)"
    )
    weights = {"w": weight(6, 3, 3, 3)}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 6, 6, 6]})
    assert ops(same_outputs(path)) == ["Conv", "Relu"]


def test_nameless_and_repeated_names_become_unique(tmp_path):
    nodes = as_nodes("a = Conv(x, w)  [twice] b = Relu(a)  [twice] y = Sigmoid(b)")
    weights = {"w": weight(6, 3, 3, 3)}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 6, 6, 6]})
    assert [node.name for node in prepare(load_model(path)).proto.graph.node] == [
        "Conv_0",
        "twice",
        "twice_2",
    ]


def test_old_models_are_raised_to_a_usable_opset(tmp_path):
    nodes = as_nodes("[conv] a = Conv(x, w)  [softmax] y = Softmax<axis=1>(a)")
    weights = {"w": weight(6, 3, 8, 8)}
    path = save(
        tmp_path / "n.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 6, 1, 1]}, 9
    )
    assert same_outputs(path).opset == 13


def test_preparing_twice_changes_nothing(tmp_path):
    once = prepare(load_model(conv_net(tmp_path / "net.onnx")))
    assert prepare(once).proto.SerializeToString(
        deterministic=True
    ) == once.proto.SerializeToString(deterministic=True)


def test_channel_scales_after_a_convolution_are_folded(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv"),
        norm_node("bn", "a", "b"),
        helper.make_node("Mul", ["b", "scale"], ["c"], "mul"),
        helper.make_node("Add", ["shift", "c"], ["y"], "add"),
    ]
    scale, shift = (rng(n).uniform(0.5, 2, (6, 1, 1)).astype(np.float32) for n in (4, 5))
    weights = {"w": weight(6, 3, 3, 3), **batch_norm("bn", 6, 1), "scale": scale, "shift": shift}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 6, 6, 6]})
    assert ops(same_outputs(path)) == ["Conv"]


def test_what_differs_within_a_channel_is_not_folded(tmp_path):
    nodes = as_nodes("[conv] a = Conv(x, w)  [mul] y = Mul(a, map)")
    weights = {"w": weight(6, 3, 3, 3), "map": rng(4).uniform(0, 1, (6, 6)).astype(np.float32)}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 6, 6, 6]})
    assert ops(same_outputs(path)) == ["Conv", "Mul"]


def test_a_dropout_whose_mask_is_shown_stays(tmp_path):
    nodes = as_nodes("[conv] a = Conv(x, w)  [drop] b, mask = Dropout(a)  [relu] y = Relu(b)")
    path = save(
        tmp_path / "n.onnx",
        nodes,
        {"w": weight(6, 3, 3, 3)},
        {"x": ["n", 3, 8, 8]},
        {"y": ["n", 6, 6, 6]},
    )
    proto = onnx.load(path)
    shape = ["n", 6, 6, 6]
    proto.graph.output.append(helper.make_tensor_value_info("mask", onnx.TensorProto.BOOL, shape))
    onnx.save(proto, path)
    assert "Dropout" in ops(prepare(load_model(path)))
