import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from calibrators.range import scale_of
from tests.calibration.formats.tables import calibration
from tests.fixtures.fails import fails
from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import conv_net
from tests.fixtures.tables import each
from trtcal.calibration.formats.convert import import_calibration, read_ranges
from trtcal.calibration.formats.qdq import read_qdq
from trtcal.errors import InputError
from trtcal.model import load_model
from trtcal.quantization import Plan, Rule, prepare, quantize, write_quantized
from trtcal.ranges import TensorRange

AMAXES = {"x": 2.7, "b": 1.3, "g": 0.9}


def small(precision):
    """Rules for layers that are too small for FP8, unless a plan names them."""
    return tuple(Rule(precision, op=op) for op in ("Conv", "Gemm"))


def model_of(path, nodes, values, opset=19):
    initializers = [numpy_helper.from_array(np.asarray(v), name) for name, v in values.items()]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", "n"])]
    graph = helper.make_graph(nodes, "test", inputs, outputs, initializers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.save(proto, path)
    return load_model(path)


def one_pair(path, scale, zero=None, **attributes):
    values = {"s": scale} if zero is None else {"s": scale, "z": zero}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *values], ["q"], **attributes),
        helper.make_node("DequantizeLinear", ["q", *values], ["y"], **attributes),
    ]
    return model_of(path, nodes, values)


@each(
    "scale, zero, amax, note",
    [
        (np.float32(0.5), np.int8(0), 63.5, None),
        (np.float32(0.5), np.uint8(128), 63.5, None),
        (np.float16(0.5), np.int8(0), 63.5, None),
        (np.float32(0.5), np.int8(-128), 127.5, "[0, 127.5]"),
        (np.float32(0.5), np.uint8(0), 127.5, "[0, 127.5]"),
        (np.float32(0.5), None, 127.5, "[0, 127.5]"),
        (np.float32(0.5), np.uint8(200), 100.0, "[-100, 27.5]"),
        (np.float32(0.5), np.int8(127), 127.5, "[-127.5, 0]"),
        (np.float32([0.5, 0.25]), np.int8([0, 0]), 63.5, "largest of 2"),
    ],
)
def test_the_range_is_what_the_integers_can_stand_for(tmp_path, scale, zero, amax, note):
    attributes = {"axis": 0} if np.ndim(scale) else {}
    table = read_qdq(one_pair(tmp_path / "m.onnx", scale, zero, **attributes))
    found = table.ranges["x"]
    assert found.amax == amax
    assert (note is None) == (found.note is None)
    assert note is None or note in found.note


@pytest.mark.parametrize(
    ("scale", "says"),
    [(0.0, "0"), (np.inf, "infinite"), (np.nan, "not a number"), (-1.0, "negative")],
)
def test_impossible_scales_are_errors(tmp_path, scale, says):
    with fails(InputError, "QuantizeLinear", "q", says):
        one_pair(tmp_path / "m.onnx", np.float32(scale), np.int8(0))


def test_a_denormal_scale_is_a_finding(tmp_path):
    table = read_qdq(one_pair(tmp_path / "m.onnx", np.float32(1e-42), np.int8(0)))
    assert not table.ranges
    assert "denormal" in table.unranged["x"]


def test_a_computed_scale_is_a_finding(tmp_path):
    nodes = as_nodes(
        "s = ReduceMax<keepdims=0>(x)  q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z)"
    )
    model = model_of(tmp_path / "m.onnx", nodes, {"z": np.int8(0)})
    assert "computed" in read_qdq(model).unranged["x"]


def test_fp8_gives_the_range_of_fp8_alone(tmp_path):
    zero = np.zeros((), ml_dtypes.float8_e4m3fn)
    found = read_qdq(one_pair(tmp_path / "m.onnx", np.float32(0.5), zero)).ranges["x"]
    assert (found.fp8_amax, found.scale_in("fp8"), found.is_for_int8) == (224.0, 0.5, False)


def test_a_tensor_in_int8_and_in_fp8_has_both_ranges(tmp_path):
    nodes = as_nodes(
        "q = QuantizeLinear(x, s, z)  y = DequantizeLinear(q, s, z)  "
        "r = QuantizeLinear(x, t, zero)  other = DequantizeLinear(r, t, zero)"
    )
    values = {"s": np.float32(0.5), "z": np.int8(0), "t": np.float32(0.25)}
    values["zero"] = np.zeros((), ml_dtypes.float8_e4m3fn)
    found = read_qdq(model_of(tmp_path / "m.onnx", nodes, values)).ranges["x"]
    assert (found.amax, found.fp8_amax, found.is_for_int8) == (63.5, 112.0, True)


def test_our_own_scales_in_fp8_come_back_to_the_bit(tmp_path):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    ranges = calibration(AMAXES, model=model.fingerprint)
    plan = Plan("fp8", rules=small("fp8"))
    made = quantize(prepare(model), ranges, plan)
    write_quantized(tmp_path / "fp8.onnx", made)
    found = import_calibration(tmp_path / "fp8.onnx", model)
    scales = {name: np.float32(one.scale_in("fp8")) for name, one in found.ranges.items()}
    assert scales == {name: np.float32(amax / 448) for name, amax in AMAXES.items()}
    again = quantize(prepare(model), found, plan)
    assert again.proto.graph == made.proto.graph


def test_a_reshaped_tensor_takes_the_range_of_the_one_before_it(tmp_path):
    """As NNCF writes it: one pair in front of a Reshape, and none behind it."""
    nodes = as_nodes(
        "[relu] r = Relu(x)  [reshape] moved = Reshape(r, shape)  [product] y = MatMul(moved, w)"
    )
    weights = {"shape": np.int64([4, 2]), "w": np.ones((2, 3), np.float32)}
    model = model_of(tmp_path / "m.onnx", nodes, weights)
    pair = as_nodes(
        "q = QuantizeLinear(r, s, z)  d = DequantizeLinear(q, s, z)  "
        "[reshape] moved = Reshape(d, shape)"
    )
    values = {**weights, "s": np.float32(0.5), "z": np.int8(0)}
    model_of(tmp_path / "int8.onnx", [nodes[0], *pair, nodes[2]], values)
    found = import_calibration(tmp_path / "int8.onnx", model).ranges["moved"]
    assert (found.amax, found.note) == (63.5, "it has the range of 'r'")


def test_weights_quantized_in_the_graph_are_no_activations(tmp_path):
    nodes = [
        helper.make_node("Constant", [], ["s"], value=numpy_helper.from_array(np.float32(0.5))),
        *as_nodes(
            "wt = Transpose(w)  wq = QuantizeLinear(wt, s, z)  wd = DequantizeLinear(wq, s, z)  "
            "q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  y = MatMul(d, wd)"
        ),
    ]
    values = {"w": np.ones((3, 4), np.float32), "z": np.int8(0)}
    assert set(read_qdq(model_of(tmp_path / "m.onnx", nodes, values)).ranges) == {"x"}


def test_what_a_branch_reads_from_outside_is_an_activation(tmp_path):
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, ["m", "n"])
    branch = helper.make_graph([helper.make_node("Abs", ["x"], ["o"])], "branch", [], [out])
    nodes = [
        helper.make_node("If", ["c"], ["i"], then_branch=branch, else_branch=branch),
        helper.make_node("QuantizeLinear", ["i", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    values = {"c": np.bool_(True), "s": np.float32(1), "z": np.int8(0)}
    assert set(read_qdq(model_of(tmp_path / "m.onnx", nodes, values)).ranges) == {"i"}


def test_a_tensor_quantized_twice_has_the_wider_range(tmp_path):
    nodes = as_nodes(
        "q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  r = QuantizeLinear(d, t, z)  "
        "y = DequantizeLinear(r, t, z)"
    )
    values = {"s": np.float32(1), "t": np.float32(2), "z": np.int8(0)}
    found = read_qdq(model_of(tmp_path / "m.onnx", nodes, values)).ranges
    assert found == {"x": TensorRange(254.0, 254.0, 0.0, "also quantized with amax 127")}


def test_a_cast_is_followed_to_a_tensor_of_the_float_model(tmp_path):
    nodes = as_nodes(
        "x16 = Cast<to=10>(x)  q = QuantizeLinear(x16, s, z)  d = DequantizeLinear(q, s, z)  "
        "y = Cast<to=1>(d)"
    )
    model = model_of(tmp_path / "m.onnx", nodes, {"s": np.float16(1), "z": np.int8(0)})
    assert set(read_qdq(model).ranges) == {"x16"}
    assert set(read_qdq(model, {"x", "y"}).ranges) == {"x"}


def test_a_float_model_is_refused(tmp_path):
    with fails(InputError, "net.onnx"):
        read_ranges(conv_net(tmp_path / "net.onnx"))


def ours(tmp_path):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    ranges = calibration(AMAXES, model=model.fingerprint)
    write_quantized(tmp_path / "int8.onnx", quantize(prepare(model), ranges))
    return model


def test_our_own_scales_come_back_to_the_bit(tmp_path):
    found = import_calibration(tmp_path / "int8.onnx", ours(tmp_path))
    assert found.method == "imported:qdq"
    assert {name: scale_of(item.amax) for name, item in found.ranges.items()} == {
        name: scale_of(amax) for name, amax in AMAXES.items()
    }


def test_our_own_model_says_what_it_was_made_for(tmp_path):
    model = ours(tmp_path)
    model.proto.doc_string = "another"
    onnx.save(model.proto, tmp_path / "other.onnx")
    with fails(InputError, "int8.onnx"):
        import_calibration(tmp_path / "int8.onnx", load_model(tmp_path / "other.onnx"))


class Reader(CalibrationDataReader):
    def __init__(self):
        images = np.random.default_rng(0).uniform(-3, 1, (4, 3, 8, 8)).astype(np.float32)
        self.images = iter([images])
        self.largest = float(np.abs(images).max())

    def get_next(self):
        image = next(self.images, None)
        return None if image is None else {"x": image}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_models_of_onnxruntime_fit_the_float_model(tmp_path, kind, symmetric):
    float_path, path = conv_net(tmp_path / "net.onnx"), tmp_path / "int8.onnx"
    reader = Reader()
    quantize_static(
        float_path, path, reader, QuantFormat.QDQ, activation_type=kind,
        extra_options={"ActivationSymmetric": symmetric},
    )  # fmt: skip
    found = import_calibration(path, load_model(float_path))
    assert {"x", "b", "g", "y"} <= set(found.ranges)
    step = 2 * reader.largest / 254
    assert found.ranges["x"].amax == pytest.approx(reader.largest, abs=step)
    if kind == QuantType.QInt8:  # uint8's middle is 127.5: versions round it to either side
        assert (found.ranges["x"].note is None) == symmetric


@pytest.mark.parametrize("symmetric", [True, False])
def test_operators_on_codes_of_onnxruntime_have_the_ranges_of_qdq(tmp_path, symmetric):
    model, found = load_model(conv_net(tmp_path / "net.onnx")), []
    for form in (QuantFormat.QDQ, QuantFormat.QOperator):
        path, options = tmp_path / f"{form}.onnx", {"ActivationSymmetric": symmetric}
        quantize_static(
            model.path, path, Reader(), form, activation_type=QuantType.QInt8, extra_options=options
        )
        found.append(import_calibration(path, model))
    operators = {node.op_type for node in load_model(path).proto.graph.node}
    assert "QLinearConv" in operators
    assert {"x", "b", "g"} <= set(found[1].ranges)
    amaxes = [{name: each.ranges[name].amax for name in "xbg"} for each in found]
    assert amaxes[1] == pytest.approx(amaxes[0])


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_our_own_ranges_come_back_from_a_model_whose_rest_is_fp16(tmp_path, precision):
    model = load_model(conv_net(tmp_path / "net.onnx"))
    ranges = calibration(AMAXES, model=model.fingerprint)
    plan = Plan(precision, rules=small(precision), rest="fp16")
    made = quantize(prepare(model), ranges, plan)
    write_quantized(tmp_path / "q.onnx", made)
    found = import_calibration(tmp_path / "q.onnx", model)
    assert set(found.ranges) == set(AMAXES)
