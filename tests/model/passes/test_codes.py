"""Codes after files by ONNX Runtime 1.32, torch 2.13 and Brevitas 0.13.4 become int8 around 0."""

import numpy as np
from onnx import TensorProto, numpy_helper

from tests.fixtures.graphs import as_nodes
from tests.fixtures.networks import rng
from tests.fixtures.tables import each
from tests.model.passes.graphs import make, ops, values
from trtcal.evidence.diagnosis.reasons import find_refused
from trtcal.model.passes import prepare_with_record

SCALE = np.float32(0.05)
PAIR = "a = Relu(x) q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z) "
BARE = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Mul(d, one)"
CLIPPED = (
    "q = QuantizeLinear(x, s, z) c = Clip(q, lo, hi) d = DequantizeLinear(c, s, z) y = Mul(d, one)"
)
X = rng(0).normal(0, 6, (2, 3, 4)).astype(np.float32)


def prepared(text, add=(), **constants):
    constants = {"s": SCALE, "one": np.float32(1), **constants}
    used = {
        name: value for name, value in constants.items() if f" {name}" in text or f"({name}" in text
    }
    model = make(as_nodes(text), used, {"x": [2, 3, 4]}, {"y": [2, 3, 4]})
    result = prepare_with_record(model, add=add)
    outputs = [values(proto, {"x": X}, ["y"])["y"] for proto in (model.proto, result.model.proto)]
    return result, *outputs


def kinds(result):
    graph = result.model.proto.graph
    points = {
        node.input[2] for node in graph.node if "Quantize" in node.op_type or "Deq" in node.op_type
    }
    return {t.data_type for t in graph.initializer if t.name in points}


@each(
    "text, constants",
    [
        (BARE, {"z": np.uint8(128)}),
        (CLIPPED, {"z": np.int8(0), "lo": np.int8(-7), "hi": np.int8(7)}),
        (CLIPPED, {"z": np.uint8(0), "lo": np.uint8(0), "hi": np.uint8(15)}),
        (CLIPPED, {"z": np.uint8(100), "lo": np.uint8(90), "hi": np.uint8(200)}),
    ],
)
def test_what_int8_holds_is_written_exactly(text, constants):
    result, before, after = prepared(text, **constants)
    np.testing.assert_array_equal(after, before)
    assert kinds(result) == {TensorProto.INT8}
    assert not find_refused(result.model.proto)
    assert ops(result)[-2:] == ["QuantizeLinear", "DequantizeLinear"]


@each("zero", [np.uint8(0), np.uint8(90), np.int8(-128), np.int8(20)])
def test_other_codes_get_symmetric_scales_on_request_alone(zero):
    result, before, after = prepared(BARE, z=zero)
    np.testing.assert_array_equal(after, before)
    assert find_refused(result.model.proto)
    result, before, after = prepared(BARE, add=["symmetric-codes"], z=zero)
    assert not find_refused(result.model.proto)
    ends = np.iinfo(zero.dtype)
    step = max(int(zero) - ends.min, ends.max - int(zero)) * SCALE / 127
    assert np.abs(after - before).max() <= step
    assert after.min() >= before.min() - step / 2  # what a lacking Relu cut off stays cut off


def test_a_relu_needs_no_limits():
    result, before, after = prepared(
        f"{PAIR} y = Mul(d, one)", add=["symmetric-codes"], z=np.uint8(0)
    )
    assert ops(result) == ["Relu", "QuantizeLinear", "DequantizeLinear"]
    assert np.abs(after - before).max() <= 2 * SCALE


@each("kind, zero, add", [("uint8", 128, ()), ("uint8", 120, ()), ("int8", 3, ["symmetric-codes"])])
def test_stored_codes_lose_their_zero_point(kind, zero, add):
    codes = rng(1).integers(*((10, 240) if kind == "uint8" else (-128, 127)), (2, 3, 4))
    scales = rng(2).uniform(0.01, 0.1, 3).astype(np.float32)
    result, before, after = prepared(
        "w = DequantizeLinear<axis = 1>(codes, s, z) y = Mul(x, w)",
        add,
        codes=codes.astype(kind),
        s=scales,
        z=np.full(3, zero, kind),
    )
    step = np.abs(X).max() * scales.max() if add else 1e-6
    assert np.abs(after - before).max() <= step
    assert not find_refused(result.model.proto)


def test_a_bias_in_int32_becomes_float():
    text = "b = DequantizeLinear(codes, s) y = Add(x, b)"
    result, before, after = prepared(text, codes=np.arange(4, dtype=np.int32))
    np.testing.assert_allclose(after, before, atol=1e-7)
    assert ops(result) == ["Add"]


def test_codes_that_another_node_reads_stay():
    text = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) c = Cast<to = 1>(q) y = Add(d, c)"
    result, before, after = prepared(text, z=np.uint8(128))
    np.testing.assert_array_equal(after, before)
    points = [numpy_helper.to_array(t) for t in result.model.proto.graph.initializer]
    assert any(point.dtype == np.uint8 for point in points)
