import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import save, weight
from tests.fixtures.quantized import by_name, calibrated, constants
from trtcal.backends.lowering import lower
from trtcal.backends.sessions import open_session, run_session
from trtcal.model import load_model
from trtcal.quantization import Plan, find_layers, prepare, quantize

POOL = {"kernel_shape": [3, 3], "pads": [1] * 4}


def conv(name, source, result, weights):
    return helper.make_node("Conv", [source, weights], [result], name)


def built(tmp_path, nodes, channels=4, plan=None):
    weights = {"w": weight(4, 3, 1, 1), "v": weight(2, channels, 1, 1, seed=1)}
    shapes = {"x": ["n", 3, 8, 8]}, {"y": ["n", 2, "h", "k"]}
    path = save(tmp_path / "n.onnx", nodes, weights, *shapes)
    model, calibration, data = calibrated(path, tmp_path)
    return quantize(model, calibration, plan).proto, model, next(data.batches(24))


def scales(proto):
    """Tensor -> its scale, for every QuantizeLinear."""
    values = constants(proto)
    found = [node for node in proto.graph.node if node.op_type == "QuantizeLinear"]
    return {node.input[0]: float(values[node.input[1]]) for node in found}


def pooled(op, **attributes):
    return [
        conv("first", "x", "a", "w"),
        helper.make_node(op, ["a"], ["p"], "pool", **{**POOL, **attributes}),
        conv("last", "p", "y", "v"),
    ]


def test_an_average_pooling_has_pairs_of_its_own_on_both_sides(tmp_path):
    proto, _, _ = built(tmp_path, pooled("AveragePool"))
    assert by_name(proto)["pool"].input[0] == "a/dequantized"
    assert scales(proto)["a"] > scales(proto)["p"]


@pytest.mark.parametrize(
    ("attributes", "is_int8"),
    [
        ({}, False),
        ({"count_include_pad": 1}, True),
        ({"pads": [0] * 4}, True),
        ({"pads": [0] * 4, "ceil_mode": 1}, False),
    ],
)
def test_a_strided_average_pooling_is_int8_where_padding_counts_or_is_none(
    tmp_path, attributes, is_int8
):
    proto, model, feeds = built(tmp_path, pooled("AveragePool", strides=[2, 2], **attributes))
    assert by_name(proto)["pool"].input[0] == ("a/dequantized" if is_int8 else "a")
    assert set(scales(proto)) == ({"x", "a", "p"} if is_int8 else {"x", "p"})
    exact = run_session(open_session(model.proto), None, feeds)[0]
    found = run_session(open_session(proto), None, feeds)[0]
    assert np.square(exact - found).sum() < 3e-3 * np.square(exact).sum()


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("kept", ["last", "pool"])
def test_a_plan_that_keeps_a_node_in_float_keeps_the_pooling_so(tmp_path, op, kept):
    proto, _, _ = built(tmp_path, pooled(op), plan=Plan(layers={kept: "fp32"}))
    assert by_name(proto)["pool"].input[0] == "a"


def test_a_pooling_before_a_concat_is_followed_by_a_pair_at_once(tmp_path):
    nodes = [
        conv("first", "x", "a", "w"),
        helper.make_node("MaxPool", ["a"], ["p"], "pool", **POOL),
        helper.make_node("Concat", ["a", "p"], ["c"], "concat", axis=1),
        conv("last", "c", "y", "v"),
    ]
    proto, model, feeds = built(tmp_path, nodes, 8)
    assert list(by_name(proto)["concat"].input) == ["a", "p/dequantized"]
    assert scales(proto)["a"] == scales(proto)["p"]
    exact = run_session(open_session(model.proto), None, feeds)[0]
    for one in (proto, lower(proto)):
        found = run_session(open_session(one), None, feeds)[0]
        assert np.square(exact - found).sum() < 3e-3 * np.square(exact).sum()


def test_a_pooling_that_only_a_concat_reads_takes_its_inputs_range(tmp_path):
    nodes = [
        conv("first", "x", "a", "w"),
        helper.make_node("MaxPool", ["a"], ["p"], "pool", **POOL),
        conv("second", "x", "b", "u"),
        helper.make_node("Concat", ["b", "p"], ["c"], "concat", axis=1),
        conv("last", "c", "y", "v"),
    ]
    reader = conv("reader", "p", "z", "w2")
    found = [scales(joined(tmp_path, nodes)), scales(joined(tmp_path, [*nodes, reader]))]
    assert [one["p"] == one["a"] for one in found] == [True, False]
    assert [one["p"] == one["c"] for one in found] == [False, True]


def joined(tmp_path, nodes):
    weights = {"w": weight(4, 3, 1, 1), "v": weight(2, 8, 1, 1, seed=1)}
    weights |= {"u": 10 * weight(4, 3, 1, 1, seed=2), "w2": weight(2, 4, 1, 1)}
    outputs = {node.output[0]: ["n", 2, 8, 8] for node in nodes if node.output[0] in "yz"}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, outputs)
    model, calibration, _ = calibrated(path, tmp_path)
    return quantize(model, calibration).proto


def norm(number, source, result):
    parameters = [f"{part}{number}" for part in ("scale", "bias", "mean", "variance")]
    return helper.make_node("BatchNormalization", [source, *parameters], [result], f"norm{number}")


def dense(readers=()):
    """Three convolutions of which each reads the Concat of all before it, normalized."""
    return [
        conv("first", "x", "a", "w"),
        conv("second", "x", "b", "w"),
        helper.make_node("Concat", ["a", "b"], ["c"], "concat1", axis=1),
        norm(2, "c", "d"),
        helper.make_node("Relu", ["d"], ["e"], "relu"),
        conv("third", "e", "f", "v"),
        helper.make_node("Concat", ["c", "f"], ["g"], "concat2", axis=1),
        norm(3, "g", "h"),
        helper.make_node("Concat", ["h", "x"], ["i"], "concat3", axis=1),
        conv("last", "i", "y", "u"),
        *readers,
    ]


def built_dense(tmp_path, readers=(), outputs=None):
    nodes = dense(readers)
    weights = {"w": weight(4, 3, 1, 1), "v": weight(2, 8, 1, 1), "u": weight(2, 13, 1, 1)}
    for number, size in ((2, 8), (3, 10)):
        weights |= {f"{part}{number}": np.ones(size, np.float32) for part in ("scale", "variance")}
        weights |= {f"{part}{number}": np.zeros(size, np.float32) for part in ("bias", "mean")}
    shapes = {"y": ["n", 2, 8, 8], **(outputs or {})}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, shapes)
    model, calibration, _ = calibrated(path, tmp_path)
    return quantize(model, calibration).proto, calibration


def test_nested_concats_are_stored_quantized_by_one_scale(tmp_path):
    proto, calibration = built_dense(tmp_path)
    nodes = by_name(proto)
    assert nodes["norm2"].input[0] == nodes["concat2"].input[0] == "c/dequantized"
    assert nodes["norm3"].input[0] == "g/dequantized"
    assert scales(proto)["c"] == scales(proto)["g"]
    assert "c" not in calibration.ranges
    assert "g" in calibration.ranges


def test_a_concat_that_something_else_reads_stays_float(tmp_path):
    reader = helper.make_node("Softmax", ["c"], ["z"], "softmax", axis=1)
    proto, _ = built_dense(tmp_path, [reader], {"z": ["n", 8, 8, 8]})
    nodes = by_name(proto)
    assert nodes["softmax"].input[0] == nodes["norm2"].input[0] == nodes["concat2"].input[0] == "c"


def test_queries_keys_and_values_are_quantized_before_they_are_cut_apart(tmp_path):
    nodes = as_nodes(
        "[all] all = MatMul(x, w)  [split] q, k, v = Split<axis=2>(all)  "
        "[turn] t = Transpose<perm=[0, 2, 1]>(k)  [scores] scores = MatMul(q, t)  "
        "[mix] y = MatMul(scores, v)"
    )
    weights = {"w": weight(6, 12)}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 5, 6]}, {"y": ["n", 5, 4]})
    model, calibration, _ = calibrated(path, tmp_path, shape=(5, 6))
    assert set(calibration.ranges) == {"x", "all", "scores"}
    proto = quantize(model, calibration).proto
    assert by_name(proto)["split"].input[0] == "all/dequantized"
    assert {scales(proto)[name] for name in ("q", "t", "v")} == {scales(proto)["all"]}


def test_another_domains_operators_are_not_taken_for_onnxs(tmp_path):
    nodes = as_nodes("[gemm] a = Gemm(x, w)  [theirs] y = own.Gemm(a, w)")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, ["n", 6])],
        [helper.make_tensor_value_info("y", 1, ["n", 6])],
        [numpy_helper.from_array(weight(6, 6), "w")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "n.onnx")
    placement = find_layers(prepare(load_model(tmp_path / "n.onnx")))
    assert [layer.name for layer in placement.layers] == ["gemm"]
