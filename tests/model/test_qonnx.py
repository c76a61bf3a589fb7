"""QONNX's Quant, in the form that Brevitas 0.13.4 exports, against the formula of QONNX 1.0."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fixtures.fails import fails
from tests.fixtures.networks import rng
from tests.fixtures.tables import each
from tests.model.passes.graphs import info, values
from trtcal.errors import InputError
from trtcal.model import load_model

DOMAIN = "qonnx.custom_op.general"
SCALE = np.float32(0.05)


def quant(x, scale, zero, bits, signed=1, narrow=0):
    """Return what QONNX computes: round half to even, limited, and scaled back."""
    low = -(2 ** (bits - 1)) + narrow if signed else 0
    high = 2 ** (bits - 1) - 1 if signed else 2**bits - 1 - narrow
    return (np.clip(np.rint(x / scale + zero), low, high) - zero) * scale


def model_of(x, scale=SCALE, zero=0.0, bits=8.0, op="Quant", computed=(), **attributes):
    """Return a model of one activation x, or of one weight where x is an array, times 1."""
    attributes = {"signed": 1, "narrow": 0, "rounding_mode": "ROUND"} | attributes
    constants = {"scale": scale, "zero": zero, "bits": bits, "one": np.float32(1)}
    inputs = [info("x", [2, 3, 4])]
    if x is not None:
        constants["w"] = x
    tensors = [
        numpy_helper.from_array(np.asarray(value, np.float32), name)
        for name, value in constants.items()
        if name not in computed
    ]
    inputs += [info(name, []) for name in computed]
    names = ["x" if x is None else "w", "scale", "zero", "bits"]
    nodes = [
        helper.make_node(op, names, ["q"], "quant", domain=DOMAIN, **attributes),
        helper.make_node("Mul", ["q", "one" if x is None else "x"], ["y"], "times"),
    ]
    graph = helper.make_graph(nodes, "net", inputs, [info("y", [2, 3, 4])], tensors)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 2)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


@each(
    "zero, bits, attributes, kind",
    [
        (0, 8, {}, "int8"),
        (0, 8, {"narrow": 1}, "int8"),
        (0, 4, {}, "int8"),
        (0, 4, {"signed": 0}, "int8"),
        (0, 8, {"signed": 0}, "uint8"),
        (128, 8, {"signed": 0}, "int8"),
        (100, 8, {"signed": 0}, "uint8"),
        (3, 4, {"signed": 0, "narrow": 1}, "int8"),
        (-20, 8, {}, "uint8"),
    ],
)
def test_activations_have_the_values_of_quant(zero, bits, attributes, kind):
    proto = model_of(None, zero=zero, bits=bits, **attributes)
    model = load_model(proto)
    x = rng(0).normal(0, 5, (2, 3, 4)).astype(np.float32)
    expected = quant(x, SCALE, zero, bits, **attributes)
    result = values(model.proto, {"x": x}, ["y"])["y"]
    np.testing.assert_allclose(result, expected, atol=1e-6)
    points = [t for t in model.proto.graph.initializer if t.name == "q/zero_point"]
    assert TensorProto.DataType.Name(points[0].data_type).lower() == kind
    assert proto.graph.node[0].domain == DOMAIN  # what was given stays


@each("axis, signed", [(None, 1), (0, 1), (1, 1), (1, 0)])
def test_weights_become_codes_with_their_scales(axis, signed):
    weight = rng(1).normal(0, 1, (2, 3, 4)).astype(np.float32)
    shape = [1, 1, 1]
    if axis is not None:
        shape[axis] = weight.shape[axis]
    scale = rng(2).uniform(0.01, 0.05, shape if axis is not None else ()).astype(np.float32)
    model = load_model(model_of(weight, scale, signed=signed, narrow=1))
    assert [node.op_type for node in model.proto.graph.node] == ["DequantizeLinear", "Mul"]
    assert not {"w", "scale", "bits"} & {tensor.name for tensor in model.proto.graph.initializer}
    result = values(model.proto, {"x": np.ones_like(weight)}, ["y"])["y"]
    np.testing.assert_allclose(result, quant(weight, scale, 0, 8, signed, narrow=1), atol=1e-6)


def test_a_weight_that_others_read_stays():
    proto = model_of(rng(1).normal(0, 1, (2, 3, 4)))
    proto.graph.node[1].input[1] = "w"
    onnx.checker.check_model(load_model(proto).proto)


@each(
    "what, changes",
    [
        ("other bits than 2 to 8", {"bits": 16}),
        ("other bits than 2 to 8", {"bits": 2.5}),
        ("scale that is computed", {"computed": ("scale",)}),
        ("not positive and finite", {"scale": 0}),
        ("half to even", {"rounding_mode": "FLOOR"}),
        ("no Q/DQ that computes it", {"op": "BipolarQuant"}),
        ("zero point outside", {"bits": 8, "zero": 400}),
    ],
)
def test_what_has_no_qdq_is_named(what, changes):
    with fails(InputError, "quant", what, hint="export_onnx_qcdq"):
        load_model(model_of(None, **changes))


def test_fewer_bits_in_each_channel_of_an_activation_are_refused():
    scale = np.full((1, 3, 1), 0.1, np.float32)
    load_model(model_of(None, scale))
    with fails(InputError, "several scales", hint="export"):
        load_model(model_of(None, scale, bits=4))
