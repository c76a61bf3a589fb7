import json

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx.external_data_helper import uses_external_data

from tests.fixtures.commands import shows
from tests.fixtures.fails import fails
from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import conv_net, linear_classifier, save, transposed_net, weight
from tests.fixtures.quantized import by_name, calibrated, constants
from tests.fixtures.tables import each
from trtcal.backends.lowering import lower
from trtcal.backends.sessions import open_session, run_session
from trtcal.calibration import calibrate, observe
from trtcal.cli.main import run_command
from trtcal.data import open_dataset
from trtcal.errors import InputError
from trtcal.formats import FORMATS
from trtcal.model import load_model
from trtcal.model.graph import fingerprint, import_graph
from trtcal.quantization import (
    Plan,
    Rule,
    find_layers,
    prepare,
    quantize,
    read_plan,
    tensors_to_observe,
    write_plan,
    write_quantized,
)
from trtcal.quantization.qdq import asked_precisions, quantization_record
from trtcal.quantization.weights import balanced, quantize_weight, step_above
from trtcal.ranges import Calibration, TensorRange


def test_every_pair_is_int8_with_zero_point_zero_and_constant_scale(tmp_path):
    model, calibration, _ = calibrated(conv_net(tmp_path / "net.onnx"), tmp_path)
    quantized = quantize(model, calibration)
    values = constants(quantized.proto)
    pairs = [n for n in quantized.proto.graph.node if n.op_type.endswith("quantizeLinear")]
    pairs += [n for n in quantized.proto.graph.node if n.op_type == "QuantizeLinear"]
    assert len(pairs) == 9
    for node in pairs:
        assert values[node.input[1]].dtype == np.float32
        assert (values[node.input[1]] > 0).all()
        assert values[node.input[2]].dtype == np.int8
        assert not values[node.input[2]].any()


def test_operators_without_a_kernel_get_no_qdq_unless_the_plan_decides_on_them(tmp_path):
    """A model without such operators is the same with and without targets."""
    model, calibration, _ = calibrated(transposed_net(tmp_path / "net.onnx"), tmp_path)
    plans = {name: Plan(**keys).suited("fp32", ("ConvTranspose",)) for name, keys in {
        "left": {}, "by name": {"layers": {"up": "int8"}},
        "by rule": {"rules": (Rule("int8", op="ConvTranspose"),)}}.items()}  # fmt: skip
    written = {name: quantize(model, calibration, plan) for name, plan in plans.items()}
    assert written["left"].skipped == {"up": "no target has an INT8 kernel for ConvTranspose"}
    assert asked_precisions(written["left"].proto)["conv"] == "int8"
    for name in ("by name", "by rule"):
        assert asked_precisions(written[name].proto)["up"] == "int8", name
    model, calibration, _ = calibrated(conv_net(tmp_path / "other.onnx"), tmp_path)
    digests = {
        quantize(model, calibration, plan).digest for plan in (Plan(rest="fp32"), plans["left"])
    }
    assert len(digests) == 1


def test_a_shared_tensor_is_quantized_once_and_biases_stay_float(tmp_path):
    model, calibration, _ = calibrated(conv_net(tmp_path / "net.onnx"), tmp_path)
    proto = quantize(model, calibration).proto
    nodes = by_name(proto)
    assert nodes["second"].input[0] == nodes["add"].input[1] == "b/dequantized"
    assert nodes["add"].input[0] == "c"
    assert sum(node.op_type == "QuantizeLinear" for node in proto.graph.node) == 3
    assert constants(proto)[nodes["first"].input[2]].dtype == np.float32


def test_a_second_pair_has_a_scale_one_step_above(tmp_path):
    model, calibration, _ = calibrated(conv_net(tmp_path / "net.onnx"), tmp_path)
    proto = quantize(model, calibration, Plan(second_qdq=("add",))).proto
    nodes, values = by_name(proto), constants(proto)
    found = {node.output[0]: node for node in proto.graph.node}
    second = found[found[nodes["add"].input[1]].input[0]]
    first = found[second.input[0]]
    assert first.output[0] == nodes["second"].input[0] == "b/dequantized"
    scales = values[first.input[1]], values[second.input[1]]
    assert scales[1] == np.nextafter(scales[0], np.float32(np.inf))
    assert scales[1].dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@given(exponent=st.integers(-24, 15), share=st.floats(1, 1.99))
def test_the_scale_above_leaves_every_integer_as_it_is(dtype, exponent, share):
    scale = np.asarray(share * 2.0**exponent, dtype)
    above = step_above(scale)
    if above is None:
        assert dtype == np.float16
        assert scale < 2.0**-15
    else:
        steps = np.arange(-128, 128)
        assert (np.rint(steps * scale.astype(np.float64) / above) == steps).all()


@each(
    "op, attributes, shape, axis, channels",
    [
        ("Einsum", {"equation": "ni,ij->nj"}, (8, 6), 1, 6),
        ("Einsum", {"equation": "ni,ji->nj"}, (6, 8), 0, 6),
        ("Einsum", {"equation": "ni,ijk->njk"}, (8, 2, 3), None, 1),
        ("Conv", {}, (6, 8, 3, 3), 0, 6),
        ("Conv", {"group": 8}, (8, 1, 3, 3), 0, 8),
        ("ConvTranspose", {}, (8, 6, 2, 2), 1, 6),
        ("ConvTranspose", {"group": 2}, (8, 3, 2, 2), None, 1),
        ("Gemm", {"transB": 1}, (6, 8), 0, 6),
        ("Gemm", {}, (8, 6), 1, 6),
        ("MatMul", {}, (8, 6), 1, 6),
    ],
)
def test_weight_scales_lie_on_the_output_channels(tmp_path, op, attributes, shape, axis, channels):
    nodes = [helper.make_node(op, ["x", "w"], ["y"], "node", **attributes)]
    image = (8, 8, 8) if len(shape) == 4 else (8,)
    rank = ["n", *["?"] * len(image)]
    path = save(
        tmp_path / "n.onnx", nodes, {"w": weight(*shape)}, {"x": ["n", *image]}, {"y": rank}
    )
    model, calibration, _ = calibrated(path, tmp_path, shape=image)
    proto = quantize(model, calibration).proto
    pair = next(n for n in proto.graph.node if n.name == "w/dequantize")
    found = {item.name: item.i for item in pair.attribute}
    assert found.get("axis") == axis
    assert constants(proto)[pair.input[1]].size == channels


def test_a_product_of_two_activations_has_pairs_on_both_sides(tmp_path):
    nodes = as_nodes("[transpose] t = Transpose<perm=[0, 2, 1]>(x)  [product] y = MatMul(x, t)")
    path = save(tmp_path / "n.onnx", nodes, {}, {"x": ["n", 4, 6]}, {"y": ["n", 4, 4]})
    model, calibration, _ = calibrated(path, tmp_path, shape=(4, 6))
    product = by_name(quantize(model, calibration).proto)["product"]
    assert list(product.input) == ["x/dequantized", "t/dequantized"]


def test_weights_round_trip_within_a_step():
    values = weight(5, 4, 3, 3)
    values[2] = 0
    steps, scale = quantize_weight(values, 0)
    assert steps.dtype == np.int8
    assert np.abs(steps).max() == 127
    assert (scale > 0).all()
    restored = steps * scale.reshape(-1, 1, 1, 1)
    assert (np.abs(restored - values) < scale.reshape(-1, 1, 1, 1)).all()
    assert not steps[2].any()


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 9, 100, 2000]), st.sampled_from([0, 1]))
def test_the_errors_of_a_channel_cancel(seed, size, axis):
    rng = np.random.default_rng(seed)
    shape = [size, size]
    shape[axis] = 3
    values = (rng.standard_normal(shape) + rng.uniform(-1, 1)).astype(np.float32)
    steps, scale = quantize_weight(values, axis)
    exact = np.moveaxis(values.astype(np.float64), axis, -1) / scale
    error = np.moveaxis(steps, axis, -1) - exact
    assert (np.abs(error) < 1).all()
    assert (np.abs(error.sum(axis=0)) <= 0.5 + 1e-5 * size).all()


def test_weights_do_not_shift_the_output_and_are_hardly_less_exact_than_the_nearest():
    values = weight(8, 3, 5, 5).astype(np.float64)
    steps, scale = quantize_weight(values, 0)
    exact = values / scale.reshape(-1, 1, 1, 1)
    ours, nearest = steps - exact, np.rint(exact) - exact
    assert np.abs(nearest.sum(axis=(1, 2, 3))).max() > 1.5
    assert np.abs(ours.sum(axis=(1, 2, 3))).max() <= 0.51
    assert np.square(ours).mean() <= 1.1 * np.square(nearest).mean()


@pytest.mark.parametrize("shape", [(300, 9), (3, 5000), (1, 1), (2, 0), (40, 4, 3)])
def test_of_each_channel_those_nearest_to_the_middle_change_sides_the_first_of_equal_ones(shape):
    exact = np.random.default_rng(0).integers(-400, 400, shape).astype(np.float32) / 8
    expected = np.rint(exact).reshape(shape[0], -1)
    for row, steps in zip(exact.reshape(expected.shape), expected, strict=True):
        error = steps.astype(np.float64) - row
        side = np.sign(error.sum())
        order = np.argsort(-side * error, kind="stable")
        steps[order[: int(np.rint(np.abs(error.sum())))]] -= side
    assert (balanced(exact, 0) == expected.reshape(shape)).all()


@pytest.mark.parametrize("axis", [0, 1, None])
def test_weights_that_are_whole_steps_stay(axis):
    rng = np.random.default_rng(0)
    steps = rng.integers(-126, 127, (6, 40)) * rng.integers(0, 2, (6, 40))
    steps[:, 0] = 127
    steps[0] = 127
    values = (steps * np.float32(0.013)).astype(np.float32)
    assert (quantize_weight(values, axis)[0] == steps).all()


def test_a_plan_leaves_named_layers_in_float(tmp_path):
    model, calibration, _ = calibrated(conv_net(tmp_path / "net.onnx"), tmp_path)
    quantized = quantize(model, calibration, Plan(layers={"second": "fp32", "add": "fp32"}))
    assert quantized.asked == {"first": "int8", "second": "fp32", "gemm": "int8"}
    second = by_name(quantized.proto)["second"]
    assert list(second.input) == ["b", "w2", "b2"]


def test_plans_are_written_read_and_checked(tmp_path):
    plan = Plan("int8", {"second": "fp32"})
    write_plan(tmp_path / "plan.json", plan)
    assert read_plan(tmp_path / "plan.json") == plan
    (tmp_path / "by_hand.json").write_text(json.dumps({"layers": {"second": "fp32"}}))
    assert read_plan(tmp_path / "by_hand.json") == plan
    with fails(InputError, "int3"):
        Plan(layers={"second": "int3"})
    for wrong in ([], {"layer": {}}, {"layers": {"a": 3}}, {"layers": []}, {"kind": "run"}):
        (tmp_path / "wrong.json").write_text(json.dumps(wrong))
        with pytest.raises(InputError):
            read_plan(tmp_path / "wrong.json")


def test_a_plan_for_an_unknown_layer_is_refused(tmp_path):
    model, calibration, _ = calibrated(conv_net(tmp_path / "net.onnx"), tmp_path)
    with fails(InputError, "secnod") as caught:
        quantize(model, calibration, Plan(layers={"secnod": "fp32"}))
    assert "second" in caught.value.hint


def test_ranges_of_another_model_are_refused(tmp_path):
    _, calibration, _ = calibrated(conv_net(tmp_path / "net.onnx"), tmp_path)
    other = prepare(load_model(transposed_net(tmp_path / "other.onnx")))
    with fails(InputError, "other.onnx"):
        quantize(other, calibration)


def test_a_layer_without_range_stays_float_and_says_so(tmp_path):
    model, calibration, _ = calibrated(conv_net(tmp_path / "net.onnx"), tmp_path)
    without = {name: item for name, item in calibration.ranges.items() if name != "g"}
    fields = {**vars(calibration), "ranges": without, "unranged": {"g": "nothing was seen"}}
    quantized = quantize(model, Calibration(**fields))
    assert quantized.skipped == {"gemm": "tensor 'g' has no range: nothing was seen"}
    assert quantized.asked["gemm"] == "fp32"


def test_a_model_without_heavy_layers_is_refused(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["y"], "relu")]
    path = save(tmp_path / "n.onnx", nodes, {}, {"x": ["n", 4]}, {"y": ["n", 4]})
    with fails(InputError, "n.onnx", hint="Conv"):
        find_layers(prepare(load_model(path)))


def test_the_written_model_is_valid_deterministic_and_known_again(tmp_path):
    model, calibration, _ = calibrated(conv_net(tmp_path / "net.onnx"), tmp_path)
    first, second = quantize(model, calibration), quantize(model, calibration)
    assert first.digest == second.digest
    write_quantized(tmp_path / "int8.onnx", first)
    onnx.checker.check_model(onnx.load(tmp_path / "int8.onnx"), full_check=True)
    assert asked_precisions(onnx.load(tmp_path / "int8.onnx")) == first.asked


def test_quantized_outputs_are_close_to_float(tmp_path):
    model, calibration, data = calibrated(conv_net(tmp_path / "net.onnx"), tmp_path)
    feeds = next(data.batches(24))
    reference = run_session(open_session(model.proto), None, feeds)[0]
    result = run_session(open_session(quantize(model, calibration).proto), None, feeds)[0]
    error = np.square(result - reference).sum() / np.square(reference).sum()
    assert error < 10 ** (-25 / 10)


def test_hostile_names_do_no_harm(tmp_path):
    names = ["a\nb", "x/dequantized", "</script>", "\x1b[31m"]
    nodes = [
        helper.make_node("Conv", ["x", "w"], [names[1]], names[0], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", [names[1]], [names[2]], "x/quantize"),
        helper.make_node("Conv", [names[2], "v"], ["y"], names[3]),
    ]
    weights = {"w": weight(4, 3, 3, 3), "v": weight(2, 4, 1, 1)}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 2, 8, 8]})
    model, calibration, data = calibrated(path, tmp_path)
    proto = quantize(model, calibration).proto
    onnx.checker.check_model(proto, full_check=True)
    assert len(by_name(proto)) == len(proto.graph.node)
    assert run_session(open_session(proto), None, next(data.batches(4)))[0].shape == (4, 2, 8, 8)


def test_ranges_reach_the_graph_as_scales(tmp_path):
    model, calibration, _ = calibrated(conv_net(tmp_path / "net.onnx"), tmp_path)
    fields = {**vars(calibration), "ranges": {**calibration.ranges, "x": TensorRange(12.7, 1, 0)}}
    proto = quantize(model, Calibration(**fields)).proto
    scale = constants(proto)[by_name(proto)["x/quantize"].input[1]]
    assert scale == np.float32(0.1)


def test_weights_that_are_not_numbers_stay_float_and_say_so(tmp_path):
    broken = weight(4, 3, 3, 3)
    broken[1, 0, 0, 0] = np.nan
    nodes = as_nodes(
        "[good] a = Conv<pads=[1, 1, 1, 1]>(x, w)  [broken] b = Conv<pads=[1, 1, 1, 1]>(x, v)  "
        "[concat] y = Concat<axis=1>(a, b)"
    )
    weights = {"w": weight(4, 3, 3, 3), "v": broken}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, {"y": ["n", 8, 8, 8]})
    model, calibration, _ = calibrated(path, tmp_path)
    assert quantize(model, calibration).skipped == {
        "broken": "its weights have NaN or infinite values"
    }


def test_names_inside_subgraphs_are_not_taken_again(tmp_path):
    inner = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["x/quantized"], "x/quantize")],
        "then",
        [],
        [helper.make_tensor_value_info("x/quantized", onnx.TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["x/dequantized"], "neg")],
        "else",
        [],
        [helper.make_tensor_value_info("x/dequantized", onnx.TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("If", ["c"], ["i"], "if", then_branch=inner, else_branch=other),
        helper.make_node("Conv", ["x", "w"], ["y"], "conv"),
    ]
    weights = {"c": np.array(True), "w": weight(4, 3, 3, 3)}
    outputs = {"y": ["n", 4, 6, 6], "i": ["n", 3, 8, 8]}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, outputs)
    model, calibration, data = calibrated(path, tmp_path)
    proto = quantize(model, calibration).proto
    onnx.checker.check_model(proto, full_check=True)
    run_session(open_session(proto), None, next(data.batches(2)))


def test_why_there_is_nothing_to_quantize_is_said(tmp_path):
    weights = weight(4, 2)
    weights[1, 1] = np.nan
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], "gemm")]
    path = save(tmp_path / "n.onnx", nodes, {"w": weights}, {"x": [4, 4]}, {"y": [4, 2]})
    with fails(InputError, "gemm", "NaN"):
        find_layers(prepare(load_model(path)))


@each("amax", [-5.0, 0.0, 1e300, 1e-300, True, "x", None])
def test_impossible_ranges_are_refused(amax):
    with pytest.raises((ValueError, TypeError)):
        TensorRange(amax, 1, 0)


def pool_chain(tmp_path, second=None):
    """conv -> two poolings in a row -> conv; `second` reads the pooled tensor too."""
    pool = {"kernel_shape": [2, 2], "strides": [1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "first"),
        helper.make_node("MaxPool", ["a"], ["p"], "pool1", **pool),
        helper.make_node("MaxPool", ["p"], ["q"], "pool2", **pool),
        helper.make_node("Conv", ["q", "w2"], ["y"], "last"),
        *([second] if second else []),
    ]
    outputs = {"y": ["n", 2, 4, 4], **({"z": ["n", 4, 4, 4]} if second else {})}
    weights = {"w1": weight(4, 3, 3, 3), "w2": weight(2, 4, 1, 1)}
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 3, 8, 8]}, outputs)
    return calibrated(path, tmp_path)


def test_a_pooling_is_done_between_pairs_of_one_scale_the_range_before_it(tmp_path):
    model, calibration, _ = pool_chain(tmp_path)
    assert list(calibration.ranges) == ["x", "a"]
    proto = quantize(model, calibration).proto
    nodes, values = by_name(proto), constants(proto)
    assert nodes["pool1"].input[0] == "a/dequantized"
    assert nodes["pool2"].input[0] == "p/dequantized"
    assert nodes["last"].input[0] == "q/dequantized"
    scales = [values[nodes[f"{name}/quantize"].input[1]] for name in "apq"]
    assert scales == [np.float32(calibration.ranges["a"].amax / 127)] * 3


def test_a_pooling_that_is_read_in_float_too_reads_float(tmp_path):
    reader = helper.make_node("Sigmoid", ["q"], ["z"], "sigmoid")
    model, calibration, _ = pool_chain(tmp_path, reader)
    nodes = by_name(quantize(model, calibration).proto)
    assert nodes["pool1"].input[0] == "a"
    assert nodes["pool2"].input[0] == "p"
    assert nodes["sigmoid"].input[0] == "q"
    assert nodes["last"].input[0] == "q/dequantized"


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("ij,jk", ["n", 8]), ("...j,jk->...k", ["n", 8]), ("ni,ij->nij", ["n", 8])],
)
def test_an_einsum_that_is_no_product_of_matrices_is_named(tmp_path, equation, shapes):
    nodes = [helper.make_node("Einsum", ["x", "w"], ["y"], "sum", equation=equation)]
    outputs = {"y": ["n", *"?" * (equation.endswith("nij") + 1)]}
    path = save(tmp_path / "n.onnx", nodes, {"w": weight(8, 6)}, {"x": shapes}, outputs)
    with fails(InputError, "sum", "equation"):
        find_layers(prepare(load_model(path)))


@each(
    "node, size, result",
    [
        (helper.make_node("MatMul", ["w", "x"], ["y"], "m"), (6, 4), (6, 5)),
        (helper.make_node("MatMul", ["x", "w"], ["y"], "m"), (1, 5, 6), (4, 6)),
        (helper.make_node("MatMul", ["x", "w"], ["y"], "m"), (5,), (4,)),
        (
            helper.make_node("Einsum", ["w", "x"], ["y"], "m", equation="jk,nkl->njl"),
            (6, 4),
            (6, 5),
        ),
        (helper.make_node("Einsum", ["x", "x"], ["y"], "m", equation="nij,nkj->nik"), (1,), (4, 4)),
    ],
)
@each("as_it_is", [True, False])
def test_products_of_every_form_run_in_int8(tmp_path, node, size, result, as_it_is):
    outputs = {"y": ["n", *result]}
    path = save(tmp_path / "n.onnx", [node], {"w": weight(*size)}, {"x": ["n", 4, 5]}, outputs)
    model, calibration, data = calibrated(path, tmp_path, shape=(4, 5))
    quantized = quantize(model, calibration)
    assert quantized.asked == {"m": "int8"}
    feeds = next(data.batches(24))
    exact = run_session(open_session(model.proto), None, feeds)[0]
    found = run_session(open_session(quantized.proto, as_it_is=as_it_is), None, feeds)[0]
    assert np.square(exact - found).mean() < 1e-3 * np.square(exact).mean()


SCALES = {"s": np.float32(0.1), "z": np.int8(0), "t": np.float32(0.01)}
PAIR = as_nodes(
    "[quantize] q = QuantizeLinear(x, s, z)  [dequantize] d = DequantizeLinear(q, s, z)"
)


def foreign(tmp_path, nodes):
    """A model that another quantizer has been at, with a convolution of its own at the end."""
    weights = {name: np.asarray(value) for name, value in SCALES.items()}
    weights |= {
        "w": np.ones((4, 3, 1, 1), np.int8),
        "v": weight(4, 3, 1, 1),
        "u": weight(2, 4, 1, 1),
    }
    last = helper.make_node("Conv", ["a", "u"], ["y"], "last")
    used = {name for node in [*nodes, last] for name in node.input}
    weights = {name: value for name, value in weights.items() if name in used}
    shapes = {"x": ["n", 3, 8, 8]}, {"y": ["n", 2, 8, 8]}
    return calibrated(save(tmp_path / "n.onnx", [*nodes, last], weights, *shapes), tmp_path)


def test_what_is_quantized_already_stays_and_the_rest_is_quantized(tmp_path):
    weights = helper.make_node("DequantizeLinear", ["w", "t", "z"], ["e"], "weights")
    conv = helper.make_node("Conv", ["d", "e"], ["a"], "theirs")
    model, calibration, _ = foreign(tmp_path, [*PAIR, weights, conv])
    quantized = quantize(model, calibration)
    assert quantized.asked == {"theirs": "int8", "last": "int8"}
    assert quantized.skipped == {"theirs": "it is already quantized"}


def test_one_sided_pairs_and_integer_operators_are_named(tmp_path):
    conv = helper.make_node("Conv", ["d", "v"], ["a"], "theirs")
    model, calibration, _ = foreign(tmp_path, [*PAIR, conv])
    assert "only one of its operands" in quantize(model, calibration).skipped["theirs"]
    names = ["q", "s", "z", "w", "t", "z", "s", "z"]
    integer = helper.make_node("QLinearConv", names, ["c"], "integer")
    pair = helper.make_node("DequantizeLinear", ["c", "s", "z"], ["a"], "back")
    model = load_model(foreign_model(tmp_path, [PAIR[0], integer, pair]))
    with fails(InputError, "integer", "TensorRT"):
        find_layers(prepare(model))


def foreign_model(tmp_path, nodes):
    weights = {name: np.asarray(value) for name, value in SCALES.items()}
    weights["w"] = np.ones((4, 3, 1, 1), np.int8)
    shapes = {"x": ["n", 3, 8, 8]}, {"a": ["n", 4, 8, 8]}
    return save(tmp_path / "m.onnx", nodes, weights, *shapes)


def test_a_product_that_another_tool_quantized_stays(tmp_path):
    """As NNCF writes it: the pair of the activation stands in front of a Reshape."""
    nodes = as_nodes(
        "[quantize] q = QuantizeLinear(x, s, z)  [dequantize] d = DequantizeLinear(q, s, z)  "
        "[reshape] flat = Reshape(d, shape)  [weights] v = DequantizeLinear(w, s, z)  "
        "[theirs] a = MatMul(flat, v)  [last] y = MatMul(a, float)"
    )
    weights = {
        "s": np.float32(0.1), "z": np.int8(0), "shape": np.int64([-1, 4]),
        "w": np.ones((4, 3), np.int8), "float": weight(3, 2),
    }  # fmt: skip
    path = save(tmp_path / "n.onnx", nodes, weights, {"x": ["n", 2, 2]}, {"y": ["n", 2]})
    model, calibration, _ = calibrated(path, tmp_path, shape=(2, 2))
    quantized = quantize(model, calibration)
    assert quantized.skipped == {"theirs": "it is already quantized"}
    assert quantized.asked == {"theirs": "int8", "last": "int8"}


@pytest.mark.parametrize("between", [[], ["Cast"], ["Transpose"], ["Transpose", "Cast"]])
def test_weights_that_another_tool_put_into_four_bits_stay(tmp_path, between):
    names = ["v", *(f"v{number}" for number, _ in enumerate(between, 1))]
    attributes = {"Cast": {"to": onnx.TensorProto.FLOAT}, "Transpose": {"perm": [1, 0]}}
    blocks = {"axis": 0, "block_size": 4}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["v"], "weights", **blocks),
        *(
            helper.make_node(op, [names[number]], [names[number + 1]], **attributes[op])
            for number, op in enumerate(between)
        ),
        helper.make_node("MatMul", ["x", names[-1]], ["a"], "theirs"),
        helper.make_node("MatMul", ["a", "float"], ["y"], "last"),
    ]
    weights = {
        "w": np.ones((8, 8), ml_dtypes.int4),
        "s": np.full((2, 8), 0.1, np.float32),
        "float": weight(8, 2),
    }
    shapes = {"x": ["n", 8]}, {"y": ["n", 2]}
    path = save(tmp_path / "n.onnx", nodes, weights, *shapes, opset=21)
    model, calibration, _ = calibrated(path, tmp_path, shape=(8,))
    quantized = quantize(model, calibration)
    assert quantized.skipped == {"theirs": "its weights are already in int4"}
    assert quantized.asked == {"theirs": "int4", "last": "int8"}


@pytest.mark.parametrize("precision", ["int4", "nvfp4"])
def test_formats_of_weights_need_no_calibration(tmp_path, precision):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    shapes = {"x": ["n", 128]}, {"y": ["n", 8]}
    path = save(tmp_path / "n.onnx", nodes, {"w": weight(128, 8)}, *shapes)
    made = quantize(prepare(load_model(path)), None, Plan(precision))
    assert made.asked == {"product": precision}
    record = quantization_record(made.proto)
    assert (record["calibration"], record["method"]) == ("none", "none")


@pytest.mark.parametrize(
    ("plan", "names"),
    [
        (None, ["int8"]),
        (Plan("fp8"), ["fp8"]),
        (Plan("int4", {"gemm": "fp8"}, (Rule("int8", op="Conv"),)), ["int8", "fp8"]),
    ],
)
def test_a_plan_that_needs_ranges_says_so_without_a_calibration(tmp_path, plan, names):
    model = prepare(load_model(conv_net(tmp_path / "net.onnx")))
    with fails(InputError, *names, hint="trtcal calibrate"):
        quantize(model, None, plan)


def test_a_layer_named_for_a_format_that_has_no_place_in_it_is_an_error(tmp_path):
    model = prepare(load_model(conv_net(tmp_path / "net.onnx")))
    with fails(InputError, "first", "int4"):
        quantize(model, None, Plan("fp32", {"first": "int4"}))
    assert quantize(model, None, Plan("fp32", rules=(Rule("int4", op="Conv"),))).skipped


def test_the_first_convolution_of_an_image_stays_out_of_fp8_unless_it_is_named(digits):
    model = prepare(load_model(digits / "digits.onnx"))
    dataset = open_dataset(digits / "calibration.npz", model)
    ranges = calibrate(observe(model, dataset, tensors_to_observe(find_layers(model))), "minmax")
    made = quantize(model, ranges, Plan("fp8"))
    assert made.asked["stem/conv"] == "fp32"
    assert "1 channels" in made.skipped["stem/conv"]
    assert quantize(model, ranges, Plan("fp8", {"stem/conv": "fp8"})).asked["stem/conv"] == "fp8"


@pytest.mark.parametrize("precision", ["fp8", "int4", "nvfp4"])
def test_narrow_weights_stay_in_the_file_beside_the_model_and_are_the_same(tmp_path, precision):
    path = save(
        tmp_path / "net.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        {"w": weight(256, 64)},
        {"x": ["n", 256]},
        {"y": ["n", 64]},
    )
    model = prepare(load_model(path))
    ranges = Calibration(
        "m", {}, model.fingerprint, "d", 1, "h", {"x": TensorRange(4.0, 4.0, 0)}, {}
    )
    made = quantize(model, ranges, Plan(precision)).proto
    for threshold in (0, 1 << 20):
        onnx.save(
            made,
            tmp_path / f"{threshold}.onnx",
            save_as_external_data=True,
            location=f"{threshold}.bin",
            size_threshold=threshold,
        )
    beside = load_model(tmp_path / "0.onnx", embedded=0).proto
    inside = load_model(tmp_path / f"{1 << 20}.onnx").proto
    stored = next(one for one in beside.graph.initializer if one.name == f"w/{precision}")
    assert uses_external_data(stored)
    x = np.ones((1, 256), np.float32)
    first, second = (
        run_session(open_session(lower(one)), ["y"], {"x": x})[0] for one in (beside, inside)
    )
    np.testing.assert_array_equal(first, second)
    assert fingerprint(import_graph(beside)) == fingerprint(import_graph(inside))


@pytest.mark.parametrize(
    ("precision", "amax", "is_small"),
    [
        ("fp8", 1e-36, True), ("fp8", 1e-34, False), ("int4", 4e-4, True), ("int4", 5e-4, False),
        ("nvfp4", 5e-9, True), ("nvfp4", 6e-9, False),
    ],
)  # fmt: skip
def test_weights_too_small_for_any_scale_stay_float_and_say_so(tmp_path, precision, amax, is_small):
    nodes = as_nodes("[small] h = MatMul(x, small)  [usual] y = MatMul(h, w)")
    values = weight(128, 128)
    small = values * np.float32(amax / np.abs(values).max())
    path = save(
        tmp_path / "n.onnx",
        nodes,
        {"small": small.astype(np.float32), "w": values},
        {"x": ["n", 128]},
        {"y": ["n", 128]},
    )
    model = prepare(load_model(path))
    one = TensorRange(1.0, 1.0, 0)
    ranges = Calibration("m", {}, model.fingerprint, "d", 1, "h", {"x": one, "h": one}, {})
    made = quantize(model, ranges, Plan(precision))
    assert made.asked == {"small": "fp32" if is_small else precision, "usual": precision}
    assert ("too small for" in made.skipped.get("small", "")) == is_small
    if not is_small:
        found = grids(made.proto, f"small/{precision}")
        assert np.abs(found).max() > FORMATS[precision].top / 2


def grids(proto, name):
    """The stored values of a weight, float32."""
    stored = next(one for one in proto.graph.initializer if one.name == name)
    return numpy_helper.to_array(stored).astype(np.float32)


@pytest.mark.parametrize(("precision", "summed"), [("int4", 64), ("nvfp4", 16)])
def test_a_matrix_of_one_block_stays_in_float_and_the_command_says_that_nothing_is_quantized(
    tmp_path, capsys, precision, summed
):
    model = linear_classifier(tmp_path / "one.onnx", np.ones((1, summed)))
    words = ["quantize", model, "--precision", precision, "-o", tmp_path / "out.onnx"]
    assert run_command([str(one) for one in words]) == 0
    said = capsys.readouterr()
    shows(said.out, "head", precision)
    shows(said.err, "nothing")
    other = linear_classifier(tmp_path / "two.onnx", np.ones((2, summed)))
    assert quantize(prepare(load_model(other)), None, Plan(precision)).asked == {"head": precision}
