"""Rounding to the narrow formats, beside ml_dtypes, ONNX's reference evaluator and ONNX Runtime."""

import itertools

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from calibrators.floating import floating_amax, floating_error
from calibrators.histogram import Histogram
from tests.fixtures.tables import each
from trtcal.backends.lowering import lower
from trtcal.backends.sessions import open_session, run_session
from trtcal.formats import FORMATS
from trtcal.model import load_model
from trtcal.quantization import Plan, prepare, quantize
from trtcal.quantization.blocks import padded, quantize_blocks, scale_step

FP8 = FORMATS["fp8"]
NARROW = ("fp8", "int4", "nvfp4")
BITS = {"fp8": 8, "int4": 4, "nvfp4": 4}
TYPES = {"fp8": TensorProto.FLOAT8E4M3FN, "int4": TensorProto.INT4, "nvfp4": TensorProto.FLOAT4E2M1}


def codes(name):
    """All values of a format, sorted, without NaN."""
    raw = np.arange(2 ** BITS[name], dtype=np.uint8)
    if name == "int4":
        return np.arange(-8, 8).astype(np.float32)
    values = raw.view(ml_dtypes.float8_e4m3fn) if name == "fp8" else e2m1(raw)
    values = np.unique(values.astype(np.float32))
    return values[np.isfinite(values)]


def e2m1(raw):
    return np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)[raw & 7] * np.where(raw & 8, -1, 1)


def probes(name):
    """Values, midpoints, the neighbours of both, and what lies beyond the ends, float32."""
    known = codes(name)
    places = np.concatenate([known, (known[1:] + known[:-1]) / 2]).astype(np.float32)
    around = [np.nextafter(places, np.float32(end)) for end in (-np.inf, np.inf)]
    top = np.float32(FORMATS[name].top)
    beyond = top * np.array([1.01, 1.0714286, 1.1, 2, 1e6, 1e30, np.inf], np.float32)
    tiny = np.array([0.0, -0.0, 1e-45, 2**-10, 2**-11, 2**-149], np.float32)
    return np.concatenate([places, *around, beyond, -beyond, tiny, -tiny])


def nearest_even(name, values):
    """The nearest value of a format by exact distances; of two the one whose code is even."""
    known = codes(name).astype(np.float64)
    even = np.array([is_even(name, one) for one in known])
    distance = np.abs(np.clip(values.astype(np.float64), known[0], known[-1])[:, None] - known)
    nearest = distance == distance.min(axis=1, keepdims=True)
    return known[np.argmax(nearest * (1 + even), axis=1)]


def is_even(name, value):
    if name == "int4":
        return value % 2 == 0
    dtype = FORMATS[name].dtype
    return int(np.asarray(value, np.float32).astype(dtype).view(np.uint8)) % 2 == 0


@pytest.mark.parametrize("name", NARROW)
def test_every_value_of_a_format_stays_itself(name):
    np.testing.assert_array_equal(FORMATS[name].floats(codes(name)), codes(name))
    np.testing.assert_array_equal(
        FORMATS[name].rounded(codes(name)).astype(np.float32), codes(name)
    )


@pytest.mark.parametrize("name", NARROW)
def test_rounding_is_to_the_nearest_and_of_two_to_the_even_code(name):
    values = probes(name)
    expected = nearest_even(name, values)
    np.testing.assert_array_equal(FORMATS[name].floats(values), expected)
    np.testing.assert_array_equal(FORMATS[name].rounded(values).astype(np.float32), expected)


@pytest.mark.parametrize("name", NARROW)
def test_rounding_within_the_range_is_that_of_ml_dtypes(name):
    kind, values = FORMATS[name], probes(name)
    values = values[np.abs(values) <= kind.top]
    whole = np.rint(values) if name == "int4" else values  # its int4 cuts digits off
    expected = whole.astype(kind.dtype)
    rounded = kind.rounded(values)
    assert rounded.dtype == kind.dtype
    np.testing.assert_array_equal(rounded.astype(np.float32), expected.astype(np.float32))
    if name != "int4":
        np.testing.assert_array_equal(rounded.view(np.uint8), expected.view(np.uint8))  # -0 too


@pytest.mark.parametrize("name", NARROW)
def test_what_lies_beyond_saturates_and_is_never_nan(name):
    kind = FORMATS[name]
    far = np.array([1.0001, 1.0715, 1.5, 1e30, np.inf], np.float32) * np.float32(kind.top)
    np.testing.assert_array_equal(kind.floats(far), np.full(5, kind.top))
    np.testing.assert_array_equal(kind.floats(-2 * far), np.full(5, codes(name)[0]))


def test_ml_dtypes_alone_makes_nan_of_what_fp8_cannot_hold():
    beyond = np.array([465.0, np.inf], np.float32)
    assert np.isnan(beyond.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)).all()


@given(st.sampled_from(NARROW), st.floats(width=32, allow_nan=False))
def test_any_value_is_rounded_to_the_nearest(name, value):
    values = np.array([value], np.float32)
    np.testing.assert_array_equal(FORMATS[name].floats(values), nearest_even(name, values))


def graph_of(nodes, name, scale, inputs, outputs, constants=()):
    opset = helper.make_opsetid("", 23)
    zero = numpy_helper.from_array(np.zeros((), FORMATS[name].dtype), "zero")
    scales = numpy_helper.from_array(np.asarray(scale, np.float32), "scale")
    graph = helper.make_graph(nodes, "g", inputs, outputs, [scales, zero, *constants])
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    onnx.checker.check_model(model)
    return model


def round_trip(name, count, scale):
    values = [helper.make_tensor_value_info(one, TensorProto.FLOAT, [count]) for one in ("x", "y")]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], "dequantize"),
    ]
    return graph_of(nodes, name, scale, values[:1], values[1:])


@each("name, scale", [*itertools.product(NARROW, (1.0, 0.25, 2.0**-9))])
def test_onnx_reference_gives_the_same(name, scale):
    values = probes(name) * np.float32(scale)
    values = values[np.abs(values) < 2.0**30 * scale]  # its int4 goes by way of int32
    (given,) = ReferenceEvaluator(round_trip(name, len(values), scale)).run(None, {"x": values})
    expected = FORMATS[name].floats(values / np.float32(scale)) * np.float32(scale)
    np.testing.assert_array_equal(given, expected)


@each("name, scale", [*itertools.product(("fp8", "int4"), (1.0, 0.25))])
def test_onnx_runtime_gives_what_the_reference_gives(name, scale):
    values = probes(name) * np.float32(scale)
    values = values[np.abs(values) < 2.0**30 * scale]
    model = round_trip(name, len(values), scale)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": values})
    (found,) = run_session(open_session(lower(model)), ["y"], {"x": values})
    np.testing.assert_array_equal(found, expected)


def blocked(found, name, axis, size, dtype):
    """Return a graph that adds 0 to the weights that `found` stands for."""
    shape = list(found.values.shape)
    onnx_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    values = [helper.make_tensor_value_info(one, onnx_type, shape) for one in ("x", "y")]
    constants = [numpy_helper.from_array(found.values, "codes")]
    nodes, scales, read = [], found.scale.astype(dtype), "block_scales"
    if name == "nvfp4":
        step = scale_step(found.scale, FORMATS["nvfp4"])
        scales = FORMATS["fp8"].rounded(found.scale / step)
        constants.append(numpy_helper.from_array(np.asarray(step, dtype), "step"))
        nodes.append(helper.make_node("DequantizeLinear", [read, "step"], ["scales"], "scales"))
        read = "scales"
    constants.append(numpy_helper.from_array(scales, "block_scales"))
    nodes += [
        helper.make_node(
            "DequantizeLinear", ["codes", read], ["weights"], "weights", axis=axis, block_size=size
        ),
        helper.make_node("Add", ["x", "weights"], ["y"], "add"),
    ]
    return graph_of(nodes, "fp8", 1.0, values[:1], values[1:], constants)


BLOCKED = [("int4", 128), ("int4", 64), ("nvfp4", 16)]


@each("dtype", [np.float32, np.float16])
@each("axis", [0, 1])
@each("name, size", BLOCKED)
def test_blocks_on_the_cpu_are_those_of_the_reference(name, size, axis, dtype):
    factors = 10.0 ** np.random.default_rng(1).uniform(-3, 1, (256, 128))
    weight = (np.random.default_rng(0).standard_normal((256, 128)) * factors).astype(np.float32)
    found = quantize_blocks(weight, FORMATS[name], axis, size)
    model = blocked(found, name, axis, size, dtype)
    nothing = {"x": np.zeros(weight.shape, dtype)}
    (expected,) = ReferenceEvaluator(model).run(None, nothing)
    (given,) = run_session(open_session(lower(model)), ["y"], nothing)
    np.testing.assert_array_equal(given, expected)
    np.testing.assert_array_equal(found.floats(None).astype(dtype), expected)


def histogram(values):
    made = Histogram()
    made.update(np.asarray(values, np.float32))
    return made


magnitudes = st.floats(2.0**-60, 2.0**60, width=32)


@given(st.lists(magnitudes, min_size=1, max_size=50))
def test_an_fp8_range_is_never_worse_than_the_largest_value(values):
    made = histogram(values)
    chosen_error = floating_error(*made.middles(), floating_amax(made, FP8), FP8)
    assert chosen_error <= floating_error(*made.middles(), made.amax, FP8) * (1 + 1e-9)


@given(st.lists(magnitudes, min_size=1, max_size=50))
def test_an_fp8_range_is_the_largest_of_all_candidates_with_the_least_error(values):
    made = histogram(values)
    tried = made.amax * 2.0 ** (np.arange(-64, 16) / 16)
    errors = np.array([floating_error(*made.middles(), amax, FP8) for amax in tried])
    assert floating_amax(made, FP8) == tried[errors <= errors.min() * (1 + 1e-12)][-1]


@given(st.lists(magnitudes, min_size=1, max_size=50), st.integers(-20, 20))
def test_an_fp8_range_moves_with_powers_of_two(values, exponent):
    scaled = np.asarray(values, np.float32) * np.float32(2.0**exponent)
    assert (
        floating_amax(histogram(scaled), FP8)
        == floating_amax(histogram(values), FP8) * 2.0**exponent
    )


def test_zeros_have_no_fp8_range():
    assert floating_amax(histogram(np.zeros(8)), FP8) == 0.0


@given(magnitudes)
def test_one_value_is_lost_by_less_than_half_a_step(value):
    made = histogram([value])
    amax = floating_amax(made, FP8)
    error = floating_error(np.array([value]), 1.0, amax, FP8) ** 0.5
    assert error <= value / 16


def test_huge_and_tiny_values_keep_the_range_finite():
    for values in ([3e38, 1e-38], [1e-40], [3e38]):
        amax = floating_amax(histogram(values), FP8)
        assert 0 < amax < np.inf


@pytest.mark.parametrize(("precision", "size", "rows"), [("int4", 64, 144), ("nvfp4", 16, 100)])
@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
def test_a_matrix_that_no_block_divides_is_filled_up_and_gives_the_same(precision, size, rows, op):
    """One Pad for both readers of an input; each product is that of the weights' blocks."""
    weight = np.random.default_rng(1).standard_normal((rows, 24)).astype(np.float32)
    stored, attributes = (weight.T, {"transB": 1}) if op == "Gemm" else (weight, {})
    nodes = [helper.make_node(op, ["x", name], [f"{name}/y"], name, **attributes) for name in "ab"]
    constants = [numpy_helper.from_array(np.ascontiguousarray(scale * stored), name)
                 for name, scale in {"a": 1, "b": 2}.items()]  # fmt: skip
    ends = [helper.make_tensor_value_info(f"{name}/y", 1, ["n", 24]) for name in "ab"]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", rows])
    graph = helper.make_graph(nodes, "g", [x], ends, constants)
    opsets = [helper.make_opsetid("", 17)]
    model = load_model(helper.make_model(graph, opset_imports=opsets, ir_version=9))
    made = quantize(prepare(model), None, Plan(precision))
    assert set(made.asked.values()) == {precision}
    assert [node.op_type for node in made.proto.graph.node].count("Pad") == 1
    grid = quantize_blocks(padded(weight, 0, size), FORMATS[precision], 0, size)
    assert grid.values.shape[0] % size == 0
    given = np.random.default_rng(2).standard_normal((5, rows)).astype(np.float32)
    found = run_session(open_session(lower(made.proto)), None, {"x": given})
    expected = given @ grid.floats(None)[:rows]
    np.testing.assert_allclose(found, [expected, 2 * expected], rtol=2e-3, atol=2e-2)
