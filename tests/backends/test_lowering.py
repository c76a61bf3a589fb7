import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.fixtures.fails import fails
from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import conv_net, rng, save, weight
from tests.fixtures.quantized import calibrated
from tests.fixtures.zoo_net import Net
from tests.fixtures.zoo_scene import quantized_scene
from trtcal.backends.lowering import lower
from trtcal.backends.sessions import open_session, run_session
from trtcal.errors import BackendError
from trtcal.model.ops import INTEGER
from trtcal.quantization import Plan, prepare, quantize

ACCUMULATOR_ROUNDING = 0.02  # share of outputs that the int32 bias may move by a step
HALVES_ROUNDING = 0.08  # share that one to float16 before the Q may move


def literal(proto, feeds):
    """Run Q/DQ as written: no graph optimization, every Q and DQ in float."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, feeds)[0]


def kernels(proto, tmp_path):
    open_session(lower(proto), optimized=tmp_path / "optimized.onnx")
    return [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]


def chain(middle, tmp_path, out_channels=6, extra=None, rest=None):
    """conv -> middle nodes from 'a' to 'b' -> conv, in INT8."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], "first", pads=[1, 1, 1, 1]),
        *middle,
        helper.make_node("Conv", ["b", "w2"], ["y"], "last"),
    ]
    weights = {
        "w1": weight(6, 3, 3, 3, seed=1),
        "b1": rng(2).standard_normal(6).astype(np.float32),
        "w2": weight(4, out_channels, 1, 1, seed=3),
        **(extra or {}),
    }
    path = save(
        tmp_path / "n.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 4, "h", "w"]}
    )
    model, calibration, data = calibrated(path, tmp_path, "percentile")
    return quantize(model, calibration, Plan(rest=rest)).proto, next(data.batches(24))


MIDDLES = {
    "relu": [helper.make_node("Relu", ["a"], ["b"], "relu")],
    "relu6": [helper.make_node("Clip", ["a", "low", "high"], ["b"], "relu6")],
    "cut below": [helper.make_node("Clip", ["a", "below"], ["b"], "cut")],
    "cut below, and on in float": as_nodes("[cut] c = Clip(a, below)  [sigmoid] b = Sigmoid(c)"),
    "relu and pool": as_nodes(
        "[relu] r = Relu(a)  [pool] b = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(r)"
    ),
    "transpose": [helper.make_node("Transpose", ["a"], ["b"], "transpose", perm=[0, 1, 3, 2])],
}
LIMITS = {"low": 0.0, "high": 1.5, "below": -0.4}


def limits_of(name):
    read = {one for node in MIDDLES[name] for one in node.input}
    return {one: np.array(value, np.float32) for one, value in LIMITS.items() if one in read}


@pytest.mark.parametrize("name", MIDDLES)
def test_float16_between_int8_tensors_takes_the_kernels_of_float32(tmp_path, name):
    half, feeds = chain(MIDDLES[name], tmp_path, extra=limits_of(name), rest="fp16")
    single, _ = chain(MIDDLES[name], tmp_path, extra=limits_of(name))
    assert any(node.op_type == "Conv" and "/fp16" in node.output[0] for node in half.graph.node)
    found = kernels(half, tmp_path)
    assert found.count("QLinearConv") == kernels(single, tmp_path).count("QLinearConv")
    expected, lowered = literal(half, feeds), literal(lower(half), feeds)
    step = np.abs(expected).max() / 127
    assert (np.abs(expected - lowered) > step / 4).mean() < HALVES_ROUNDING
    assert np.abs(expected - lowered).max() < 4 * step


@pytest.mark.parametrize("name", MIDDLES)
def test_the_numbers_stay_the_same_but_for_the_bias_rounding(tmp_path, name):
    proto, feeds = chain(MIDDLES[name], tmp_path, extra=limits_of(name))
    expected, lowered = literal(proto, feeds), literal(lower(proto), feeds)
    step = np.abs(expected).max() / 127
    assert (np.abs(expected - lowered) > step / 4).mean() < ACCUMULATOR_ROUNDING
    assert np.abs(expected - lowered).max() < 4 * step


@pytest.mark.parametrize("name", [name for name in MIDDLES if "float" not in name])
def test_the_integer_kernels_compute_what_the_lowered_graph_says(tmp_path, name):
    proto, feeds = chain(MIDDLES[name], tmp_path, extra=limits_of(name))
    lowered = lower(proto)
    result = run_session(open_session(lowered), None, feeds)[0]
    expected = literal(lowered, feeds)
    step = np.abs(expected).max() / 127
    assert (np.abs(expected - result) > step / 4).mean() < 0.005
    assert "QLinearConv" in kernels(proto, tmp_path)


def test_concat_is_done_on_integers(tmp_path):
    middle = as_nodes(
        "[relu] r = Relu(a)  [pool] p = MaxPool<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(r)  "
        "[concat] b = Concat<axis=1>(r, p)"
    )
    proto, feeds = chain(middle, tmp_path, 12)
    assert "QLinearConcat" in kernels(proto, tmp_path)
    np.testing.assert_allclose(literal(lower(proto), feeds), literal(proto, feeds), atol=0.2)


def test_a_float_model_is_left_alone(tmp_path):
    proto = onnx.load(conv_net(tmp_path / "net.onnx"))
    assert lower(proto) is proto


def test_a_bias_too_large_for_int32_keeps_its_layer_in_float(tmp_path):
    huge = {"b1": np.full(6, 1e9, np.float32)}
    proto, feeds = chain(MIDDLES["relu"], tmp_path, extra=huge)
    lowered = lower(proto)
    assert "b1" in next(node for node in lowered.graph.node if node.name == "first").input
    assert set(kernels(proto, tmp_path)) & INTEGER == set()
    result = run_session(open_session(lowered), None, feeds)[0]
    np.testing.assert_allclose(result, literal(proto, feeds), rtol=1e-3)


@pytest.mark.parametrize("zero", [0, 128, 77])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_pairs_that_are_not_tensorrts_are_left_alone(tmp_path, zero, kind):
    nodes = as_nodes(
        "[q] q = QuantizeLinear(x, s, z)  [d] d = DequantizeLinear(q, s, z)  [conv] y = Conv(d, w)"
    )
    value = kind(zero % 128) if kind is np.int8 else kind(zero)
    weights = {"s": np.float32(0.05), "z": value, "w": weight(4, 3, 3, 3)}
    weights = {name: np.asarray(array) for name, array in weights.items()}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": [1, 3, 8, 8]}, {"y": [1, 4, 6, 6]})
    proto = onnx.load(path)
    feeds = {"x": rng(1).uniform(0, 10, (1, 3, 8, 8)).astype(np.float32)}
    result = run_session(open_session(lower(proto)), None, feeds)[0]
    np.testing.assert_allclose(result, literal(proto, feeds), rtol=1e-4, atol=1e-4)


def test_weights_that_two_convolutions_share_run_in_integers(tmp_path):
    middle = as_nodes(
        "[relu] r = Relu(a)  [second] c = Conv(r, w2)  [relu2] s = Relu(c)  "
        "[third] d = Conv(s, w2)  [relu3] b = Relu(d)"
    )
    proto, feeds = chain(middle, tmp_path, extra={"w2": weight(6, 6, 1, 1, seed=3)})
    assert kernels(proto, tmp_path).count("QLinearConv") == 3
    result = run_session(open_session(lower(proto)), None, feeds)[0]
    np.testing.assert_allclose(result, literal(proto, feeds), atol=0.1)


def test_a_constant_that_others_read_too_keeps_its_place(tmp_path):
    nodes = as_nodes(
        "[constant] zero = DequantizeLinear(q, s, z)  [pad1] a = Pad(x, pads, zero)  "
        "[pad2] b = Pad(a, pads, zero)  [quantize] c = QuantizeLinear(b, s, z)  "
        "[dequantize] y = DequantizeLinear(c, s, z)"
    )
    weights = {
        "pads": np.array([0, 0, 1, 1, 0, 0, 0, 0]),
        "q": np.int8(0),
        "s": np.float32(0.1),
        "z": np.int8(0),
    }
    weights = {name: np.asarray(value) for name, value in weights.items()}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 2, 4, 4]}, {"y": ["n", 2, 6, 6]})
    feeds = {"x": rng().standard_normal((2, 2, 4, 4)).astype(np.float32)}
    proto = onnx.load(path)
    np.testing.assert_array_equal(literal(lower(proto), feeds), literal(proto, feeds))


def test_a_float16_layer_beside_a_concat_of_int8_runs(tmp_path):
    net = Net(x=("n", 8, 8, 8))
    y = net.relu(net.conv("stem", "x", (16, 8, 3, 3)))
    sides = [net.relu(net.conv(name, y, (16, 16, 1, 1))) for name in ("left", "right")]
    last = net.conv("last", net.add("Concat", *sides, axis=1), (16, 32, 3, 3))
    net.done(net.head("head", last, 16))
    onnx.save(net.proto(), tmp_path / "float.onnx")
    feeds = net.samples(16)
    np.savez(tmp_path / "samples.npz", **feeds)
    made = quantized_scene(tmp_path / "float.onnx", tmp_path / "samples.npz", tmp_path, 8)
    mixed = quantize(prepare(made.given), made.calibration, Plan("int8", {"left": "fp16"})).proto
    expected = literal(mixed, feeds)
    lowered = run_session(open_session(lower(mixed), threads=1), None, feeds)[0]
    noise = np.square(lowered - expected).sum() / np.square(expected).sum()
    assert noise < 10**-2.5


def test_a_relu_before_uint8_quantization_without_a_zero_point():
    nodes = as_nodes(
        "[relu] r = Relu(x)  [quantize] q = QuantizeLinear(r, s)  "
        "[dequantize] y = DequantizeLinear(q, s)"
    )
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in ("x", "y")
    ]
    scale = onnx.numpy_helper.from_array(np.float32(0.1), "s")
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [scale])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    feeds = {"x": rng().standard_normal((2, 3)).astype(np.float32)}
    np.testing.assert_array_equal(literal(lower(proto), feeds), literal(proto, feeds))


@pytest.mark.parametrize("change", [lower, lambda model: model], ids=["lowered", "as written"])
@pytest.mark.parametrize("clip", [["Relu", "a"], ["Clip", "a", "least"]], ids=["Relu", "Clip"])
@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_a_relu_or_clip_before_fp8_still_takes_negative_values_away(kind, clip, change):
    """ONNX Runtime 1.32 drops such a Relu of float32, and refuses such a Clip (ClipQuantRewrite)."""
    nodes = [helper.make_node("Neg", ["x"], ["a"]),
             helper.make_node(clip[0], clip[1:], ["r"]),
             helper.make_node("QuantizeLinear", ["r", "scale", "zero"], ["q"]),
             helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"])]  # fmt: skip
    constants = [helper.make_tensor("scale", kind, [], [0.125]),
                 helper.make_tensor("least", kind, [], [0]),
                 helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [0])]  # fmt: skip
    x, y = (helper.make_tensor_value_info(name, kind, [6]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    given = np.array([3, 1, 0, -0.5, -1, -4], helper.tensor_dtype_to_np_dtype(kind))
    (found,) = run_session(open_session(change(model)), None, {"x": given})
    assert found.tolist() == [0, 0, 0, 0.5, 1, 4]


def test_operators_of_tensorrt_from_older_exports_say_which_opset_to_take():
    nodes = [
        helper.make_node("TRT_FP8QuantizeLinear", ["x", "scale"], ["q"], domain="trt"),
        helper.make_node("TRT_FP8DequantizeLinear", ["q", "scale"], ["y"], domain="trt"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [6]) for name in "xy")
    constants = [helper.make_tensor("scale", TensorProto.FLOAT, [], [0.125])]
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("trt", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    with fails(BackendError, "TRT_FP8QuantizeLinear", hint="opset 19 for FP8"):
        open_session(lower(model))
